//! The routes over a real Unix socket: what each does when it is asked properly.

use crate::api;
use crate::store::{Durability, Taken};
use rig::{Rig, job_id, run_id, run_info};
use serde_json::{Value, json};
use windlass_core::time::Time;

mod lots;
mod refusals;
pub(crate) mod rig;
mod streams;

#[test]
fn json_jobs_become_one_lot_with_neighbouring_ids() {
    let rig = Rig::new();
    let body = json!([
        {"queue": "mail", "data": "a"},
        {"queue": "img", "data_base64": "/w==", "priority": -3, "at": "1970-01-01T00:00:01Z", "durability": "os"},
        {"queue": "mail", "data": "ż\n", "run": run_id().to_string()},
        {"queue": "mail", "data": ""},
    ]);
    let (status, answer) = rig.post("/api/v1/jobs", api::JSON, body.to_string().as_bytes());
    let ids: Vec<String> = (0..4).map(|n| job_id(n).to_string()).collect();
    assert_eq!(status, 201);
    assert_eq!(answer, json!({"count": 4, "ids": ids, "first": ids[0], "last": ids[3], "durability": "os"}));
    let kept = rig.kept.lock().unwrap();
    let jobs: Vec<_> = kept.jobs().collect();
    assert_eq!(jobs.len(), 3, "mail twice, once in a run, and img");
    assert_eq!((jobs[0].jobs.id(1), jobs[0].jobs.data(1)), (job_id(3), &b""[..]));
    assert_eq!(
        (jobs[1].priority.value(), jobs[1].not_before, jobs[1].jobs.data(0)),
        (-3, Some(Time(1_000_000)), &b"\xff"[..])
    );
    assert_eq!((jobs[2].run, jobs[2].jobs.data(0)), (Some(run_id()), "ż\n".as_bytes()));
}

#[test]
fn a_single_job_has_a_location_and_the_default_is_full() {
    let rig = Rig::new();
    let (status, answer) =
        rig.post("/api/v1/jobs", "application/json; charset=utf-8", br#" {"queue":"mail","data":"a"} "#);
    assert_eq!((status, answer["durability"].as_str()), (201, Some("full")));
    let (status, text) =
        rig.tcp("POST /api/v1/jobs?queue=b", "content-type: application/octet-stream\r\n", "two\nlines");
    assert_eq!(status, 201);
    assert!(text.to_lowercase().contains(&format!("location: /api/v1/jobs/{}", job_id(1))), "{text}");
    let kept = rig.kept.lock().unwrap();
    assert_eq!(kept.jobs().nth(1).unwrap().jobs.data(0), b"two\nlines");
}

#[test]
fn lines_are_jobs_as_they_are_and_large_lots_are_cut_into_chunks() {
    let rig = Rig::new();
    let lines: String = (0..2500).map(|n| format!("line {n}\n")).collect();
    let (status, answer) =
        rig.post("/api/v1/jobs?queue=a%2Fb&priority=high&durability=os", "text/plain", lines.as_bytes());
    assert_eq!((status, answer["count"].as_u64(), answer.get("ids")), (201, Some(2500), None));
    assert_eq!(answer["last"], job_id(2499).to_string());
    let (_, answer) = rig.post("/api/v1/jobs?queue=q&ids=true", "text/plain", &lines.as_bytes()[..lines.len() - 1]);
    assert_eq!(answer["ids"].as_array().unwrap().len(), 2500, "the last line may lack its end");
    let kept = rig.kept.lock().unwrap();
    let first = &kept.lots[0];
    assert_eq!(first.1, Durability::Os);
    assert_eq!(first.0.jobs.iter().map(|new| new.jobs.len()).collect::<Vec<_>>(), [1000, 1000, 500]);
    assert_eq!(first.0.jobs[2].jobs.data(499), b"line 2499");
    assert_eq!((first.0.jobs[0].queue.as_str(), first.0.jobs[0].priority.value()), ("a/b", 10));
    let (status, answer) = rig.post("/api/v1/jobs?queue=q", "text/plain", b"");
    assert_eq!((status, answer["count"].as_u64()), (201, Some(0)));
}

#[test]
fn records_carry_any_bytes() {
    let rig = Rig::new();
    let mut body = Vec::new();
    for (queue, priority, data) in [("mail", 0i8, &b"x\n\0"[..]), ("img", -100, b""), ("mail", 0, b"z")] {
        body.extend_from_slice(&(queue.len() as u16).to_le_bytes());
        body.extend_from_slice(queue.as_bytes());
        body.push(priority as u8);
        body.extend_from_slice(&(data.len() as u32).to_le_bytes());
        body.extend_from_slice(data);
    }
    let (status, answer) = rig.post("/api/v1/jobs?ids=false", api::RECORDS, &body);
    assert_eq!((status, answer["count"].as_u64(), answer.get("ids")), (201, Some(3), None));
    {
        let kept = rig.kept.lock().unwrap();
        let jobs: Vec<_> = kept.jobs().collect();
        assert_eq!((jobs[0].jobs.data(0), jobs[0].jobs.id(1)), (&b"x\n\0"[..], job_id(2)));
        assert_eq!(jobs[1].priority.value(), -100);
    }
    for cut in 1..body.len() {
        let whole = [11 + 3, 11 + 3 + 10].contains(&cut);
        let (status, _) = rig.post("/api/v1/jobs", api::RECORDS, &body[..cut]);
        assert_eq!(status, if whole { 201 } else { 400 }, "cut at {cut}");
    }
}

#[test]
fn jobs_are_listed_in_pages_and_shown_whole() {
    let rig = Rig::new();
    let (status, page) = rig.get("/api/v1/jobs?selector=state:failed,ready+queue:mail&limit=1000");
    assert_eq!((status, page["items"].as_array().unwrap().len(), page["next"].as_str()), (200, 1000, Some("1000")));
    assert_eq!(
        (page["items"][0]["data"].as_str().unwrap().len(), page["items"][0]["data_bytes"].as_u64()),
        (200, Some(300))
    );
    let (_, page) = rig.get("/api/v1/jobs?limit=1000&cursor=2400");
    assert_eq!((page["items"].as_array().unwrap().len(), page["next"].as_str()), (101, None), "the archive comes last");
    let (_, page) = rig.get("/api/v1/jobs?selector=state:succeeded");
    assert_eq!(page["items"][0]["state"], "succeeded");
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
    let (status, job) = rig.get(&format!("/api/v1/jobs/{}", job_id(1)));
    assert_eq!(
        (status, job["data_base64"].as_str(), job["errors"][0]["text"].as_str()),
        (200, Some("/////w=="), Some("exit 3"))
    );
    assert_eq!(job["attempts"], json!({"starts": 2, "failures": 1, "suspicions": 0}));
    let (status, job) = rig.get(&format!("/api/v1/jobs/{}", job_id(77_777)));
    assert_eq!((status, job["state"].as_str(), job["history"][0]["start"].as_u64()), (200, Some("succeeded"), Some(1)));
    let output = rig.connect().get(&format!("/api/v1/jobs/{}/output?stream=stderr&start=3", job_id(77_777))).unwrap();
    assert_eq!((output.status, output.body), (200, b"Some(3) true\0".to_vec()));
}

#[test]
fn a_person_changes_one_job_or_many() {
    let rig = Rig::new();
    let ask = |verb: &str, n| rig.connect().post_empty::<api::Changed>(&format!("/api/v1/jobs/{}/{verb}", job_id(n)));
    let changed = ask("retry", 3).unwrap();
    assert_eq!((changed.result.as_str(), changed.to.as_deref()), ("done", Some("ready")));
    assert_eq!(ask("cancel", 0).unwrap().result, "running");
    assert_eq!(ask("retry", 1).unwrap().result, "already", "a ready job needs no other try");
    assert_eq!(ask("suspend", 1).unwrap_err().kind, crate::error::Kind::Conflict);
    assert_eq!(ask("retry", 2).unwrap_err().kind, crate::error::Kind::NotFound);
    let before = rig.kept.lock().unwrap().amended.len();
    let all = json!({"action": "retry", "selector": "state:failed", "expect": 2500});
    let (status, answer) = rig.post("/api/v1/operations", api::JSON, all.to_string().as_bytes());
    assert_eq!(status, 200);
    let counts = ["matched", "changed", "refused", "running", "unknown"].map(|key| answer[key].as_u64().unwrap());
    assert_eq!(counts, [2500, 1750, 250, 250, 250]);
    assert_eq!(rig.kept.lock().unwrap().amended[before..], [1000, 1000, 500]);
    let dry = json!({"action": "cancel", "selector": "", "dry_run": true});
    let (_, answer) = rig.post("/api/v1/operations", api::JSON, dry.to_string().as_bytes());
    assert_eq!(answer["matched"], 2500);
    assert_eq!(answer["sample"].as_array().unwrap().len(), 5);
    let other = json!({"action": "cancel", "selector": "", "expect": 3});
    let (status, answer) = rig.post("/api/v1/operations", api::JSON, other.to_string().as_bytes());
    assert_eq!((status, answer["code"].as_str()), (409, Some("conflict")));
    assert_eq!(rig.kept.lock().unwrap().amended.len(), before + 3, "neither changed anything");
    for (body, sentence) in [
        (json!({"action": "retry"}), "either a selector or ids"),
        (json!({"action": "retry", "selector": "", "ids": []}), "either a selector or ids"),
        (json!({"action": "retry", "ids": ["x"]}), "x is"),
        (json!({"action": "priority", "selector": ""}), "from -100 to 100"),
        (json!({"action": "priority", "priority": 101, "selector": ""}), "from -100 to 100"),
        (json!({"action": "cancel", "priority": 1, "selector": ""}), "only the action priority"),
        (json!({"action": "cancel", "selector": "state:x"}), "in the selector at character 1"),
    ] {
        let (status, answer) = rig.post("/api/v1/operations", api::JSON, body.to_string().as_bytes());
        assert!(status == 422 && answer["detail"].as_str().unwrap().contains(sentence), "{body}: {answer}");
    }
}

#[test]
fn statistics_by_queue_priority_state_and_hour() {
    let rig = Rig::new();
    let (status, stats) = rig.get("/api/v1/stats");
    assert_eq!(status, 200, "{stats}");
    let keys = |stats: &Value| -> Vec<String> {
        stats["rows"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&stats), ["img", "mail"]);
    assert_eq!((stats["rows"][0]["deleted"].as_u64(), stats["rows"][0]["attempts"].as_u64()), (Some(10), Some(0)));
    let mail = &stats["rows"][1];
    assert_eq!(
        (mail["succeeded"].as_u64(), mail["failed"].as_u64(), mail["attempts"].as_u64()),
        (Some(10), Some(10), Some(20))
    );
    assert!((1.0..1.07).contains(&mail["wait_s"]["p50"].as_f64().unwrap()), "{mail}");
    assert!((4.0..4.3).contains(&mail["run_s"]["p99"].as_f64().unwrap()), "{mail}");
    assert_eq!(keys(&rig.get("/api/v1/stats?by=priority").1), ["10", "0"], "the highest first");
    assert_eq!(keys(&rig.get("/api/v1/stats?by=state").1), ["cancelled", "failed", "succeeded"]);
    assert_eq!(keys(&rig.get("/api/v1/stats?by=hour").1).len(), 1);
    assert_eq!(rig.get("/api/v1/stats?selector=priority:10").1["total"]["attempts"], 10);
    for (query, wanted) in [("by=colour", 400), ("since=yesterday", 422), ("selector=j-1", 422), ("selector=x:y", 422)]
    {
        assert_eq!(rig.get(&format!("/api/v1/stats?{query}")).0, wanted, "{query}");
    }
}

#[test]
fn runs_are_opened_fed_and_sealed() {
    let rig = Rig::new();
    let service = json!({"queue": "run/1", "argv_base64": ["ZWNobw==", "e30="], "directory_base64": "Lw==",
        "environment_base64": [["QQ==", "/w=="]], "slots": 2, "attempts": 1, "output_max": 100});
    let (status, run) =
        rig.post("/api/v1/runs", api::JSON, json!({"name": "n", "service": service}).to_string().as_bytes());
    assert_eq!(
        (status, run["name"].as_str(), run["taken"]["hash"].as_str()),
        (201, Some("n"), Some("0000000000000abc"))
    );
    let (status, _) = rig.post("/api/v1/runs", api::JSON, b"{}");
    assert_eq!(status, 201);
    let path = format!("/api/v1/runs/{}", run_id());
    let (status, answer) =
        rig.post(&format!("{path}/lines?queue=run/1&lines=2&hash=abc&then_hash=def"), "text/plain", b"x\n\ny\nz");
    assert_eq!((status, answer["count"].as_u64()), (201, Some(3)));
    let taken = rig.kept.lock().unwrap().lots[0].0.taken;
    assert_eq!(taken, Some((run_id(), Taken { lines: 2, hash: 0xabc }, Taken { lines: 5, hash: 0xdef })));
    let (status, _) = rig.post(&format!("{path}/lines?queue=run/1&lines=9&hash=9&then_hash=def"), "text/plain", b"x\n");
    assert_eq!(status, 409);
    let run: api::Run = rig.connect().get_json(&path).unwrap();
    assert_eq!(run, api::Run::from(&run_info(false)));
    let runs: api::Page<api::Run> = rig.connect().get_json("/api/v1/runs?limit=1").unwrap();
    assert_eq!(runs.items.len(), 1);
    let _: serde_json::Value = rig.connect().post_empty(&format!("{path}/seal")).unwrap();
    rig.seen("seal_run");
}

#[test]
fn the_server_tells_about_itself_and_takes_orders() {
    let rig = Rig::new();
    let mut connection = rig.connect();
    let status: api::Status = connection.get_json("/api/v1/status").unwrap();
    assert_eq!(
        (status.server.pid, status.totals["failed"], status.queues["img"]["started"]),
        (std::process::id(), 5000, 9)
    );
    assert_eq!((status.queues["mail"].len(), status.runs.open), (9, 1));
    assert_eq!((status.closed.len(), status.closed["mail"].as_str()), (1, "paused"));
    assert_eq!(connection.get("/livez").unwrap().status, 200);
    assert_eq!(connection.get("/readyz").unwrap().status, 200);
    let flights: api::Page<api::Flight> = connection.get_json("/api/v1/flights").unwrap();
    assert_eq!((flights.items[0].start, flights.items[0].started.as_str()), (2, "1970-01-01T00:00:01Z"));
    let _: serde_json::Value = connection.post_empty("/api/v1/nudge").unwrap();
    rig.seen("nudge");
    let refused = connection.post_empty::<serde_json::Value>("/api/v1/reload").unwrap_err();
    assert_eq!(
        (refused.kind, refused.text.as_str()),
        (crate::error::Kind::Config, "windlass.toml:3: unknown key slotz")
    );
    let stop: api::Stop = connection.post_json("/api/v1/stop", &api::Stop { mode: api::StopMode::Drain }).unwrap();
    assert_eq!(stop.mode, api::StopMode::Drain);
    rig.seen("drain");
    assert_eq!(connection.get("/readyz").unwrap().status, 503, "a draining server is not ready");
    assert_eq!(connection.get("/livez").unwrap().status, 200);
}

#[test]
fn the_path_of_the_socket_may_be_long() {
    let rig = Rig::under(&["d".repeat(100), "e".repeat(100)].join("/"));
    assert!(rig.dir.socket().as_os_str().len() > 200);
    assert_eq!(rig.get("/livez").0, 200);
    use std::os::unix::fs::PermissionsExt;
    let mode = |name: &str| std::fs::metadata(rig.dir.run().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("socket"), mode("token")), (0o600, 0o600));
}

#[test]
fn a_socket_left_behind_is_replaced_and_the_token_stays() {
    let mut rig = Rig::new();
    let token = rig.token();
    drop(rig.server.take());
    assert!(crate::client::Connection::open(&rig.dir).unwrap().is_none(), "nobody listens");
    drop(std::os::unix::net::UnixListener::bind(rig.dir.socket()).unwrap());
    assert!(crate::client::Connection::open(&rig.dir).unwrap().is_none(), "a dead socket is nobody too");
    rig.start_again();
    assert_eq!(rig.get("/livez").0, 200);
    assert_eq!(rig.token(), token);
}
