//! How verbs reach an engine: through the socket of whoever serves the data directory, or by serving it themselves.
//!
//! Every contact of the command line with client and server is in this file. A verb that finds nobody becomes the
//! server for its own duration, speaks to its own socket like everybody else, and stops it at the end, so there is
//! one way to read and change things.

use super::lock_watch::{LockWatch, is_free};
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use crate::client;
use crate::client::connection::Response;
use crate::server::{Server, ServerOptions};
use serde_json::Value;

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
    let (slots, serves) = match carry {
        Carry::Idle => (0, false),
        Carry::Working { slots } => (slots, true),
    };
    ServerOptions { slots, serves, ..ServerOptions::new(dir.clone()) }
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

/// A connection as the verbs use it: every refusal is a failure already.
#[derive(Debug)]
pub(super) struct Connection(client::connection::Connection);

impl Connection {
    fn open(dir: &DataDir) -> Result<Option<Connection>, Failure> {
        Ok(client::connection::Connection::open(dir)?.map(Connection))
    }

    pub(super) fn get(&mut self, path: &str) -> Result<Response, Failure> {
        self.0.get(path)?.checked()
    }

    pub(super) fn get_json(&mut self, path: &str) -> Result<Value, Failure> {
        self.0.get_json(path)
    }

    /// Asks for something that comes when it comes, such as the end of a run.
    pub(super) fn await_json(&mut self, path: &str) -> Result<Value, Failure> {
        self.0.set_patience(None);
        self.0.get_json(path)
    }

    pub(super) fn post_json(&mut self, path: &str, document: &Value) -> Result<Value, Failure> {
        self.0.post_json(path, document)
    }

    pub(super) fn post_empty(&mut self, path: &str) -> Result<Value, Failure> {
        self.0.post_empty(path)
    }

    pub(super) fn post(&mut self, path: &str, media: &str, body: &[u8]) -> Result<Response, Failure> {
        self.0.post(path, media, body)?.checked()
    }

    /// The lines of an answer as they come.
    pub(super) fn lines(self, path: &str) -> Result<impl Iterator<Item = Result<String, Failure>>, Failure> {
        let mut lines = self.0.lines(path)?;
        let text = |line| String::from_utf8(line).map_err(|_| Failure::new(Kind::Version, "an answer is not text"));
        Ok(std::iter::from_fn(move || lines.next_line().transpose().map(|line| line.and_then(text))))
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
