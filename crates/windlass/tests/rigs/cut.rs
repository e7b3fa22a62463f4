//! CUT: power cuts of the disk under the data directory, before every call that changes it, and at random.
//!
//! At the point the file system is shut down without writing its journal out, all processes die, and the machine boots
//! again: another boot id, the journal played back, the file system checked. Then a server must open what is there and
//! run everything that was accepted as `full`, whole. What was accepted as `os` may be missing; its age is told.

use crate::chance::size;
use crate::disk::{Boots, Disk, with_own_mounts};
use crate::random::Random;
use crate::rig::Rig;
use crate::scene::{Part, Scene};
use crate::tracer::{Act, Plan, Tally, Which};
use crate::witness::now;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const MIB: u64 = 24;
/// Random cuts of the short form, behind one cut at every point.
const SHORT_RANDOM: u64 = 25;
/// A random cut comes within so many changing calls; a server under load makes more.
const CALLS: u64 = 500;

#[derive(Default)]
struct Figures {
    points: u64,
    random: u64,
    missed: u64,
    accepted: usize,
    lost_full: usize,
    lost_os: usize,
    oldest: i64,
    /// Answers that came after the cut, of what was not on disk.
    after: usize,
    altered: usize,
}

struct Room {
    scene: Scene,
    disk: Disk,
    boots: Boots,
    figures: Figures,
}

#[test]
fn a_power_cut_loses_nothing_that_was_answered_full() {
    let most = size("WINDLASS_CUT_POINTS", 0);
    with_own_mounts(|| {
        let scene = Scene::new();
        let disk = Disk::new(image_of(&scene.rig), &scene.rig.dir(), MIB);
        let boots = Boots::new(scene.rig.path("boot"));
        let mut room = Room { scene, disk, boots, figures: Figures::default() };
        for part in [Part::Push("full"), Part::Serve] {
            room.every_point(false, part);
        }
        for part in [Part::Push("full"), Part::Push("os"), Part::Serve] {
            room.every_point(true, part);
        }
        let done = room.figures.points;
        room.at_random(if most == 0 { SHORT_RANDOM } else { most.saturating_sub(done) });
        let Figures { points, random, missed, accepted, lost_full, lost_os, oldest, after, altered } = room.figures;
        println!(
            "cut: points {points} (not reached {missed}) random cuts {random} accepted {accepted} \
             lost (full) {lost_full} lost (os) {lost_os}, the oldest {:.3} s before the cut, \
             answered after it {after}, altered or merged {altered}",
            oldest as f64 / 1e6
        );
        assert_eq!((lost_full, altered), (0, 0));
    });
}

/// In memory if that is a file system, because only the disk inside the image matters.
fn image_of(rig: &Rig) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let name = format!("windlass-cut-{}.img", std::process::id());
    if memory.is_dir() { memory.join(name) } else { rig.path("image") }
}

impl Room {
    /// Cuts the power once before every changing call of a part.
    fn every_point(&mut self, lived: bool, part: Part) {
        let kept = self.scene.rig.path("kept");
        self.scene.witness.clear();
        self.disk.format();
        self.disk.mount();
        if lived {
            self.scene.prepare_lived()
        } else {
            self.scene.prepare_empty()
        }
        self.disk.unmount();
        self.disk.keep(&kept);
        let mark = self.scene.witness.mark();
        let counted = self.count(part);
        for nth in 1..=counted + 1 {
            self.scene.witness.rewind(mark);
            self.disk.restore(&kept);
            let tally = self.cut(&format!("{part:?} lived={lived} call {nth} of {counted}"), |room, which, act| {
                room.scene.play(part, Plan { which, nth, act }, true)
            });
            self.figures.points += 1;
            self.figures.missed += u64::from(!tally.hit && nth <= counted);
        }
    }

    /// How many calls a part has when nothing happens.
    fn count(&self, part: Part) -> u64 {
        self.boots.boot();
        self.disk.mount();
        let which = Which::Changing(self.scene.rig.dir());
        let tally = self.scene.play(part, Plan { which, nth: 0, act: Act::Count }, true).unwrap();
        assert_eq!(tally.end, 0, "{}", tally.stderr);
        self.disk.unmount();
        tally.counted
    }

    /// One life of one disk, with many producers and many cuts.
    fn at_random(&mut self, cuts: u64) {
        let mut random = Random::new(size("WINDLASS_CUT_SEED", 1));
        self.scene.witness.clear();
        self.disk.format();
        self.disk.mount();
        self.scene.prepare_lived();
        self.disk.unmount();
        for number in 0..cuts {
            let nth = 1 + random.below(CALLS);
            self.cut(&format!("random cut {number}, call {nth}"), |room, which, act| {
                let producers = ["full", "os", "full"]
                    .map(|durability| room.scene.witness.library_producer(&room.scene.rig, durability));
                let tally = room.scene.play(Part::Serve, Plan { which, nth, act }, true);
                // They end by themselves: the disk is gone, or they have enough.
                producers.into_iter().for_each(|producer| drop(producer.end()));
                tally
            });
            self.figures.random += 1;
            // What was lost as `os` is counted once.
            self.scene.witness.clear();
        }
    }

    /// Boots, plays until the point, cuts, boots again and judges.
    fn cut(&mut self, which_one: &str, play: impl FnOnce(&Room, Which, Act) -> Option<Tally>) -> Tally {
        self.boots.boot();
        self.disk.mount();
        let (switch, at) = (self.disk.switch(), Arc::new(Mutex::new(None)));
        let noted = Arc::clone(&at);
        let act = Act::Cut(Box::new(move || {
            *noted.lock().unwrap() = Some(now());
            switch();
        }));
        let tally = play(self, Which::Changing(self.scene.rig.dir()), act);
        let tally = tally.unwrap_or_else(|| panic!("{which_one}: hangs"));
        if !tally.hit {
            // The end of the scene is a point as well.
            at.lock().unwrap().get_or_insert_with(now);
            self.disk.switch()();
        }
        let cut_at = at.lock().unwrap().expect("every life ends with a cut");
        self.disk.unmount();
        self.boots.boot();
        self.disk.mount();
        let verdict = self.scene.heal();
        self.disk.unmount();
        self.disk.check();
        assert_eq!(verdict.failed, "", "{which_one}");
        self.figures.accepted += verdict.accepted;
        for lost in &verdict.lost {
            if lost.at >= cut_at {
                // Where the power is gone nobody answers: here the kernel goes on, and a sync that began before the
                // cut may still say that all is well.
                self.figures.after += 1;
            } else if lost.durability == "os" {
                self.figures.lost_os += 1;
                self.figures.oldest = self.figures.oldest.max(cut_at - lost.at);
            } else {
                eprintln!("cut: {which_one}: lost {lost:?}");
                self.figures.lost_full += 1;
            }
        }
        if !verdict.altered.is_empty() || !verdict.doubled.is_empty() {
            eprintln!("cut: {which_one}: altered {:?}, doubled {:?}", verdict.altered, verdict.doubled);
        }
        self.figures.altered += verdict.altered.len() + verdict.doubled.len();
        tally
    }
}
