//! Where a page is saved: a file of its own for each address, under a directory of its host.
//!
//! The names are those of the address wherever that is possible. An address in its one form has no `%` that two digits
//! do not follow, so a `%` with something else behind it marks what was changed, and no two addresses share a file.
//! Nothing of an address leads out of its directory.

use ring::digest::{SHA256, digest};
use std::fmt::Write;
use std::path::PathBuf;
use url::Url;

/// File systems take names of 255 bytes.
const NAME_MOST: usize = 200;
/// So much of a longer one is left.
const NAME_HEAD: usize = 120;

/// The place of a page, relative to the directory of the crawl.
pub(crate) fn place(url: &Url) -> PathBuf {
    let mut place = PathBuf::from(host(url));
    let mut segments: Vec<&str> = url.path().split('/').skip(1).collect();
    let last = segments.pop().unwrap_or_default();
    place.extend(segments.into_iter().map(|segment| short(directory(segment))));
    place.push(short(file(last, url.query())));
    place
}

/// Pages of the same host over TLS and without it are different pages.
fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let host = if host.starts_with('.') { format!("%{host}") } else { host.to_owned() };
    match (url.scheme(), url.port_or_known_default()) {
        ("https", Some(443)) => host,
        (_, port) => format!("{host}:{}", port.unwrap_or_default()),
    }
}

/// A directory with a dot in its name is marked, a file without one as well: so none is in the way of another.
fn directory(segment: &str) -> String {
    match segment {
        "" => "%".to_owned(),
        _ if segment.contains('.') => format!("{segment}%"),
        _ => segment.to_owned(),
    }
}

fn file(segment: &str, query: Option<&str>) -> String {
    let mut name = match segment {
        "" => "index.html".to_owned(),
        "index.html" => "%index.html".to_owned(),
        _ if segment.contains('.') => segment.to_owned(),
        _ => format!("{segment}%.html"),
    };
    if let Some(query) = query {
        name.push('?');
        name.push_str(&query.replace('/', "%_"));
    }
    name
}

/// What is too long ends with a digest of all of it.
fn short(name: String) -> String {
    if name.len() <= NAME_MOST {
        return name;
    }
    // An address in its one form is ASCII.
    let mut cut: String = name.chars().take(NAME_HEAD).collect();
    cut.push_str("%+");
    for byte in &digest(&SHA256, name.as_bytes()).as_ref()[..16] {
        // Writing to a string cannot fail.
        let _ = write!(cut, "{byte:02x}");
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crawler::page_url::canonical;
    use std::collections::HashMap;
    use std::path::Component;

    #[test]
    fn names() {
        for (url, expected) in [
            ("https://example.org/", "example.org/index.html"),
            ("http://example.org/", "example.org:80/index.html"),
            ("http://127.0.0.1:8080/a/b.html", "127.0.0.1:8080/a/b.html"),
            ("https://example.org/docs/intro", "example.org/docs/intro%.html"),
            ("https://example.org/docs/intro/", "example.org/docs/intro/index.html"),
            ("https://example.org/docs/index.html", "example.org/docs/%index.html"),
            ("https://example.org/v1.2/a.html", "example.org/v1.2%/a.html"),
            ("https://example.org//a", "example.org/%/a%.html"),
            ("https://example.org/a.html?x=1/2", "example.org/a.html?x=1%_2"),
            ("https://example.org/a?x", "example.org/a%.html?x"),
            ("https://example.org/..%2F..%2Fetc/passwd", "example.org/..%2F..%2Fetc%/passwd%.html"),
        ] {
            assert_eq!(place(&canonical(None, url).unwrap()), PathBuf::from(expected), "{url}");
        }
    }

    /// Every pair of addresses that differ, of all that can be made of parts which invite a clash.
    #[test]
    fn no_two_addresses_share_a_file_and_no_file_is_another_s_directory() {
        let parts = ["", "a", "a.html", "a%25", "index.html", "index", "%", "%2F", "..%2F", "a%25.html", "a%.html"];
        let long = ["b".repeat(NAME_MOST), "b".repeat(NAME_MOST + 1), "b".repeat(NAME_MOST + 2)];
        let parts: Vec<&str> = parts.into_iter().chain(long.iter().map(String::as_str)).collect();
        let mut paths: Vec<String> = parts.iter().map(|part| format!("/{part}")).collect();
        for one in &parts {
            paths.extend(parts.iter().map(|two| format!("/{one}/{two}")));
        }
        let queries = ["", "?a", "?a/", "?a%2F", "?a%_"];
        let mut files: HashMap<PathBuf, Url> = HashMap::new();
        for (path, query) in paths.iter().flat_map(|path| queries.map(|query| (path, query))) {
            let url = canonical(None, &format!("http://example.org{path}{query}")).unwrap();
            let place = place(&url);
            assert!(place.components().all(|part| matches!(part, Component::Normal(_))), "{place:?}");
            if let Some(other) = files.insert(place.clone(), url.clone()) {
                assert_eq!(other, url, "{place:?}");
            }
        }
        for file in files.keys() {
            for directory in file.ancestors().skip(1) {
                assert!(!files.contains_key(directory), "{directory:?} is a file and holds {file:?}");
            }
        }
    }
}
