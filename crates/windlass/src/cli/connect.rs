//! How verbs reach an engine: through the socket of whoever serves the data directory, or by serving it themselves.
//!
//! Every contact of the command line with client and server is in this file. A verb that finds nobody becomes the
//! server for its own duration, speaks to its own socket like everybody else, and stops it at the end, so there is
//! one way to read and change things.

use super::lock_watch::{LockWatch, is_free};
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
pub(super) use stand_in::{Connection, Reload, Server, ServerOptions};
use std::process::ExitCode;

/// The launcher's own main; the program enters it before any argument of a person is read.
pub fn launcher() -> ExitCode {
    stand_in::launcher()
}

/// What a verb becomes where nobody serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carry {
    /// It answers questions and starts nothing.
    Idle,
    /// It works with that many slots on the runs that bring their own command.
    Working { slots: u32 },
}

/// A connection, and the server behind it if that is this process.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: Connection,
    own: Option<Server>,
}

impl Link {
    /// Connects, or becomes the server; a held lock whose holder does not answer is exit code 75.
    pub(super) fn open(dir: &DataDir, carry: Carry) -> Result<Link, Failure> {
        if let Some(connection) = Connection::open(dir)? {
            return Ok(Link { connection, own: None });
        }
        let watch = LockWatch::new(dir)?;
        loop {
            if let Some(connection) = Connection::open(dir)? {
                return Ok(Link { connection, own: None });
            }
            if is_free(dir) {
                match Server::start(options(dir, carry)) {
                    Ok(server) => return Link::to_own(dir, server),
                    // Somebody was faster; whoever it is will answer or let go.
                    Err(failure) if failure.kind == Kind::TryLater => {}
                    Err(failure) => return Err(failure),
                }
            }
            if !watch.wait()? {
                return Err(silent_holder(dir));
            }
        }
    }

    /// Connects, if somebody serves.
    pub(super) fn to_server(dir: &DataDir) -> Result<Option<Connection>, Failure> {
        Connection::open(dir)
    }

    fn to_own(dir: &DataDir, server: Server) -> Result<Link, Failure> {
        match Connection::open(dir)? {
            Some(connection) => Ok(Link { connection, own: Some(server) }),
            None => Err(Failure::new(Kind::Internal, "the server that was just started does not answer")),
        }
    }

    /// True where this process is the server.
    pub(super) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Ends the own server, if there is one; its failure is the verb's.
    pub(super) fn close(self) -> Result<(), Failure> {
        drop(self.connection);
        self.own.map_or(Ok(()), Server::stop)
    }

    /// Does something with the connection and closes the link whatever came of it.
    pub(super) fn with<T>(
        dir: &DataDir,
        act: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut link = Link::open(dir, Carry::Idle)?;
        let result = act(&mut link.connection);
        let closed = link.close();
        let value = result?;
        closed.map(|()| value)
    }
}

/// Starts a server for good, waiting a moment for a verb that holds the directory.
pub(super) fn start_server(options: impl Fn() -> ServerOptions) -> Result<Server, Failure> {
    let first = options();
    let dir = first.dir.clone();
    let refused = match Server::start(first) {
        Err(failure) if failure.kind == Kind::TryLater => failure,
        result => return result,
    };
    let watch = LockWatch::new(&dir)?;
    loop {
        if is_free(&dir) {
            match Server::start(options()) {
                Err(failure) if failure.kind == Kind::TryLater => {}
                result => return result,
            }
        }
        if !watch.wait()? {
            return Err(refused.hint("stop that one first: windlass stop"));
        }
    }
}

fn options(dir: &DataDir, carry: Carry) -> ServerOptions {
    let (slots, work) = match carry {
        Carry::Idle => (0, false),
        Carry::Working { slots } => (slots, true),
    };
    ServerOptions { dir: dir.clone(), policies: Vec::new(), slots, work, ..ServerOptions::default_for(dir) }
}

/// The lock is held, and its holder says nothing.
fn silent_holder(dir: &DataDir) -> Failure {
    let refused = match dir.lock() {
        Err(failure) => failure,
        Ok(_) => Failure::new(Kind::TryLater, format!("{} was in use until a moment ago", dir.root().display())),
    };
    refused.hint(format!("it does not answer on {}; try again, or look at that process", dir.socket().display()))
}

/// True where the failure means that whoever served has gone away, so that trying again can help.
pub(super) fn is_gone(failure: &Failure) -> bool {
    matches!(failure.kind, Kind::NoServer | Kind::TryLater | Kind::Io)
}

/// A text as one part of a URL.
pub(super) fn encoded(text: &str) -> String {
    let mut url = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => url.push(byte as char),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

/// The forms of client and server that this file is written against; the real ones take their place.
mod stand_in {
    use crate::config;
    use crate::data_dir::DataDir;
    use crate::engine::handle::EngineHandle;
    use crate::error::{Failure, Kind};
    use serde_json::Value;
    use std::net::SocketAddr;
    use std::process::ExitCode;
    use std::sync::Arc;
    use windlass_core::policy::Policy;

    pub(in crate::cli) fn launcher() -> ExitCode {
        ExitCode::from(Kind::Internal.exit_code())
    }

    /// Reads and checks the rules again.
    #[derive(Clone)]
    pub(in crate::cli) struct Reload(pub(in crate::cli) Arc<dyn Fn() -> Result<config::Config, Failure> + Send + Sync>);

    impl std::fmt::Debug for Reload {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Reload")
        }
    }

    #[derive(Clone, Debug)]
    pub(in crate::cli) struct ServerOptions {
        pub(in crate::cli) dir: DataDir,
        pub(in crate::cli) policies: Vec<Policy>,
        pub(in crate::cli) slots: u32,
        /// False: it answers, and starts nothing.
        pub(in crate::cli) work: bool,
        /// None: the socket only.
        pub(in crate::cli) listen: Option<SocketAddr>,
        pub(in crate::cli) drain: std::time::Duration,
        pub(in crate::cli) archive: config::Archive,
        /// For `POST /api/v1/reload`.
        pub(in crate::cli) reload: Option<Reload>,
    }

    impl ServerOptions {
        pub(in crate::cli) fn default_for(dir: &DataDir) -> ServerOptions {
            let config::Config { slots, server, archive, .. } = config::Config::default();
            let (drain, dir) = (server.drain, dir.clone());
            ServerOptions { dir, policies: Vec::new(), slots, work: false, listen: None, drain, archive, reload: None }
        }
    }

    #[derive(Debug)]
    pub(in crate::cli) enum Server {}

    impl Server {
        pub(in crate::cli) fn start(options: ServerOptions) -> Result<Server, Failure> {
            let ServerOptions { dir, policies, slots, work, listen, drain, archive, reload } = options;
            drop((dir.lock()?, policies, slots, work, listen, drain, archive, reload));
            Err(Failure::new(Kind::Internal, "this build has no server in it"))
        }

        /// Where the HTTP listener is bound.
        pub(in crate::cli) fn address(&self) -> Option<SocketAddr> {
            match *self {}
        }

        pub(in crate::cli) fn engine(&self) -> EngineHandle {
            match *self {}
        }

        /// Until the engine has ended by itself.
        pub(in crate::cli) fn wait(self) -> Result<(), Failure> {
            match self {}
        }

        /// Drains, and waits for the end.
        pub(in crate::cli) fn stop(self) -> Result<(), Failure> {
            match self {}
        }
    }

    #[derive(Debug)]
    pub(in crate::cli) struct Response {
        pub(in crate::cli) body: Vec<u8>,
    }

    #[derive(Debug)]
    pub(in crate::cli) enum Connection {}

    type Lines<'c> = Box<dyn Iterator<Item = Result<String, Failure>> + 'c>;

    impl Connection {
        pub(in crate::cli) fn open(_: &DataDir) -> Result<Option<Connection>, Failure> {
            Ok(None)
        }

        pub(in crate::cli) fn get(&mut self, _: &str) -> Result<Response, Failure> {
            match *self {}
        }

        pub(in crate::cli) fn get_json(&mut self, _: &str) -> Result<Value, Failure> {
            match *self {}
        }

        pub(in crate::cli) fn post_json(&mut self, _: &str, _: &Value) -> Result<Value, Failure> {
            match *self {}
        }

        pub(in crate::cli) fn post(&mut self, _: &str, _: &str, _: &[u8]) -> Result<Response, Failure> {
            match *self {}
        }

        pub(in crate::cli) fn lines(&mut self, _: &str) -> Result<Lines<'_>, Failure> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_survives_the_url() {
        assert_eq!(encoded("queue:img.* age>1h"), "queue%3Aimg.%2A%20age%3E1h");
        assert_eq!(encoded("ü&=?#/"), "%C3%BC%26%3D%3F%23%2F");
    }

    #[test]
    fn a_silent_holder_is_named() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        let _lock = dir.lock().unwrap();
        let failure = silent_holder(&dir);
        assert_eq!(failure.kind, Kind::TryLater);
        assert!(failure.text.contains(&format!("windlass process {}", std::process::id())), "{}", failure.text);
    }
}
