//! Unique keys, what jobs have besides, and the terms of runs, as people and programs use them.

use crate::rig::Rig;

/// The one line of standard output.
fn line(rig: &Rig, words: &[&str]) -> String {
    rig.call(words).fine().trim_end().to_owned()
}

#[test]
fn particulars_are_shown_while_a_job_waits_and_after_it_has_ended_and_travel_with_an_export() {
    let rig = Rig::new();
    let parent = line(&rig, &["push", "q", "first"]);
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let words = ["push", "q", "x", "--subject", "customer:42", "--trace", trace, "--parent", &parent];
    let id = line(&rig, &words);
    let check = || {
        let shown = rig.call(&["show", &id, "--json"]).json();
        assert_eq!((&shown["subject"]["type"], &shown["subject"]["id"]), (&"customer".into(), &"42".into()), "{shown}");
        assert_eq!((&shown["trace"]["parent"], &shown["parent"]), (&trace.into(), &parent.as_str().into()), "{shown}");
        shown["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(check(), "ready");
    let exported = rig.call(&["export"]).fine().to_owned();
    assert!(exported.contains("\"subject\":{\"type\":\"customer\",\"id\":\"42\"}"), "{exported}");
    let server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    rig.call(&["wait", "--drained"]).fine();
    assert_eq!(check(), "succeeded");
    server.stop();
}

#[test]
fn a_job_whose_key_is_taken_is_not_stored_and_the_one_that_has_it_is_named() {
    let rig = Rig::new();
    let server = rig.serve("[queue.other]\nrun = [\"true\"]\n");
    let id = line(&rig, &["push", "q", "a", "--unique", "k"]);
    let again = rig.call(&["push", "q", "b", "--unique", "k"]);
    again.says("it was there already").fine();
    assert_eq!(rig.call(&["push", "q", "c", "--unique", "k", "--json"]).json()["duplicates"], 1);
    assert_eq!(line(&rig, &["push", "q", "b", "--unique", "k"]), id);
    rig.call(&["push", "q", "b", "--unique", "k", "--on-conflict", "reject"]).says("has the unique key").ended(75);
    let other = line(&rig, &["push", "q", "b", "--unique", "k", "--on-conflict", "replace"]);
    assert_ne!(other, id);
    assert_eq!(rig.call(&["show", &id, "--json"]).json()["state"], "cancelled");
    server.stop();
    // Without a server the inbox takes it, and whoever reads the inbox drops it.
    rig.call(&["push", "q", "b", "--unique", "k"]).fine();
    assert_eq!(rig.call(&["ls", "queue:q state:ready", "--json"]).json().as_array().unwrap().len(), 1);
}

#[test]
fn a_graph_with_cycles_and_duplicates_ends_once_with_each_node_once_also_when_the_server_is_killed() {
    let rig = Rig::new();
    let mut gate = rig.gate("gate");
    // Node n leads to 2n and 3n modulo 101, and to itself: every node is reached, most of them often.
    let script = format!(
        "for n in $1 $(($1 * 2 % 101)) $(($1 * 3 % 101)); do printf 'node\\t%s\\n' $n >> $WINDLASS_EMIT; done
         read x < {}",
        gate.path
    );
    let config = format!(
        "[queue.node]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\nunique = \"run\"\nslots = 4\n\
         [queue.done]\nrun = [\"cat\"]\n"
    );
    let mut server = rig.serve(&config);
    let run = line(&rig, &["push", "node", "1", "--run", "new", "--end-job", "done"]);
    let done = || rig.call(&["show", &run, "--json"]).json()["counts"]["succeeded"].as_u64().unwrap_or(0);
    // Fewer are let through than there are nodes, so each death is in the middle: some have been settled since the last
    // one, others run, and of the rest some are not known yet.
    let mut before = 0;
    for _ in 0..4 {
        gate.open(20);
        while done() < before + 10 {}
        server.kill();
        server = rig.serve(&config);
        before = done();
        assert!((1..100).contains(&before), "{before} of 100 are done");
    }
    gate.open(400);
    rig.call(&["wait", &run]).fine();
    rig.call(&["wait", "--drained"]).fine();
    let shown = rig.call(&["show", &run, "--json"]).json();
    assert_eq!((&shown["total"], &shown["counts"]["succeeded"]), (&100.into(), &100.into()), "{shown}");
    assert_eq!(shown["dropped"], 201, "300 were emitted, 99 of them new: {shown}");
    let told = rig.call(&["ls", "queue:done", "--json"]).json();
    assert_eq!(told.as_array().unwrap().len(), 1, "{told}");
    server.stop();
}

#[test]
fn a_run_heeds_its_terms() {
    let rig = Rig::new();
    let server = rig.serve("[queue.q]\nrun = [\"false\"]\nattempts = 1\n[queue.hang]\nrun = [\"sleep\", \"600\"]\n");
    let limited = line(&rig, &["push", "nobody", "a", "b", "c", "--run", "new", "--job-limit", "2"]);
    let shown = rig.call(&["show", &limited, "--json"]).json();
    assert_eq!((&shown["total"], &shown["dropped"], &shown["job_limit"]), (&2.into(), &1.into(), &2.into()), "{shown}");
    let borne = line(&rig, &["push", "q", "a", "b", "--run", "new", "--tolerate", "100%"]);
    rig.call(&["wait", &borne]).fine();
    let failed = line(&rig, &["push", "q", "a", "b", "c", "--run", "new", "--tolerate", "0"]);
    rig.call(&["wait", &failed]).ended(1);
    let hung = line(&rig, &["push", "hang", "a", "--run", "new", "--time-limit", "1s"]);
    rig.call(&["wait", &hung]).ended(1);
    let shown = rig.call(&["show", &hung, "--json"]).json();
    assert_eq!((&shown["stopped"], &shown["counts"]["cancelled"]), (&"time_limit".into(), &1.into()), "{shown}");
    server.stop();
}

#[test]
fn a_run_that_nobody_sealed_says_so_and_ends_when_it_is_sealed() {
    let rig = Rig::new();
    let server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    let run = "r-0123456789";
    rig.call(&["push", "q", "a", "--run", run]).fine();
    rig.call(&["wait", "--drained"]).fine();
    let why = rig.call(&["why", run]).fine().to_owned();
    assert!(why.contains("not sealed"), "{why}");
    assert_eq!(rig.call(&["show", run, "--json"]).json()["ended"], false);
    rig.call(&["seal", run]).says("is sealed").fine();
    rig.call(&["wait", run]).fine();
    rig.call(&["seal", run]).ended(66);
    server.stop();
}

#[test]
fn a_run_says_what_it_waits_for_and_a_job_that_only_the_archive_knows_what_became_of_it() {
    let rig = Rig::new();
    let config = "[queue.q]\nrun = [\"false\"]\nbackoff = \"1h\"\nbackoff_max = \"1h\"\n\
                  [queue.ill]\nworker = [\"sh\", \"-c\", \"echo no database >&2; exit 3\"]\n\
                  [queue.hang]\nrun = [\"sleep\", \"600\"]\n";
    let server = rig.serve(config);
    let run = "r-0123456789";
    let first = line(&rig, &["push", "q", "a", "--run", run]);
    let codes = |of: &str| -> Vec<(String, String)> {
        let why = rig.call(&["why", of, "--json"]).json();
        let text = |reason: &serde_json::Value, key: &str| reason[key].as_str().unwrap().to_owned();
        why["reasons"].as_array().unwrap().iter().map(|r| (text(r, "code"), text(r, "text"))).collect()
    };
    let says = |code: &str, part: &str| codes(run).iter().any(|(c, text)| c == code && text.contains(part));
    while !says("retrying", "1 job is retrying, the next ") {}
    rig.call(&["push", "hang", "z", "--run", run]).fine();
    while !says("running", "1 job is running") {}
    assert!(!says("nothing_waits", ""), "what runs waits for no start: {:?}", codes(run));
    rig.call(&["push", "last", "b", "--run", run, "--after", &first]).fine();
    assert!(says("after", &format!("1 job waits until these have succeeded: {first}")), "{:?}", codes(run));
    rig.call(&["push", "ill", "c", "--run", run]).fine();
    while !says("workers_cannot_serve", "queue `ill`: its workers cannot serve") {}
    let gone = line(&rig, &["push", "nobody", "x"]);
    rig.call(&["delete", &gone, "--yes"]).fine();
    while !codes(&gone).contains(&("ended".into(), "it was deleted".into())) {}
    server.stop();
}

#[test]
fn a_job_waits_for_others_and_is_cancelled_if_one_of_them_fails() {
    let rig = Rig::new();
    let first = line(&rig, &["push", "first", "0"]);
    let second = line(&rig, &["push", "first", "3"]);
    let both = format!("{first},{second}");
    let waits = line(&rig, &["push", "last", "x", "--after", &first]);
    let in_vain = line(&rig, &["push", "last", "y", "--after", &both]);
    rig.call(&["push", "last", "z", "--after", "j-0000000000-1"]).says("to wait for").ended(65);
    let why = rig.call(&["why", &waits]).fine().to_owned();
    assert!(why.contains(&first), "{why}");
    let script = "exit $1";
    let config = format!(
        "[queue.first]\nrun = [\"sh\", \"-c\", {script:?}, \"sh\", \"{{}}\"]\nattempts = 1\n\
         [queue.last]\nrun = [\"true\"]\n"
    );
    let server = rig.serve(&config);
    rig.call(&["wait", &waits]).fine();
    rig.call(&["wait", "--drained"]);
    let shown = rig.call(&["show", &in_vain, "--json"]).json();
    assert_eq!(shown["state"], "cancelled", "{shown}");
    assert!(shown["errors"][0]["text"].as_str().unwrap().contains(&second), "{shown}");
    rig.call(&["push", "last", "late", "--after", &first]).fine();
    server.stop();
}

#[test]
fn a_job_that_is_late_fails_as_expired_whether_it_waits_or_runs() {
    let rig = Rig::new();
    let server = rig.serve("[queue.hang]\nrun = [\"sleep\", \"600\"]\n");
    let runs = line(&rig, &["push", "hang", "x", "--finish-by", "1s"]);
    let waits = line(&rig, &["push", "nobody", "x", "--start-by", "1s"]);
    for id in [&runs, &waits] {
        rig.call(&["wait", id]).ended(1);
        let shown = rig.call(&["show", id, "--json"]).json();
        assert_eq!((&shown["state"], &shown["reason"]), (&"failed".into(), &"expired".into()), "{shown}");
    }
    server.stop();
}

#[test]
fn windlass_run_heeds_the_same_terms() {
    let rig = Rig::new();
    rig.feed(&["run", "--time-limit", "1s", "--end-job", "done:over", "--", "sleep", "600{}"], "1\n2\n").ended(1);
    let runs = rig.call(&["ls", "queue:done", "--json"]).json();
    assert_eq!((runs.as_array().unwrap().len(), &runs[0]["data"]), (1, &"over".into()), "{runs}");
    // What is more than it takes is said, and nothing of it is lost in silence.
    let refused = rig.feed(&["run", "--job-limit", "2", "--", "true"], "a\nb\nc\n");
    refused.says("takes 2 jobs").ended(75);
    rig.feed(&["run", "--job-limit", "2", "--name", "few", "--", "true"], "a\nb\n").fine();
}

#[test]
fn jobs_are_found_by_the_record_they_are_about_waiting_and_done() {
    let rig = Rig::new();
    for (subject, data) in [("customer:42", "a"), ("customer:43", "b"), ("order:42", "c")] {
        rig.call(&["push", "q", data, "--subject", subject]).fine();
    }
    rig.call(&["push", "q", "d"]).fine();
    let found = |selector: &str| {
        let rows = rig.call(&["ls", selector, "--json"]).json();
        let mut data: Vec<String> =
            rows.as_array().unwrap().iter().map(|row| row["data"].as_str().unwrap().to_owned()).collect();
        data.sort();
        data.concat()
    };
    let check = || {
        assert_eq!(found("subject:customer:42"), "a");
        assert_eq!(found("subject:customer"), "ab");
        assert_eq!(found("subject:customer:42,order:42"), "ac");
        assert_eq!(found("queue:q -subject:customer"), "cd");
    };
    check();
    let server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    rig.call(&["wait", "--drained"]).fine();
    check();
    server.stop();
}

#[test]
fn what_comes_late_for_a_run_that_was_stopped_is_of_its_next_generation_and_what_is_too_much_is_said() {
    let rig = Rig::new();
    let config = "[queue.hang]\nrun = [\"sleep\", \"600\"]\n[queue.q]\nrun = [\"true\"]\n";
    let server = rig.serve(config);
    let run = line(&rig, &["push", "hang", "a", "--run", "new", "--time-limit", "1s"]);
    rig.call(&["wait", &run]).ended(1);
    let late = line(&rig, &["push", "q", "late", "--run", &run]);
    rig.call(&["wait", &late]).fine();
    assert_eq!(rig.call(&["show", &late, "--json"]).json()["run"], format!("{run}.2"));
    server.stop();
    let few = line(&rig, &["push", "nobody", "a", "b", "c", "--run", "new", "--job-limit", "2"]);
    let server = rig.serve(config);
    assert_eq!(rig.call(&["show", &few, "--json"]).json()["dropped"], 1);
    let said = server.stop();
    assert!(said.contains(&format!("run {few}: 1 job was not taken in: it takes 2 jobs")), "{said}");
}
