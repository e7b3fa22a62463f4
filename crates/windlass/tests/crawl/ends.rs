//! A whole site: every page once, the end by itself, and the same set however often it is killed.

use crate::site::{Place, Site, Small, Told, expected_pages, html, links, page, path_of, saved, status};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

const REPORT: [&str; 2] = ["--report", "json"];

#[test]
fn every_reachable_page_once_and_the_end_by_itself() {
    let (site, place) = (Site::start(), Place::new());
    let told = place.crawl(&[&site.url("/"), REPORT[0], REPORT[1]]);
    let report = told.ended(1).report();
    assert_eq!(saved(&report), expected_pages());
    assert_eq!(place.files().len(), expected_pages().len());
    for (path, count) in site.requests() {
        let expected = match path.as_str() {
            "/live/flaky" | "/live/busy" => 2,
            // What does not answer well is asked for three times.
            "/live/cut" | "/live/down" => 3,
            _ => 1,
        };
        assert_eq!(count, expected, "{path}");
    }
    let broken: Vec<String> = report["pages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|p| p["error"].is_string())
        .map(|p| path_of(p["url"].as_str().unwrap()))
        .collect();
    assert_eq!(broken, ["/live/cut", "/live/down", "/missing.html"]);
    let missing = page(&report, "/missing.html");
    assert_eq!(missing["status"], 404);
    assert_eq!(
        missing["referrers"].as_array().unwrap().iter().map(|r| path_of(r.as_str().unwrap())).collect::<Vec<_>>(),
        ["/d7/p17.html", "/d8/p18.html"]
    );
    assert_eq!(page(&report, "/private/secret.html")["skipped"], "robots.txt");
    assert_eq!(path_of(page(&report, "/live/moved")["to"].as_str().unwrap()), "/live/target");
    assert_eq!(
        (&report["counts"]["broken"], &report["counts"]["redirects"], &report["counts"]["forbidden"]),
        (&3.into(), &3.into(), &1.into())
    );
    assert!(told.stderr.contains("crawl ended in") && told.stderr.contains("3 broken"), "{}", told.stderr);
}

/// Kills a process as nothing can prevent.
fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Kills it at one point after the other and lets it end then.
fn killed_often(limits: &[&str]) {
    let (site, place) = (Site::start(), Place::new());
    let start = site.url("/");
    let words: Vec<&str> = [&[&start[..]], &REPORT[..], limits].concat();
    for bell in ["/live/bell/0", "/live/bell/30", "/live/moved", "/live/bell/150", "/live/bell/299"] {
        let child = place.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        site.small.asked.wait(bell, 1);
        kill(child);
    }
    let report = place.crawl(&words).ended(1).report();
    assert_eq!(saved(&report), expected_pages());
    assert_eq!(place.files().len(), expected_pages().len());
    assert_eq!(report["counts"]["broken"], 3);
    // What was fetched and stored before a death is not fetched again: only what was under way at one of the deaths.
    let twice = site.requests().into_iter().filter(|(path, count)| *count > 1 && !path.starts_with("/live/")).count();
    assert!(twice < expected_pages().len() / 2, "{twice} pages were fetched more than once");
}

#[test]
fn killed_at_any_point_and_started_again_it_gives_the_same_pages() {
    killed_often(&[]);
}

/// A page that is met on several ways has several jobs then, and still the same pages come of it.
#[test]
fn killed_at_any_point_with_a_depth_it_gives_the_same_pages() {
    killed_often(&["--depth", "20"]);
}

#[test]
fn what_failed_before_a_kill_does_not_count_against_max_pages() {
    let small = Small::new(|request| match request.path {
        "/robots.txt" => status("404 None", ""),
        "/" => links(&["/x1", "/x2", "/x3", "/g1"]),
        "/g1" => {
            ["/x1", "/x2", "/x3"].iter().for_each(|broken| request.asked.wait(broken, 1));
            links(&["/g2"])
        }
        "/g2" => links(&["/bell"]),
        "/bell" => {
            // Whoever asks first is killed before there is an answer.
            request.asked.wait("/bell", 2);
            links(&["/a", "/b"])
        }
        "/a" | "/b" => html(""),
        _ => status("404 None", ""),
    });
    let (place, start) = (Place::new(), small.url("/"));
    let words = [&start[..], "--max-pages", "7", REPORT[0], REPORT[1]];
    let child = place.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    small.asked.wait("/bell", 1);
    kill(child);
    let report = place.crawl(&words).ended(1).report();
    let pages: Vec<String> = saved(&report).into_iter().collect();
    assert_eq!(pages, ["/", "/a", "/b", "/bell", "/g1", "/g2"], "{report}");
}

#[test]
fn a_signal_stops_in_order_and_the_same_command_goes_on() {
    let (site, place) = (Site::start(), Place::new());
    let start = site.url("/");
    let words = [&start[..], REPORT[0], REPORT[1]];
    let mut child = place.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    site.small.asked.wait("/live/bell/30", 1);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut stderr = String::new();
    while !stderr.contains("once more stops now") {
        assert!(said.read_line(&mut stderr).unwrap() > 0, "{stderr}");
    }
    // The slow page waits for a page that comes no more: a second signal does not.
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    said.read_to_string(&mut stderr).unwrap();
    let told = Told::of(child.wait_with_output().unwrap());
    told.ended(130);
    assert!(stderr.contains("the same command goes on with it"), "{stderr}");
    let other = place.crawl(&[&start, "--depth", "1"]);
    assert!(other.ended(75).stderr.contains("holds an unfinished crawl"), "{}", other.stderr);
    let told = place.crawl(&words);
    assert!(told.stderr.contains("continuing the crawl"), "{}", told.stderr);
    assert_eq!(saved(&told.ended(1).report()), expected_pages());
}

#[test]
fn two_crawls_of_one_directory_do_not_mix() {
    let (site, place) = (Site::start(), Place::new());
    let start = site.url("/");
    let child = place.command(&[&start]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    site.small.asked.wait("/live/bell/0", 1);
    let second = place.crawl(&[&start]);
    // It may have ended by now; if not, the second is refused, and says by whom.
    assert!(
        second.code == Some(75) && second.stderr.contains("windlass process") || second.code == Some(1),
        "{second:?}"
    );
    kill(child);
}
