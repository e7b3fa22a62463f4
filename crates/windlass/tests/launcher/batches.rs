//! Batch commands with real programs: good ones, silent ones, noisy ones, dying ones.

use crate::in_time::in_time;
use crate::rig::{Rig, batch, brief, children};
use std::time::Duration;
use windlass::runner::{Flight, Runner, Stop};
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Framing, Limits, Policy, Reply};

const LINES: [&[u8]; 10] = [b"a", b"b", b"bad", b"c", b"", b"d e", b"--f", b"\xff\xfe", b"g\0h", b"{}"];

#[test]
fn each_line_gets_its_reply_in_order() {
    let mut rig = Rig::new(1);
    let echo = batch(
        "while IFS= read -r line; do case $line in bad) echo fail no good;; *) echo ok $line;; esac; done",
        |_| {},
    );
    let heard = rig.all(&echo, &LINES[..4]);
    assert_eq!(heard, ["ok a", "ok b", "failed_for_good no good", "ok c"]);
    let answers = "printf 'ok\\nretry busy\\n{\"status\":\"ok\",\"message\":\"m\"}\\nsnooze 5m\\n'";
    let heard = rig.all(&batch(answers, |_| {}), &LINES[..4]);
    assert_eq!(heard, ["ok", "retry_later busy", "ok m", "snoozed"]);
    let wc = batch("test $(wc -l) = 10", |batch| batch.reply = Reply::Exit);
    assert_eq!(rig.all(&wc, &LINES), vec!["ok"; 10], "one process got all ten, over two stretches");
}

#[test]
fn a_process_gets_no_more_lines_than_bytes_are_allowed() {
    let mut rig = Rig::new(1);
    let lines = [&b"12345"[..]; 10];
    // Six bytes each: the third reaches fifteen, and the last process has what is left over.
    let counts = "all=$(cat); echo \"$all\" | while read x; do echo ok $(echo \"$all\" | wc -l); done";
    let heard = rig.all(&batch(counts, |batch| batch.bytes = 15), &lines);
    assert_eq!(heard, [["ok 3"; 9].as_slice(), &["ok 1"]].concat());
    let heard = rig.all(&batch(counts, |batch| batch.bytes = 1), &lines[..2]);
    assert_eq!(heard, ["ok 1"; 2], "a job goes however large it is");
}

#[test]
fn replies_out_of_order_find_their_jobs_by_id() {
    let mut rig = Rig::new(1);
    let reverse = r#"tac | sed 's/.*"id":"\([^"]*\)".*"data":"\([^"]*\)".*/{"id":"\1","status":"ok","message":"\2"}/'"#;
    let heard = rig.all(&batch(reverse, |batch| batch.framing = Framing::Json), &LINES[..4]);
    assert_eq!(heard, ["ok a", "ok b", "ok bad", "ok c"]);
    let named = r#"sed 's/.*"id":"\([^"]*\)".*/@\1 ok/' | sort -r"#;
    assert_eq!(rig.all(&batch(named, |batch| batch.framing = Framing::Json), &LINES[..3]), ["ok"; 3]);
}

#[test]
fn any_bytes_pass_as_json_and_newlines_are_refused_as_raw() {
    let mut rig = Rig::new(1);
    let large = vec![b'x'; 1 << 20];
    let data: [&[u8]; 6] = [b"a\nb", b"\"'$(id)`", b"g\0h\xff", b"-n", &large, b"\\"];
    let raw = batch("while IFS= read -r line; do echo ok; done", |_| {});
    let heard = rig.all(&raw, &data);
    assert!(heard[0].starts_with("failed_for_good the data holds a newline"), "{}", heard[0]);
    assert_eq!(heard[1..], ["ok"; 5]);
    let copy = rig.dir.root().join("copy");
    let tee = format!("cat > {}", copy.display());
    let as_it_is = batch(&tee, |batch| batch.reply = Reply::Exit);
    assert_eq!(rig.all(&as_it_is, &data[1..]), ["ok"; 5]);
    assert!(std::fs::read(&copy).unwrap() == [data[1..].join(&b"\n"[..]), b"\n".to_vec()].concat(), "byte for byte");
    let json = batch(&tee, |batch| (batch.reply, batch.framing) = (Reply::Exit, Framing::Json));
    assert_eq!(rig.all(&json, &data), ["ok"; 6]);
    let lines: Vec<serde_json::Value> =
        std::fs::read_to_string(&copy).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (line, data) in lines.iter().zip(data) {
        assert_eq!((line["queue"].as_str(), line["attempt"].as_u64()), (Some("lines"), Some(1)));
        let bytes = match line["data"].as_str() {
            Some(text) => text.as_bytes().to_vec(),
            None => windlass::api::base64::decode(line["data64"].as_str().unwrap()).unwrap(),
        };
        assert!(bytes == data, "{} bytes", data.len());
    }
}

#[test]
fn too_few_too_many_and_noise_have_an_outcome() {
    let mut rig = Rig::new(1);
    let silent = "failed the batch ended well and gave no reply for this job";
    assert_eq!(rig.all(&batch("cat > /dev/null", |_| {}), &LINES[..3]), [silent; 3]);
    assert_eq!(rig.all(&batch("true", |_| {}), &LINES[..1]), [silent]);
    assert_eq!(rig.all(&batch("echo ok; echo ok", |_| {}), &LINES[..3]), ["ok", "ok", silent]);
    let many = "failed it gave 4 replies without an id to 3 jobs, so none of them counts";
    assert_eq!(rig.all(&batch("printf 'ok\\nok\\nok\\nok\\n'", |_| {}), &LINES[..3]), [many; 3]);
    let noise = rig.all(&batch("head -c 9000000 /dev/zero", |_| {}), &LINES[..2]);
    assert_eq!(noise, ["failed it wrote 9000000 bytes, expected replies to 2 jobs of at most 65536 bytes"; 2]);
    let odd = rig.all(&batch("echo hm; echo ok; head -c 500000 /dev/zero >&2", |_| {}), &LINES[..2]);
    assert_eq!(odd[1], "ok", "a reply that is none costs only its own job");
    assert!(odd[0].starts_with("failed the reply is \"hm\""), "{}", odd[0]);
}

#[test]
fn a_death_is_run_again_in_halves_and_charges_one_job_only() {
    let mut rig = Rig::new(2);
    let count = rig.dir.root().join("count");
    let script = |end: &str| {
        let count = count.display();
        format!("echo x >> {count}; while read line; do case $line in bad) {end};; *) echo ok;; esac; done")
    };
    for (end, expected) in [
        ("kill -SEGV $$", "crashed killed by signal 11"),
        ("echo ouch >&2; exit 9", "failed exit 9: ouch"),
        ("exit 65", "failed_for_good exit 65: said that it cannot succeed"),
    ] {
        let heard = rig.all(&batch(&script(end), |_| {}), &[b"a", b"b", b"bad", b"c", b"d", b"e", b"f", b"g"]);
        let mut wanted = vec!["ok"; 8];
        wanted[2] = expected;
        assert_eq!(heard, wanted);
    }
    // Six have no reply at first, then three, one of which answers nobody, and at last the bad one alone.
    assert!(std::fs::read_to_string(&count).unwrap().lines().count() <= 3 * 5);
    let exit = batch("! grep -q bad", |batch| batch.reply = Reply::Exit);
    let heard = rig.all(&exit, &LINES);
    assert_eq!(heard.iter().filter(|outcome| *outcome == "ok").count(), 9);
    assert_eq!(heard[2], "failed exit 1");
    let later = rig.all(&batch("exit 75", |_| {}), &LINES[..3]);
    assert_eq!(later, ["retry_later exit 75: asked to be tried later"; 3]);
}

#[test]
fn one_that_hangs_is_ended_and_only_its_job_timed_out() {
    let mut rig = Rig::new(1);
    let script =
        "trap '' TERM; while read line; do case $line in bad) while :; do sleep 1; done;; *) echo ok;; esac; done";
    in_time(&["ok", "timed_out", "ok"], |limit| {
        let mut policy = batch(script, |_| {});
        (policy.time_limit, policy.grace) = (Some(limit), Duration::from_millis(50));
        rig.all(&policy, &[b"a", b"bad", b"c"])
    });
}

#[test]
fn one_that_stops_itself_or_leaves_others_behind_costs_its_job_alone_and_nothing_of_it_is_left() {
    let mut rig = Rig::new(1);
    let script = "while read line; do case $line in stop) kill -STOP $$;; fork) (setsid sleep 1000 &) ;; esac
        echo ok; done";
    in_time(&["ok"; 3], |limit| {
        let policy = Policy { time_limit: Some(limit), grace: Duration::from_millis(50), ..batch(script, |_| {}) };
        let mut heard = rig.all(&policy, &[b"a", b"stop", b"fork", b"c"]);
        // Whoever is asked to end is let go on for that, and may even answer then.
        let stopped = heard.remove(1);
        assert!(["ok", "timed_out"].contains(&stopped.as_str()), "{stopped}");
        heard
    });
    assert_eq!(children(rig.launchers()[0]), "");
}

#[test]
fn a_stopped_batch_comes_back_and_keeps_what_was_answered() {
    let mut rig = Rig::new(1);
    let fifo = rig.fifo("begun");
    let script = format!("read a; echo ok; echo > {}; sleep 1000", fifo.display());
    rig.start_many(&batch(&script, |_| {}), &LINES[..3], 9);
    std::fs::read(&fifo).unwrap();
    rig.runner.stop(Flight(1), Stop::Interrupt);
    let heard: Vec<&str> = rig.hear_jobs(3).iter().map(|(_, outcome)| outcome.word()).collect();
    assert_eq!(heard, ["succeeded", "interrupted", "interrupted"]);
    rig.start_many(&batch(&script, |_| {}), &LINES[..2], 9);
    std::fs::read(&fifo).unwrap();
    rig.runner.stop(Flight(4), Stop::Cancel);
    assert_eq!(rig.hear_jobs(2)[1].1, Outcome::Cancelled);
}

/// A `wait` is left at once for this, wherever the signal comes.
const POLITE: &str = "trap 'exit 0' TERM;";

#[test]
fn a_polite_exit_after_our_own_signal_ends_no_job() {
    let mut rig = Rig::new(1);
    let fifo = rig.fifo("begun");
    for (reply, said, first) in [(Reply::Lines, "echo ok;", Some("succeeded")), (Reply::Exit, "", None)] {
        for (why, word) in [(Stop::Interrupt, "interrupted"), (Stop::Cancel, "cancelled")] {
            let script = format!("{POLITE} read a; {said} echo > {}; sleep 1000 & wait", fifo.display());
            let ids = rig.start_many(&batch(&script, |batch| batch.reply = reply), &LINES[..3], 9);
            std::fs::read(&fifo).unwrap();
            rig.runner.stop(Flight(ids[0].offset), why);
            let heard = rig.hear_jobs(3);
            let heard: Vec<&str> = heard.iter().map(|(_, outcome)| outcome.word()).collect();
            assert_eq!(heard, [first.unwrap_or(word), word, word], "{reply:?}");
        }
    }
}

#[test]
fn a_polite_exit_at_a_limit_charges_one_job_only() {
    let mut rig = Rig::new(1);
    let noise = "head -c 300000 /dev/zero >&2; sleep 1000 & wait";
    let script = format!("{POLITE} while read line; do case $line in bad) {noise};; *) echo ok;; esac; done");
    let limits = Limits { output: 200_000, ..Limits::default() };
    for reply in [Reply::Lines, Reply::Exit] {
        let policy = Policy { limits, ..batch(&script, |batch| batch.reply = reply) };
        let heard = rig.all(&policy, &[b"a", b"b", b"bad", b"c"]);
        assert!(heard[2].starts_with("failed stopped: it wrote "), "{reply:?}: {}", heard[2]);
        assert_eq!([&heard[0], &heard[1], &heard[3]], ["ok"; 3], "{reply:?}");
    }
}

#[test]
fn one_job_of_a_batch_is_cancelled_where_that_costs_no_other() {
    let mut rig = Rig::new(1);
    let (begun, go) = (rig.fifo("begun"), rig.fifo("go"));
    let script = format!(
        "lines=$(cat); echo > {}; read go < {}; case $lines in a*) exit 1;; esac; echo \"$lines\" | sed 's/.*/ok/'",
        begun.display(),
        go.display()
    );
    // Two of these lines reach four bytes: a process for each pair.
    let policy = batch(&script, |batch| batch.bytes = 4);
    let flight = Flight(rig.start_many(&policy, &[b"a", b"b", b"c", b"d", b"e"], 9)[0].offset);
    std::fs::read(&begun).unwrap();
    rig.runner.cancel(flight, 2);
    assert_eq!(rig.hear_jobs(1), [(3, Outcome::Cancelled)], "it had not begun");
    rig.runner.cancel(flight, 0);
    std::fs::write(&go, "\n").unwrap();
    assert_eq!(rig.hear_jobs(1), [(1, Outcome::Cancelled)], "its process died, and it is not run again");
    std::fs::read(&begun).unwrap();
    std::fs::write(&go, "\n").unwrap();
    assert_eq!(brief(&rig.hear_jobs(1)[0].1), "ok", "its neighbour is");
    std::fs::read(&begun).unwrap();
    (3..5).for_each(|position| rig.runner.cancel(flight, position));
    let heard = rig.hear_jobs(2);
    assert_eq!(heard, [(4, Outcome::Cancelled), (5, Outcome::Cancelled)], "their process had no others");
}

#[test]
fn a_start_of_one_job_that_shares_a_process_is_cancelled_without_the_others() {
    let mut rig = Rig::new(1);
    let (begun, go) = (rig.fifo("begun"), rig.fifo("go"));
    let script = format!("echo > {}; read go < {}; sed 's/.*/ok/'", begun.display(), go.display());
    let ids = rig.start_many(&batch(&script, |_| {}), &LINES[..3], 1);
    std::fs::read(&begun).unwrap();
    rig.runner.stop(Flight(ids[1].offset), Stop::Cancel);
    std::fs::write(&go, "\n").unwrap();
    let heard: Vec<String> = rig.hear_jobs(3).iter().map(|(_, outcome)| brief(outcome)).collect();
    assert_eq!(heard, ["ok"; 3], "it ends with its batch");
}

#[test]
fn a_launcher_that_dies_costs_the_neighbours_of_a_job_nothing() {
    let mut rig = Rig::new(1);
    let kill = "while read line; do case $line in bad) kill -KILL $PPID; sleep 1000;; *) echo ok;; esac; done";
    let heard = rig.all(&batch(kill, |_| {}), &LINES[..4]);
    assert_eq!(heard, ["ok", "ok", "lost", "ok"]);
}

#[test]
fn what_a_batch_emits_belongs_to_the_job_it_names() {
    let mut rig = Rig::new(1);
    let script = r#"while read line; do
        id=$(echo "$line" | sed 's/.*"id":"\([^"]*\)".*/\1/')
        printf '@%s\tnext\tfrom %s\n' $id $id >> "$WINDLASS_EMIT"
        case $line in *bad*) echo fail;; *) echo ok;; esac
    done"#;
    let policy = batch(script, |batch| batch.framing = Framing::Json);
    let ids = rig.start_many(&policy, &[b"a", b"bad", b"c"], 9);
    let finished = rig.hear();
    let emitted: Vec<(u16, String)> =
        finished.emitted.iter().map(|one| (one.by, String::from_utf8_lossy(&one.data).into_owned())).collect();
    assert_eq!(
        emitted,
        [(0, format!("from {}", ids[0])), (1, format!("from {}", ids[1])), (2, format!("from {}", ids[2]))]
    );
    let unnamed = batch("printf 'q\\tx\\n' >> $WINDLASS_EMIT; echo ok; echo ok", |_| {});
    let why = "failed it emitted without naming the job: expected @ID<TAB>QUEUE<TAB>DATA";
    assert_eq!(rig.all(&unnamed, &LINES[..2]), [why; 2]);
}
