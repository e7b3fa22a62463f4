//! What a host's `robots.txt` lets this crawler fetch, by RFC 9309.
//!
//! Groups, the longest match, `*`, `$` and the size are the crate's affair; what an answer without rules means is
//! said here: one that is not there forbids nothing, one that cannot be had forbids everything for now.

use robotxt::Robots;
use std::time::Duration;
use url::Url;

/// So much of the file is read; the standard wants no less.
pub(crate) const READ_MOST: usize = robotxt::BYTE_LIMIT + 1;
/// A host that wants a longer pause between two pages than this gets this.
const DELAY_MOST: Duration = Duration::from_secs(60);

/// The rules of one host for one crawler.
#[derive(Clone, Debug)]
pub(crate) enum Rules {
    Known(Robots),
    /// Nothing may be fetched until the file can be read; the sentence says why.
    Unknown(String),
}

impl Rules {
    /// From the answer to the request for the file.
    pub(crate) fn from_answer(status: u16, body: &[u8], agent: &str) -> Rules {
        match status {
            200..=299 => Rules::Known(Robots::parse(body, product(agent))),
            // Too many redirects are like a file that is not there; so is one that nobody may read.
            300..=499 => Rules::Known(Robots::allow_all()),
            _ => Rules::Unknown(format!("robots.txt was answered with HTTP {status}, so nothing may be fetched")),
        }
    }

    /// Whether the page may be fetched; an error is why nobody knows.
    pub(crate) fn allow(&self, url: &Url) -> Result<bool, String> {
        match self {
            Rules::Known(robots) => Ok(robots.is_url_allowed(url)),
            Rules::Unknown(why) => Err(why.clone()),
        }
    }

    /// From one page to the next, if the host asks for a pause.
    pub(crate) fn delay(&self) -> Duration {
        match self {
            Rules::Known(robots) => robots.crawl_delay().unwrap_or_default().min(DELAY_MOST),
            Rules::Unknown(_) => Duration::ZERO,
        }
    }
}

/// The sitemaps that a file of rules names.
pub(crate) fn sitemaps(body: &[u8]) -> Vec<String> {
    let robots = Robots::parse(body, robotxt::ANY_AGENT);
    robots.sitemaps().iter().map(|url| url.as_str().to_owned()).collect()
}

/// The name by which rules speak of a crawler: its user agent up to the version.
fn product(agent: &str) -> &str {
    let end = agent.find(|c: char| !(c.is_ascii_alphabetic() || c == '-' || c == '_')).unwrap_or(agent.len());
    &agent[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(body: &str, agent: &str, path: &str) -> bool {
        let url = Url::parse("http://example.org").unwrap().join(path).unwrap();
        Rules::from_answer(200, body.as_bytes(), agent).allow(&url).unwrap()
    }

    #[test]
    fn rules() {
        let longest = "User-agent: *\nDisallow: /a\nAllow: /a/b\n";
        let groups =
            "User-agent: other\nDisallow: /\n\nUser-agent: windlass\nDisallow: /w\n\nUser-agent: *\nDisallow: /s";
        let joined = "User-agent: a\nUser-agent: windlass\nDisallow: /one\n\nUser-agent: windlass\nDisallow: /two\n";
        let signs = "User-agent: *\nDisallow: /*.pdf$\nDisallow: /x*y\nAllow: /equal\nDisallow: /equal";
        for (body, path, expected) in [
            ("", "/", true),
            (longest, "/a/c", false),
            (longest, "/a/b/c", true),
            (longest, "/b", true),
            (groups, "/", true),
            (groups, "/w/x", false),
            (groups, "/s", true),
            (joined, "/one", false),
            (joined, "/two", false),
            (joined, "/three", true),
            (signs, "/a/b.pdf", false),
            (signs, "/a/b.pdf?x", true),
            (signs, "/x/z/y/1", false),
            (signs, "/equal", true),
            ("User-agent: *\nDisallow:", "/a", true),
            ("Disallow: /", "/a", true),
            ("user-AGENT : * # all\n  disallow : /A\n", "/A", false),
            ("User-agent: *\nDisallow: /A", "/a", true),
            ("User-agent: *\nDisallow: /%7eme", "/~me/x", false),
            ("User-agent: *\nDisallow: /", "/robots.txt", true),
            ("\u{feff}User-agent: *\r\nDisallow: /a\r\n", "/a", false),
        ] {
            assert_eq!(allowed(body, "windlass/1.0 (+http://example.org)", path), expected, "{body:?} {path}");
        }
        assert!(!allowed(groups, "Other/2", "/x") && !allowed(groups, "nobody", "/s"));
    }

    #[test]
    fn what_lies_behind_the_limit_is_not_read() {
        let head = "User-agent: *\nDisallow: /a\n".to_owned() + &"# filling\n".repeat(60_000);
        let body = head + "Disallow: /b\n";
        assert!(body.len() > READ_MOST);
        assert!(!allowed(&body, "windlass", "/a") && allowed(&body, "windlass", "/b"));
    }

    #[test]
    fn answers_without_rules() {
        let url = Url::parse("http://example.org/a").unwrap();
        let told = |status| Rules::from_answer(status, b"User-agent: *\nDisallow: /", "windlass").allow(&url).ok();
        assert_eq!(
            [200, 301, 401, 404, 429, 500, 503].map(told),
            [Some(false), Some(true), Some(true), Some(true), Some(true), None, None]
        );
    }

    #[test]
    fn pauses_and_sitemaps() {
        let body = b"Sitemap: http://example.org/map.xml\nUser-agent: *\nCrawl-delay: 2.5\nDisallow: /x\n";
        assert_eq!(Rules::from_answer(200, body, "windlass").delay(), Duration::from_millis(2500));
        assert_eq!(Rules::from_answer(200, b"User-agent: *\nCrawl-delay: 99999", "windlass").delay(), DELAY_MOST);
        assert_eq!(sitemaps(body), ["http://example.org/map.xml"]);
    }
}
