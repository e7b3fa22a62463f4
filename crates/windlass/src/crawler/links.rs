//! The links of an HTML page, in their order, each once.
//!
//! A tokenizer reads what browsers read; nothing is built of it. `base` counts wherever it stands. A page that asks
//! robots not to follow its links has none. Links out of scripts and style sheets are not seen.

use super::page_url::canonical;
use html5gum::emitters::callback::{CallbackEmitter, CallbackEvent};
use html5gum::{Span, Tokenizer};
use std::collections::HashSet;
use std::convert::Infallible;
use url::Url;

/// Relations of a `link` that lead to no document.
const NO_DOCUMENT: [&str; 3] = ["preconnect", "dns-prefetch", "pingback"];

/// A tag that can hold a link, as far as it was read.
#[derive(Default)]
struct Tag {
    /// The attribute that is the link.
    wanted: &'static [u8],
    is_base: bool,
    is_meta: bool,
    attribute: Vec<u8>,
    link: Option<String>,
    rel: String,
    name: String,
    content: String,
}

impl Tag {
    fn open(name: &[u8]) -> Tag {
        let wanted: &[u8] = match name {
            b"a" | b"area" | b"link" | b"base" => b"href",
            b"iframe" | b"frame" | b"img" | b"script" | b"embed" | b"audio" | b"video" | b"source" => b"src",
            _ => b"",
        };
        Tag { wanted, is_base: name == b"base", is_meta: name == b"meta", ..Tag::default() }
    }

    fn is_of_interest(&self) -> bool {
        !self.wanted.is_empty() || self.is_meta
    }

    /// The first of several attributes of one name counts.
    fn take(&mut self, value: &[u8]) {
        let text = || String::from_utf8_lossy(value).into_owned();
        if self.attribute == self.wanted && self.link.is_none() {
            self.link = Some(text());
        }
        match self.attribute.as_slice() {
            b"rel" => self.rel = text().to_ascii_lowercase(),
            b"name" => self.name = text().to_ascii_lowercase(),
            b"content" => self.content = text().to_ascii_lowercase(),
            _ => {}
        }
    }

    fn forbids_following(&self) -> bool {
        let words = || self.content.split(',').map(str::trim);
        self.is_meta && self.name == "robots" && words().any(|word| word == "nofollow" || word == "none")
    }
}

#[derive(Default)]
struct Found {
    tag: Tag,
    base: Option<String>,
    links: Vec<String>,
    nofollow: bool,
}

impl Found {
    fn take(&mut self, event: CallbackEvent<'_>) {
        match event {
            CallbackEvent::OpenStartTag { name } => self.tag = Tag::open(name),
            CallbackEvent::AttributeName { name } if self.tag.is_of_interest() => {
                self.tag.attribute.clear();
                self.tag.attribute.extend_from_slice(name);
            }
            CallbackEvent::AttributeValue { value } if self.tag.is_of_interest() => self.tag.take(value),
            CallbackEvent::CloseStartTag { .. } if self.tag.is_of_interest() => self.close(),
            _ => {}
        }
    }

    fn close(&mut self) {
        let tag = std::mem::take(&mut self.tag);
        self.nofollow |= tag.forbids_following();
        let Some(link) = tag.link else { return };
        if tag.is_base {
            self.base.get_or_insert(link);
        } else if !tag.rel.split_ascii_whitespace().any(|rel| NO_DOCUMENT.contains(&rel)) {
            self.links.push(link);
        }
    }
}

/// All links of a page that lead to something that can be fetched.
pub(crate) fn links(html: &[u8], page: &Url) -> Vec<Url> {
    let mut found = Found::default();
    let mut emitter = CallbackEmitter::new(|event: CallbackEvent<'_>, _: Span<()>| -> Option<Infallible> {
        found.take(event);
        None
    });
    // Without it what stands in a script would be taken for tags.
    emitter.naively_switch_states(true);
    let Ok(()) = Tokenizer::new_with_emitter(html, emitter).finish();
    if found.nofollow {
        return Vec::new();
    }
    let base = found.base.as_deref().and_then(|base| canonical(Some(page), base));
    let base = base.as_ref().unwrap_or(page);
    let mut seen = HashSet::new();
    let fetchable = found.links.iter().filter_map(|link| canonical(Some(base), link));
    fetchable.filter(|url| seen.insert(url.as_str().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_pages() {
        let page = Url::parse("http://example.org/dir/page.html").unwrap();
        for (html, expected) in [
            ("<a href=one>x</a><A HREF='two'>y</A>", "dir/one dir/two"),
            ("<a href=\"a&amp;b?x=1&amp;y=2\">", "dir/a&b?x=1&y=2"),
            ("<a href=one><a href=one#part><a href=./one>", "dir/one"),
            ("<a href=one href=two>", "dir/one"),
            ("<a name=x><a href>", ""),
            ("<a href=one", ""),
            ("<a href=late><base href='/other/'><base href='/third/'>", "other/late"),
            ("<base href='mailto:x'><a href=one>", "dir/one"),
            ("<area href=map><iframe src=inner></iframe><frame src=old><img src=i.png srcset='j.png 2x'>", {
                "dir/map dir/inner dir/old dir/i.png"
            }),
            ("<link rel=stylesheet href=s.css><link rel='DNS-prefetch' href=//cdn.example>", "dir/s.css"),
            ("<script>document.write('<a href=written>')</script><a href=one>", "dir/one"),
            ("<script src=s.js></script><style>a { content: '<a href=no>' }</style>", "dir/s.js"),
            ("<!-- <a href=no> --><a href=one>", "dir/one"),
            ("<textarea><a href=no></textarea><title><a href=no></title><a href=one>", "dir/one"),
            ("<meta name=ROBOTS content='noindex, NoFollow'><a href=one>", ""),
            ("<meta name=description content=nofollow><a href=one>", "dir/one"),
            ("<a href='mailto:x@example.org'><a href='javascript:go()'>", ""),
            ("\0<a href='one\n'><<a href=two>", "dir/one dir/two"),
            ("<p>nothing", ""),
        ] {
            let found: Vec<String> = links(html.as_bytes(), &page).iter().map(Url::to_string).collect();
            let expected: Vec<_> =
                expected.split_whitespace().map(|path| format!("http://example.org/{path}")).collect();
            assert_eq!(found, expected, "{html}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_do_no_harm() {
        let page = Url::parse("http://example.org/").unwrap();
        let html = b"<a href=\"\xff\xfe\">\xff<a href='ok'>";
        assert_eq!(links(html, &page).last().map(Url::as_str), Some("http://example.org/ok"));
    }
}
