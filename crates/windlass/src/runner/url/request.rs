//! From jobs to a request: its target, its headers, its body and its signature. `docs/runners.md` is the contract.
//!
//! One job is sent as it is, byte for byte; many go in a frame. What a template stands for is encoded, so data can
//! never become another part of a URL; where it would lead to another path all the same, the job is refused.

use super::answer::End;
use super::books::Claim;
use crate::api::base64;
use crate::clock;
use crate::particulars::{TRACE_HEADERS, parts};
use crate::runner::command::order::field;
use crate::runner::lines::Layer;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method as HttpMethod, Request, Uri};
use ring::hmac;
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Framing, Method, Url};
use windlass_core::template::{self, Values};

/// What stands around the data of a job in a frame, mostly less.
const OBJECT_MOST: usize = 128;
/// The longest path and query; servers take less.
const TARGET_MOST: usize = 60 << 10;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const QUEUE: HeaderName = HeaderName::from_static("windlass-queue");
/// How far a job has come for good, encoded as in a URL: told to the call, and by its answer.
pub(super) const CHECKPOINT: HeaderName = HeaderName::from_static("windlass-checkpoint");
const ATTEMPT: HeaderName = HeaderName::from_static("windlass-attempt");

/// What is the same for all calls of a crew.
pub(super) struct Prepared {
    host: Option<HeaderValue>,
    /// The target, where it has no template.
    uri: Option<Uri>,
    key: Option<hmac::Key>,
}

impl Prepared {
    pub(super) fn new(url: &Url) -> Prepared {
        let uri = (!url.target.contains('{')).then(|| Uri::try_from(url.target.as_str()).ok()).flatten();
        let key = url.secret.as_ref().map(|secret| hmac::Key::new(hmac::HMAC_SHA256, &secret.key));
        Prepared { host: HeaderValue::try_from(url.host.to_string()).ok(), uri, key }
    }
}

/// A request for some of the jobs.
pub(super) struct Laid {
    /// None where no job was left to send.
    pub(super) request: Option<Request<Full<Bytes>>>,
    pub(super) jobs: Vec<u32>,
    /// Jobs that can never be sent.
    pub(super) refused: Vec<End>,
    /// The first job that had no room.
    pub(super) rest: Option<u32>,
}

pub(super) fn lay(url: &Url, prepared: &Prepared, claim: &Claim, jobs: &[u32]) -> Laid {
    let mut laid = Laid { request: None, jobs: Vec::with_capacity(jobs.len()), refused: Vec::new(), rest: None };
    let refuse = |job: u32, error: String| (job, Outcome::FailedForGood { error }, Vec::new());
    let (body, kind) = match url.size {
        0 | 1 => {
            laid.rest = jobs.get(1).copied();
            let Some(first) = jobs.first().copied() else { return laid };
            match claim.data(first) {
                Ok(data) => {
                    laid.jobs.push(first);
                    let kind = kind_of(&data);
                    (data.into_owned(), kind)
                }
                Err(error) => {
                    laid.refused.push(refuse(first, error));
                    return laid;
                }
            }
        }
        _ => frame(url, claim, jobs, &mut laid),
    };
    let Some(first) = laid.jobs.first().copied() else { return laid };
    let body = if url.method == Method::Get { Vec::new() } else { body };
    match head(url, prepared, claim, first, laid.jobs.len(), &body) {
        Ok(mut request) => {
            if url.method == Method::Post {
                request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            }
            laid.request = Some(request.map(|()| Full::new(Bytes::from(body))));
        }
        Err(error) => laid.refused.extend(laid.jobs.drain(..).map(|job| refuse(job, error.clone()))),
    }
    laid
}

/// What one job's data is, for its receiver.
fn kind_of(data: &[u8]) -> &'static str {
    let json = |data| serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok();
    match data.trim_ascii_start().first() {
        Some(b'{' | b'[') if json(data) => "application/json",
        _ if std::str::from_utf8(data).is_ok() => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Many jobs in one body.
fn frame(url: &Url, claim: &Claim, jobs: &[u32], laid: &mut Laid) -> (Vec<u8>, &'static str) {
    let framing = if url.framing == Framing::Array { Framing::Json } else { url.framing };
    let data: usize = claim.each(jobs).map(|(_, start, at)| start.held.bytes(at, 1) as usize + OBJECT_MOST).sum();
    let most = usize::try_from(url.bytes).unwrap_or(usize::MAX);
    let mut body = Vec::with_capacity(data.min(most));
    let mut layer = Layer::default();
    if url.framing == Framing::Array {
        body.push(b'[');
    }
    for (job, start, position) in claim.each(jobs) {
        if body.len() >= most {
            laid.rest = Some(job);
            break;
        }
        match layer.add(start, position, framing, &mut body) {
            Ok(()) => laid.jobs.push(job),
            Err(error) => laid.refused.push((job, Outcome::FailedForGood { error }, Vec::new())),
        }
        if url.framing == Framing::Array
            && let Some(end) = body.last_mut()
        {
            // The newline behind each object becomes what stands between them.
            *end = b',';
        }
    }
    match url.framing {
        Framing::Array => {
            if let Some(end) = body.last_mut() {
                *end = b']';
            }
            (body, "application/json")
        }
        Framing::Json => (body, "application/x-ndjson"),
        Framing::Raw | Framing::Paths { .. } => (body, "text/plain; charset=utf-8"),
    }
}

fn head(
    url: &Url,
    prepared: &Prepared,
    claim: &Claim,
    first: u32,
    count: usize,
    body: &[u8],
) -> Result<Request<()>, String> {
    let id = claim.id(first).to_string();
    let uri = match &prepared.uri {
        Some(uri) => uri.clone(),
        None => target(url, claim, first, &id)?,
    };
    let (start, _) = claim.start(first);
    // Retries of a job have its id; so do those of a call with the same jobs.
    let id = if count == 1 { id } else { format!("{id}+{}", count - 1) };
    let now = (clock::now().as_micros() / 1_000_000).to_string();
    let mut request = Request::new(());
    *request.uri_mut() = uri;
    *request.method_mut() = match url.method {
        Method::Get => HttpMethod::GET,
        Method::Post => HttpMethod::POST,
    };
    let mut queue = Vec::new();
    template::encode(start.queue.as_str().as_bytes(), &mut queue);
    let value = |bytes: Vec<u8>| HeaderValue::try_from(bytes).map_err(|e| format!("cannot make a header: {e}"));
    let headers = request.headers_mut();
    headers.reserve(10);
    headers.insert(HOST, prepared.host.clone().ok_or("the host is no header")?);
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("windlass/", env!("CARGO_PKG_VERSION"))));
    headers.insert(QUEUE, value(queue)?);
    headers.insert(ATTEMPT, HeaderValue::from(start.held.start()));
    if count == 1 && !start.checkpoint.is_empty() {
        let mut checkpoint = Vec::new();
        template::encode(start.checkpoint.as_bytes(), &mut checkpoint);
        headers.insert(CHECKPOINT, value(checkpoint)?);
    }
    if let Some(key) = &prepared.key {
        headers.insert(SIGNATURE, value(signature(key, &id, &now, body))?);
    }
    for (part, text) in start.trace().filter(|_| count == 1).into_iter().flat_map(parts) {
        headers.insert(HeaderName::from_static(TRACE_HEADERS[part]), value(text.as_bytes().to_vec())?);
    }
    headers.insert(ID, value(id.into_bytes())?);
    headers.insert(TIMESTAMP, value(now.into_bytes())?);
    Ok(request)
}

/// `v1,` and the base64 of HMAC-SHA256 over `ID.TIMESTAMP.BODY`, as Standard Webhooks says.
fn signature(key: &hmac::Key, id: &str, timestamp: &str, body: &[u8]) -> Vec<u8> {
    let mut context = hmac::Context::with_key(key);
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        context.update(part);
    }
    let mut text = b"v1,".to_vec();
    base64::encode_into(context.sign().as_ref(), &mut text);
    text
}

fn target(url: &Url, claim: &Claim, job: u32, id: &str) -> Result<Uri, String> {
    let ((start, position), data) = (claim.start(job), claim.data(job)?);
    let field = |path: &str| field(&data, path);
    let (number, attempt) = (start.number + u64::from(position), start.held.start());
    let values = Values { data: &data, queue: start.queue.as_str(), id, number, attempt, field: &field };
    let filled = template::fill_url(&url.target, values).map_err(|e| e.to_string())?;
    if filled.len() > TARGET_MOST {
        return Err(format!("the URL would have {} bytes, expected at most {TARGET_MOST}", filled.len()));
    }
    if leads_elsewhere(&filled) {
        return Err("the URL would have `.` or `..` as a part of its path, which leads elsewhere".into());
    }
    Uri::try_from(filled).map_err(|e| format!("the URL cannot be called: {e}"))
}

/// True where a path has a part `.` or `..`, also where servers that decode it first would see one.
pub(crate) fn leads_elsewhere(target: &[u8]) -> bool {
    let path = target.split(|b| *b == b'?').next().unwrap_or_default();
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first() {
        let hex = || u8::from_str_radix(std::str::from_utf8(behind.get(..2)?).ok()?, 16).ok();
        match hex().filter(|_| *first == b'%') {
            Some(byte) => {
                decoded.push(byte);
                rest = &behind[2..];
            }
            None => {
                decoded.push(*first);
                rest = behind;
            }
        }
    }
    decoded.split(|b| matches!(b, b'/' | b'\\')).any(|part| matches!(part, b"." | b".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere() {
        for (target, expected) in [
            ("/a/b", false),
            ("/a/../b", true),
            ("/a/%2e%2E/b", true),
            ("/a/..%2Fb", true),
            ("/a%5C..%5Cb", true),
            ("/a..b/...", false),
            ("/a?x=../y", false),
            ("/.", true),
            ("/%", false),
        ] {
            assert_eq!(leads_elsewhere(target.as_bytes()), expected, "{target}");
        }
    }

    #[test]
    fn the_signature_of_the_standard() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &base64::decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap());
        let signed = signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b"{\"test\": 2432232314}");
        assert_eq!(signed, b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
