//! How a verb of a store fails: what the engine branches on, and what people read.

use std::fmt;

/// Why a verb failed; the engine branches on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// No space: the turn is rolled back and the engine starts over from the store.
    Full(String),
    /// Bytes that should be there are not, or are not what they were.
    Corrupt(String),
    /// The call does not fit the store's state: a stale claim, a run that is not where the caller thinks.
    Stale(String),
    /// Any other failure: the process ends, and the next one starts from what is durable.
    Io(String),
    /// The store was written by a newer program.
    Newer { found: u32, known: u32 },
    /// Another program has its file locked, or no lock can be had for it.
    Locked(String),
    /// Nobody answers where the store is, or it asks to be tried again: the turn is dropped and done again later.
    Away(String),
    /// Somebody else has locked what is to be changed: the turn is dropped and done again without that.
    Busy(String),
    /// The database does not let in what is to be written: the turn is dropped, and who brought that is told.
    Refused(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Full(what) => write!(f, "no space left: {what}"),
            StoreError::Corrupt(what) => write!(f, "the store is damaged: {what}"),
            StoreError::Stale(what) => write!(f, "stale: {what}"),
            StoreError::Io(what) => write!(f, "the store failed: {what}"),
            StoreError::Newer { found, known } => {
                write!(f, "the store has format {found}, this program knows formats up to {known}")
            }
            StoreError::Locked(what) => write!(f, "the store cannot be locked: {what}"),
            StoreError::Away(what) => write!(f, "the database is away: {what}"),
            StoreError::Refused(what) => write!(f, "the database refuses it: {what}"),
            StoreError::Busy(what) => write!(f, "another program has locked it: {what}"),
        }
    }
}

impl std::error::Error for StoreError {}
