//! What is followed and what is not: depth, patterns, limits, sitemaps, redirects, headers.

use crate::site::{Place, Small, html, links, moved, page, saved, status};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn paths(paths: &[&str]) -> BTreeSet<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

/// The short way to `/x` is slower than the long one: it still counts, and nothing is fetched twice.
#[test]
fn depth_is_the_shortest_way_even_if_it_is_slow() {
    let small = Small::new(|request| match request.path {
        "/" => links(&["/short", "/a"]),
        "/a" => links(&["/b"]),
        "/b" => links(&["/x"]),
        "/short" => {
            request.asked.wait("/y", 1);
            links(&["/x"])
        }
        "/x" => links(&["/y"]),
        "/y" => links(&["/z"]),
        "/z" => links(&["/far"]),
        _ => html("end"),
    });
    let place = Place::new();
    let told = place.crawl(&[&small.url("/"), "--depth", "4", "--report", "json"]);
    let report = told.ended(0).report();
    assert_eq!(saved(&report), paths(&["/", "/short", "/a", "/b", "/x", "/y", "/z"]));
    assert!(["/", "/short", "/a", "/b", "/x", "/y", "/z"].iter().all(|path| small.asked.times(path) == 1));
    assert_eq!(small.asked.times("/far"), 0);
    // Once more in the same directory is a crawl of its own: it knows no distance of the one before.
    let again = place.crawl(&[&small.url("/"), "--depth", "4", "--report", "json"]).ended(0).report();
    assert_eq!(saved(&again), saved(&report));
    assert_eq!(small.asked.times("/z"), 2);
}

#[test]
fn patterns_choose_and_max_pages_ends() {
    let small = Small::new(|request| match request.path {
        "/robots.txt" => status("404 None", ""),
        "/" => links(&["/docs/a", "/docs/b.pdf", "/blog/c", "/docs/d"]),
        _ => links(&["/docs/a", "/more"]),
    });
    let place = Place::new();
    let words = [&small.url("/"), "--include", "/docs/*", "--exclude", "*.pdf", "--report", "json"];
    assert_eq!(saved(&place.crawl(&words).ended(0).report()), paths(&["/", "/docs/a", "/docs/d"]));
    let place = Place::new();
    let report = place.crawl(&[&small.url("/"), "--max-pages", "2", "--report", "json"]).ended(0).report();
    assert_eq!((&report["counts"]["pages"], saved(&report).len()), (&2.into(), 2));
    assert!(report["counts"]["left_out"].as_u64().unwrap() >= 3, "{report}");
}

#[test]
fn what_the_rules_forbid_is_not_counted_as_asked_for() {
    let small = Small::new(|request| match request.path {
        "/robots.txt" => html("User-agent: *\nDisallow: /private/\n").replace("text/html", "text/plain"),
        "/" => links(&["/private/a", "/private/b", "/private/c", "/private/d", "/x", "/y", "/z"]),
        _ => html(""),
    });
    let report = Place::new().crawl(&[&small.url("/"), "--max-pages", "3", "--report", "json"]).ended(0).report();
    assert_eq!(saved(&report).len(), 3, "{report}");
    let counts = &report["counts"];
    assert_eq!((&counts["forbidden"], &counts["left_out"]), (&4.into(), &1.into()), "{report}");
}

/// One host wants ten seconds between two pages, and has enough of them to fill every fetcher; the other's pages, each
/// of which leads to the next, are all fetched meanwhile.
#[test]
fn a_host_that_wants_long_pauses_keeps_no_other_waiting() {
    const SLOW: usize = 1200;
    const FAST: usize = 20;
    let small = Small::new(|request| {
        let is_slow = request.head.to_ascii_lowercase().contains("host: localhost");
        match request.path {
            "/robots.txt" if is_slow => html("User-agent: *\nCrawl-delay: 10\n").replace("text/html", "text/plain"),
            "/robots.txt" => status("404 None", ""),
            "/slow" => html(&(0..SLOW).map(|n| format!("<a href='/slow/{n}'>x</a>")).collect::<String>()),
            "/fast/0" => {
                // Its pages wait by then.
                request.asked.wait_until(|counts| counts.keys().any(|path| path.starts_with("/slow/")));
                links(&["/fast/1"])
            }
            path => match path.strip_prefix("/fast/").and_then(|n| n.parse::<usize>().ok()) {
                Some(n) if n < FAST => links(&[&format!("/fast/{}", n + 1)]),
                _ => html(""),
            },
        }
    });
    let (place, slow) = (Place::new(), format!("http://localhost:{}/slow", small.address.port()));
    let mut child = place.command(&[&slow, &small.url("/fast/0")]).stderr(Stdio::null()).spawn().unwrap();
    let (last, slow) = (format!("/fast/{FAST}"), |counts: &BTreeMap<String, usize>| {
        counts.keys().filter(|path| path.starts_with("/slow/")).count()
    });
    small.asked.wait_until(|counts| counts.contains_key(&last) || slow(counts) > 3);
    assert_eq!(small.asked.times(&last), 1, "four pages of the slow host came before it");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn pages_are_as_far_apart_as_the_rate_and_the_rules_of_the_host_say() {
    for (rules, rate) in [("User-agent: *\nCrawl-delay: 0.2\n", &[][..]), ("", &["--rate", "5/s"])] {
        let times = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&times);
        let small = Small::new(move |request| {
            noted.lock().unwrap().push((request.path.to_owned(), Instant::now()));
            match request.path {
                "/robots.txt" => html(rules).replace("text/html", "text/plain"),
                "/" => links(&["/a", "/b", "/c", "/d"]),
                _ => html(""),
            }
        });
        let start = small.url("/");
        let words = [&[&start[..], "--report", "json"], rate].concat();
        assert_eq!(saved(&Place::new().crawl(&words).ended(0).report()).len(), 5);
        // Nothing begins before the rules are known, so page k cannot come sooner than k pauses after them.
        let times = times.lock().unwrap();
        let known = times.iter().find(|(path, _)| path == "/robots.txt").unwrap().1;
        let mut pages: Vec<Instant> =
            times.iter().filter(|(path, _)| path != "/robots.txt").map(|(_, at)| *at).collect();
        pages.sort_unstable();
        for (place, at) in (0..).zip(pages) {
            let (after, least) = (at - known, Duration::from_millis(200) * place);
            assert!(
                after >= least,
                "page {place} came {after:?} after the rules, expected {least:?} ({rules:?} {rate:?})"
            );
        }
    }
}

#[test]
fn sitemaps_headers_and_the_name_in_robots() {
    let small = Small::new(|request| {
        let base = format!("http://{}", request.head.lines().find_map(|line| line.strip_prefix("host: ")).unwrap());
        let xml = |body: String| html(&body).replace("text/html", "application/xml");
        match request.path {
            _ if !request.head.contains("user-agent: visitor/1.0\r\n") => status("403 No", ""),
            "/robots.txt" => {
                let rules = format!("User-agent: visitor\nDisallow: /no\nSitemap: {base}/index.xml\n");
                html(&rules).replace("text/html", "text/plain")
            }
            "/index.xml" => xml(format!("<sitemapindex><sitemap><loc>{base}/map.xml</loc></sitemap></sitemapindex>")),
            "/map.xml" => xml(format!(
                "<urlset><url><loc>{base}/hidden?a=1&amp;b=2</loc></url><url><loc>{base}/no</loc></url></urlset>"
            )),
            "/sitemap.xml" => status("404 None", ""),
            _ if !request.head.contains("x-key: 7") => status("403 No", ""),
            _ => html("fine"),
        }
    });
    let place = Place::new();
    let words =
        [&small.url("/"), "--sitemap", "--header", "X-Key: 7", "--user-agent", "visitor/1.0", "--report", "json"];
    let report = place.crawl(&words).ended(0).report();
    assert_eq!(saved(&report), paths(&["/", "/robots.txt", "/index.xml", "/map.xml", "/hidden?a=1&b=2"]));
    assert_eq!(page(&report, "/no")["skipped"], "robots.txt");
}

#[test]
fn rules_that_cannot_be_had_forbid_everything() {
    let small = Small::new(|request| match request.path {
        "/robots.txt" => status("500 Oops", ""),
        _ => html("fine"),
    });
    let place = Place::new();
    let report = place.crawl(&[&small.url("/"), "--report", "json"]).ended(1).report();
    assert!(
        page(&report, "/")["error"].as_str().unwrap().contains("robots.txt was answered with HTTP 500"),
        "{report}"
    );
    assert_eq!(small.asked.times("/"), 0);
}

/// What the user named may be on this machine; where a page leads by itself may not be inside.
#[test]
fn redirects_lead_into_no_private_network() {
    let inside = Small::new(|_| html("secret"));
    let within = inside.url("/secret");
    let small = Small::new(move |request| match request.path {
        "/" => links(&["/out", "/in"]),
        "/out" => moved(&within),
        "/in" => moved("http://10.255.255.1/secret"),
        _ => status("404 None", ""),
    });
    let place = Place::new();
    // Without a pattern another host is not asked at all.
    let report = place.crawl(&[&small.url("/"), "--report", "json"]).ended(0).report();
    assert_eq!((saved(&report), inside.asked.times("/secret")), (paths(&["/"]), 0));
    let place = Place::new();
    let words = [&small.url("/"), "--include", "http://*", "--report", "json"];
    let report = place.crawl(&words).ended(1).report();
    let errors: Vec<&str> = report["pages"].as_array().unwrap().iter().filter_map(|p| p["error"].as_str()).collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors.iter().any(|e| e.contains("an address of this machine")), "{errors:?}");
    assert!(errors.iter().any(|e| e.contains("an address of a private network")), "{errors:?}");
    assert_eq!(inside.asked.times("/secret"), 0);
}

#[test]
fn csv_and_the_last_words() {
    let small = Small::new(|request| match request.path {
        "/" => links(&["/gone"]),
        _ => status("404 None", ""),
    });
    let place = Place::new();
    let told = place.crawl(&[&small.url("/"), "--report", "csv"]);
    let lines: Vec<&str> = told.ended(1).stdout.lines().collect();
    assert_eq!(lines[0], "url,status,type,bytes,file,to,error,skipped,referrers");
    assert_eq!(lines[2], format!("{},404,,,,,HTTP 404,,{}", small.url("/gone"), small.url("/")));
    let place = Place::new();
    let told = place.crawl(&[&small.url("/")]);
    let told = &told.ended(1).stderr;
    assert!(told.contains(&format!("{}: HTTP 404, linked from {}", small.url("/gone"), small.url("/"))), "{told}");
}
