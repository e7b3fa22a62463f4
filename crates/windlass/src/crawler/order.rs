//! What is crawled and how: the words of the command line, checked.

use super::page_url::canonical;
use super::scope::{Scope, host_of};
use crate::error::{Failure, Kind};
use hyper::header::{HeaderName, HeaderValue};
use ring::digest::{SHA256, digest};
use std::path::PathBuf;
use std::time::Duration;
use url::Url;

/// Who asks, unless somebody says otherwise.
pub const USER_AGENT: &str = concat!("windlass/", env!("CARGO_PKG_VERSION"));
/// Requests under way at one host, unless somebody says otherwise.
pub const PER_HOST: u32 = 8;
/// No larger page is taken.
const BODY_MOST: usize = 64 << 20;

/// As it was asked for.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    pub urls: Vec<String>,
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    pub depth: Option<u32>,
    pub max_pages: Option<u64>,
    pub user_agent: Option<String>,
    /// `Name: value`.
    pub headers: Vec<String>,
    pub sitemap: bool,
    pub out: Option<PathBuf>,
    pub per_host: Option<u32>,
    /// From one request to the next at the same host.
    pub pause: Duration,
}

/// A crawl, checked.
#[derive(Clone, Debug)]
pub struct Order {
    pub(super) start: Vec<Url>,
    pub(super) scope: Scope,
    pub(super) max_pages: Option<u64>,
    pub(super) user_agent: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) sitemap: bool,
    pub(super) out: PathBuf,
    pub(super) per_host: u32,
    pub(super) pause: Duration,
    pub(super) body_most: usize,
    /// Two crawls of the same name want the same.
    pub(super) name: String,
}

impl Order {
    pub fn new(wishes: &Wishes) -> Result<Order, Failure> {
        let mut start = Vec::new();
        for text in &wishes.urls {
            let url = canonical(None, text).ok_or_else(|| {
                let text = format!("`{text}` is no address of a page, expected http://HOST/… or https://HOST/…");
                Failure::new(Kind::Usage, text)
            })?;
            start.push(url);
        }
        let first = start.first().ok_or_else(|| Failure::new(Kind::Usage, "no address to begin with"))?;
        let out = wishes.out.clone().unwrap_or_else(|| PathBuf::from(format!("crawl-{}", host_of(first))));
        for pattern in wishes.include.iter().chain(&wishes.exclude) {
            if !pattern.starts_with(['/', '*']) && !pattern.contains("://") {
                let text = format!("the pattern `{pattern}` matches nothing, expected /PATH*, *.pdf or http://HOST/*");
                return Err(Failure::new(Kind::Usage, text));
            }
        }
        let mut hosts: Vec<String> = start.iter().map(host_of).collect();
        hosts.sort();
        hosts.dedup();
        let scope =
            Scope { hosts, include: wishes.include.clone(), exclude: wishes.exclude.clone(), depth: wishes.depth };
        let user_agent = wishes.user_agent.clone().unwrap_or_else(|| USER_AGENT.to_owned());
        if HeaderValue::try_from(&user_agent).is_err() {
            return Err(Failure::new(Kind::Usage, format!("the user agent {user_agent:?} cannot be a header")));
        }
        let headers = wishes.headers.iter().map(|text| header(text)).collect::<Result<_, _>>()?;
        Ok(Order {
            name: name(wishes, &start),
            start,
            scope,
            max_pages: wishes.max_pages,
            user_agent,
            headers,
            sitemap: wishes.sitemap,
            out,
            per_host: wishes.per_host.unwrap_or(PER_HOST).max(1),
            pause: wishes.pause,
            body_most: BODY_MOST,
        })
    }

    /// The addresses that a crawl begins with.
    pub(super) fn seeds(&self) -> Vec<Url> {
        let mut seeds = self.start.clone();
        if self.sitemap {
            seeds.extend(
                self.start.iter().flat_map(|url| ["/robots.txt", "/sitemap.xml"].map(|path| url.join(path))).flatten(),
            );
        }
        let mut seen = std::collections::HashSet::new();
        seeds.retain(|url| seen.insert(url.as_str().to_owned()));
        seeds
    }
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let parts = text.split_once(':').and_then(|(name, value)| {
        Some((HeaderName::try_from(name.trim()).ok()?, HeaderValue::try_from(value.trim()).ok()?))
    });
    parts.ok_or_else(|| Failure::new(Kind::Usage, format!("`{text}` is no header, expected `Name: value`")))
}

/// What decides which pages a crawl has; how fast and as whom it asks may change in the middle.
fn name(wishes: &Wishes, start: &[Url]) -> String {
    let start: Vec<&str> = start.iter().map(Url::as_str).collect();
    let what = format!(
        "{start:?} {:?} {:?} {:?} {:?} {}",
        wishes.include, wishes.exclude, wishes.depth, wishes.max_pages, wishes.sitemap
    );
    let digest = digest(&SHA256, what.as_bytes());
    let hex: String = digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("crawl-{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(urls: &[&str]) -> Wishes {
        Wishes { urls: urls.iter().map(|url| (*url).to_owned()).collect(), ..Wishes::default() }
    }

    #[test]
    fn wishes_are_checked_in_words() {
        let of = |pattern: &str| vec![pattern.to_owned()];
        let fine = wishes(&["http://example.org"]);
        for (wishes, expected) in [
            (wishes(&[]), "no address to begin with"),
            (wishes(&["example.org"]), "`example.org` is no address of a page"),
            (wishes(&["ftp://example.org/"]), "is no address of a page"),
            (Wishes { include: of("docs"), ..fine.clone() }, "the pattern `docs` matches nothing"),
            (Wishes { headers: of("Cookie"), ..fine.clone() }, "`Cookie` is no header"),
            (Wishes { user_agent: Some("a\nb".into()), ..fine.clone() }, "cannot be a header"),
        ] {
            let refused = Order::new(&wishes).unwrap_err();
            assert!(refused.text.contains(expected) && refused.kind == Kind::Usage, "{}", refused.text);
        }
    }

    #[test]
    fn a_crawl_is_known_by_what_it_wants() {
        let fine = wishes(&["http://example.org"]);
        let order = Order::new(&fine).unwrap();
        assert_eq!(
            (order.out.to_str(), order.scope.hosts.as_slice()),
            (Some("crawl-example.org"), &["example.org".to_owned()][..])
        );
        let name = |wishes: &Wishes| Order::new(wishes).unwrap().name;
        assert_eq!(name(&fine), name(&Wishes { urls: vec!["HTTP://example.org:80/".into()], ..fine.clone() }));
        assert_eq!(name(&fine), name(&Wishes { per_host: Some(2), ..fine.clone() }));
        assert_ne!(name(&fine), name(&Wishes { depth: Some(3), ..fine.clone() }));
    }

    #[test]
    fn seeds() {
        let texts = |order: &Order| order.seeds().iter().map(Url::to_string).collect::<Vec<_>>();
        let two = Wishes { sitemap: true, ..wishes(&["http://a.example/x", "http://a.example/y"]) };
        assert_eq!(
            texts(&Order::new(&two).unwrap()),
            ["http://a.example/x", "http://a.example/y", "http://a.example/robots.txt", "http://a.example/sitemap.xml"]
        );
    }
}
