//! The one form of a page's URL: two spellings of the same page are one page.
//!
//! Scheme and host in lower case, no usual port, no dot segments, no user, no fragment, no empty query; of the bytes
//! written as `%XX` those that need no writing so are written plainly, the others in upper case. What a server could
//! tell apart stays apart: a slash at the end, the order of a query, doubled slashes.

use std::fmt::Write;
use url::Url;

/// Reads a link as it stands in a page; none where it leads to nothing that can be fetched.
pub(crate) fn canonical(base: Option<&Url>, link: &str) -> Option<Url> {
    let mut url = match base {
        Some(base) => base.join(link).ok()?,
        None => Url::parse(link).ok()?,
    };
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return None;
    }
    url.set_fragment(None);
    if url.query() == Some("") {
        url.set_query(None);
    }
    if !url.username().is_empty() || url.password().is_some() {
        url.set_username("").and_then(|()| url.set_password(None)).ok()?;
    }
    if url.path().contains('%') {
        let path = plain(url.path());
        url.set_path(&path);
    }
    if let Some(query) = url.query().filter(|query| query.contains('%')).map(plain) {
        url.set_query(Some(&query));
    }
    Some(url)
}

/// `%XX` in its normal form. A percent sign that is none becomes one, so that names made of it are unmistakable.
fn plain(text: &str) -> String {
    let (mut into, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('%') {
        into.push_str(&rest[..at]);
        let digits = rest.get(at + 1..at + 3).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => into.push(char::from(byte)),
            // Writing to a string cannot fail.
            Some(byte) => drop(write!(into, "%{byte:02X}")),
            None => into.push_str("%25"),
        }
        rest = &rest[at + if byte.is_some() { 3 } else { 1 }..];
    }
    into.push_str(rest);
    into
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_page_has_one_form() {
        for (link, expected) in [
            ("HTTP://Example.ORG", "http://example.org/"),
            ("http://example.org:80/a", "http://example.org/a"),
            ("https://example.org:443/", "https://example.org/"),
            ("https://example.org:80/", "https://example.org:80/"),
            ("http://example.org/a/./b/../c#part", "http://example.org/a/c"),
            ("http://example.org/a/%2e%2E/c", "http://example.org/c"),
            ("http://example.org/a?", "http://example.org/a"),
            ("http://example.org/a?#x", "http://example.org/a"),
            ("http://example.org/a?b=1&a=2", "http://example.org/a?b=1&a=2"),
            ("http://example.org/%7euser/%41%2f%c3%a9", "http://example.org/~user/A%2F%C3%A9"),
            ("http://example.org/é", "http://example.org/%C3%A9"),
            ("http://example.org/100%", "http://example.org/100%25"),
            ("http://example.org/%zz?%7e%", "http://example.org/%25zz?~%25"),
            ("http://user:secret@example.org/", "http://example.org/"),
            ("http://example.org//a//", "http://example.org//a//"),
            ("http://bücher.example/", "http://xn--bcher-kva.example/"),
            ("http://[::1]:8080/", "http://[::1]:8080/"),
        ] {
            let url = canonical(None, link).map(String::from);
            assert_eq!(url.as_deref(), Some(expected), "{link}");
            assert_eq!(canonical(None, expected).map(String::from).as_deref(), Some(expected), "a second time");
        }
    }

    #[test]
    fn links_are_read_as_seen_from_their_page() {
        let base = Url::parse("http://example.org/a/b.html?q=1").unwrap();
        for (link, expected) in [
            ("c.html", Some("http://example.org/a/c.html")),
            ("../c", Some("http://example.org/c")),
            ("../../../c", Some("http://example.org/c")),
            ("/c/", Some("http://example.org/c/")),
            ("?p=2", Some("http://example.org/a/b.html?p=2")),
            ("#top", Some("http://example.org/a/b.html?q=1")),
            ("", Some("http://example.org/a/b.html?q=1")),
            ("//other.example/x", Some("http://other.example/x")),
            (" c.html\n", Some("http://example.org/a/c.html")),
            ("mailto:somebody@example.org", None),
            ("javascript:void(0)", None),
            ("data:text/html,x", None),
            ("ftp://example.org/", None),
            ("http://", None),
            ("http://[broken/", None),
        ] {
            assert_eq!(canonical(Some(&base), link).map(String::from).as_deref(), expected, "{link}");
        }
    }
}
