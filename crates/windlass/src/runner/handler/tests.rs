//! Handlers see their jobs, panic alone, miscount in vain, and are stopped before they begin.

use super::*;
use crate::store::chunk::ChunkBuilder;
use crate::store::{Held, Place};
use std::sync::mpsc;
use windlass_core::job::{Arrival, Lane, LaneKind, Origin, Priority, QueueNo, Record};
use windlass_core::policy::Policy;
use windlass_core::time::Time;

fn start(flight: u64, name: &str, jobs: u16) -> Start {
    let mut builder = ChunkBuilder::new(Origin::from_random(5));
    for offset in 0..u64::from(jobs) {
        builder.push(offset, format!("data {offset}").as_bytes());
    }
    let lane = Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh };
    Start {
        claim: flight,
        flight: Flight(flight),
        queue: Arc::new(QueueName::new(b"q").unwrap()),
        policy: Arc::new(Policy::new("q", Service::Handler { name: name.into(), batch: 1000 })),
        epoch: 1,
        held: Held {
            place: Place::Chunk(Arrival(0)),
            lane,
            run: None,
            record: Record::default(),
            admitted: Time::ZERO,
            jobs: Arc::new(builder.finish()),
            first: 0,
            count: jobs,
        },
        number: 1,
        run: String::new(),
        checkpoint: String::new(),
        lent: None,
        lot: None,
        fellows: Arc::default(),
    }
}

fn runner(handlers: Handlers) -> (HandlerRunner, mpsc::Receiver<Finished>) {
    let (tell, heard) = mpsc::channel();
    let tell = Mutex::new(tell);
    let hear = move |finished| tell.lock().unwrap().send(finished).unwrap();
    (HandlerRunner::new(handlers, 1, Arc::default(), Box::new(hear)).unwrap(), heard)
}

#[test]
fn each_job_is_seen_and_judged() {
    let handlers = Handlers::new().on("odd", |batch| {
        Verdicts::each(batch.jobs().map(|(id, data)| {
            assert_eq!(data, format!("data {}", id.offset).as_bytes());
            match id.offset % 3 {
                0 => Outcome::Failed { error: "third".into() },
                _ => Outcome::Succeeded { message: String::new() },
            }
        }))
    });
    let (mut runner, heard) = runner(handlers);
    let mut part = start(1, "odd", 10);
    part.held = part.held.part(2, 5);
    runner.start(vec![part]);
    let lengths: Vec<(u16, &str)> =
        heard.recv().unwrap().outcomes.iter().map(|(count, outcome)| (*count, outcome.word())).collect();
    assert_eq!(lengths, [(1, "succeeded"), (1, "failed"), (2, "succeeded"), (1, "failed")]);
}

#[test]
fn what_was_reported_early_is_not_reported_again() {
    let handlers = Handlers::new().on("slow", |batch| {
        (0..5).for_each(|at| batch.emit(at, "next", vec![at as u8]).unwrap());
        batch.report(3, Outcome::Interrupted);
        batch.report(3, Outcome::Cancelled);
        batch.report(1, Outcome::Succeeded { message: "early".into() });
        batch.report(5, Outcome::Cancelled);
        Verdicts::succeeded()
    });
    let (mut runner, heard) = runner(handlers);
    runner.start(vec![start(1, "slow", 5)]);
    let told: Vec<(u16, u16, &str, Vec<u8>)> = heard
        .iter()
        .take(5)
        .map(|finished| {
            let emitted = finished.emitted.iter().map(|one| one.data[0]).collect();
            (finished.first, finished.count(), finished.outcomes[0].1.word(), emitted)
        })
        .collect();
    let expected = [
        (3, 1, "interrupted", vec![3]),
        (1, 1, "succeeded", vec![1]),
        (0, 1, "succeeded", vec![0]),
        (2, 1, "succeeded", vec![2]),
        (4, 1, "succeeded", vec![4]),
    ];
    assert_eq!(told, expected);
    drop(runner);
    assert!(heard.recv().is_err(), "and nothing more");
}

#[test]
fn what_a_handler_does_wrong_stays_with_its_batch() {
    let handlers = Handlers::new()
        .on("panics", |batch| panic!("on {}", batch.len()))
        .on("miscounts", |_| Verdicts::Stretches(vec![(3, Outcome::Interrupted)]))
        .on("fine", |_| Verdicts::succeeded());
    let (mut runner, heard) = runner(handlers);
    runner.start(["panics", "miscounts", "missing", "fine"].map(|name| start(1, name, 7)).to_vec());
    let texts: Vec<String> = heard
        .iter()
        .take(4)
        .map(|finished| match &finished.outcomes[..] {
            [(7, Outcome::Crashed { error } | Outcome::FailedForGood { error })] => error.clone(),
            [(7, outcome)] => outcome.word().into(),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        "the handler panicked: on 7",
        "the handler reported on 3 of 7 jobs",
        "no handler is named `missing`",
        "succeeded",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn waiting_is_stopped_at_once_and_running_is_asked() {
    let (entered, inside) = mpsc::channel();
    let (go, stopped) = mpsc::channel();
    let ends = Mutex::new((entered, stopped));
    let handlers = Handlers::new().on("waits", move |batch| {
        let (entered, stopped) = &*ends.lock().unwrap();
        entered.send(batch.is_stopping()).unwrap();
        stopped.recv().unwrap();
        assert!(batch.is_stopping());
        Verdicts::All(Outcome::Interrupted)
    });
    let (mut runner, heard) = runner(handlers);
    runner.start(vec![start(1, "waits", 2), start(2, "waits", 3)]);
    assert!(!inside.recv().unwrap());
    runner.stop(Flight(2), Stop::Cancel);
    let cancelled = heard.recv().unwrap();
    assert_eq!((cancelled.flight, cancelled.outcomes), (Flight(2), vec![(3, Outcome::Cancelled)]));
    runner.stop(Flight(1), Stop::Interrupt);
    go.send(()).unwrap();
    assert_eq!(heard.recv().unwrap().outcomes, [(2, Outcome::Interrupted)]);
}

#[test]
fn a_cancelled_job_is_passed_over_and_its_neighbours_are_not() {
    let (entered, inside) = mpsc::channel();
    let (go, gate) = mpsc::channel();
    let ends = Mutex::new((entered, gate));
    let handlers = Handlers::new().typed("number", move |number: u32, _: &Job<'_>| {
        let (entered, gate) = &*ends.lock().unwrap();
        entered.send(()).unwrap();
        gate.recv().unwrap();
        Answer::Ok(number.to_string())
    });
    let (mut runner, heard) = runner(handlers);
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    (0..3).for_each(|offset| builder.push(offset, b"7"));
    let mut numbers = start(1, "number", 3);
    numbers.held.jobs = Arc::new(builder.finish());
    runner.start(vec![numbers.clone(), Start { flight: Flight(2), ..numbers }]);
    inside.recv().unwrap();
    // One of a batch that is being handled, and one of a batch that waits.
    runner.cancel(Flight(1), 1);
    runner.cancel(Flight(2), 0);
    (0..4).for_each(|_| go.send(()).unwrap());
    for words in [["succeeded", "cancelled", "succeeded"], ["cancelled", "succeeded", "succeeded"]] {
        let outcomes = heard.recv().unwrap().outcomes;
        let told = outcomes.iter().flat_map(|(count, outcome)| (0..*count).map(|_| outcome.word()));
        assert_eq!(told.collect::<Vec<_>>(), words);
    }
}

#[derive(serde::Deserialize)]
struct Mail {
    to: String,
    #[serde(default)]
    copies: u32,
}

#[test]
fn typed_handlers_get_values_and_give_answers() {
    let handlers = Handlers::new().typed("mail", |mail: Mail, job: &Job<'_>| match mail.to.as_str() {
        "ann" => {
            for copy in 0..mail.copies {
                job.emit("copy", &(copy, &mail.to))?;
            }
            Ok::<Answer, EmitError>(Answer::Ok(format!("sent to {}", mail.to)))
        }
        "bob" => Ok(Answer::Snooze(std::time::Duration::from_secs(9))),
        "eve" => panic!("not eve"),
        "nobody" => Ok(Answer::Fail("no such person".into())),
        _ => job.emit("-bad", &1).map(|()| Answer::ok()),
    });
    let (mut runner, heard) = runner(handlers);
    let data = ["ann", "bob", "eve", "nobody", "other"].map(|to| format!("{{\"to\":{to:?},\"copies\":2}}"));
    let mut builder = ChunkBuilder::new(Origin::from_random(5));
    for (offset, data) in (0..).zip(data.iter().map(String::as_str).chain(["{}", "no JSON"])) {
        builder.push(offset, data.as_bytes());
    }
    let mut mails = start(1, "mail", 7);
    mails.held.jobs = Arc::new(builder.finish());
    runner.start(vec![mails]);
    let finished = heard.recv().unwrap();
    let said: Vec<(u16, &str)> = finished.outcomes.iter().map(|(count, outcome)| (*count, outcome.word())).collect();
    let words = ["succeeded", "snoozed", "crashed", "failed_for_good", "retry_later", "failed_for_good"];
    assert_eq!(said[..6], words.map(|word| (1, word)));
    let text = format!("{:?}", finished.outcomes);
    for sentence in ["sent to ann", "not eve", "no such person", "may not begin with `-`", "missing field `to`"] {
        assert!(text.contains(sentence), "{sentence}: {text}");
    }
    let emitted: Vec<(u16, &str, &[u8])> =
        finished.emitted.iter().map(|emitted| (emitted.by, emitted.queue.as_str(), &emitted.data[..])).collect();
    assert_eq!(emitted, [(0, "copy", &b"[0,\"ann\"]"[..]), (0, "copy", b"[1,\"ann\"]")]);
}

#[test]
fn a_handler_goes_on_where_an_earlier_start_stopped() {
    let handlers = Handlers::new().on("pages", |batch| {
        let page: u32 = batch.checkpoint().map_or(0, |text| text.parse().unwrap());
        batch.keep(0, &(page + 1).to_string()).unwrap();
        assert!(batch.keep(0, &"x".repeat(5000)).is_err() && batch.keep(0, "a\0b").is_err());
        Verdicts::All(Outcome::Failed { error: format!("page {page}") })
    });
    let (mut runner, heard) = runner(handlers);
    for (told, error, kept) in [("", "page 0", "1"), ("7", "page 7", "8")] {
        runner.start(vec![Start { checkpoint: told.into(), ..start(1, "pages", 1) }]);
        let finished = heard.recv().unwrap();
        assert_eq!(finished.outcomes, [(1, Outcome::Failed { error: error.into() })]);
        assert_eq!(finished.checkpoints, [(0, kept.to_owned())]);
    }
}

#[test]
fn what_a_handler_says_of_its_job_is_on_the_board_until_the_job_has_ended() {
    let (tell, heard) = mpsc::channel();
    let (said, go) = (mpsc::sync_channel(0), mpsc::sync_channel(0));
    let gate = Mutex::new((said.0, go.1));
    let handlers = Handlers::new().typed("mail", move |number: u32, job: &Job<'_>| {
        job.progress(3, 9, "half\nphase forged");
        job.phase("sending");
        let gate = gate.lock().unwrap();
        gate.0.send(job.id()).unwrap();
        gate.1.recv().unwrap();
        Answer::Ok(number.to_string())
    });
    let board = Arc::<Board>::default();
    let tell = Mutex::new(tell);
    let hear = Box::new(move |finished| tell.lock().unwrap().send(finished).unwrap());
    let mut runner = HandlerRunner::new(handlers, 1, Arc::clone(&board), hear).unwrap();
    let mut builder = ChunkBuilder::new(Origin::from_random(1));
    (0..3).for_each(|offset| builder.push(offset, b"7"));
    let mut mails = start(1, "mail", 3);
    mails.held.jobs = Arc::new(builder.finish());
    runner.start(vec![Start { held: mails.held.part(1, 1), ..mails }]);
    let id = said.1.recv().unwrap();
    let shown = board.of(id).unwrap();
    assert_eq!((id.offset, shown.progress.as_deref(), shown.phase.as_deref()), (1, Some("3/9 half"), Some("sending")));
    go.0.send(()).unwrap();
    assert_eq!(heard.recv().unwrap().outcomes[0].1.word(), "succeeded");
    assert_eq!(board.of(id), None);
}

#[test]
fn any_bytes_reach_a_handler_as_they_are() {
    let payloads: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"--help".to_vec(),
        b"\"'$(id)`; {} {data}".to_vec(),
        b"a\nb\r\n".to_vec(),
        b"nul\0 and \xff\xfe".to_vec(),
        vec![b'x'; 1 << 20],
    ];
    let seen = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let sees = Arc::clone(&seen);
    let handlers = Handlers::new().on("keep", move |batch| {
        sees.lock().unwrap().extend(batch.jobs().map(|(_, data)| data.to_vec()));
        Verdicts::succeeded()
    });
    let (mut runner, heard) = runner(handlers);
    for (flight, payload) in (1..).zip(&payloads) {
        let mut builder = ChunkBuilder::new(Origin::from_random(1));
        builder.push(flight, payload);
        let mut one = start(flight, "keep", 1);
        one.held.jobs = Arc::new(builder.finish());
        runner.start(vec![one]);
        assert_eq!(heard.recv().unwrap().outcomes[0].1.word(), "succeeded");
    }
    assert!(*seen.lock().unwrap() == payloads);
}
