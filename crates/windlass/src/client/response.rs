//! Reading an HTTP/1.1 answer: its head, and its body by length, in chunks, or until the connection ends.
//!
//! Bytes in, bytes out, at any cut; it must not touch a socket.

/// What an answer's head says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) media: String,
    pub(super) framing: Framing,
    /// The connection ends after it.
    pub(super) close: bool,
}

/// How the end of a body is found, and how far it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes are left.
    Length(u64),
    /// A chunk's size comes next.
    ChunkSize,
    /// So many bytes of a chunk are left; then its end of line.
    Chunk(u64),
    /// After the last chunk: lines until an empty one.
    Trailer,
    UntilClose,
    Over,
}

impl Head {
    /// The head and its length; nothing while it is incomplete.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, String> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(bytes).map_err(|e| e.to_string())? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial => return Ok(None),
        };
        let status = response.code.unwrap_or(0);
        let mut head = Head { status, media: String::new(), framing: Framing::UntilClose, close: false };
        for header in response.headers.iter() {
            let value = String::from_utf8_lossy(header.value);
            match header.name.to_ascii_lowercase().as_str() {
                "content-type" => head.media = value.into_owned(),
                "content-length" if head.framing == Framing::UntilClose => {
                    head.framing = Framing::Length(value.trim().parse().map_err(|_| format!("content-length {value}"))?);
                }
                "transfer-encoding" if value.trim().eq_ignore_ascii_case("chunked") => head.framing = Framing::ChunkSize,
                "connection" => head.close = value.trim().eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        if status < 200 || status == 204 || status == 304 || head.framing == Framing::Length(0) {
            head.framing = Framing::Over;
        }
        head.close |= head.framing == Framing::UntilClose;
        Ok(Some((head, length)))
    }
}

impl Framing {
    pub(super) fn is_over(&self) -> bool {
        *self == Framing::Over
    }

    /// Takes what it can of `bytes`, appends the body's part of it and returns how much was taken.
    pub(super) fn decode(&mut self, bytes: &[u8], into: &mut Vec<u8>) -> Result<usize, &'static str> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            match *self {
                Framing::Over => return Ok(at),
                Framing::UntilClose => {
                    into.extend_from_slice(rest);
                    return Ok(bytes.len());
                }
                Framing::Length(left) => {
                    let taken = copy(rest, left, into);
                    *self = if taken == left { Framing::Over } else { Framing::Length(left - taken) };
                    return Ok(at + taken as usize);
                }
                Framing::Chunk(left) if left > 0 => {
                    let taken = copy(rest, left, into);
                    *self = Framing::Chunk(left - taken);
                    at += taken as usize;
                    if taken < left {
                        return Ok(at);
                    }
                }
                Framing::Chunk(_) => {
                    let Some(end) = rest.first_chunk::<2>() else { return Ok(at) };
                    if end != b"\r\n" {
                        return Err("a chunk is longer than it says");
                    }
                    at += 2;
                    *self = Framing::ChunkSize;
                }
                Framing::ChunkSize | Framing::Trailer => {
                    let Some(end) = memchr::memchr(b'\n', rest) else { return Ok(at) };
                    let line = rest[..end].trim_ascii();
                    at += end + 1;
                    *self = match *self {
                        Framing::ChunkSize => match chunk_size(line)? {
                            0 => Framing::Trailer,
                            size => Framing::Chunk(size),
                        },
                        _ if line.is_empty() => Framing::Over,
                        _ => Framing::Trailer,
                    };
                }
            }
        }
    }
}

fn copy(bytes: &[u8], most: u64, into: &mut Vec<u8>) -> u64 {
    let taken = bytes.len().min(usize::try_from(most).unwrap_or(usize::MAX));
    into.extend_from_slice(&bytes[..taken]);
    taken as u64
}

fn chunk_size(line: &[u8]) -> Result<u64, &'static str> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or(&[]).trim_ascii();
    let text = std::str::from_utf8(digits).unwrap_or("");
    u64::from_str_radix(text, 16).map_err(|_| "a chunk without a size")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_body_is_read_at_any_cut() {
        let whole = b"5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nNEXT";
        for cut in 0..whole.len() - 4 {
            let (mut framing, mut body, mut kept) = (Framing::ChunkSize, Vec::new(), Vec::new());
            for piece in [&whole[..cut], &whole[cut..]] {
                kept.extend_from_slice(piece);
                let used = framing.decode(&kept, &mut body).unwrap();
                kept.drain(..used);
            }
            assert_eq!(framing, Framing::Over);
            assert_eq!(body, b"hello0123456789");
            assert_eq!(kept, b"NEXT", "what follows belongs to the next answer");
        }
    }

    #[test]
    fn damaged_framing_is_noticed() {
        for bad in [&b"x\r\n"[..], b"\r\n", b"3\r\nabcd\r\n"] {
            assert!(Framing::ChunkSize.decode(bad, &mut Vec::new()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn heads_say_how_the_body_ends() {
        let framing = |text: &str| Head::parse(text.as_bytes()).unwrap().unwrap().0.framing;
        assert_eq!(framing("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"), Framing::Length(3));
        assert_eq!(framing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), Framing::ChunkSize);
        assert_eq!(framing("HTTP/1.1 204 No\r\n\r\n"), Framing::Over);
        assert_eq!(framing("HTTP/1.0 200 OK\r\n\r\n"), Framing::UntilClose);
        assert_eq!(Head::parse(b"HTTP/1.1 200 OK\r\nContent-"), Ok(None));
        assert!(Head::parse(b"\x16\x03\x01").is_err());
    }
}
