//! Where workers are and since when, as everybody is told: over HTTP, by `show` and `status`; and what a fetcher and a
//! parser that feed each other go through, held against the cycles of the seed.

use crate::rig::Rig;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use windlass::api::{WorkerStep, Workers};
use windlass::client::Connection;
use windlass::data_dir::DataDir;

fn workers(rig: &Rig, steps: usize) -> Workers {
    let mut to = Connection::open(&DataDir::open(&rig.dir()).unwrap()).unwrap().unwrap();
    to.get_json(&format!("/api/v1/workers?steps={steps}")).unwrap()
}

/// What the seed calls this, as `docs/life-cycle.md` maps it; `starting` has no number there.
fn number(step: &WorkerStep) -> Option<u32> {
    Some(match (step.state.as_str(), step.phase.as_str()) {
        ("starting", "") => return None,
        ("waiting", "") => 1,
        ("working", "") => 4,
        ("working", "downloading") => 6,
        ("working", "downloaded") => 7,
        ("emitting", "") => 8,
        other => panic!("the seed knows nothing like {other:?}"),
    })
}

/// The recorded numbers are turns of the seed's cycle, of which only steps are left out that the seed lets be left out,
/// or that have no counterpart: a buffer (2), the moment before work (3), sleep (5), the moment after pushing (9).
fn fits(recorded: &[u32], cycle: &[u32]) {
    let needed: Vec<u32> = cycle.iter().copied().filter(|step| ![2, 3, 5, 9].contains(step)).collect();
    assert_eq!((recorded[0], needed[0]), (1, 1), "{recorded:?}");
    for turn in recorded[1..].split_inclusive(|step| *step == 1) {
        // A page without links has nothing to push.
        let without_push: Vec<u32> = needed[1..].iter().copied().filter(|step| *step != 8).collect();
        assert!(turn == &needed[1..] || turn == without_push, "{turn:?} of {recorded:?} is no turn of {cycle:?}");
    }
}

/// A site of so many pages, each with a link to the one before it; it ends with the process.
fn site() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while stream.read_line(&mut head).unwrap() > 2 {}
            let page: u32 = head.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
            let body = if page > 1 { format!("<a href='/{}'>on</a>\n", page - 1) } else { "<p>the end\n".into() };
            let answer = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    format!("http://{address}")
}

/// The stages of a crawl, with real pages: `curl` fetches, `sed` finds the links, and each feeds the other.
#[test]
fn a_fetcher_and_a_parser_go_through_the_cycles_of_the_seed() {
    let (rig, site) = (Rig::new(), site());
    let place = rig.path("pages");
    std::fs::create_dir(&place).unwrap();
    let place = place.display();
    let fetch = format!(
        r#"while read -r page; do
            echo phase downloading >&3
            curl --silent --fail --output {place}/$page {site}/$page || exit 1
            echo phase downloaded >&3
            printf '{{"status":"ok","emit":[{{"queue":"parse","data":"%s"}}]}}\n' $page
        done"#
    );
    let parse = format!(
        r#"while read -r page; do
            link=$(sed -n "s/.*href='\/\([0-9]*\)'.*/\1/p" {place}/$page)
            if [ -z "$link" ]; then echo ok; continue; fi
            printf '{{"status":"ok","emit":[{{"queue":"fetch","data":"%s"}}]}}\n' $link
        done"#
    );
    std::fs::write(rig.path("fetch"), fetch).unwrap();
    std::fs::write(rig.path("parse"), parse).unwrap();
    let table = |name: &str| format!("[queue.{name}]\nworker = [\"sh\", {:?}]\n", rig.path(name));
    let config = table("fetch") + &table("parse");
    let server = rig.serve(&config);
    rig.call(&["push", "fetch", "5"]).fine();
    rig.call(&["wait", "--drained"]).fine();
    let told = workers(&rig, 1000);
    assert_eq!(told.counts.forbidden, 0);
    let of =
        |table: &str| -> Vec<u32> { told.steps.iter().filter(|step| step.table == table).filter_map(number).collect() };
    let (fetcher, parser) = (of("fetch"), of("parse"));
    assert_eq!((fetcher.len(), parser.len()), (1 + 5 * 5, 1 + 4 * 3 + 2), "{fetcher:?} {parser:?}");
    fits(&fetcher, &[1, 3, 4, 6, 7, 8, 9, 5, 1]);
    fits(&parser, &[1, 3, 4, 8, 9, 5, 1]);
    assert_eq!(told.counts.transitions["working emit"], 9);
    assert_eq!(std::fs::read_dir(rig.path("pages")).unwrap().count(), 5, "every page was fetched");
    assert!(told.counts.states["working"].spent_s > 0.0);
    server.stop();
}

/// Ticks of processor time that the thread of the kept workers has used.
fn ticks_of_the_desk(server: &crate::rig::Server) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.process.pid().as_raw_nonzero())).unwrap();
    let stats = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap());
    let stat = stats.into_iter().find(|stat| stat.contains("(kept workers)")).expect("no thread of that name");
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// A thread that turns without rest uses a hundred ticks a second, or what its share of the machine is; one that waits
/// needs none of them.
#[test]
fn a_worker_that_closes_what_it_was_given_costs_no_processor() {
    let rig = Rig::new();
    let server = rig.serve(
        "[queue.channel]\nworker = [\"sh\", \"-c\", \"exec 3>&-; while read -r job; do sleep 2; echo ok; done\"]\n\
         [queue.replies]\nworker = [\"sh\", \"-c\", \"exec >&-; read -r job; sleep 1000\"]\n\
         attempts = 1\ngrace = \"2s\"\n",
    );
    let (fine, mute) = (rig.call(&["push", "channel", "x"]), rig.call(&["push", "replies", "x"]));
    rig.drained();
    let told = |id: &str| {
        let job = rig.call(&["show", id.trim_end(), "--json"]).json();
        (job["state"].as_str().unwrap().to_owned(), job["history"][0]["error"].clone())
    };
    assert_eq!(told(fine.fine()).0, "succeeded");
    assert_eq!(told(mute.fine()), ("failed".into(), "its worker closed its standard output".into()));
    let ticks = ticks_of_the_desk(&server);
    assert!(ticks < 20, "{ticks} ticks for two jobs");
    server.stop();
}

#[test]
fn where_a_worker_is_stands_in_the_list_and_in_show_and_status() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let config = format!(
        "[queue.q]\nrun = [\"sh\", \"-c\", \"echo phase parsing >> $WINDLASS_CONTROL; echo > {}; read x < {}\"]\n",
        bell.path, gate.path
    );
    let server = rig.serve(&config);
    let pushed = rig.call(&["push", "q", "1", "--json"]).json();
    let id = pushed["ids"][0].as_str().unwrap().to_owned();
    bell.next();
    let told = workers(&rig, 0);
    assert!(told.steps.is_empty());
    let at: Vec<_> = told.items.iter().filter(|worker| worker.job.as_deref() == Some(&id)).collect();
    assert_eq!(at.len(), 1, "{told:?}");
    assert_eq!((at[0].kind.as_str(), at[0].table.as_str()), ("process", "q"));
    assert_eq!((at[0].state.as_str(), at[0].phase.as_str(), at[0].jobs), ("working", "parsing", 1));
    assert!(told.items.iter().any(|worker| worker.kind == "launcher" && worker.pid.is_some()));
    let shown: Value = rig.call(&["show", &id, "--json"]).json();
    assert_eq!((&shown["worker"]["state"], &shown["worker"]["phase"]), (&"working".into(), &"parsing".into()));
    let lines = rig.call(&["show", &id]);
    assert!(lines.fine().contains("state working"), "{lines:?}");
    let status = rig.call(&["status"]);
    status.says("1 working");
    let status: Value = rig.call(&["status", "--json"]).json();
    assert_eq!((&status["workers"]["working"], &status["server"]["stalemates"]), (&1.into(), &0.into()));
    gate.open(1);
    rig.drained();
    let told = workers(&rig, 0);
    assert!(told.items.iter().all(|worker| worker.job.is_none()), "{told:?}");
    assert_eq!(told.counts.transitions["working finish"], 1);
    server.stop();
}

/// Nothing of a launcher that somebody stopped comes up. The queue says so after a minute, no other worker is made
/// while the first one may still be there, and when the launcher goes on so does the queue.
#[test]
fn a_worker_that_does_not_come_up_in_time_is_told_of_killed_and_made_anew() {
    let rig = Rig::new();
    let mut server = rig.serve(
        "[queue.q]\nworker = [\"sh\", \"-c\", \"while read -r job; do echo ok; done\"]\nslots = 1\ngrace = \"1h\"\n",
    );
    let launchers: Vec<i32> =
        workers(&rig, 0).items.iter().filter(|worker| worker.kind == "launcher").filter_map(|one| one.pid).collect();
    let signal = |signal| launchers.iter().for_each(|pid| kill_process(Pid::from_raw(*pid).unwrap(), signal).unwrap());
    signal(Signal::STOP);
    let id = rig.call(&["push", "q", "x"]).fine().trim_end().to_owned();
    let said = server.process.until("did not come up in time");
    assert!(said.contains("(kept of `q`)"), "{said}");
    let trouble = "its worker did not come up within a minute (once; the next try is in 0.1 s)";
    let of_job = || rig.call(&["why", &id]).fine().to_owned();
    while !of_job().contains(trouble) {}
    assert!(rig.call(&["why", "q"]).fine().contains(trouble));
    rig.call(&["status"]).says("its worker did not come up within a minute");
    let events = |event: &str| workers(&rig, 0).counts.transitions.get(event).copied().unwrap_or(0);
    // Those of the launchers are among them.
    let made = || events("stopped make") + events("died make") - launchers.len() as u64;
    assert_eq!((made(), events("starting stop")), (1, 1), "nobody is made beside it");
    signal(Signal::CONT);
    rig.call(&["wait", &id]).fine();
    assert_eq!((made(), events("stopping exit"), events("starting up")), (2, 1, 1 + launchers.len() as u64));
    assert!(!rig.call(&["why", "q"]).fine().contains("did not come up"), "it is over with the first answer");
    server.stop();
}
