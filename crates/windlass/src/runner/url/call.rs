//! One call: a connection, a request, an answer within its time and size.
//!
//! A kept connection that turns out to be closed before a byte of an answer came costs nobody anything: the call is
//! made once more over a new one. It must not know what an answer means.

use super::pool::{Connection, Pool};
use super::request::CHECKPOINT;
use crate::clock;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{Request, Response};
use std::time::Duration;
use windlass_core::policy::Host;
use windlass_core::template;
use windlass_core::time::Time;

/// What a call came to.
#[derive(Debug)]
pub(in crate::runner) enum Answer {
    Whole {
        status: u16,
        retry_after: Option<Duration>,
        /// How far the job has come for good.
        checkpoint: Option<String>,
        body: Vec<u8>,
        /// It says that it is JSON.
        json: bool,
        /// It had more than may be kept; the rest was not waited for.
        cut: bool,
    },
    /// Nothing was sent.
    Unreached(String),
    /// It was sent, and no whole answer came.
    Broken(String),
    TimedOut,
}

/// Makes it, once its host has a place for one more; its limit counts from then on. The connection comes back where it
/// can serve another.
pub(in crate::runner) async fn make(
    pool: &Pool,
    host: &Host,
    request: Request<Full<Bytes>>,
    limit: Option<Duration>,
    most: usize,
) -> (Answer, Option<Connection>) {
    let _place = pool.place(host).await;
    match limit {
        None => exchange(pool, host, request, most).await,
        Some(limit) => {
            let made = tokio::time::timeout(limit, exchange(pool, host, request, most)).await;
            made.unwrap_or((Answer::TimedOut, None))
        }
    }
}

async fn exchange(
    pool: &Pool,
    host: &Host,
    request: Request<Full<Bytes>>,
    most: usize,
) -> (Answer, Option<Connection>) {
    if let Some(mut kept) = pool.kept(host) {
        match kept.sender.try_send_request(request.clone()).await {
            Ok(response) => return read(response, kept, most).await,
            Err(unsent) if unsent.error().is_parse() => return (broken(unsent.error()), None),
            // It was closed while nobody used it.
            Err(_) => {}
        }
    }
    let mut fresh = match pool.dial(host).await {
        Ok(fresh) => fresh,
        Err(why) => return (Answer::Unreached(why), None),
    };
    match fresh.sender.send_request(request).await {
        Ok(response) => read(response, fresh, most).await,
        Err(e) => (broken(&e), None),
    }
}

/// Reads the body, at most so many bytes of it.
async fn read(response: Response<Incoming>, connection: Connection, most: usize) -> (Answer, Option<Connection>) {
    let (parts, mut incoming) = response.into_parts();
    let said = parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = said.and_then(|text| retry_after(text, clock::now()));
    let checkpoint = parts.headers.get(CHECKPOINT).and_then(|value| checkpoint(value.as_bytes()));
    let json = parts.headers.get(CONTENT_TYPE).is_some_and(|value| is_json(value.as_bytes()));
    let (mut body, mut cut) = (Vec::new(), false);
    while let Some(frame) = incoming.frame().await {
        let bytes = match frame.map(|frame| frame.into_data()) {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(_trailers)) => continue,
            Err(e) => return (broken(&e), None),
        };
        let room = most - body.len();
        body.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            cut = true;
            break;
        }
    }
    let answer = Answer::Whole { status: parts.status.as_u16(), retry_after, checkpoint, body, json, cut };
    (answer, (!cut).then_some(connection))
}

/// `application/json`, or a kind of it, whatever stands behind.
fn is_json(kind: &[u8]) -> bool {
    let kind = String::from_utf8_lossy(kind).to_ascii_lowercase();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json")
}

/// Text as in a URL, at most 4 KiB without a NUL; anything else is not heard.
fn checkpoint(value: &[u8]) -> Option<String> {
    let text = String::from_utf8(template::decode(value)?).ok()?;
    (text.len() <= 4096 && !text.contains('\0')).then_some(text)
}

fn broken(error: &hyper::Error) -> Answer {
    let why = if error.is_parse_too_large() {
        "the answer's header is too large".to_owned()
    } else if error.is_parse() {
        format!("the answer is no HTTP: {error}")
    } else {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("the answer broke off: {error}{cause}")
    };
    Answer::Broken(why)
}

/// Seconds, or a date as HTTP writes it; a date that has passed means now, and what is neither is not heard.
pub fn retry_after(text: &str, now: Time) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::from(u32::MAX))));
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?;
    Some(Time(date.timestamp().as_microsecond()).since(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = Time(784_111_777_000_000);
        for (text, expected) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("99999999999999999999999", Some(u64::from(u32::MAX))),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sun, 06 Nov 1984 08:50:37 GMT", None),
            ("Tue, 06 Nov 1984 08:50:37 GMT", Some(0)),
            ("-5", None),
            ("", None),
            ("soon", None),
        ] {
            assert_eq!(retry_after(text, now), expected.map(Duration::from_secs), "{text}");
        }
    }
}
