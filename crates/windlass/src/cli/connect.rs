//! How verbs reach an engine: through the socket of whoever serves the data directory, or by serving it themselves.
//!
//! Every contact of the command line with client and server is in this file. A verb that finds nobody becomes the
//! server for its own duration, speaks to its own socket like everybody else, and stops it at the end, so there is
//! one way to read and change things.

use super::lock_watch::{LockWatch, is_free};
use super::place::Place;
pub(super) use crate::client::{Connection, Lines, query_value as encoded};
use crate::config::Loaded;
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::log::Log;
pub(super) use crate::server::{ReadConfig, Server, ServerOptions};
use crate::store::place::StorePlace;

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
    own: Option<(Server, Carry)>,
}

impl Link {
    /// Connects; where nobody serves a data directory, becomes a server that only answers.
    pub(super) fn open(place: &Place) -> Result<Link, Failure> {
        match place {
            Place::Directory { dir, store } => Link::open_in(dir, store, Carry::Idle),
            Place::Address { .. } => Ok(Link { connection: place.server()?.ok_or_else(went_away)?, own: None }),
        }
    }

    /// Connects, or becomes the server; a held lock whose holder does not answer is exit code 75.
    pub(super) fn open_in(dir: &DataDir, store: &StorePlace, carry: Carry) -> Result<Link, Failure> {
        if let Some(connection) = Connection::open(dir)? {
            return Ok(Link { connection, own: None });
        }
        let watch = LockWatch::new(dir)?;
        loop {
            if let Some(connection) = Connection::open(dir)? {
                return Ok(Link { connection, own: None });
            }
            if is_free(dir) {
                match Server::start(options(dir, store, carry)) {
                    Ok(server) => return Link::to_own(dir, server, carry),
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

    /// Another connection to the same server, for somebody else to use up.
    pub(super) fn second(&self, place: &Place) -> Result<Connection, Failure> {
        place.server()?.ok_or_else(went_away)
    }

    /// Connects, if somebody serves.
    pub(super) fn to_server(dir: &DataDir) -> Result<Option<Connection>, Failure> {
        Connection::open(dir)
    }

    fn to_own(dir: &DataDir, server: Server, carry: Carry) -> Result<Link, Failure> {
        let silent = || Failure::new(Kind::Internal, "the server that was just started does not answer");
        let connected = Connection::open(dir).and_then(|connection| connection.ok_or_else(silent));
        let ready = connected.and_then(|connection| match carry {
            Carry::Idle => read_inbox(dir).map(|()| connection),
            Carry::Working { .. } => Ok(connection),
        });
        match ready {
            Ok(connection) => Ok(Link { connection, own: Some((server, carry)) }),
            Err(failure) => {
                // Why it cannot be spoken to is the failure to tell; the stop is only tidy.
                let _ = server.stop();
                Err(failure)
            }
        }
    }

    /// True where this process is the server.
    pub(super) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Ends the own server, if there is one; its failure is the verb's.
    pub(super) fn close(self) -> Result<(), Failure> {
        drop(self.connection);
        match self.own {
            None => Ok(()),
            Some((server, Carry::Idle)) => server.retire(),
            // Whoever follows what still runs is told of its end.
            Some((server, Carry::Working { .. })) => server.stop(),
        }
    }

    /// Asks what changes nothing, if need be of the next one who serves, or of this process.
    pub(super) fn ask<T>(place: &Place, ask: impl Fn(&mut Connection) -> Result<T, Failure>) -> Result<T, Failure> {
        let mut asked = 1;
        loop {
            let mut link = Link::open(place)?;
            let (own, result) = (link.is_own(), ask(&mut link.connection));
            let closed = link.close();
            match result {
                Err(failure) if !own && asked < ASKED_MOST && (is_gone(&failure) || failure.kind == Kind::Internal) => {
                    asked += 1;
                }
                result => {
                    let value = result?;
                    return closed.map(|()| value);
                }
            }
        }
    }

    /// Does something with the connection and closes the link whatever came of it.
    pub(super) fn with<T>(
        place: &Place,
        act: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        Link::with_own(place, |connection, _| act(connection))
    }

    /// The same for what depends on whether this process is the server.
    pub(super) fn with_own<T>(
        place: &Place,
        act: impl FnOnce(&mut Connection, bool) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut link = Link::open(place)?;
        let own = link.is_own();
        let result = act(&mut link.connection, own);
        let closed = link.close();
        let value = result?;
        closed.map(|()| value)
    }
}

/// What is said where somebody served a moment ago, and nobody does now.
pub(in crate::cli) fn went_away() -> Failure {
    Failure::new(Kind::NoServer, "the server went away")
}

/// A question that changes nothing is asked again where whoever served went away over it: another verb, which had the
/// directory for a moment, or a server that was stopped.
const ASKED_MOST: usize = 20;

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

/// Whoever serves what a config says, for good or for as long as its own work takes.
pub(super) fn configured(loaded: &Loaded, dir: &DataDir, store: &StorePlace, log: &Log) -> ServerOptions {
    let config = &loaded.config;
    ServerOptions {
        store: store.clone(),
        nudge: config.nudge,
        policies: config.policies(),
        slots: config.slots,
        memory: config.memory(),
        serves: true,
        drain: config.server.drain,
        archive: config.archive,
        handlers_dir: config.handlers.as_ref().map(|handlers| handlers.path.clone()),
        config: loaded.clone(),
        log: log.clone(),
        ..ServerOptions::new(dir.clone())
    }
}

/// Whoever only answers knows no config, and must not remove what that says is kept.
pub(super) fn idle_options(dir: &DataDir, store: &StorePlace) -> ServerOptions {
    ServerOptions { store: store.clone(), keeps_house: false, ..ServerOptions::new(dir.clone()) }
}

fn options(dir: &DataDir, store: &StorePlace, carry: Carry) -> ServerOptions {
    let idle = idle_options(dir, store);
    match carry {
        Carry::Idle => idle,
        Carry::Working { slots } => ServerOptions { slots, serves: true, keeps_house: true, ..idle },
    }
}

/// Waits until everything in the inbox is in the store, so that a verb sees what was pushed before it. Where nothing
/// can run, that is all that "drained" waits for, but for what is on its way to another server: that may take for ever.
fn read_inbox(dir: &DataDir) -> Result<(), Failure> {
    let Some(mut connection) = Connection::open(dir)? else { return Ok(()) };
    connection.set_patience(None);
    connection.get("/api/v1/drained?here_only=true")?.checked().map(drop)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_only_answers_keeps_no_house() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        let keeps = |carry| options(&dir, &StorePlace::Embedded, carry).keeps_house;
        assert!(!keeps(Carry::Idle) && keeps(Carry::Working { slots: 1 }));
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
