//! A blocking HTTP/1.1 client over the Unix socket or loopback TCP: one request at a time, kept alive between them.
//!
//! A connection that has been idle is made anew before the server would close it, so that a request is never sent
//! into a closing one. When an answer is lost the failure says that the outcome is not known (P5). It must not
//! repeat a request by itself.

use super::response::{Framing, Head};
use crate::api::{self, Problem};
use crate::data_dir::DataDir;
use crate::error::{Failure, Kind};
use rustix::fs::{Mode, OFlags};
use rustix::net::RecvFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Half of what the server allows an idle connection.
const REUSED_WITHIN: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const HEAD_MAX: usize = 64 << 10;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Unix(PathBuf),
    /// A host, by name or address, and a port.
    Tcp(String),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Unix(path) => write!(f, "unix://{}", path.display()),
            Target::Tcp(authority) => write!(f, "http://{authority}"),
        }
    }
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub media: String,
    pub body: Vec<u8>,
}

impl Response {
    /// The answer itself, or the failure that it tells of.
    pub fn checked(self) -> Result<Response, Failure> {
        if self.status < 300 { Ok(self) } else { Err(self.failure()) }
    }

    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body)
            .map_err(|e| Failure::new(Kind::Version, format!("the server's answer is not what was expected: {e}")))
    }

    fn failure(&self) -> Failure {
        match serde_json::from_slice::<Problem>(&self.body) {
            Ok(problem) => problem.into_failure(),
            Err(_) => {
                let kind =
                    Kind::ALL.into_iter().find(|kind| kind.http_status() == self.status).unwrap_or(Kind::Internal);
                Failure::new(kind, format!("the server answered with status {}", self.status))
            }
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    target: Target,
    token: Option<String>,
    stream: Option<Stream>,
    /// Bytes that were received; those before `at` are done with.
    received: Vec<u8>,
    at: usize,
    used: Instant,
    /// The whole request left; without that no server can have acted on it.
    sent: bool,
    patience: Option<Duration>,
}

impl Connection {
    /// Connects to the server of a data directory; nothing if nobody listens there.
    pub fn open(dir: &DataDir) -> Result<Option<Connection>, Failure> {
        Connection::to(Target::Unix(dir.socket()), None)
    }

    /// Connects to `http://HOST:PORT` or `unix:///PATH`; nothing if nobody listens there.
    pub fn open_url(url: &str, token: Option<&str>) -> Result<Option<Connection>, Failure> {
        let target = match (url.strip_prefix("unix://"), url.strip_prefix("http://")) {
            (Some(path), _) => Some(Target::Unix(path.into())),
            (None, Some(rest)) => {
                let authority = rest.strip_suffix('/').unwrap_or(rest);
                is_authority(authority).then(|| Target::Tcp(authority.to_owned()))
            }
            (None, None) => None,
        };
        let bad = || {
            let failure = Failure::new(Kind::Usage, format!("expected http://HOST:PORT or unix:///PATH, got: {url}"));
            match url.starts_with("https:") {
                true => failure.hint("a server speaks http; across a network it belongs behind a tunnel or a proxy"),
                false => failure,
            }
        };
        Connection::to(target.ok_or_else(bad)?, token.map(str::to_owned))
    }

    fn to(target: Target, token: Option<String>) -> Result<Option<Connection>, Failure> {
        let stream = connect(&target)?;
        Ok(stream.map(|stream| Connection {
            target,
            token,
            stream: Some(stream),
            received: Vec::new(),
            at: 0,
            used: Instant::now(),
            sent: false,
            patience: Some(PATIENCE),
        }))
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    /// How long an answer may take; none waits for ever, as for the end of a run.
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        self.patience = patience;
    }

    pub fn get(&mut self, path: &str) -> Result<Response, Failure> {
        self.request("GET", path, None, &[])
    }

    pub fn post(&mut self, path: &str, media: &str, body: &[u8]) -> Result<Response, Failure> {
        self.request("POST", path, Some(media), body)
    }

    /// Posts in the name of whoever has this token, such as one job.
    pub fn post_as(&mut self, token: &str, path: &str, media: &str, body: &[u8]) -> Result<Response, Failure> {
        let own = self.token.replace(token.to_owned());
        let response = self.post(path, media, body);
        self.token = own;
        response
    }

    /// A second hold of the stream, for somebody who may have to end the wait for an answer.
    pub fn hold_of_stream(&self) -> Option<OwnedFd> {
        match self.stream.as_ref()? {
            Stream::Unix(stream) => stream.try_clone().ok().map(Into::into),
            Stream::Tcp(stream) => stream.try_clone().ok().map(Into::into),
        }
    }

    pub fn get_json<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Failure> {
        self.get(path)?.checked()?.json()
    }

    /// Posts a document and reads one.
    pub fn post_json<T: DeserializeOwned>(&mut self, path: &str, document: &impl Serialize) -> Result<T, Failure> {
        let body = serde_json::to_vec(document)
            .map_err(|e| Failure::new(Kind::Internal, format!("cannot write the request: {e}")))?;
        self.post(path, api::JSON, &body)?.checked()?.json()
    }

    /// Posts nothing to a route that takes no body.
    pub fn post_empty<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Failure> {
        self.request("POST", path, None, &[])?.checked()?.json()
    }

    /// Begins an answer of lines that come as things happen; there is no limit to the wait between them.
    pub fn lines(mut self, path: &str) -> Result<Lines, Failure> {
        self.send("GET", path, None, &[])?;
        let head = self.read_head()?;
        if head.status >= 300 {
            let response = self.read_rest(head)?;
            return Err(response.failure());
        }
        if let Some(stream) = &self.stream {
            stream.set_patience(None).map_err(|e| self.lost(&e))?;
        }
        Ok(Lines { connection: self, framing: head.framing, text: Vec::new(), searched: 0 })
    }

    fn request(&mut self, method: &str, path: &str, media: Option<&str>, body: &[u8]) -> Result<Response, Failure> {
        self.send(method, path, media, body)?;
        let head = self.read_head()?;
        self.read_rest(head)
    }

    fn send(&mut self, method: &str, path: &str, media: Option<&str>, body: &[u8]) -> Result<(), Failure> {
        self.refresh()?;
        let host = match &self.target {
            Target::Unix(_) => "localhost".to_owned(),
            Target::Tcp(authority) => authority.clone(),
        };
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n");
        if let Some(token) = &self.token {
            text.push_str(&format!("authorization: Bearer {token}\r\n"));
        }
        if let Some(media) = media {
            text.push_str(&format!("content-type: {media}\r\n"));
        }
        if method != "GET" {
            text.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        let (joined, apart) = if body.len() <= HEAD_MAX { (body, &[][..]) } else { (&[][..], body) };
        bytes.extend_from_slice(joined);
        let patience = self.patience;
        let Some(stream) = &mut self.stream else { return Err(no_server(&self.target)) };
        let sent = stream
            .set_patience(patience)
            .and_then(|()| stream.write_all(&bytes))
            .and_then(|()| stream.write_all(apart));
        self.sent = sent.is_ok();
        match sent {
            // A server that refuses early closes its end; its answer is already here and says why.
            Err(e) if !matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Err(self.lost(&e)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// A fresh connection where the old one was used up, broke, or may be about to be closed.
    fn refresh(&mut self) -> Result<(), Failure> {
        let usable =
            self.stream.as_ref().is_some_and(|stream| self.used.elapsed() <= REUSED_WITHIN && stream.is_quiet());
        if !usable {
            self.stream = connect(&self.target)?;
            self.received.clear();
            self.at = 0;
        }
        if self.stream.is_none() { Err(no_server(&self.target)) } else { Ok(()) }
    }

    fn read_head(&mut self) -> Result<Head, Failure> {
        loop {
            match Head::parse(&self.received[self.at..]) {
                Ok(Some((head, length))) => {
                    self.at += length;
                    // Interim answers say nothing.
                    if head.status >= 200 {
                        return Ok(head);
                    }
                }
                Ok(None) if self.received.len() - self.at > HEAD_MAX => {
                    return Err(self.garbled("its head is too long"));
                }
                Ok(None) => {
                    if self.receive()? == 0 {
                        return Err(self.lost(&ErrorKind::UnexpectedEof.into()));
                    }
                }
                Err(what) => return Err(self.garbled(&what)),
            }
        }
    }

    fn read_rest(&mut self, head: Head) -> Result<Response, Failure> {
        let mut response = Response { status: head.status, media: head.media, body: Vec::new() };
        let mut framing = head.framing;
        while self.read_body(&mut framing, &mut response.body)? {}
        self.used = Instant::now();
        if head.close {
            self.stream = None;
        }
        Ok(response)
    }

    /// Appends what has come of the body; false at its end.
    fn read_body(&mut self, framing: &mut Framing, into: &mut Vec<u8>) -> Result<bool, Failure> {
        loop {
            let before = into.len();
            let used = framing.decode(&self.received[self.at..], into);
            self.at += match used {
                Ok(used) => used,
                Err(what) => return Err(self.garbled(what)),
            };
            if framing.is_over() {
                return Ok(false);
            }
            if into.len() > before {
                return Ok(true);
            }
            if self.receive()? == 0 {
                if *framing == Framing::UntilClose {
                    *framing = Framing::Over;
                    return Ok(false);
                }
                return Err(self.lost(&ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn receive(&mut self) -> Result<usize, Failure> {
        self.received.drain(..self.at);
        self.at = 0;
        let end = self.received.len();
        self.received.resize(end + (64 << 10), 0);
        let result = loop {
            let Some(stream) = &mut self.stream else { break Ok(0) };
            match stream.read(&mut self.received[end..]) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        self.received.truncate(end + result.as_ref().copied().unwrap_or(0));
        result.map_err(|e| self.lost(&e))
    }

    /// The answer will not come any more: what the server made of a whole request is not known.
    fn lost(&mut self, error: &std::io::Error) -> Failure {
        self.stream = None;
        if !self.sent {
            let text = format!("the server at {} went away before it took the request: {error}", self.target);
            return Failure::new(Kind::NoServer, text).hint("nothing was done; ask again");
        }
        let hint = "what was asked for may or may not have been done; look before you ask again";
        match (error.kind(), self.patience) {
            (ErrorKind::WouldBlock | ErrorKind::TimedOut, Some(patience)) => {
                let text = format!("the server at {} did not answer within {} s", self.target, patience.as_secs());
                Failure::new(Kind::TimeOut, text).hint(hint)
            }
            _ => {
                let text = format!("the server at {} went away before it answered: {error}", self.target);
                Failure::new(Kind::Io, text).hint(hint)
            }
        }
    }

    fn garbled(&mut self, what: &str) -> Failure {
        self.stream = None;
        Failure::new(Kind::Version, format!("cannot read the answer of {}: {what}", self.target))
    }
}

/// An answer that comes line by line.
#[derive(Debug)]
pub struct Lines {
    connection: Connection,
    framing: Framing,
    text: Vec<u8>,
    searched: usize,
}

impl Lines {
    /// The next line without its end; nothing when the server ended the answer properly.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if let Some(found) = memchr::memchr(b'\n', &self.text[self.searched..]) {
                let rest = self.text.split_off(self.searched + found + 1);
                let mut line = std::mem::replace(&mut self.text, rest);
                line.pop();
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.text.len();
            if !self.connection.read_body(&mut self.framing, &mut self.text)? && self.searched == self.text.len() {
                let last = std::mem::take(&mut self.text);
                self.searched = 0;
                return Ok((!last.is_empty()).then_some(last));
            }
        }
    }
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// True while the other end has neither closed nor said anything unasked.
    fn is_quiet(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = match self {
            Stream::Unix(stream) => rustix::net::recv(stream, &mut [0; 1][..], flags),
            Stream::Tcp(stream) => rustix::net::recv(stream, &mut [0; 1][..], flags),
        };
        matches!(peeked, Err(rustix::io::Errno::AGAIN))
    }

    fn set_patience(&self, patience: Option<Duration>) -> std::io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience)),
            Stream::Tcp(stream) => stream.set_read_timeout(patience).and_then(|()| stream.set_write_timeout(patience)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(buffer),
            Stream::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write(bytes),
            Stream::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn connect(target: &Target) -> Result<Option<Stream>, Failure> {
    let stream = match target {
        Target::Unix(path) => through_directory(path, |short| UnixStream::connect(short)).map(Stream::Unix),
        Target::Tcp(authority) => connect_to_host(authority).map(Stream::Tcp),
    };
    match stream {
        Ok(stream) => Ok(Some(stream)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(e) => Err(match target {
            Target::Unix(_) => Failure::io(format_args!("cannot connect to {target}"), &e),
            Target::Tcp(_) => Failure::new(Kind::NoServer, format!("cannot connect to {target}: {e}")),
        }),
    }
}

/// Tries every address that the name has; the last failure is told.
fn connect_to_host(authority: &str) -> std::io::Result<TcpStream> {
    let mut tried = Err(ErrorKind::AddrNotAvailable.into());
    for address in authority.to_socket_addrs()? {
        tried = TcpStream::connect_timeout(&address, CONNECT_WITHIN);
        if tried.is_ok() {
            break;
        }
    }
    let stream = tried?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// `HOST:PORT`, `1.2.3.4:80` or `[::1]:80`.
pub(crate) fn is_authority(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let host_fits = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(plain),
    };
    host_fits && port.parse::<u16>().is_ok()
}

fn no_server(target: &Target) -> Failure {
    Failure::new(Kind::NoServer, format!("nobody listens at {target}")).hint("start one with `windlass serve`")
}

/// Socket addresses hold 108 bytes, paths more: the directory is opened and named by its descriptor.
pub(crate) fn through_directory<T>(path: &Path, act: impl FnOnce(&Path) -> std::io::Result<T>) -> std::io::Result<T> {
    const ADDRESS_MAX: usize = 107;
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return act(path) };
    if path.as_os_str().len() <= ADDRESS_MAX {
        return act(path);
    }
    let directory = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    act(&Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name))
}

/// A text as the value of a query.
pub fn query_value(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
