//! Which links are followed: where they lead, what the patterns say, how far from the start, and what looks endless.
//!
//! The same question is asked of links and of where a redirect leads. It must not know what was fetched: that each
//! page comes once is the affair of the run.

use url::Url;
use windlass_core::policy::pattern_matches;

/// No page that people link to has a longer address; what makes longer ones is a trap.
const LENGTH_MOST: usize = 2000;
/// A stretch of a path that comes so often in a row is a trap: a relative link that leads into itself.
const REPEATED_MOST: usize = 3;
/// Stretches of so many segments are looked for.
const STRETCH_MOST: usize = 4;

/// Where a crawl may go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// Hosts of the start, with their ports.
    pub(crate) hosts: Vec<String>,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    /// Links from the start, at most.
    pub(crate) depth: Option<u32>,
}

/// Why a link is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outside {
    Host,
    Excluded,
    NotIncluded,
    TooDeep,
    Trap,
}

impl Scope {
    /// `depth`: how many links away from the start it is.
    pub(crate) fn admit(&self, url: &Url, depth: u32) -> Result<(), Outside> {
        if is_trap(url) {
            return Err(Outside::Trap);
        }
        let at_home = self.is_at_home(url);
        if self.exclude.iter().any(|pattern| matches(pattern, url)) {
            return Err(Outside::Excluded);
        }
        // A pattern that names a host leads there; one that names a path holds where the crawl is at home.
        let included = |pattern: &String| (at_home || is_whole(pattern)) && matches(pattern, url);
        match (at_home, self.include.is_empty()) {
            (true, true) => {}
            (false, true) => return Err(Outside::Host),
            (_, false) if self.include.iter().any(included) => {}
            (true, false) => return Err(Outside::NotIncluded),
            (false, false) => return Err(Outside::Host),
        }
        match self.depth {
            Some(most) if depth > most => Err(Outside::TooDeep),
            _ => Ok(()),
        }
    }

    /// The host was named at the start: whoever did so may call what is inside.
    pub(crate) fn is_at_home(&self, url: &Url) -> bool {
        let host = host_of(url);
        self.hosts.contains(&host)
    }
}

/// Host and port; the usual ports of both schemes are the same place.
pub(crate) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// A pattern for the whole address, not for path and query alone.
fn is_whole(pattern: &str) -> bool {
    pattern.contains("://")
}

fn matches(pattern: &str, url: &Url) -> bool {
    let text = if is_whole(pattern) { url.as_str() } else { &url[url::Position::BeforePath..] };
    pattern_matches(pattern.as_bytes(), text.as_bytes())
}

/// True for addresses that a site makes without end.
fn is_trap(url: &Url) -> bool {
    if url.as_str().len() > LENGTH_MOST {
        return true;
    }
    let segments: Vec<&str> = url.path().split('/').skip(1).collect();
    (1..=STRETCH_MOST).any(|stretch| {
        let whole = stretch * REPEATED_MOST;
        segments.windows(whole).any(|window| {
            let mut others = window.chunks(stretch);
            let first = others.next();
            first.is_some_and(|first| first.iter().any(|segment| !segment.is_empty()))
                && others.all(|other| Some(other) == first)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(scope: &Scope, url: &str, depth: u32) -> Result<(), Outside> {
        scope.admit(&Url::parse(url).unwrap(), depth)
    }

    #[test]
    fn hosts_patterns_and_depth() {
        let home = Scope { hosts: vec!["example.org".into()], ..Scope::default() };
        let of = |patterns: &[&str]| patterns.iter().map(|pattern| (*pattern).to_owned()).collect::<Vec<_>>();
        let docs = Scope { include: of(&["/docs/*"]), ..home.clone() };
        let both = Scope { include: of(&["http://*.example.org/*", "/docs/*"]), ..home.clone() };
        let without = Scope { exclude: of(&["*.pdf", "http://example.org/old/*"]), ..home.clone() };
        let near = Scope { depth: Some(2), ..home.clone() };
        for (scope, url, expected) in [
            (&home, "http://example.org/a", Ok(())),
            (&home, "https://example.org/a", Ok(())),
            (&home, "http://example.org:8080/a", Err(Outside::Host)),
            (&home, "http://www.example.org/", Err(Outside::Host)),
            (&docs, "http://example.org/docs/a", Ok(())),
            (&docs, "http://example.org/blog", Err(Outside::NotIncluded)),
            (&docs, "http://other.example/docs/a", Err(Outside::Host)),
            (&both, "http://www.example.org/x", Ok(())),
            (&both, "http://example.org/docs/x", Ok(())),
            (&both, "http://example.org/x", Err(Outside::NotIncluded)),
            (&without, "http://example.org/a.pdf", Err(Outside::Excluded)),
            (&without, "http://example.org/a.pdf?x", Ok(())),
            (&without, "http://example.org/old/b", Err(Outside::Excluded)),
            (&near, "http://example.org/deep", Err(Outside::TooDeep)),
        ] {
            assert_eq!(told(scope, url, 3), expected, "{url} {scope:?}");
        }
        assert_eq!(told(&near, "http://example.org/deep", 2), Ok(()));
    }

    #[test]
    fn traps() {
        let home = Scope { hosts: vec!["example.org".into()], ..Scope::default() };
        let long = "x".repeat(LENGTH_MOST);
        for (path, is_trap) in [
            ("a/a", false),
            ("a/a/a", true),
            ("x/a/b/a/b/a/b/y", true),
            ("x/a/b/a/b/y", false),
            ("a/b/c/d/a/b/c/d/a/b/c/d", true),
            ("2026/11/16/2026/11/17", false),
            ("//////a", false),
            (long.as_str(), true),
        ] {
            let expected = if is_trap { Err(Outside::Trap) } else { Ok(()) };
            assert_eq!(told(&home, &format!("http://example.org/{path}"), 1), expected, "{path}");
        }
    }
}
