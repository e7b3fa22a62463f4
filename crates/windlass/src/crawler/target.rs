//! The data of a job of either stage: the address of a page, and before it how far from the start it is where that
//! counts. The same text is the job's key in its run.

use super::page_url::canonical;
use url::Url;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) url: Url,
    /// None where no depth was asked for: then a page is the same however it was reached.
    depth: Option<u32>,
}

impl Target {
    /// Where a crawl begins.
    pub(super) fn start(url: Url, limited: bool) -> Target {
        Target { url, depth: limited.then_some(0) }
    }

    /// A link of this page.
    pub(super) fn link(&self, url: Url) -> Target {
        Target { url, depth: self.depth.map(|depth| depth + 1) }
    }

    /// Another address of the same page.
    pub(super) fn moved(&self, url: Url) -> Target {
        Target { url, depth: self.depth }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth.unwrap_or(0)
    }

    pub(super) fn read(data: &[u8]) -> Option<Target> {
        let text = std::str::from_utf8(data).ok()?;
        let (depth, url) = match text.split_once(' ') {
            Some((depth, url)) => (Some(depth.parse().ok()?), url),
            None => (None, text),
        };
        Some(Target { url: canonical(None, url)?, depth })
    }

    pub(super) fn data(&self) -> Vec<u8> {
        match self.depth {
            Some(depth) => format!("{depth} {}", self.url).into_bytes(),
            None => self.url.as_str().as_bytes().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_comes_back_as_it_was() {
        let start = |limited| Target::start(Url::parse("http://example.org/").unwrap(), limited);
        let link = |target: &Target| target.link(Url::parse("http://example.org/a?b").unwrap());
        for (target, data) in [
            (start(false), "http://example.org/"),
            (start(true), "0 http://example.org/"),
            (link(&start(false)), "http://example.org/a?b"),
            (link(&link(&start(true))), "2 http://example.org/a?b"),
        ] {
            assert_eq!(target.data(), data.as_bytes());
            assert_eq!(Target::read(data.as_bytes()), Some(target));
        }
        for data in ["", "x http://example.org/", "1 2 http://example.org/", "mailto:x", "-1 http://example.org/"] {
            assert_eq!(Target::read(data.as_bytes()), None, "{data}");
        }
    }
}
