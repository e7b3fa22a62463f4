//! Frames of a scene that was made by hand, on screens of several sizes.

use super::*;
use crate::api::spools::{Spool, SpoolStage};
use crate::error::{Failure, Kind};
use serde_json::json;
use windlass_core::time::Time;

fn scene() -> Scene {
    let queue = |ready: u64, running: u64, failed: u64| json!({ "ready": ready, "running": running, "failed": failed });
    let stage = SpoolStage {
        stage: "texts".into(),
        waiting: 412,
        working: 3,
        left_s: Some(90.0),
        per_hour: 1200.4,
        ..SpoolStage::default()
    };
    Scene {
        at: Time(1_800_000_000_000_000),
        status: json!({
            "server": { "version": "0.1.0", "pid": 7, "dir": "/d", "condition": "serving" },
            "queues": { "fetch": queue(1200, 8, 0), "evil\u{1b}[2J": queue(1, 0, 2), "mail": queue(5, 0, 1) },
            "closed": { "mail": "paused" },
            "totals": queue(1206, 8, 3),
        }),
        stats: json!({
            "rows": [{ "key": "fetch", "per_minute": 600.0, "run_s": { "p95": 1.5 } }],
            "total": { "per_minute": 600.0 },
        }),
        running: vec![json!({
            "job": "j-1", "queue": "fetch", "started": "2027-01-15T07:58:20Z", "progress": "31/50 pages",
            "phase": "parse", "data": "report\u{1b}]0;x",
        })],
        failed: vec![json!({ "id": "j-9", "queue": "mail", "reason": "exhausted", "ended": "2027-01-15T07:59:00Z",
            "errors": [{ "text": "exit 22\u{7}" }] })],
        runs: vec![json!({ "id": "r-1", "name": "nightly", "total": 10, "live": 5, "counts": { "failed": 1 } })],
        why: json!({ "mail": [{ "code": "paused", "text": "paused by anna" }] }).as_object().unwrap().clone(),
        spools: vec![Spool { directory: "/q".into(), stages: vec![stage], left_s: Some(90.0), error: None }],
        trouble: None,
    }
}

fn shown(width: usize, height: usize, view: &mut View) -> Vec<String> {
    lines(&scene(), view, width, height).into_iter().map(|line| line.text).collect()
}

#[test]
fn a_plain_frame_says_it_all() {
    let text = plain(&scene()).join("\n");
    for part in [
        "windlass 0.1.0 serving  pid 7  /d  10 jobs/s",
        "ready 1,206  running 8",
        "empty in about 2m 1s",
        "queues, by waiting",
        "mail: paused by anna",
        "[######....] 31/50 pages  parse",
        "documents in /q, through in about 1m 30s",
        "1,200     1m 30s",
        "exit 22\\u{7}",
        "[#####.....] 5/10",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "nobody's data plays the terminal:\n{text}");
    let at = |part: &str| text.find(part).unwrap();
    assert!(at("\nfetch") < at("\nmail") && at("\nmail") < at("\nevil"), "{text}");
}

#[test]
fn a_frame_fits_its_screen() {
    for (width, height) in [(120, 40), (80, 24), (40, 12), (20, 5), (1, 1)] {
        let lines = shown(width, height, &mut View::default());
        assert!(lines.len() <= height, "{width}x{height}: {lines:#?}");
        assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}x{height}: {lines:#?}");
    }
    let usual = shown(80, 24, &mut View::default()).join("\n");
    for part in ["serving", "fetch", "j-1", "documents in", "PER HOUR", "LEFT", "q quit  ? help"] {
        assert!(usual.contains(part), "no {part:?} in:\n{usual}");
    }
    let narrow = shown(40, 30, &mut View::default()).join("\n");
    assert!(narrow.contains("WAITING") && !narrow.contains("P95"), "{narrow}");
}

#[test]
fn a_person_chooses() {
    let mut view = View { part: Some(Part::Running), ..View::default() };
    let one = shown(100, 20, &mut view).join("\n");
    assert!(one.contains("j-1") && !one.contains("queues, by"), "{one}");
    let mut view = View { filter: "FETCH".into(), ..View::default() };
    let some = shown(100, 30, &mut view).join("\n");
    assert!(some.contains("\nfetch") && !some.contains("\nmail  ") && some.contains("only \"FETCH\""), "{some}");
    let mut view = View { sort: 2, ..View::default() };
    let sorted = shown(100, 30, &mut view).join("\n");
    assert!(sorted.find("\nevil").unwrap() < sorted.find("\nfetch").unwrap(), "{sorted}");
    let mut view = View { part: Some(Part::Queues), from: usize::MAX, ..View::default() };
    let last = shown(100, 6, &mut view);
    assert!(view.from < 3 && last.iter().any(|line| line.starts_with("evil")), "{last:#?}");
    assert!(shown(100, 30, &mut View { help: true, ..View::default() }).join("\n").contains("hold the view still"));
}

#[test]
fn a_server_that_is_away_is_told_beside_what_was_known() {
    let trouble = Some(Failure::new(Kind::NoServer, "the server went away"));
    let lines = lines(&Scene { trouble, ..scene() }, &mut View::default(), 100, 30);
    assert_eq!((lines[0].tone, lines[0].text.as_str()), (Tone::Bad, "trying again: the server went away"));
    assert_eq!(lines[1].tone, Tone::Faint);
    let directories = Scene { spools: scene().spools, ..Scene::default() };
    assert!(plain(&directories)[0].starts_with("windlass  directories of documents"));
}

#[test]
fn rows_are_shared_out() {
    assert_eq!(shares(&[10, 1, 10], 9), [4, 1, 4]);
    assert_eq!(shares(&[2, 1], 9), [2, 1]);
    assert_eq!(shares(&[5, 5], 0), [0, 0]);
}
