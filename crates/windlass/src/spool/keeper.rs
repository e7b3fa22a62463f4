//! The keeper of the drivers of one process: the thread that sees documents come, renews the leases, takes over from
//! dead drivers and knows when all is done.
//!
//! It sleeps on the kernel's file events and looks by itself now and then, since a shared file system tells of nothing.
//! It must not touch a document that one of the drivers has.

use super::LOOK;
use super::directory::Directory;
use super::drive::{Shared, State};
use super::lease::Lease;
use super::recover::{Heir, take_over};
use crate::error::Failure;
use crate::inbox::watch::Watch;
use rustix::fs::inotify::{ReadFlags, WatchFlags};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::document::Name;

/// So many names are taken in before the drivers may have some of them.
const AT_ONCE: usize = 512;

/// The thread that looks after the drivers.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    leases: Vec<Arc<Lease>>,
    watch: Option<Watch>,
    /// What its events of the input are known by; none where the kernel tells of nothing.
    input: Option<i32>,
    /// The same of each room.
    rooms: Vec<Option<i32>>,
    /// When the leases were renewed last.
    renewed: Cell<Instant>,
}

/// What brings a document.
const COMES: WatchFlags = WatchFlags::MOVED_TO.union(WatchFlags::CREATE).union(WatchFlags::ONLYDIR);
/// What takes one away.
const GOES: WatchFlags = WatchFlags::MOVED_FROM.union(WatchFlags::DELETE).union(WatchFlags::ONLYDIR);

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, leases: Vec<Arc<Lease>>) -> Result<Keeper, Failure> {
        // Without the kernel's events the look now and then has to do.
        let watch = Watch::new().ok().filter(|watch| !watch.is_blind());
        let arm = |directory: &Directory, what| {
            let armed = watch.as_ref().and_then(|watch| watch.arm_for(directory.path(), what).ok());
            armed.map(|armed| armed.number())
        };
        let input = arm(&shared.queue.directory, COMES);
        let rooms: Vec<Option<i32>> = shared.rooms.iter().map(|(directory, _)| arm(directory, GOES)).collect();
        if input.is_none() || rooms.contains(&None) {
            shared.say_once("the kernel tells of no new documents; looking for them every five seconds (fs.inotify)");
        }
        Ok(Keeper { shared, leases, watch, input, rooms, renewed: Cell::new(Instant::now()) })
    }

    pub(super) fn keep(self) {
        if let Err(failure) = self.until_the_end() {
            self.shared.fail(failure);
        }
    }

    fn until_the_end(&self) -> Result<(), Failure> {
        let renewal = self.shared.lease / 3;
        let mut looked = Instant::now();
        self.look()?;
        loop {
            if self.shared.state().gone {
                return Ok(());
            }
            let next = (self.renewed.get() + renewal).min(looked + LOOK);
            self.wait_up_to(next.saturating_duration_since(Instant::now()))?;
            let has_room = self.hear();
            self.renew()?;
            let due = looked.elapsed() >= LOOK;
            if due {
                looked = Instant::now();
                self.look_around()?;
            }
            let wants = {
                let state = self.shared.state();
                !state.is_over() && (state.arrivals.wants_look() || (due && state.arrivals.is_empty()))
            };
            if wants {
                self.look()?;
            }
            if self.look_for_the_end()? || has_room || due {
                self.shared.news.notify_all();
            }
        }
    }

    /// For something to happen. While all drivers are at work and know what comes next, nobody needs to be told of
    /// what comes later: the kernel keeps it, or says that it was too much. So a claim, which is an event too, wakes
    /// nobody. A driver that runs out of documents rings.
    fn wait_up_to(&self, most: Duration) -> Result<(), Failure> {
        let deaf = {
            let state = self.shared.state();
            self.shared.rooms.is_empty() && state.idle == 0 && !state.arrivals.is_empty()
        };
        match self.watch.as_ref().filter(|_| !deaf) {
            None => self.shared.bell.wait_up_to(most),
            Some(watch) => watch.wait_up_to(&self.shared.bell, Some(most)),
        }
    }

    /// Renews the leases when it is time.
    fn renew(&self) -> Result<(), Failure> {
        if self.renewed.get().elapsed() < self.shared.lease / 3 {
            return Ok(());
        }
        self.renewed.set(Instant::now());
        let renewed = self.leases.iter().try_for_each(|lease| lease.renew());
        renewed.map_err(|e| Failure::io("cannot renew a lease", &e))
    }

    /// What only a look can tell: dead drivers, and a directory that is not where it was.
    fn look_around(&self) -> Result<(), Failure> {
        let shared = &self.shared;
        shared.are_in_place()?;
        let taken = take_over(&shared.queue, &Heir::driver(&shared.way, shared.tries))?;
        shared.tell_taken(&taken);
        Ok(())
    }

    /// Takes in what the kernel tells; true where something has left the output.
    fn hear(&self) -> bool {
        let mut has_room = false;
        let Some(watch) = &self.watch else { return false };
        watch.read(|watch, what, name| {
            let watch = Some(watch);
            has_room |= watch != self.input;
            let shrunk = self.shared.rooms.iter().zip(&self.rooms).filter(|(_, known)| watch == **known);
            shrunk.for_each(|((_, room), _)| room.has_shrunk());
            if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.shared.state().arrivals.missed();
            }
            let waits = |name: &&[u8]| Name::of(name).is_some_and(|name| name.waits());
            if let Some(file) = name.filter(|_| watch == self.input).filter(waits)
                && let Ok(Some(facts)) = self.shared.queue.directory.facts(file)
            {
                self.shared.state().arrivals.came(facts.changed, file);
                self.shared.news.notify_one();
            }
        });
        has_room
    }

    /// One look at the whole directory.
    fn look(&self) -> Result<(), Failure> {
        let shared = &self.shared;
        shared.state().arrivals.look_begins();
        let mut seen: Vec<(i64, Box<[u8]>)> = Vec::with_capacity(AT_ONCE);
        let hand_in = |seen: &mut Vec<(i64, Box<[u8]>)>| {
            let mut state = shared.state();
            seen.drain(..).for_each(|(changed, file)| state.arrivals.saw(changed, &file));
            let over = state.is_over();
            drop(state);
            shared.news.notify_all();
            over
        };
        let mut trouble = None;
        let looked = shared.queue.directory.each_name(|file| {
            if Name::of(file).is_some_and(|name| name.waits()) {
                match shared.queue.directory.facts(file) {
                    Ok(facts) => seen.extend(facts.map(|facts| (facts.changed, file.into()))),
                    Err(error) => trouble = Some(error),
                }
            }
            // A large directory takes longer than a lease.
            let over = seen.len() >= AT_ONCE && (hand_in(&mut seen) || self.renew().is_err());
            if over || trouble.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        hand_in(&mut seen);
        shared.state().arrivals.look_ends();
        shared.news.notify_all();
        let place = shared.queue.directory.path().display();
        match looked.err().or(trouble) {
            Some(error) => Err(Failure::io(format_args!("cannot look into {place}"), &error)),
            None => Ok(()),
        }
    }

    /// When nothing more comes and nobody has anything, all is done.
    fn look_for_the_end(&self) -> Result<bool, Failure> {
        let shared = &self.shared;
        let rests = |state: &State| state.idle == shared.drivers && state.arrivals.is_empty() && !state.is_over();
        if !rests(&shared.state()) {
            return Ok(false);
        }
        let place = shared.queue.directory.path();
        let cannot = |e: std::io::Error| Failure::io(format_args!("cannot look into {}", place.display()), &e);
        if !shared.queue.is_closed().map_err(cannot)? {
            return Ok(false);
        }
        if !shared.is_fed() {
            shared.say_once("something says `done` to a stage that is still fed; it is not believed until all is fed");
            return Ok(false);
        }
        // From now on it matters as well what others take away.
        let _looks_now_and_then = self.watch.as_ref().map(|watch| watch.arm_for(place, COMES | GOES));
        if !shared.queue.is_worked_off().map_err(cannot)? {
            shared.say_once("nothing waits here any more; waiting for others who still have documents");
            return Ok(false);
        }
        let mut state = shared.state();
        state.ended = rests(&state);
        Ok(state.ended)
    }
}
