//! Programs that do anything with their lines, drawn at random: they answer too few, too many, out of order, twice or
//! for others, die in the middle, cannot start, are cut short. Every job is told once, and as its own answer says.

use super::*;
use crate::runner::launcher::{Kept, Resource, Step};
use crate::store::chunk::ChunkBuilder;
use crate::store::{Held, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;
use windlass_core::job::{Arrival, Lane, LaneKind, Origin, Priority, QueueName, QueueNo, Record};
use windlass_core::policy::{Command, Policy};
use windlass_core::time::Time;

/// Chance from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            all.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

pub(super) fn start(flight: u64, first: u64, count: u16) -> Start {
    let mut builder = ChunkBuilder::new(Origin::from_random(3));
    (first..first + u64::from(count)).for_each(|offset| builder.push(offset, b"data"));
    let command = Command { argv: vec![b"x".to_vec()], ..Command::default() };
    let mut policy = Policy::new("q", Service::Batch(policy::Batch::new(command)));
    policy.time_limit = Some(Duration::from_secs(9));
    let held = Held {
        place: Place::Chunk(Arrival(0)),
        lane: Lane { queue: QueueNo(1), priority: Priority::NORMAL, kind: LaneKind::Fresh },
        run: None,
        record: Record::default(),
        admitted: Time::ZERO,
        jobs: Arc::new(builder.finish()),
        first: 0,
        count,
    };
    let (queue, policy) = (Arc::new(QueueName::new(b"q").unwrap()), Arc::new(policy));
    let run = String::new();
    Start {
        flight: Flight(flight),
        claim: 1,
        queue,
        policy,
        epoch: 1,
        held,
        number: 1,
        run,
        lent: None,
        lot: None,
        fellows: Arc::default(),
        checkpoint: String::new(),
    }
}

fn replies_by(start: &mut Start, reply: Reply) {
    if let Service::Batch(batch) = &mut Arc::make_mut(&mut start.policy).service {
        batch.reply = reply;
    }
}

/// What a process said and how it ended, and what that means for each of its jobs.
struct Played {
    report: Report,
    /// Jobs whose answer counts, and the outcome's word.
    answered: BTreeMap<Job, &'static str>,
    /// The others of the piece end with this, or are run again.
    others: Option<&'static str>,
    /// The server wanted it all to end: so do those that wait, with the same word.
    stopped: bool,
}

const WORDS: [(&str, &str); 3] = [("ok", "succeeded"), ("fail no", "failed_for_good"), ("retry later", "retry_later")];

/// The replies of a program to its piece: each line, and whose answers count.
fn replies(dice: &mut Dice, batch: &Batch) -> (Vec<String>, BTreeMap<Job, &'static str>, bool) {
    let mut answered = BTreeMap::new();
    let mut lines = Vec::new();
    let mut piece = batch.piece.clone();
    if dice.below(2) == 0 {
        // In order, and perhaps too few or too many.
        let count = match dice.below(4) {
            0 => dice.below(piece.len() as u64) as usize,
            1 => piece.len() + 1 + dice.below(3) as usize,
            _ => piece.len(),
        };
        for at in 0..count {
            let (word, outcome) = WORDS[dice.below(3) as usize];
            lines.push(word.to_owned());
            answered.extend(piece.get(at).filter(|_| count <= piece.len()).map(|job| (*job, outcome)));
        }
        return (lines, answered, count <= piece.len());
    }
    // By name, in any order, some of them twice, some of jobs that it was never given.
    dice.shuffle(&mut piece);
    piece.truncate(dice.below(piece.len() as u64 + 1) as usize);
    for job in piece {
        for _ in 0..=dice.below(4) / 3 {
            let (word, outcome) = WORDS[dice.below(3) as usize];
            lines.push(format!("@{} {word}", batch.id(job)));
            answered.entry(job).or_insert(outcome);
        }
        if dice.below(8) == 0 {
            lines.push(format!("@{} ok", JobId { origin: Origin::from_random(99), offset: 1 }));
        }
    }
    (lines, answered, true)
}

/// Somebody cancels a job of which nothing was told yet, and hears of it at once where it waits.
fn cancel_one(dice: &mut Dice, batch: &mut Batch, told: &mut BTreeMap<Job, &'static str>, all: &BTreeSet<Job>) {
    let left: Vec<Job> = all.iter().filter(|job| !told.contains_key(*job)).copied().collect();
    let job = left[dice.below(left.len() as u64) as usize];
    let in_hand = batch.piece.contains(&job);
    let ends = batch.cancel(Flight(u64::from(job.0) + 1), Some(job.1));
    let news = note(told, batch.tell(Output::default()));
    assert_eq!(news, (!in_hand).then_some((job, "cancelled")).into_iter().collect());
    assert_eq!(batch.unwanted.contains(&job), in_hand);
    assert_eq!(ends, in_hand && batch.piece.iter().all(|job| batch.unwanted.contains(job)));
}

/// Whether and why we told it to end: rarely because everything is to.
fn cut(dice: &mut Dice) -> Option<Cut> {
    match dice.below(40) {
        0 => Some(Cut::Cancel),
        1 => Some(Cut::Interrupt),
        2..=6 => Some(Cut::TimeLimit),
        7..=11 => Some(Cut::Limit(Resource::Cpu, 7)),
        _ => None,
    }
}

fn play(dice: &mut Dice, batch: &Batch) -> Played {
    let (lines, mut answered, believed) = replies(dice, batch);
    let mut text = lines.iter().fold(String::new(), |text, line| text + line + "\n");
    // The beginning of a line that never ended says nothing.
    text += ["", "o", "@j-"][dice.below(3) as usize];
    let noisy = dice.below(20) == 0;
    let total = if noisy { 1 << 40 } else { text.len() as u64 };
    let end = match dice.below(12) {
        0..=4 => End::Exit(Exit::Code(0)),
        5 => End::Exit(Exit::Code(1)),
        6 => End::Exit(Exit::Code(75)),
        7 | 8 => End::Exit(Exit::Signal(9)),
        9 | 10 => End::NotBegun,
        _ => End::CannotStart { step: Step::Exec, errno: libc::ENOENT },
    };
    let cut = cut(dice).filter(|_| matches!(end, End::Exit(_)));
    let by_lines = batch.policy().reply == Reply::Lines;
    if noisy || !by_lines || !matches!(end, End::Exit(_)) {
        answered.clear();
    }
    let left = batch.piece.len() - answered.len();
    let others = match (end, cut) {
        (End::NotBegun | End::Up { .. }, _) => None,
        (End::CannotStart { .. }, _) => Some("failed_for_good"),
        (_, Some(Cut::Cancel)) => Some("cancelled"),
        (_, Some(Cut::Interrupt)) => Some("interrupted"),
        (_, Some(Cut::Limit(..))) => (left == 1).then_some("failed"),
        _ if by_lines && (noisy || !believed) => Some("failed"),
        (_, Some(Cut::TimeLimit)) => (left == 1).then_some("timed_out"),
        (End::Exit(Exit::Code(0)), None) => Some(if by_lines { "failed" } else { "succeeded" }),
        (End::Exit(Exit::Code(75)), None) => Some("retry_later"),
        (End::Exit(_), None) if left > 1 => None,
        (End::Exit(Exit::Signal(_)), None) => Some("crashed"),
        (End::Exit(Exit::Code(_)), None) => Some("failed"),
    };
    let stdout = Kept { total, filed: false, bytes: text.into_bytes() };
    let (started, finished) = (Time(1), Time(2));
    let (stderr, control, emitted) = (Kept::default(), Vec::new(), Vec::new());
    let report = Report { flight: Flight(1), end, cut, started, finished, stdout, stderr, control, emitted };
    let stopped = cut == Some(Cut::Interrupt);
    Played { report, answered, others, stopped }
}

/// Takes reports into the book of what was told; a job that is told twice is a fault.
fn note(told: &mut BTreeMap<Job, &'static str>, reports: Vec<Finished>) -> BTreeMap<Job, &'static str> {
    let mut news = BTreeMap::new();
    for report in reports {
        let tally = report.flight.0 as u32 - 1;
        let words = report.outcomes.iter().flat_map(|(count, outcome)| (0..*count).map(|_| outcome.word()));
        for (position, word) in (report.first..).zip(words) {
            assert_eq!(told.insert((tally, position), word), None, "{:?} was told twice", (tally, position));
            news.insert((tally, position), word);
        }
    }
    news
}

#[test]
fn every_job_is_told_once_and_as_its_own_answer_says_whatever_a_program_does() {
    for seed in 0..6000 {
        let mut dice = Dice(seed);
        let (one, two) = (1 + dice.below(20) as u16, dice.below(3) as u16);
        let reply = [Reply::Lines, Reply::Lines, Reply::Exit][dice.below(3) as usize];
        let mut starts = vec![start(1, 1, one)];
        starts.extend((two > 0).then(|| start(2, 100, two)));
        starts.iter_mut().for_each(|start| replies_by(start, reply));
        let all: BTreeSet<Job> = (0..one).map(|at| (0, at)).chain((0..two).map(|at| (1, at))).collect();
        let mut batch = Batch::new(starts);
        let (mut told, mut rounds) = (BTreeMap::new(), 0);
        while let Some(mut lines) = batch.next_piece().unwrap() {
            let mut text = Vec::new();
            lines.read_to_end(&mut text).unwrap();
            assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), batch.piece.len(), "seed {seed}");
            let piece = batch.piece.clone();
            if dice.below(6) == 0 {
                cancel_one(&mut dice, &mut batch, &mut told, &all);
            }
            let unwanted = batch.unwanted.clone();
            let Played { report, answered, others, stopped } = play(&mut dice, &batch);
            let left: Vec<Job> = all.iter().filter(|job| !told.contains_key(*job)).copied().collect();
            if stopped {
                batch.stop();
            }
            let news = note(&mut told, batch.heard(&report));
            let ending = if stopped { left } else { piece };
            let word = |job: &Job| {
                let again = || unwanted.contains(job).then_some("cancelled");
                answered.get(job).copied().or(others).or_else(again)
            };
            let expected = ending.iter().filter_map(|job| Some((*job, word(job)?)));
            assert_eq!(news, expected.collect(), "seed {seed}, round {rounds}: {:?} {:?}", report.end, report.cut);
            rounds += 1;
            assert!(rounds < 1000, "seed {seed} goes on for ever");
        }
        assert!(batch.is_over(), "seed {seed}");
        assert_eq!(told.into_keys().collect::<BTreeSet<Job>>(), all, "seed {seed}");
    }
}

#[test]
fn a_launchers_death_suspects_a_job_that_was_alone_and_no_other() {
    let mut batch = Batch::new(vec![start(1, 1, 8)]);
    batch.next_piece().unwrap().unwrap();
    assert_eq!(batch.lost(true).len(), 0, "eight neighbours are run again in halves");
    let (mut told, mut pieces) = (BTreeMap::new(), Vec::new());
    while batch.next_piece().unwrap().is_some() {
        pieces.push(batch.piece_len());
        let bad = batch.piece.contains(&(0, 2));
        let report = Report {
            flight: Flight(1),
            end: End::Exit(Exit::Code(0)),
            cut: None,
            started: Time(1),
            finished: Time(2),
            stdout: Kept { bytes: b"ok\n".repeat(batch.piece.len()), ..Kept::default() },
            stderr: Kept::default(),
            control: Vec::new(),
            emitted: Vec::new(),
        };
        let ends = if bad { batch.lost(true) } else { batch.heard(&report) };
        note(&mut told, ends);
    }
    assert_eq!(pieces, [4, 2, 2, 1, 1, 4]);
    let lost: Vec<Job> = told.iter().filter(|(_, word)| **word == "lost").map(|(job, _)| *job).collect();
    assert_eq!((lost, told.len()), (vec![(0, 2)], 8));
    let mut unbegun = Batch::new(vec![start(1, 1, 8)]);
    unbegun.next_piece().unwrap().unwrap();
    assert_eq!(unbegun.lost(false).len(), 0);
    unbegun.next_piece().unwrap().unwrap();
    assert_eq!(unbegun.piece_len(), 8, "a process that never began says nothing of anybody");
}
