//! What is on disk before what: the order of a driver's own system calls, as `strace` saw them.

use crate::rig::Process;
use crate::spool::Spool;
use std::process::Command;

/// Where in the trace each of these stands, in this order.
#[track_caller]
fn in_order(trace: &str, steps: &[(&str, &str)]) {
    let mut at = 0;
    let lines: Vec<&str> = trace.lines().collect();
    for (call, what) in steps {
        let found = lines[at..].iter().position(|line| line.contains(&format!(" {call}(")) && line.contains(what));
        let found = found.unwrap_or_else(|| panic!("no {call} of {what} after line {at} of:\n{trace}"));
        at += found + 1;
    }
}

#[test]
fn an_output_is_on_disk_before_its_name_and_its_name_before_the_input_goes() {
    let spool = Spool::new();
    spool.put("a", "x");
    spool.put("b", "x");
    spool.close();
    let log = spool.rig.path("trace");
    let program = spool.rig.windlass(&["drive", "--in"]);
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-qq", "-e", "signal=none", "-e", "trace=fsync,renameat,renameat2,unlinkat", "-o"]);
    command.arg(&log).arg(program.get_program()).args(program.get_args()).arg(&spool.input).arg("--out");
    command.arg(&spool.output).args(["--", "sh", "-c"]);
    command.args(["case $1 in */a.*) exit 1;; esac; cp \"$1\" \"$2\"", "sh", "{in}", "{out}"]);
    Process::start(&mut command).end().says("1 document done").ended(1);
    let trace = std::fs::read_to_string(&log).unwrap();
    in_order(
        &trace,
        &[
            // The lease before any claim; a failed try before the document goes back.
            ("fsync", "/.windlass/drivers>"),
            ("renameat2", "\"a.ready\""),
            ("fsync", "/.windlass/tries>"),
            ("renameat2", "\"a.failed\""),
        ],
    );
    in_order(
        &trace,
        &[
            ("renameat2", "\"b.ready\""),
            ("fsync", ".writing.xml>"),
            ("renameat", "\"b.ready\""),
            ("fsync", "/out>"),
            ("unlinkat", "\"b."),
        ],
    );
    // The last try: the reason is on disk before the body goes where it is kept.
    in_order(
        &trace,
        &[("renameat2", "\"a.failed\""), ("fsync", "/in/failed>"), ("renameat2", "/in/failed>, \"a.failed\"")],
    );
}
