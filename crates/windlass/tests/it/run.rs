//! `windlass run` from outside: input, output, exit codes, signals, and going on after a death.

use crate::rig::{Bell, Gate, Process, Rig, lines_of, sorted};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use windlass_core::scheduler::STOCK_PER_SLOT_MAX;

fn numbers(count: usize) -> String {
    (1..=count).map(|n| format!("{n}\n")).collect()
}

#[test]
fn a_thousand_jobs_each_once() {
    let rig = Rig::new();
    let told = rig.feed(&["run", "-j", "8", "--", "echo", "{#}:{}"], numbers(1000));
    let expected: Vec<String> = (1..=1000).map(|n| format!("{n}:{n}")).collect();
    let mut expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!(sorted(told.fine()), expected);
    told.says("1,000 succeeded");
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!(status["totals"]["succeeded"], 1000);
    assert_eq!(rig.call(&["ls", "--json"]).json().as_array().unwrap().len(), 1000);
}

#[test]
fn the_templates() {
    let rig = Rig::new();
    let words =
        ["run", "-Q", "pics", "--", "printf", "%s|", "{}", "{.}", "{/}", "{//}", "{#}", "{queue}", "{id}", "x{}y"];
    let told = rig.feed(&words, "a/b.c.jpg\n");
    let parts: Vec<&str> = told.fine().trim_end_matches('|').split('|').collect();
    assert_eq!(parts[..6], ["a/b.c.jpg", "a/b.c", "b.c.jpg", "a", "1", "pics"]);
    assert!(parts[6].starts_with("j-") && parts[6].ends_with("-1"), "{parts:?}");
    assert_eq!(parts[7], "xa/b.c.jpgy");
    let told = rig.feed(&["run", "--", "printf", "<%s>", "a b"], "c d; $(id) *\n-n\n");
    assert_eq!(sorted(&told.fine().replace("><", ">\n<")), ["<-n>", "<a b>", "<a b>", "<c d; $(id) *>"]);
}

#[test]
fn empty_lines_are_nothing_and_the_last_line_needs_no_end() {
    let rig = Rig::new();
    let told = rig.feed(&["run", "--", "echo", "[{}]"], "\n\na\n\n b \nc");
    assert_eq!(sorted(told.fine()), ["[ b ]", "[a]", "[c]"]);
    told.says("3 succeeded");
    rig.feed(&["run", "--", "echo"], "").says("0 succeeded").fine();
    rig.feed(&["run", "--", "echo"], "\n\n\n").says("0 succeeded").fine();
    let told = rig.feed(&["push", "q", "--ids"], "\na\n\n\nb");
    assert_eq!(told.fine().lines().count(), 2);
    let told = rig.feed(&["push", "q", "-0", "--ids"], "a\nb\0\0c");
    assert_eq!(told.fine().lines().count(), 3, "without lines an empty part is a job");
}

#[test]
fn output_is_whole_and_not_interleaved() {
    let rig = Rig::new();
    // Every job starts a process for each line, so that all of them write at the same time.
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do /bin/echo out $1; /bin/echo err $1 >&2; done";
    let told = rig.feed(&["run", "-j", "6", "--", "sh", "-c", script, "sh"], numbers(24));
    for (name, text) in [("out", told.fine()), ("err", &told.stderr)] {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(name)).collect();
        assert_eq!(lines.len(), 240);
        for block in lines.chunks(10) {
            assert!(block.iter().all(|line| line == &block[0]), "interleaved: {block:?}");
        }
    }
}

#[test]
fn large_output_is_whole() {
    let rig = Rig::new();
    let script = "head -c $2 /dev/zero | tr '\\0' $1";
    for bytes in [100_000, 3_000_000] {
        let told = rig.feed(&["run", "-j", "3", "--", "sh", "-c", script, "sh", "{}", &bytes.to_string()], "a\nb\nc\n");
        let text = told.fine();
        assert_eq!(text.len(), 3 * bytes);
        for block in text.as_bytes().chunks(bytes) {
            assert!(block.iter().all(|byte| *byte == block[0]), "interleaved at {bytes}");
        }
    }
}

#[test]
fn failures_are_exit_1_and_named() {
    let rig = Rig::new();
    let told = rig.feed(&["run", "--", "sh", "-c", "echo $1; test $1 != 2", "sh"], numbers(3));
    assert_eq!(sorted(told.ended(1)), ["1", "2", "3"]);
    told.says("failed: exit 1 (2)").says("2 succeeded, 1 failed; list: windlass ls run:r-");
    assert_eq!(rig.call(&["ls", "state:failed", "--json"]).json().as_array().unwrap().len(), 1);
    rig.feed(&["run", "--", "/no/such/program"], "a\n").says("/no/such/program").ended(1);
    rig.feed(&["run", "--tolerate", "1", "--", "sh", "-c", "test $1 != 2", "sh"], numbers(3)).fine();
}

#[test]
fn a_job_is_tried_once_unless_told_otherwise() {
    let rig = Rig::new();
    let (seen, script) = (rig.path("seen"), "echo $1 >> $2; test $(grep -cx $1 $2) -ge 3");
    let run = |more: &[&str]| {
        let end = ["--", "sh", "-c", script, "sh", "{}", seen.to_str().unwrap()];
        rig.feed(&[&["run"], more, &end].concat(), "x\n")
    };
    run(&[]).says("1 failed").ended(1);
    assert_eq!(lines_of(&seen).len(), 1);
    run(&["--retry", "2"]).says("1 succeeded").fine();
    assert_eq!(lines_of(&seen).len(), 3);
}

#[test]
fn lines_that_no_argument_can_carry() {
    let rig = Rig::new();
    let told = rig.feed(&["run", "--", "echo"], "a\0b\nc\n");
    assert_eq!(told.ended(1), "c\n");
    told.says("NUL byte");
    let longest = vec![b'x'; 1 << 20];
    rig.feed(&["run", "--", "echo"], &longest).says("its arguments are too long").ended(1);
    let failed = rig.call(&["ls", "state:failed", "--json"]).json();
    assert_eq!((&failed[0]["reason"], &failed[0]["attempts"]["starts"]), (&"refused".into(), &1.into()));
    assert_eq!(failed[1]["data_bytes"], 1 << 20);
    let told = rig.feed(&["run", "--", "echo"], [&b"ok\n"[..], &longest, b"x\n"].concat());
    told.says("line 2 of the input has more than 1048576 bytes").ended(65);
}

#[test]
fn jobs_have_the_callers_directory_and_environment() {
    let rig = Rig::new();
    let here = rig.path("here");
    std::fs::create_dir(&here).unwrap();
    let mut command = rig.windlass(&["run", "--", "sh", "-c", "pwd; echo $COLOUR $WINDLASS_DIR", "sh"]);
    let file = rig.path("input");
    std::fs::write(&file, "x\n").unwrap();
    command.current_dir(&here).env("COLOUR", "blue").stdin(std::fs::File::open(&file).unwrap());
    let told = Process::start(&mut command).end();
    let here = here.canonicalize().unwrap();
    assert_eq!(told.fine().lines().next(), here.to_str());
    assert_eq!(told.fine().lines().nth(1), Some("blue"), "what is about windlass is not handed on");
}

/// A script that notes its line in a file, rings, stands at the gate and tells its line.
const GATED: &str = "echo $1 >> $2; echo $1 > $3; read x < $4; echo done $1";

fn gated(slots: usize, seen: &Path, bell: &Bell, gate: &Gate) -> Vec<String> {
    let slots = slots.to_string();
    let words = ["run", "-j", &slots, "--", "sh", "-c", GATED, "sh", "{}", seen.to_str().unwrap()];
    words.iter().chain(&[bell.path.as_str(), gate.path.as_str()]).map(|word| (*word).to_owned()).collect()
}

#[test]
fn one_interrupt_drains_and_the_same_command_goes_on() {
    let rig = Rig::new();
    let (mut bell, mut gate, seen) = (rig.bell("bell"), rig.gate("gate"), rig.path("seen"));
    let words = gated(1, &seen, &bell, &gate);
    let mut run = rig.start_fed(&words, "1\n2\n3\n");
    assert_eq!(bell.next(), "1");
    run.signal(Signal::INT);
    run.until("stopping when the running jobs have ended; once more stops them now");
    gate.open(1);
    let told = run.end();
    assert_eq!(told.ended(130), "done 1\n");
    told.says("is kept, and the same command goes on with it");
    gate.open(2);
    let told = rig.feed(&words, "1\n2\n3\n");
    assert_eq!(sorted(told.fine()), ["done 2", "done 3"]);
    assert_eq!(lines_of(&seen), ["1", "2", "3"], "each once");
}

#[test]
fn a_second_interrupt_stops_at_once() {
    let rig = Rig::new();
    let (mut bell, mut gate, seen) = (rig.bell("bell"), rig.gate("gate"), rig.path("seen"));
    let words = gated(1, &seen, &bell, &gate);
    let mut run = rig.start_fed(&words, "1\n2\n");
    assert_eq!(bell.next(), "1");
    run.signal(Signal::INT);
    run.until("once more stops them now");
    run.signal(Signal::INT);
    let told = run.end();
    assert_eq!(told.ended(130), "");
    told.says("the same command goes on with it");
    gate.open(2);
    let told = rig.feed(&words, "1\n2\n");
    assert_eq!(sorted(told.fine()), ["done 1", "done 2"]);
    assert_eq!(sorted(&lines_of(&seen).join("\n")), ["1", "1", "2"], "what was stopped is done again");
}

#[test]
fn a_killed_run_goes_on_with_the_same_command() {
    let rig = Rig::new();
    let (mut bell, mut gate, seen) = (rig.bell("bell"), rig.gate("gate"), rig.path("seen"));
    let words = gated(3, &seen, &bell, &gate);
    let input = numbers(40);
    for _ in 0..3 {
        let run = rig.start_fed(&words, &input);
        gate.open(6);
        for _ in 0..7 {
            bell.next();
        }
        run.kill();
    }
    gate.open(60);
    let told = rig.feed(&words, &input);
    told.fine();
    let mut starts = BTreeMap::<String, usize>::new();
    for line in lines_of(&seen) {
        *starts.entry(line).or_default() += 1;
    }
    assert_eq!(starts.len(), 40, "none is missing");
    let repeats = starts.values().sum::<usize>() - 40;
    // Short jobs that ended since the last commit are repeated as well as those that ran: the slots and their stock.
    let bound = 3 * 3 * (1 + STOCK_PER_SLOT_MAX as usize);
    assert!(repeats <= bound, "{repeats} repeats after three deaths with three slots, at most {bound} were expected");
    let status = rig.call(&["status", "--json"]).json();
    assert_eq!(status["totals"]["succeeded"], 40);
    let told = rig.feed(&["ls", "state:failed", "--json"], "");
    assert_eq!(told.json().as_array().unwrap().len(), 0);
}

#[test]
fn other_input_begins_another_run_and_says_so() {
    let rig = Rig::new();
    let (mut bell, mut gate, seen) = (rig.bell("bell"), rig.gate("gate"), rig.path("seen"));
    let words = gated(1, &seen, &bell, &gate);
    let run = rig.start_fed(&words, "1\n2\n");
    bell.next();
    run.kill();
    gate.open(9);
    let told = rig.feed(&words, "7\n");
    assert_eq!(told.fine(), "done 7\n");
    told.says("was begun with other lines and is left as it is; this one is");
    // The jobs of the first one are still there, and its own input goes on with them.
    assert_eq!(rig.call(&["ls", "--json", "--", "-state:succeeded"]).json().as_array().unwrap().len(), 2);
    let told = rig.feed(&words, "1\n2\n");
    assert_eq!(sorted(told.fine()), ["done 1", "done 2"]);
    told.says("continuing run");
}

#[test]
fn other_input_in_a_shared_queue_is_refused() {
    let rig = Rig::new();
    let (mut bell, gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo > {}; read x < {}", bell.path, gate.path);
    let words = ["run", "-Q", "q", "--", "sh", "-c", &script, "sh"];
    let run = rig.start_fed(&words, "1\n2\n");
    bell.next();
    run.kill();
    rig.feed(&words, "7\n").says("is unfinished in this queue and was begun with other lines").ended(75);
    rig.call(&["cancel", "queue:q", "--yes"]).says("2 jobs cancelled").fine();
}

#[test]
fn a_name_that_belongs_to_another_command_is_refused() {
    let rig = Rig::new();
    let (mut bell, gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo > {}; read x < {}", bell.path, gate.path);
    let run = rig.start_fed(&["run", "--name", "n", "--", "sh", "-c", &script, "sh"], "1\n");
    bell.next();
    run.kill();
    let told = rig.feed(&["run", "--name", "n", "--", "echo"], "1\n");
    told.says("n").ended(75);
    rig.feed(&["run", "--name", "m", "--", "echo"], "1\n").fine();
}

#[test]
fn a_run_that_ends_hands_its_neighbour_over() {
    let rig = Rig::new();
    let (mut first_bell, mut first_gate) = (rig.bell("bell1"), rig.gate("gate1"));
    let (mut bell, mut gate, seen) = (rig.bell("bell2"), rig.gate("gate2"), rig.path("seen"));
    let script = format!("echo $1 > {}; read x < {}", first_bell.path, first_gate.path);
    let mut first = rig.start_fed(&["run", "-j", "2", "--", "sh", "-c", &script, "sh"], "a\n");
    assert_eq!(first_bell.next(), "a");
    let words = gated(1, &seen, &bell, &gate);
    let second = rig.start_fed(&words, &numbers(60));
    assert_eq!(bell.next(), "1");
    first_gate.open(1);
    first.until("ended in");
    // It drains now: it lets its neighbour's job end, and starts no other.
    gate.open(60);
    first.end().fine();
    let told = second.end();
    assert_eq!(told.fine().lines().count(), 60, "{}", told.stderr);
    told.says("60 succeeded");
    assert_eq!(lines_of(&seen).len(), 60, "each once");
}

#[test]
fn a_running_server_does_the_work_and_stays() {
    let rig = Rig::new();
    let server = rig.serve("# nothing\n");
    let told = rig.feed(&["run", "-j", "4", "--", "echo", "{}"], numbers(50));
    assert_eq!(told.fine().lines().count(), 50);
    rig.feed(&["run", "--", "false"], "x\n").ended(1);
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let script = format!("echo $1 > {}; read x < {}", bell.path, gate.path);
    let run = rig.start_fed(&["run", "--", "sh", "-c", &script, "sh"], "a\n");
    bell.next();
    run.signal(Signal::INT);
    let told = run.end();
    told.says("detached; the jobs of r-").ended(130);
    let id = told.stderr.split("windlass wait ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    gate.open(1);
    rig.call(&["wait", &id]).says("nothing failed").fine();
    server.stop();
}

#[test]
fn an_input_that_may_still_come_leaves_the_run_open_and_wait_says_so() {
    let rig = Rig::new();
    let server = rig.serve("# nothing\n");
    let mut bell = rig.bell("bell");
    let script = format!("echo $1 > {}", bell.path);
    let mut run = rig.start(&["run", "--", "sh", "-c", &script, "sh"], std::process::Stdio::piped());
    let mut stdin = run.stdin();
    stdin.write_all(b"a\n").unwrap();
    assert_eq!(bell.next(), "a");
    run.signal(Signal::INT);
    let told = run.end();
    told.says("1 line was taken; the rest of the input was not, and the run stays open for it").ended(130);
    let id = told.stderr.split("windlass wait ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    rig.call(&["wait", &id, "--timeout", "1ms"]).ended(124);
    let mut waits = rig.start(&["wait", &id], std::process::Stdio::null());
    waits.until(&format!("{id} is open for more jobs"));
    drop(stdin);
    rig.call(&["cancel", &id]).fine();
    waits.signal(Signal::TERM);
    drop(waits.end());
    server.stop();
}

#[test]
fn columns_of_a_line_by_their_number() {
    let rig = Rig::new();
    let words = ["run", "-j", "1", "--", "echo", "{2}/{1}", "[0-9]{4,4}"];
    assert_eq!(rig.feed(&words, "a b\tc\nd\te\tf\n").fine(), "c/a b [0-9]{4,4}\ne/d [0-9]{4,4}\n");
    assert_eq!(rig.feed(&["run", "--", "echo", "<{1}>"], "the whole line\n").fine(), "<the whole line>\n");
    let missing = rig.feed(&["run", "--", "echo", "{3}"], "a\tb\n");
    missing.says("the data has no column 3").ended(1);
    let server = rig.serve("[queue.row]\nrun = [\"echo\", \"{column.2}\", \"{1}\"]\n");
    let id = rig.feed(&["push", "row", "--csv", "--ids"], "x,\"y, z\"\n").fine().trim().to_owned();
    rig.drained();
    assert_eq!(rig.call(&["logs", &id]).fine(), "y, z {1}\n");
    server.stop();
}

#[test]
fn rows_and_objects_are_lines_of_a_run() {
    let rig = Rig::new();
    let csv = "to,text\nann,\"hello, \"\"you\"\"\"\n\nbob,\"two\nlines\"\n";
    let words = ["run", "-j", "1", "--csv", "--header", "--", "printf", "%s|%s;", "{data.to}", "{data.text}"];
    assert_eq!(rig.feed(&words, csv).fine(), "ann|hello, \"you\";bob|two\nlines;");
    assert_eq!(rig.feed(&["run", "--csv", "--", "echo", "{2}", "{}"], "x,y\n").fine(), "y {\"1\":\"x\",\"2\":\"y\"}\n");
    assert_eq!(rig.feed(&["run", "--jsonl", "--", "echo"], "{\"a\": 1}\n").fine(), "{\"a\": 1}\n");
    let twice = rig.feed(&["run", "--csv", "--header", "--", "echo"], "a,a\n1,2\n");
    twice.says("line 1 of the input: the heading has \"a\" twice; 0 jobs before that were accepted").ended(65);
    rig.feed(&["run", "--jsonl", "--", "echo"], "[1]\n").says("expected a JSON object in braces").ended(65);
    rig.call(&["run", "--header", "--", "echo"]).says("--csv").ended(64);
    rig.call(&["run", "-0", "--csv", "--", "echo"]).says("--null").ended(64);
}

#[test]
fn a_run_of_rows_goes_on_after_a_death_and_after_a_bad_row() {
    let rig = Rig::new();
    let (mut bell, mut gate, seen) = (rig.bell("bell"), rig.gate("gate"), rig.path("seen"));
    let paths = [seen.to_str().unwrap().to_owned(), bell.path.clone(), gate.path.clone()];
    let words = |name| {
        let command =
            ["run", "-j", "1", "--name", name, "--csv", "--header", "--", "sh", "-c", GATED, "sh", "{data.n}"];
        command.into_iter().chain(paths.iter().map(String::as_str)).collect::<Vec<_>>()
    };
    let input = "n,text\n1,\"a\nb\"\n2,c\n";
    let run = rig.start_fed(&words("dies"), input);
    assert_eq!(bell.next(), "1");
    run.kill();
    gate.open(20);
    // Under another heading the rows are other jobs. The same rows go on, also where they come through a pipe.
    let other = rig.feed(&words("dies"), input.replace("text", "word"));
    other.says("was begun with other lines and is left as it is").says("2 succeeded").fine();
    let told = rig.feed(&words("dies"), input);
    assert_eq!(told.says("continuing run").fine(), "done 1\ndone 2\n");
    std::fs::remove_file(&seen).unwrap();
    let bad = rig.feed(&words("bad"), format!("{input}3\n4,e\n"));
    bad.says("line 5 of the input: fields: 1, expected 2 as in the first line; 2 jobs before that were accepted");
    bad.ended(65);
    rig.feed(&words("bad"), format!("{input}3,d\n4,e\n")).says("continuing run").fine();
    let mut each = lines_of(&seen);
    each.dedup();
    assert_eq!(each, ["1", "2", "3", "4"]);
    assert_eq!(rig.call(&["status", "--json"]).json()["totals"]["succeeded"], 8);
}
