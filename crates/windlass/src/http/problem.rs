//! What the door answers when it refuses: RFC 9457 documents.
//!
//! Failures of the program get the status of their kind; the few statuses that only HTTP knows are made here.

use crate::api;
use crate::error::{Failure, Kind};
use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

/// A refusal on its way to the client.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    failure: Failure,
    /// The rest of the request is not worth reading.
    close: bool,
}

impl Problem {
    pub(super) fn new(status: StatusCode, kind: Kind, text: impl Into<String>) -> Problem {
        Problem { status, failure: Failure::new(kind, text), close: false }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Problem {
        self.failure = self.failure.hint(hint);
        self
    }

    pub(super) fn closing(mut self) -> Problem {
        self.close = true;
        self
    }

    /// The request cannot be read as it stands.
    pub(super) fn malformed(text: impl Into<String>) -> Problem {
        Failure::new(Kind::Usage, text).into()
    }

    /// The request can be read, but what it asks for cannot be.
    pub(super) fn refused(text: impl Into<String>) -> Problem {
        Failure::new(Kind::BadData, text).into()
    }

    pub(super) fn not_found(text: impl Into<String>) -> Problem {
        Failure::new(Kind::NotFound, text).into()
    }

    pub(super) fn document(&self) -> api::Problem {
        let title = self.status.canonical_reason().unwrap_or("Error");
        api::Problem::new(self.status.as_u16(), title, &self.failure)
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Problem {
        let status = StatusCode::from_u16(failure.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Problem { status, failure, close: false }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let bytes = serde_json::to_vec(&self.document()).unwrap_or_default();
        let mut response = Response::new(Body::from(bytes));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(api::PROBLEM));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
