//! The pages that a sitemap lists, or the sitemaps that an index of sitemaps does.
//!
//! It reads what the protocol says: `<loc>` within `<url>` of a `<urlset>`, or within `<sitemap>` of a
//! `<sitemapindex>`. Anything else is no sitemap. It must not fetch.

use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::Event;

/// The protocol allows no more in one file.
const LISTED_MOST: usize = 50_000;

/// The addresses in it; none where it is no sitemap.
pub(crate) fn listed(xml: &[u8]) -> Option<Vec<String>> {
    let xml = String::from_utf8_lossy(xml);
    let mut reader = Reader::from_str(&xml);
    let (mut path, mut found): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    let mut text = String::new();
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => {
                path.push(tag.local_name().as_ref().to_owned());
                if path.len() == 1 && !matches!(path[0].as_str(), "urlset" | "sitemapindex") {
                    return None;
                }
                text.clear();
            }
            Ok(Event::Text(said)) if is_address(&path) => text.push_str(&said),
            Ok(Event::CData(said)) if is_address(&path) => text.push_str(&said),
            Ok(Event::GeneralRef(name)) if is_address(&path) => match name.resolve_char_ref() {
                Ok(Some(char)) => text.push(char),
                _ => text.push_str(resolve_xml_entity(&name).unwrap_or_default()),
            },
            Ok(Event::End(_)) => {
                if is_address(&path) && found.len() < LISTED_MOST && !text.trim().is_empty() {
                    found.push(text.trim().to_owned());
                }
                path.pop();
            }
            // What was read of a broken file counts.
            Ok(Event::Eof) | Err(_) => return (!path.is_empty() || !found.is_empty()).then_some(found),
            Ok(_) => {}
        }
    }
}

fn is_address(path: &[String]) -> bool {
    match path {
        [root, entry, leaf] => {
            let entry = (root.as_str(), entry.as_str());
            leaf == "loc" && [("urlset", "url"), ("sitemapindex", "sitemap")].contains(&entry)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sitemaps() {
        let plain = r#"<?xml version="1.0" encoding="UTF-8"?>
            <urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">
            <url><loc> http://example.org/a?b=1&amp;c=2 </loc><lastmod>2026-01-01</lastmod></url>
            <url><loc><![CDATA[http://example.org/b]]></loc><image:image><image:loc>no</image:loc></image:image></url>
            </urlset>"#;
        let index = "<s:sitemapindex xmlns:s='x'><s:sitemap><s:loc>http://example.org/1.xml</s:loc></s:sitemap>\
                     </s:sitemapindex>";
        let cut = "<urlset><url><loc>http://example.org/a</loc></url><url><loc>http://exa";
        for (xml, expected) in [
            (plain, Some(vec!["http://example.org/a?b=1&c=2", "http://example.org/b"])),
            (index, Some(vec!["http://example.org/1.xml"])),
            (cut, Some(vec!["http://example.org/a"])),
            ("<urlset><url><loc>&#104;ttp://x.example/</loc></url></urlset>", Some(vec!["http://x.example/"])),
            ("<urlset><loc>no</loc><url><a><loc>no</loc></a></url></urlset>", None),
            ("<rss><url><loc>no</loc></url></rss>", None),
            ("<html><a href=x></html>", None),
            ("", None),
            ("no XML", None),
        ] {
            let expected = expected.map(|list| list.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(listed(xml.as_bytes()), expected, "{xml}");
        }
    }
}
