//! Reading a request's body: within a size, within a time, and within a budget that all requests share.
//!
//! The budget is held until the request is answered, so a flood of large pushes waits at the socket instead of
//! filling memory. Bodies are read only where their media type says what they are.

use super::app::Call;
use super::guard::only;
use super::problem::Problem;
use crate::api::{self, BODY_MAX};
use crate::error::Kind;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

/// The bodies of all requests together, in KiB.
pub(super) const BUDGET: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(30);

/// A whole body and its share of the budget.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    _share: OwnedSemaphorePermit,
}

impl Call {
    /// The whole body, of one of these media types.
    pub(super) async fn body(&mut self, types: &[&'static str]) -> Result<(&'static str, Whole), Problem> {
        let found = media_type(&self.headers).and_then(|found| types.iter().find(|t| t.eq_ignore_ascii_case(found)));
        let Some(media) = found else {
            let text = format!("expected a body of type {}", types.join(" or "));
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Kind::Usage, text).closing());
        };
        Ok((media, self.read().await?))
    }

    /// A JSON body.
    pub(super) async fn json<T: DeserializeOwned>(&mut self) -> Result<T, Problem> {
        let (_, whole) = self.body(&[api::JSON]).await?;
        serde_json::from_slice(&whole.bytes).map_err(|e| unreadable(&e))
    }

    /// Routes without a body take none.
    pub(super) async fn no_body(&mut self) -> Result<(), Problem> {
        if self.body.is_end_stream() || self.read().await?.bytes.is_empty() {
            return Ok(());
        }
        Err(Problem::malformed("this route takes no body"))
    }

    async fn read(&mut self) -> Result<Whole, Problem> {
        let length = self.body.size_hint().upper().unwrap_or(BODY_MAX as u64);
        if length > BODY_MAX as u64 {
            return Err(too_large());
        }
        let body = std::mem::replace(&mut self.body, Body::empty());
        let budget = self.app.bodies.clone();
        let reading = async {
            // One KiB more than asked for, so that the smallest body counts too.
            let share = budget.acquire_many_owned((length >> 10) as u32 + 1).await;
            let share = share.map_err(|_| Problem::malformed("the server no longer reads"))?;
            let collected = Limited::new(body, BODY_MAX).collect().await;
            let bytes = collected.map_err(|e| match e.downcast_ref::<LengthLimitError>() {
                Some(_) => too_large(),
                None => Problem::malformed("the body ended before its announced end").closing(),
            })?;
            Ok(Whole { bytes: bytes.to_bytes(), _share: share })
        };
        timeout(PATIENCE, reading).await.unwrap_or_else(|_| {
            let text = format!("the body did not come within {} s", PATIENCE.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, Kind::TimeOut, text).closing())
        })
    }
}

pub(super) fn too_large() -> Problem {
    let text = format!("a request may hold at most {} jobs and {} MiB", api::JOBS_MAX, BODY_MAX >> 20);
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, Kind::BadData, text).hint("send several").closing()
}

/// What serde says about a document, with the line between form and meaning drawn.
pub(super) fn unreadable(error: &serde_json::Error) -> Problem {
    Problem::malformed(format!("cannot read the JSON body: {error}"))
}

/// The one media type; UTF-8 is the only character set there is.
fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = only(headers, &CONTENT_TYPE)?;
    let mut parts = value.split(';').map(str::trim);
    let media = parts.next()?;
    let plain = parts.all(|parameter| {
        let set = parameter.split_once('=').filter(|(key, _)| key.eq_ignore_ascii_case("charset"));
        set.is_some_and(|(_, name)| name.trim_matches('"').eq_ignore_ascii_case("utf-8"))
    });
    plain.then_some(media)
}
