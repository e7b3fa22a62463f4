//! Who may ask, decided before any route is looked at.
//!
//! The Unix socket asks the kernel who is there. Over TCP anyone on the machine is there, and so is any page in a
//! browser: the name by which the server was called is checked against rebinding, a token stands before every
//! route but those of health and the files of the page, and changes from other sites are refused.

use super::problem::Problem;
use crate::error::Kind;
use crate::sabotage::{self, Sabotage};
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use std::net::IpAddr;

const URI_MAX: usize = 8 << 10;
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Where a request comes from, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The server's own user, or root.
    Own,
    /// Another user at the Unix socket.
    Stranger,
    Tcp,
}

/// What is asked of TCP clients.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) token: String,
    /// Names besides `localhost`.
    pub(super) hosts: Vec<String>,
    /// Listening beyond loopback: any address may be called, since a token that a person chose stands before it.
    pub(super) wide: bool,
}

impl Access {
    pub(super) fn check<B>(&self, peer: Peer, request: &Request<B>) -> Result<(), Problem> {
        if request.uri().to_string().len() > URI_MAX {
            let text = format!("the address of the request is longer than {URI_MAX} bytes");
            return Err(Problem::new(StatusCode::URI_TOO_LONG, Kind::Usage, text));
        }
        match peer {
            Peer::Own => {}
            Peer::Stranger => {
                let text = "this socket serves its own user only";
                return Err(Problem::new(StatusCode::FORBIDDEN, Kind::NotPermitted, text));
            }
            Peer::Tcp => self.check_host(request)?,
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            check_site(request.headers())?;
        }
        let path = request.uri().path();
        let open = matches!(path, "/livez" | "/healthz" | "/readyz")
            || super::page::PATHS.contains(&path)
            || is_own_route(path);
        if peer == Peer::Tcp && !open { self.check_token(request.headers()) } else { Ok(()) }
    }

    fn check_host<B>(&self, request: &Request<B>) -> Result<(), Problem> {
        let host = only(request.headers(), &HOST).filter(|host| self.is_ours(host));
        let target = request.uri().authority().is_none_or(|authority| self.is_ours(authority.as_str()));
        if (host.is_none() || !target) && !sabotage::on(Sabotage::HostUnchecked) {
            let text = "the request names another host than this server";
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, Kind::NotPermitted, text)
                .hint("call it by localhost or its address"));
        }
        Ok(())
    }

    fn is_ours(&self, host: &str) -> bool {
        let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) => (address, port),
            None => host.find(':').map_or((host, ""), |colon| host.split_at(colon)),
        };
        let port_fits = port.is_empty() || port.strip_prefix(':').is_some_and(|digits| digits.parse::<u16>().is_ok());
        let name_fits = match name.parse::<IpAddr>() {
            Ok(address) => self.wide || address.is_loopback(),
            Err(_) => ["localhost"]
                .into_iter()
                .chain(self.hosts.iter().map(String::as_str))
                .any(|n| n.eq_ignore_ascii_case(name)),
        };
        port_fits && name_fits
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let given = bearer(headers);
        if same(given.as_bytes(), self.token.as_bytes()) {
            return Ok(());
        }
        Err(Problem::new(StatusCode::UNAUTHORIZED, Kind::NotPermitted, "this needs the server's token").hint(
            "send `Authorization: Bearer TOKEN` with the token in run/token of its data directory; windlass itself \
             takes it from WINDLASS_TOKEN",
        ))
    }
}

/// Routes with which a job speaks for itself; they ask for the token of that very job, whoever calls.
fn is_own_route(path: &str) -> bool {
    let rest = path.strip_prefix("/api/v1/jobs/").and_then(|rest| rest.split_once('/'));
    matches!(rest, Some((_, "reply" | "control" | "emit")))
}

/// The token that a request brings.
pub(super) fn bearer(headers: &HeaderMap) -> &str {
    only(headers, &AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer ")).unwrap_or("")
}

/// A browser tells where a change comes from; only this server's own pages may make one.
fn check_site(headers: &HeaderMap) -> Result<(), Problem> {
    let site_fits = match headers.contains_key(&FETCH_SITE) {
        true => matches!(only(headers, &FETCH_SITE), Some("same-origin" | "none")),
        false => true,
    };
    let origin_fits = match headers.contains_key(&ORIGIN) {
        true => only(headers, &ORIGIN).is_some_and(|origin| {
            only(headers, &HOST)
                .is_some_and(|host| origin.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(host)))
        }),
        false => true,
    };
    if site_fits && origin_fits {
        return Ok(());
    }
    Err(Problem::new(StatusCode::FORBIDDEN, Kind::NotPermitted, "a change that another site asked for is refused"))
}

/// The value of a header that must not stand twice.
pub(super) fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() { None } else { value.to_str().ok() }
}

/// Compares without telling by the time it takes where the first difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    let lengths = u8::from(a.len() != b.len());
    let differences =
        b.iter().enumerate().fold(lengths, |all, (at, byte)| all | (byte ^ a.get(at).copied().unwrap_or(0)));
    std::hint::black_box(differences) == 0 && !b.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(wide: bool) -> Access {
        Access { token: "t".repeat(64), hosts: vec!["jobs.example".into()], wide }
    }

    #[test]
    fn only_names_of_this_server_pass() {
        let narrow = access(false);
        for good in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:80", "jobs.example:443"] {
            assert!(narrow.is_ours(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "localhost.",
            "localhost:",
            "localhost:99999",
            "localhost:x",
            "::1",
            "[::1",
            "10.0.0.1",
            "a@localhost",
        ] {
            assert!(!narrow.is_ours(bad), "{bad}");
        }
        assert!(access(true).is_ours("10.0.0.1:80"));
        assert!(!access(true).is_ours("evil.example"));
    }

    #[test]
    fn tokens_are_equal_or_not() {
        assert!(same(b"abc", b"abc"));
        for other in [&b"abd"[..], b"ab", b"abcd", b""] {
            assert!(!same(other, b"abc"));
        }
        assert!(!same(b"", b""), "no token opens nothing");
    }
}
