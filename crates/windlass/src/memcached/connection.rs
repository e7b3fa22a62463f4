//! The text protocol of memcached, as far as it is needed: many values written, each of them answered.
//!
//! Every wait has an end, and after an answer that is none the connection is of no more use. It must not know whose
//! values they are.

use super::book::Item;
use crate::client::connection::is_authority;
use crate::error::{Failure, Kind};
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How long a memcached may take to be reached, to take something and to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// No answer is longer.
const ANSWER_MAX: u64 = 1024;

/// Where a memcached listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `HOST:PORT`.
    Tcp(String),
    Socket(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0));
        match text {
            path if path.starts_with('/') => Ok(Address::Socket(path.into())),
            host if has_port && is_authority(host) => Ok(Address::Tcp(host.to_owned())),
            other => Err(format!("{other:?} is no memcached, expected HOST:PORT or the path of a socket")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host) => f.write_str(host),
            Address::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Stream {
    fn open(address: &Address) -> std::io::Result<Stream> {
        match address {
            Address::Tcp(host) => {
                let mut last = std::io::ErrorKind::AddrNotAvailable.into();
                for address in host.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, PATIENCE) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            stream.set_read_timeout(Some(PATIENCE))?;
                            stream.set_write_timeout(Some(PATIENCE))?;
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            Address::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Ok(Stream::Unix(stream))
            }
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        }
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Connection {
    address: Address,
    stream: BufReader<Stream>,
}

impl Connection {
    pub(super) fn open(address: &Address) -> Result<Connection, Failure> {
        let stream = Stream::open(address).map_err(|e| Failure::io(format_args!("cannot reach {address}"), &e))?;
        Ok(Connection { address: address.clone(), stream: BufReader::new(stream) })
    }

    /// Writes values to be kept for so long, and tells how many of them were refused, and why the last of those was.
    pub(super) fn set(&mut self, items: &[Item], keep: Duration) -> Result<(u64, Option<String>), Failure> {
        let mut bytes = Vec::new();
        for Item { key, value, .. } in items {
            let head = format!("set {key} 0 {} {}\r\n", keep.as_secs().max(1), value.len());
            bytes.extend([head.as_bytes(), value.as_bytes(), b"\r\n"].concat());
        }
        let written = self.stream.get_mut().write_all(&bytes);
        written.map_err(|e| Failure::io(format_args!("cannot write to {}", self.address), &e))?;
        let (mut refused, mut why) = (0, None);
        for _ in items {
            let answer = self.answer()?;
            match answer.split(' ').next() {
                Some("STORED") => {}
                // It has no room for the value, or wants none of it; the next may be different.
                Some("SERVER_ERROR") => (refused, why) = (refused + 1, Some(answer)),
                _ => {
                    let text = format!("{} answers {answer:?}, expected \"STORED\"", self.address);
                    return Err(Failure::new(Kind::Io, text));
                }
            }
        }
        Ok((refused, why))
    }

    fn answer(&mut self) -> Result<String, Failure> {
        let mut line = Vec::new();
        let read = (&mut self.stream).take(ANSWER_MAX).read_until(b'\n', &mut line);
        let wrong = |e: std::io::Error| Failure::io(format_args!("{} does not answer", self.address), &e);
        match read.map_err(wrong)? {
            0 => Err(wrong(std::io::ErrorKind::UnexpectedEof.into())),
            _ => Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.stream.get_ref() {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memcached_is_a_host_with_a_port_or_a_socket() {
        for text in ["127.0.0.1:11211", "[::1]:11211", "cache.example:1", "/run/memcached.sock"] {
            assert_eq!(text.parse::<Address>().map(|address| address.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "localhost", "127.0.0.1:", "127.0.0.1:0", "h:99999", "a b:1", "run/memcached.sock", ":11211"] {
            let refused = text.parse::<Address>().unwrap_err();
            assert!(refused.contains("is no memcached, expected HOST:PORT or the path of a socket"), "{refused}");
        }
    }
}
