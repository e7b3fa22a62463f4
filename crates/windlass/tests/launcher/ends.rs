//! How starts end: exits, signals, refusals, stops, output within its bounds.

use crate::rig::{Rig, command, shell};
use std::time::Duration;
use windlass::runner::launcher::unroll;
use windlass::runner::{Flight, Runner, Stop};
use windlass_core::outcome::Outcome;

const LONG: Duration = Duration::from_secs(1000);

#[test]
fn exits_are_read_by_the_one_table() {
    let mut rig = Rig::new(2);
    let (outcome, finished) = rig.run(shell("echo one; echo two >&2; printf 'last words\\n\\n'"));
    assert_eq!(outcome, Outcome::Succeeded { message: "last words".into() });
    assert_eq!(finished.output.stdout.head, b"one\nlast words\n\n");
    assert_eq!((&finished.output.stderr.head[..], finished.output.stderr.total), (&b"two\n"[..], 4));
    assert!(finished.started <= finished.finished && finished.started.0 > 0);
    assert_eq!(rig.error(shell("exit 1")), "failed exit 1");
    assert_eq!(rig.error(shell("echo out; echo 'no disk' >&2; exit 9")), "failed exit 9: no disk");
    assert_eq!(rig.error(shell("exit 75")), "retry_later exit 75: asked to be tried later");
    for code in [64, 65, 78] {
        let said = format!("failed_for_good exit {code}: said that it cannot succeed: why");
        assert_eq!(rig.error(shell(&format!("echo why >&2; exit {code}"))), said);
    }
    assert_eq!(rig.error(shell("echo ouch >&2; kill -SEGV $$")), "crashed killed by signal 11: ouch");
    assert_eq!(rig.error(shell("kill -KILL $$")), "crashed killed by signal 9");
}

#[test]
fn what_cannot_run_says_why_and_is_not_tried_again() {
    let mut rig = Rig::new(1);
    let root = rig.dir.root().to_owned();
    let file = |name: &str, text: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        let path = root.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plain = file("plain", "text", 0o600);
    let odd = file("odd", "neither text nor program\0", 0o700);
    let orphan = file("orphan", "#!/no/such/interpreter\n", 0o700);
    let cannot = "failed_for_good cannot run";
    for (job, expected) in [
        (command(&["no-such"]), "`no-such`: not found in PATH /usr/local/bin:/usr/bin:/bin".to_owned()),
        (command(&["/no/such"]), "`/no/such`: it or its interpreter is not there".into()),
        (command(&[""]), "``: not found in PATH /usr/local/bin:/usr/bin:/bin".into()),
        (command(&["{}"]).data(b"x\x1by"), "`x\\u{1b}y`: not found in PATH /usr/local/bin:/usr/bin:/bin".into()),
        (command(&[&plain]), format!("`{plain}`: not permitted, or not an executable file")),
        (command(&[&odd]), format!("`{odd}`: not in a format that can be run")),
        (command(&[&orphan]), format!("`{orphan}`: it or its interpreter is not there")),
        (
            command(&["true"]).with(|c| c.directory = b"/no/where".to_vec()),
            "`true` in /no/where: No such file or directory (os error 2)".into(),
        ),
        (
            command(&["true", "{}"]).data(&[b'x'; 200_000]),
            "`true`: its arguments are too long (one may have 128 KiB); \
             a queue's command without {} gets the data on stdin"
                .into(),
        ),
    ] {
        assert_eq!(rig.error(job), format!("{cannot} {expected}"));
    }
    let nul = rig.error(command(&["echo", "{}"]).data(b"a\0b"));
    assert_eq!(nul, format!("{cannot}: the data or the command holds a NUL byte, which no argument can carry"));
    assert_eq!(rig.error(command(&[])), format!("{cannot}: the command is empty"));
    assert_eq!(rig.stdout(command(&["echo", "still here"])), b"still here\n");
}

#[test]
fn large_output_goes_to_a_file_and_keeps_head_and_tail() {
    let mut rig = Rig::new(1);
    let written: Vec<u8> = (1..=500_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    for most in [0usize, 1000, 65_536, 100_001, 1 << 20, 8 << 20] {
        let (outcome, finished) = rig.run(shell("seq 1 500000; seq 1 10 >&2").output_max(most as u64));
        let expected = if most < written.len() {
            [&written[..most / 2], &written[written.len() - (most - most / 2)..]].concat()
        } else {
            written.clone()
        };
        let stream = finished.output.stdout;
        assert_eq!(stream.total, written.len() as u64);
        let kept = match &stream.file {
            Some(name) => {
                assert_eq!(*name, format!("{}.7.out", id(&rig, finished.flight)));
                assert!(stream.head.is_empty());
                unroll(std::fs::read(rig.dir.output().join(name)).unwrap(), stream.total)
            }
            None => stream.head,
        };
        assert!(kept == expected, "{most}: {} bytes kept", kept.len());
        let message = if most == 0 { "" } else { "500000" };
        assert_eq!(outcome, Outcome::Succeeded { message: message.into() });
        assert_eq!(finished.output.stderr.total, 21);
    }
}

fn id(rig: &Rig, flight: Flight) -> windlass_core::job::JobId {
    windlass_core::job::JobId { origin: rig.origin, offset: flight.0 }
}

#[test]
fn both_streams_full_to_the_inline_limit_come_whole() {
    let mut rig = Rig::new(1);
    let script = "head -c 65536 /dev/zero; head -c 65536 /dev/zero >&2";
    let (_, finished) = rig.run(shell(script));
    assert_eq!(finished.output.stdout.head, vec![0; 65_536]);
    assert_eq!(finished.output.stderr.head, vec![0; 65_536]);
    assert_eq!(finished.output.stderr.file, None);
}

#[test]
fn cancel_and_interrupt_end_a_job_in_grace() {
    let mut rig = Rig::new(1);
    let fifo = rig.fifo("begun");
    let patient = format!("trap 'exit 3' TERM; echo > {}; sleep 1000 & wait", fifo.display());
    let polite = format!("trap 'exit 0' TERM; echo > {}; sleep 1000 & wait", fifo.display());
    for (script, why, expected) in [
        (&patient, Stop::Cancel, "cancelled"),
        (&polite, Stop::Cancel, "cancelled"),
        (&patient, Stop::Interrupt, "interrupted"),
        (&polite, Stop::Interrupt, "succeeded"),
        (&polite, Stop::Kill, "interrupted"),
    ] {
        let job = rig.start(shell(script).grace(LONG));
        std::fs::read(&fifo).unwrap();
        rig.runner.stop(Flight(job.offset), why);
        let finished = rig.hear();
        assert_eq!((finished.flight.0, finished.outcomes[0].1.word()), (job.offset, expected), "{why:?}");
    }
}

#[test]
fn one_that_ignores_term_is_killed_after_its_grace() {
    let mut rig = Rig::new(1);
    let fifo = rig.fifo("begun");
    let script = format!("trap '' TERM; echo > {}; kill -STOP $$; sleep 1000", fifo.display());
    let job = rig.start(shell(&script).grace(Duration::from_millis(50)));
    std::fs::read(&fifo).unwrap();
    rig.runner.stop(Flight(job.offset), Stop::Interrupt);
    assert_eq!(rig.hear().outcomes, [(1, Outcome::Interrupted)]);
}

#[test]
fn what_is_beyond_the_slots_waits_and_can_be_stopped_unbegun() {
    let mut rig = Rig::new(2);
    let fifo = rig.fifo("begun");
    let go = rig.fifo("go");
    let script = format!("echo > {}; read x < {}", fifo.display(), go.display());
    let first = rig.start(shell(&script).slots(1));
    std::fs::read(&fifo).unwrap();
    let waiting: Vec<_> = (0..3).map(|_| rig.start(command(&["true"]).slots(1))).collect();
    rig.runner.stop(Flight(waiting[1].offset), Stop::Cancel);
    let cancelled = rig.hear();
    assert_eq!((cancelled.flight.0, cancelled.outcomes), (waiting[1].offset, vec![(1, Outcome::Cancelled)]));
    std::fs::write(&go, "\n").unwrap();
    let order: Vec<u64> = (0..3).map(|_| rig.hear().flight.0).collect();
    assert_eq!(order, [first.offset, waiting[0].offset, waiting[2].offset]);
}
