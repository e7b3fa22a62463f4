//! Cases about transactions and death: what a rollback drops, what a crash keeps, and who is blamed for it.

use super::rig::{Rig, assert_stale, fail, ids, ok, queue_name, retry, succeed};
use super::{Bench, Case};
use crate::store::chunk::ChunkBuilder;
use crate::store::{Amendment, Durability, Filter, FollowUp, JobInfo, Lot, Recovered, Store};
use std::sync::Arc;
use windlass_core::job::{JobId, LaneKind, Origin, Record, RunId};
use windlass_core::judge::{Reason, Verdict};
use windlass_core::life_cycle::State;
use windlass_core::suspicion::{CONVICTED_AT, WAIT};

pub(super) fn cases<B: Bench>() -> Vec<Case<B>> {
    vec![
        ("nothing is seen before the commit, and nothing is left by a rollback", rolled_back),
        ("a crash keeps every commit and drops the open turn", crashed),
        ("each opening draws another epoch", epochs),
        ("claims of an earlier opening are stale once the job was given back", old_claims),
        ("the claim of an earlier start is stale while a later start is held", earlier_start),
        ("a claim that never began is given back as it was", never_begun),
        ("a start that a worker elsewhere has outlives its server", elsewhere),
        ("a reboot accuses nobody", rebooted),
        ("a job that kills its server is isolated, then convicted", poison),
        ("outcomes stay until they are archived, with all their data", unarchived),
        ("turn numbers rise, also across a crash", turn_numbers),
        ("recovery leaves what nobody held as it is", others_untouched),
    ]
}

fn rolled_back<B: Bench>(rig: &mut Rig<'_, B>) {
    let made = rig.push("q", 6);
    let held = rig.claim("q", 3);
    let before = rig.list(&Filter::default(), 100);
    let (queues, runs) = (ok(rig.view().queues()), ok(rig.view().runs(100)));
    let new = rig.new_jobs("new", 2);
    let now = rig.now;
    let lot = Lot { jobs: vec![new], ..Default::default() };
    ok(rig.store().admit(&lot, now));
    ok(rig.try_settle(&held[0].part(0, 1), succeed()));
    ok(rig.try_settle(&held[0].part(1, 1), fail()));
    ok(rig.store().amend(&made[4..], Amendment::Cancel, now));
    let lane = rig.lane("q", 0, LaneKind::Fresh);
    assert_eq!(rig.claim_lane(lane, 1).len(), 1, "one is left to claim");
    assert_eq!(rig.list(&Filter::default(), 100), before, "an open turn is not seen");
    assert!(!rig.store().changes().moves.is_empty(), "but its changes are told");
    ok(rig.store().rollback());
    let changes = rig.store().changes();
    assert!(changes.moves.is_empty() && changes.queues.is_empty() && changes.ended.is_empty(), "nothing changed");
    assert_eq!(rig.list(&Filter::default(), 100), before, "a rollback leaves nothing");
    assert_eq!((ok(rig.view().queues()), ok(rig.view().runs(100))), (queues, runs), "nor in the counters");
    assert!(ok(rig.store().unarchived()).is_empty(), "nor for the archive");
    rig.settle(&held[0], succeed());
    assert_eq!(ids(&rig.claim("q", 9)), made[3..], "the store goes on as if the turn had not been");
    rig.push("new", 1);
    assert_eq!(rig.list(&Filter::default(), 100).len(), 4, "and a queue of the lost turn can be made");
}

fn crashed<B: Bench>(rig: &mut Rig<'_, B>) {
    for durability in [Durability::Os, Durability::Full] {
        let queue = durability.word();
        let made = rig.push(queue, 4);
        let held = rig.claim(queue, 1);
        ok(rig.try_settle(&held[0], retry(rig.in_seconds(50))));
        ok(rig.store().commit(durability));
        let before = rig.list(&Filter::default(), 100);
        let lane = rig.lane(queue, 0, LaneKind::Fresh);
        rig.claim_lane(lane, 2);
        let now = rig.now;
        ok(rig.store().amend(&made[..1], Amendment::Cancel, now));
        rig.crash(&|_, _| true, true);
        assert_eq!(rig.list(&Filter::default(), 100), before, "after a crash in an open turn ({queue})");
        let held = rig.claim(queue, 9);
        assert_eq!(ids(&held), made[1..], "the claims of the lost turn were never made");
        held.iter().for_each(|held| rig.settle(held, succeed()));
    }
}

fn epochs<B: Bench>(rig: &mut Rig<'_, B>) {
    let mut seen = vec![rig.store().epoch()];
    for _ in 0..5 {
        rig.crash(&|_, _| true, true);
        let epoch = rig.store().epoch();
        assert!(!seen.contains(&epoch), "epoch {epoch} was drawn twice");
        seen.push(epoch);
    }
}

fn old_claims<B: Bench>(rig: &mut Rig<'_, B>) {
    let made = rig.push("q", 4);
    let old = rig.claim("q", 4);
    rig.crash(&|_, _| true, true);
    for held in &old {
        assert_stale(rig.try_settle(held, succeed()), "a claim of the server that died");
    }
    let new = rig.claim("q", 4);
    assert_eq!(ids(&new), made, "all were given back");
    assert!(new.iter().all(|held| held.start() == 2), "it is their second start");
    for held in &old {
        assert_stale(rig.try_settle(held, Verdict::Return), "a claim of the server that died, while another holds it");
    }
    for held in &new {
        rig.settle(held, succeed());
    }
}

fn earlier_start<B: Bench>(rig: &mut Rig<'_, B>) {
    let id = rig.push("q", 1)[0];
    let first = rig.claim("q", 1);
    rig.settle(&first[0], retry(rig.now));
    rig.release(1);
    let lane = rig.lane("q", 0, LaneKind::Retry);
    let second = rig.claim_lane(lane, 1);
    rig.step();
    rig.crash(&|_, _| true, true);
    let third = rig.claim_lane(lane, 1);
    rig.step();
    assert_eq!((ids(&third), third[0].start()), (vec![id], 3), "it is held again");
    for (old, what) in [(&first[0], "the first start"), (&second[0], "the second start")] {
        assert_stale(rig.try_settle(old, succeed()), what);
    }
    rig.settle(&third[0], fail());
    assert_eq!(rig.job(id).state, State::Failed, "only the start that was held counted");
}

fn never_begun<B: Bench>(rig: &mut Rig<'_, B>) {
    let made = rig.push("q", 5);
    rig.claim("q", 4);
    let begun = made[2];
    let recovered = rig.crash(&|id, start| id == begun && start == 1, true);
    assert_eq!(recovered, Recovered { returned: 3, repeated: 1, convicted: 0 }, "what recovery found");
    for id in &made {
        let expected = if *id == begun { Record { starts: 1, failures: 0, suspicions: 1 } } else { Record::default() };
        assert_eq!((rig.job(*id).state, rig.job(*id).record), (State::Ready, expected), "{id}");
    }
    assert_eq!(ids(&rig.claim("q", 9)), made, "all in their old order");
}

fn elsewhere<B: Bench>(rig: &mut Rig<'_, B>) {
    let made = rig.push("q", 4);
    let tried = rig.claim("q", 1);
    rig.settle(&tried[0], retry(rig.now));
    rig.release(1);
    let again = rig.claim_lane(rig.lane("q", 0, LaneKind::Retry), 1);
    let fresh = rig.claim("q", 3);
    assert_eq!((ids(&again), ids(&fresh)), (vec![made[0]], made[1..].to_vec()));
    rig.crash_only();
    let theirs = [(made[0], 2), (made[2], 1)];
    // An earlier start of a job is no claim on it.
    let found = rig.recover_but(&theirs, &|_, _| false, true);
    assert_eq!(found, Recovered { returned: 2, repeated: 0, convicted: 0 }, "what recovery found");
    assert!(ok(rig.store().held(made[1])).is_none(), "what went back is not held");
    for (id, start) in theirs {
        let held = ok(rig.store().held(id)).unwrap_or_else(|| panic!("{id} is not held any more"));
        assert_eq!((ids(std::slice::from_ref(&held)), held.start()), (vec![id], start), "as it was given out");
        let index = held.range().start;
        assert!(held.jobs.data(index).starts_with(b"q/"), "with its data");
        rig.settle(&held, if start == 1 { succeed() } else { fail() });
        assert_stale(rig.try_settle(&held, succeed()), "settled once");
        rig.step();
    }
    assert_eq!((rig.state(made[0]), rig.state(made[2])), (Some(State::Failed), None), "each as it was told");
    assert_eq!(ids(&rig.claim("q", 9)), [made[1], made[3]], "the others are there again");
    rig.crash_only();
    let found = rig.recover_but(&[(made[1], 7)], &|_, _| true, true);
    assert_eq!(found, Recovered { returned: 0, repeated: 2, convicted: 0 }, "another start is another's");
}

fn rebooted<B: Bench>(rig: &mut Rig<'_, B>) {
    let id = rig.push("q", 1)[0];
    for starts in 1..=2 * CONVICTED_AT {
        assert_eq!(ids(&rig.claim("q", 1)), [id], "start {starts}");
        let recovered = rig.crash(&|_, _| true, false);
        assert_eq!(recovered, Recovered { returned: 0, repeated: 1, convicted: 0 }, "after reboot {starts}");
        let record = Record { starts, failures: 0, suspicions: 0 };
        assert_eq!((rig.job(id).state, rig.job(id).record), (State::Ready, record), "after reboot {starts}");
    }
}

fn poison<B: Bench>(rig: &mut Rig<'_, B>) {
    let run = RunId::first(Origin::from_random(9));
    let id = rig.push_to_run("q", 1, run)[0];
    for suspicions in 1..CONVICTED_AT {
        let kind = if suspicions <= 2 { LaneKind::Fresh } else { LaneKind::Suspect };
        let lane = rig.lane("q", 0, kind);
        assert_eq!(ids(&rig.claim_lane(lane, 1)), [id], "death {suspicions}");
        rig.step();
        rig.crash(&|_, start| start == suspicions, true);
        let job = rig.job(id);
        assert_eq!(job.record, Record { starts: suspicions, failures: 0, suspicions }, "death {suspicions}");
        if suspicions == 1 {
            assert_eq!(job.state, State::Ready, "one death accuses nobody");
            continue;
        }
        let until = rig.now.after(WAIT * 2u32.pow(suspicions - 2));
        assert_eq!((job.state, job.not_before), (State::Retrying, Some(until)), "a suspect waits");
        assert_eq!(job.kind, LaneKind::Suspect, "in a lane of its own");
        assert_eq!(ok(rig.store().next_due()), Some(until), "until its time");
        rig.now = until;
        rig.release(1);
    }
    let neighbour = rig.push_to_run("q", 1, run)[0];
    rig.claim("q", 1);
    let lane = rig.lane("q", 0, LaneKind::Suspect);
    rig.claim_lane(lane, 1);
    rig.step();
    rig.crash_only();
    let said = |job: &JobInfo, run| {
        assert_eq!((job.id, job.state, job.reason), (id, State::Failed, Some(Reason::Poison)), "whom it is said of");
        let mut builder = ChunkBuilder::new(Origin::from_random(0x5a1d));
        builder.push(1, b"it was poison");
        let (queue, jobs) = (queue_name("errors"), Arc::new(builder.finish()));
        vec![FollowUp { queue, priority: job.priority, run, jobs }]
    };
    let recovered = rig.recover_telling(&|_, _| true, &said);
    assert_eq!(recovered, Recovered { returned: 0, repeated: 1, convicted: 1 }, "the last death");
    let told = rig.job(JobId { origin: Origin::from_random(0x5a1d), offset: 1 });
    assert_eq!((told.state, told.run), (State::Ready, Some(run)), "what is said of it is taken in, in its run");
    let job = rig.job(id);
    assert_eq!((job.state, job.reason), (State::Failed, Some(Reason::Poison)), "it is convicted");
    assert_eq!(job.data, b"q/0", "and kept with its data");
    assert_eq!(rig.state(neighbour), Some(State::Ready), "its neighbour is not");
    let turns = ok(rig.store().unarchived());
    let told: Vec<_> = turns.iter().flat_map(|turn| &turn.settlements).collect();
    assert_eq!(told.len(), 1, "a conviction is told to the archive, a repetition is not");
    assert_eq!((told[0].outcome, told[0].verdict.state(), told[0].held.start()), ("lost", State::Failed, CONVICTED_AT));
    assert!(matches!(told[0].verdict, Verdict::Fail { reason: Reason::Poison, .. }), "{:?}", told[0].verdict);
    assert_eq!(ids(std::slice::from_ref(&told[0].held)), [id], "it is this job");
    rig.amend(id, Amendment::Retry);
    assert_eq!(rig.job(id).record, Record { starts: 5, failures: 0, suspicions: 0 }, "a person may try it again");
}

fn unarchived<B: Bench>(rig: &mut Rig<'_, B>) {
    rig.push("q", 1000);
    let held = rig.claim("q", 10);
    ok(rig.try_settle(&held[0].part(3, 4), succeed()));
    let first = rig.step();
    let at = rig.in_seconds(1);
    ok(rig.try_settle(&held[0].part(0, 1), retry(at)));
    ok(rig.try_settle(&held[0].part(9, 1), fail()));
    let second = rig.step();
    ok(rig.try_settle(&held[0].part(8, 1), succeed()));
    for round in 0..3 {
        rig.crash(&|_, _| false, true);
        let turns = ok(rig.store().unarchived());
        let numbers: Vec<_> = turns.iter().map(|turn| turn.turn).collect();
        assert_eq!(numbers, [first, second], "the committed turns, oldest first, after crash {round}");
        let first_turn = turns[0].settlements.iter().map(|settlement| &settlement.held);
        let done: Vec<_> = first_turn.flat_map(|held| held.range().map(|index| held.jobs.data(index))).collect();
        assert_eq!(done, [b"q/3", b"q/4", b"q/5", b"q/6"], "the data of what succeeded");
        let verdicts: Vec<_> = turns[1].settlements.iter().map(|s| s.verdict.clone()).collect();
        assert_eq!(verdicts, [retry(at), fail()], "the verdicts of the second turn");
        let last = &turns[1].settlements[1];
        assert_eq!((last.held.start(), last.outcome, last.finished), (1, "test", rig.now), "all that the archive says");
    }
    ok(rig.store().archived(first));
    rig.step();
    rig.crash(&|_, _| false, true);
    let left: Vec<_> = ok(rig.store().unarchived()).iter().map(|turn| turn.turn).collect();
    assert_eq!(left, [second], "what is archived is not told again");
    ok(rig.store().archived(second));
    rig.step();
    assert!(ok(rig.store().unarchived()).is_empty(), "all is archived");
    assert_eq!(rig.list(&Filter::default(), 100).len(), 996, "and no live job went with it");
}

fn turn_numbers<B: Bench>(rig: &mut Rig<'_, B>) {
    let mut last = 0;
    for _ in 0..6 {
        rig.push("q", 1);
        let held = rig.claim("q", 1);
        ok(rig.try_settle(&held[0], succeed()));
        let turn = rig.step();
        assert!(turn > last, "turn {turn} came after turn {last}");
        last = turn;
        rig.crash(&|_, _| true, true);
    }
}

fn others_untouched<B: Bench>(rig: &mut Rig<'_, B>) {
    for state in State::ALL.into_iter().filter(|state| *state != State::Running) {
        rig.job_in(state.word(), state);
    }
    let before = rig.list(&Filter::default(), 100);
    let recovered = rig.crash(&|_, _| true, true);
    assert_eq!(recovered, Recovered::default(), "nobody held anything");
    assert_eq!(rig.list(&Filter::default(), 100), before, "a crash without claims changes no job");
}
