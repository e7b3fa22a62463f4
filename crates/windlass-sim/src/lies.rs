//! The checkers can fail: a store that lies in some way is found out within a few worlds, and by the right one.

use crate::Cast;
use crate::watched::Lie;
use crate::world::World;

/// What the world says of a store that tells this lie, and in which seed; only of worlds that are fine otherwise.
fn found(lie: Lie, end: bool) -> Option<(u64, String)> {
    let story = |seed, lie| {
        let mut world = World::new(seed, false, Cast::default())?;
        world.over = end.then(crate::over::Over::default);
        if let Some(store) = &mut world.down {
            store.lie = lie;
        }
        world.run()
    };
    (1..400).find_map(|seed| {
        let what = crate::caught(|| story(seed, Some(lie))).err()?;
        let is_fine = crate::caught(|| story(seed, None)).is_ok();
        is_fine.then_some((seed, what))
    })
}

/// Which checkers, or which other sentence of the world, may speak up first.
fn witnesses(lie: Lie) -> &'static [&'static str] {
    match lie {
        // One of the inbox is missed by whoever asked whether everything has ended, too.
        Lie::LosesAJob => {
            &["was answered before it was committed", "nothing accepted is lost", "stands in the inbox", "is unread"]
        }
        Lie::AltersData => &["never handed over with this data"],
        Lie::SyncsNothing => &["went with the power", "in the store, expected", "is not the file", "gone"],
        Lie::HoldsTwice => {
            &["one live token", "slots are never exceeded", "is held twice", "panic", "not held any more"]
        }
        Lie::EndsEarly => &["exact end of runs"],
        // Where the end of a run is announced by a job, that job comes out of nowhere.
        Lie::MissesAnEnd => &["exact end of runs", "-4000000000001 was never handed over"],
        Lie::ReleasesEarly => &["nothing starts before its time"],
        Lie::ForgetsOutcomes => &["every settled start is archived once", "is not in the archive"],
        Lie::SettlesNothing => &[
            "liveness",
            "in the store, expected",
            "legal transitions",
            "drained is exact",
            "was emitted and is not there",
        ],
        Lie::ForgetsOverrides => &["what people change holds", "never ended"],
        Lie::HidesDeletions => &["and is gone"],
        Lie::ActsTwice => &["met the wish of operation"],
        Lie::LosesEmitted => &["was emitted and is not there"],
        Lie::ForgetsKeys => &["is a duplicate and was taken in"],
        Lie::ForgetsFirings => &["schedules fire as they should"],
        Lie::ForgetsChains => &["chained jobs wait"],
        Lie::ForgetsFinishBy => &["after the time by which it had to end"],
        Lie::ForgetsTerms => &["runs keep their terms", "is not there"],
        Lie::AnnouncesNothing => &["runs keep their terms"],
        Lie::MixesOutcomes => &["every end is its own"],
        Lie::SkipsWithTheCursor => {
            &["stands in the inbox", "drained is exact", "caught up", "nothing accepted is lost"]
        }
    }
}

#[test]
fn every_planted_lie_is_found_out() {
    let mut unheard = Vec::new();
    for lie in Lie::ALL {
        let (seed, what) = found(lie, false).unwrap_or_else(|| panic!("{lie:?} was not noticed"));
        if !witnesses(lie).iter().any(|word| what.contains(word)) {
            unheard.push(format!("{lie:?}, seed {seed}: {what}"));
        }
    }
    assert!(unheard.is_empty(), "somebody else spoke up:\n{}", unheard.join("\n"));
}

#[test]
fn an_early_and_a_late_end_are_told_by_the_answers() {
    assert!(found(Lie::SettlesNothing, true).is_some());
}
