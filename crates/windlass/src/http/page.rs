//! The page at `/`: how everything stands, in a browser. Three files that are part of the program.
//!
//! They hold nothing of this server and are given to everyone who may call it; what the page shows it asks of the API,
//! with the token that its reader gives it. It must not need anything from elsewhere, and the policy sent with it says
//! so to the browser: no script but its own, no markup made from text, no frame around it.

use super::app::Call;
use super::problem::Problem;
use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, Response};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// Paths that are served without the token.
pub(super) const PATHS: [&str; 3] = ["/", "/page.css", "/page.js"];

pub(super) async fn page(_call: Call) -> Result<Response<Body>, Problem> {
    Ok(file("text/html; charset=utf-8", include_str!("page/page.html")))
}

pub(super) async fn style(_call: Call) -> Result<Response<Body>, Problem> {
    Ok(file("text/css; charset=utf-8", include_str!("page/page.css")))
}

pub(super) async fn script(_call: Call) -> Result<Response<Body>, Problem> {
    Ok(file("text/javascript; charset=utf-8", include_str!("page/page.js")))
}

fn file(kind: &'static str, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    let headers: [(HeaderName, &'static str); 5] = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // The next version of the program has another page.
        (CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
