//! The two tables that turn failures into numbers: exit codes for the shell, statuses for HTTP.
//!
//! Errors that someone branches on are enums of their own seams; what reaches a person is a `Failure`: a kind,
//! a sentence, and often a hint. Nothing else in the program chooses an exit code or a status.

use crate::store::StoreError;
use std::fmt;

/// What kind of failure it is; decides the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Some job failed: not an error of ours.
    JobFailed,
    Usage,
    BadData,
    NoInput,
    NotFound,
    NoServer,
    Internal,
    CannotCreate,
    Io,
    Full,
    TryLater,
    /// Out of descriptors, processes, memory or locks: it passes.
    Shortage,
    Conflict,
    Version,
    NotPermitted,
    Config,
    TimeOut,
}

impl Kind {
    /// The one table of exit codes (sysexits).
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::JobFailed => 1,
            Kind::Usage => 64,
            Kind::BadData => 65,
            Kind::NoInput | Kind::NotFound => 66,
            Kind::NoServer => 69,
            Kind::Internal => 70,
            Kind::CannotCreate => 73,
            Kind::Io | Kind::Full => 74,
            Kind::TryLater | Kind::Shortage | Kind::Conflict => 75,
            Kind::Version => 76,
            Kind::NotPermitted => 77,
            Kind::Config => 78,
            Kind::TimeOut => 124,
        }
    }

    /// The one table of HTTP statuses.
    pub fn http_status(self) -> u16 {
        match self {
            Kind::JobFailed | Kind::BadData | Kind::Config => 422,
            Kind::Usage => 400,
            Kind::NoInput | Kind::NotFound => 404,
            Kind::Internal | Kind::Io | Kind::CannotCreate => 500,
            Kind::Full => 507,
            Kind::NoServer | Kind::TryLater | Kind::Shortage => 503,
            Kind::Conflict => 409,
            Kind::Version => 505,
            Kind::NotPermitted => 403,
            Kind::TimeOut => 504,
        }
    }

    pub const ALL: [Kind; 17] = [
        Kind::JobFailed,
        Kind::Usage,
        Kind::BadData,
        Kind::NoInput,
        Kind::NotFound,
        Kind::NoServer,
        Kind::Internal,
        Kind::CannotCreate,
        Kind::Io,
        Kind::Full,
        Kind::TryLater,
        Kind::Shortage,
        Kind::Conflict,
        Kind::Version,
        Kind::NotPermitted,
        Kind::Config,
        Kind::TimeOut,
    ];

    /// The stable word of this kind in problem documents.
    pub fn word(self) -> &'static str {
        match self {
            Kind::JobFailed => "job_failed",
            Kind::Usage => "usage",
            Kind::BadData => "bad_data",
            Kind::NoInput => "no_input",
            Kind::NotFound => "not_found",
            Kind::NoServer => "no_server",
            Kind::Internal => "internal",
            Kind::CannotCreate => "cannot_create",
            Kind::Io => "io",
            Kind::Full => "full",
            Kind::TryLater => "try_later",
            Kind::Shortage => "shortage",
            Kind::Conflict => "conflict",
            Kind::Version => "version",
            Kind::NotPermitted => "not_permitted",
            Kind::Config => "config",
            Kind::TimeOut => "time_out",
        }
    }
}

/// A failure that a person reads: lower case, what failed, the value, what was expected; then a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: Kind,
    pub text: String,
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(kind: Kind, text: impl Into<String>) -> Failure {
        Failure { kind, text: text.into(), hint: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// An I/O error with what was being done, its kind read off the error.
    pub fn io(doing: impl fmt::Display, error: &std::io::Error) -> Failure {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => Kind::NotPermitted,
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Kind::Full,
            std::io::ErrorKind::FileTooLarge => Kind::Full,
            std::io::ErrorKind::OutOfMemory => Kind::Shortage,
            _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => Kind::Shortage,
            _ => Kind::Io,
        };
        Failure::new(kind, format!("{doing}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let kind = match &error {
            StoreError::Full(_) => Kind::Full,
            StoreError::Corrupt(_) | StoreError::Io(_) => Kind::Io,
            StoreError::Stale(_) => Kind::Conflict,
            StoreError::Newer { .. } => Kind::Version,
            // Who tries later waits for the holder of the directory's own lock, and here that is this process.
            StoreError::Locked(_) => Kind::Shortage,
            StoreError::Refused(_) => Kind::BadData,
            StoreError::Away(_) | StoreError::Busy(_) => Kind::TryLater,
        };
        let failure = Failure::new(kind, error.to_string());
        match kind {
            Kind::Shortage => failure.hint("end the program that has state.db open"),
            _ => failure,
        }
    }
}
