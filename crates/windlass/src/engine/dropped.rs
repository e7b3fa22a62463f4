//! Turns that never were: what was absorbed comes again, and whoever asked for something is told why.
//!
//! Where the database refuses what a turn was to write, ends and lots are taken one by one until it is known which it
//! was; that one is refused in words. It must not decide what a database may refuse.

use super::effects::Effects;
use super::event::Event;
use super::turn::{Absorbed, Progress};
use super::{Engine, FULL_RETRY};
use crate::error::{Failure, Kind};
use crate::runner::Finished;
use crate::sabotage::{self, Sabotage};
use crate::store::{Lot, Store, StoreError};
use std::time::Duration;
use windlass_core::circuit::Sign;
use windlass_core::outcome::Outcome;
use windlass_core::time::Time;

/// What the database refused of the inbox is tried again after so long.
const REFUSED_RETRY: Duration = Duration::from_secs(5);

/// Why a turn was dropped.
#[derive(Debug)]
pub(super) enum Dropped {
    Full(String),
    Away(String),
    Busy(String),
    /// The database does not let in what the turn was to write.
    Refused(String),
}

/// What is taken one by one, after a turn that the database refused.
#[derive(Debug, Default)]
pub(super) struct OneByOne {
    /// So many more turns take in one end, or one lot.
    pub(super) ends: usize,
    pub(super) lots: usize,
    /// Lots of the inbox that wait until the database takes the first of them, and when that is tried next.
    pub(super) waiting: Vec<Lot>,
    pub(super) again_at: Option<Time>,
}

/// What may be to blame for a turn that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspects {
    OnePush,
    OneOfInbox,
    Lots(usize),
    OneEnd,
    Ends(usize),
    /// What was set aside before, and should not be refused any more.
    Aside,
    /// What schedules push.
    Schedules,
    /// What the turn did by itself, or a person asked for.
    Nothing,
}

impl Suspects {
    fn of(absorbed: &Absorbed) -> Suspects {
        let (ends, inbox, pushed) = (absorbed.finished.len(), absorbed.ingested.len(), absorbed.pushed.len());
        match (absorbed.settled, absorbed.admitted) {
            (false, _) if ends == 1 => Suspects::OneEnd,
            (false, _) if ends > 1 => Suspects::Ends(ends),
            (true, true) if inbox + pushed > 1 => Suspects::Lots(inbox + pushed),
            (true, true) if inbox == 1 => Suspects::OneOfInbox,
            (true, true) if pushed == 1 => Suspects::OnePush,
            (false, _) | (true, _) => Suspects::Nothing,
        }
    }

    /// Schedules: surely, where one was about to push; maybe, where nobody else can be to blame.
    fn or_schedules(self, surely: bool, maybe: bool) -> Suspects {
        if surely || maybe && self == Suspects::Nothing { Suspects::Schedules } else { self }
    }
}

/// How many ends and lots a turn may take in yet.
#[derive(Debug)]
pub(super) struct Most {
    ends: usize,
    lots: usize,
}

impl Most {
    pub(super) fn takes_end(&mut self) -> bool {
        takes_one(&mut self.ends)
    }

    pub(super) fn takes_lot(&mut self) -> bool {
        takes_one(&mut self.lots)
    }
}

fn takes_one(left: &mut usize) -> bool {
    let takes = *left > 0;
    *left = left.saturating_sub(1);
    takes
}

impl OneByOne {
    pub(super) fn take_turn(&mut self) -> Most {
        let most = |left: &mut usize| if takes_one(left) { 1 } else { usize::MAX };
        Most { ends: most(&mut self.ends), lots: most(&mut self.lots) }
    }
}

impl Dropped {
    /// Why such a failure drops the turn, where it is no reason to end.
    pub(super) fn of(error: StoreError) -> Result<Dropped, StoreError> {
        match error {
            StoreError::Full(what) => Ok(Dropped::Full(what)),
            StoreError::Away(what) => Ok(Dropped::Away(what)),
            StoreError::Busy(what) => Ok(Dropped::Busy(what)),
            StoreError::Refused(what) => Ok(Dropped::Refused(what)),
            StoreError::Corrupt(_) | StoreError::Stale(_) | StoreError::Io(_) => Err(error),
            StoreError::Newer { .. } | StoreError::Locked(_) => Err(error),
        }
    }

    /// What those are told who asked for something in it.
    pub(super) fn failure(&self) -> Failure {
        match self {
            Dropped::Full(what) => {
                Failure::new(Kind::Full, format!("rejected, nothing was stored: no space left: {what}"))
            }
            Dropped::Away(what) => {
                Failure::new(Kind::TryLater, format!("rejected, nothing was stored: the database is away: {what}"))
            }
            Dropped::Busy(what) => {
                let text = format!("rejected, nothing was stored: another program has locked rows: {what}");
                Failure::new(Kind::TryLater, text)
            }
            Dropped::Refused(what) => {
                Failure::new(Kind::BadData, format!("rejected, nothing was stored: the database refuses it: {what}"))
            }
        }
    }

    pub(super) fn note(&self) -> String {
        match self {
            Dropped::Full(what) => format!("no space left ({what}): nothing is admitted or started until there is"),
            Dropped::Away(what) => {
                format!(
                    "the database is away ({what}): what runs goes on, nothing is admitted or started until it answers"
                )
            }
            Dropped::Busy(what) => {
                format!("another program has locked rows ({what}): what ended there is written when they are free")
            }
            Dropped::Refused(what) => format!("the database refuses what is to be written ({what})"),
        }
    }
}

impl<S: Store> Engine<S> {
    /// Why nothing is taken in while `full_until` holds.
    pub(super) fn dropped_before(&self) -> Dropped {
        match self.away {
            true => Dropped::Away("a moment ago".into()),
            false => Dropped::Full("the disk was full a moment ago".into()),
        }
    }

    /// No space, or nobody there: the turn never was. Finished attempts and inbox lots wait for the next one; pushers
    /// are told.
    pub(super) fn give_back(
        &mut self,
        absorbed: Absorbed,
        progress: &Progress,
        why: Dropped,
        now: Time,
        dropped: Effects,
    ) -> Result<Effects, StoreError> {
        // Where there was no space for that, it must not be the end of the turns to come.
        self.forget_at = self.forget_at.filter(|_| !progress.forgets);
        self.take_flights_back(progress);
        self.drop_rules();
        self.asks.give_back();
        let came_in = self.aside.drop_turn();
        let (fired, firing) = self.schedules.drop_turn();
        self.waiters.missed_now = self.waiters.missed;
        self.lots.drop_packed(&progress.lots, &why.failure());
        let why = self.drop_turn(why)?;
        self.note_what_was_in_vain(&absorbed, &why);
        let asked = !dropped.answers.is_empty() || dropped.refusal_told;
        dropped.answers.refuse(&why.failure());
        self.operations.take_refused().into_iter().for_each(|answer| answer.give(Err(why.failure())));
        // Orders to stop and to read touch nothing that was dropped, and whoever waits for them asks only once.
        let Effects { stops, read_inbox, nudge, notes, starts, .. } = dropped;
        let mut effects = Effects { stops, read_inbox, nudge, notes, ..Effects::default() };
        if sabotage::on(Sabotage::StartBeforeCommit) {
            effects.starts = starts;
        }
        let (mut pushed, busy) = (Vec::new(), matches!(why, Dropped::Busy(_)));
        let fires = firing || !asked && !fired.is_empty();
        let suspects = if came_in { Suspects::Aside } else { Suspects::of(&absorbed).or_schedules(firing, fires) };
        let kept = match &why {
            Dropped::Full(_) | Dropped::Away(_) => false,
            // They have nothing to do with what is locked, and nothing was done with them.
            Dropped::Busy(_) => !absorbed.admitted,
            // Of several nobody knows which it was.
            Dropped::Refused(_) => suspects != Suspects::OnePush,
        };
        for (lot, durability, answer) in absorbed.pushed {
            match kept {
                true => pushed.push(Event::Pushed { lot, durability, answer }),
                false => effects.answers.add(answer, Err(why.failure())),
            }
        }
        let finished = absorbed.finished.into_iter().map(Event::Finished);
        let ingested = absorbed.ingested.into_iter().map(Event::Ingested);
        let again = finished.chain(ingested).chain(pushed).chain(absorbed.commands);
        self.pending = again.chain(std::mem::take(&mut self.pending)).collect();
        if let Dropped::Refused(what) = &why {
            match suspects {
                Suspects::Schedules => self.schedules.refused(fired, what, now, &mut effects),
                suspects => self.find_what_is_refused(what, suspects, asked, &mut effects)?,
            }
            self.turn_again = true;
            return Ok(effects);
        }
        if busy {
            if self.locked.again_at.replace(now).is_none() {
                effects.notes.push(why.note());
            }
            return Ok(effects);
        }
        if self.full_until.is_none() {
            effects.notes.push(why.note());
        }
        // Turns that are dropped meanwhile must not put the next try off: what keeps coming would do so for ever.
        self.full_until.get_or_insert(now.after(FULL_RETRY));
        self.away = matches!(why, Dropped::Away(_));
        Ok(effects)
    }

    /// Nobody says twice that a server is to end: what was not heard comes again, and first. What was obeyed in vain is
    /// not among it, so each turn leaves less.
    fn note_what_was_in_vain(&mut self, absorbed: &Absorbed, why: &Dropped) {
        let unheard = !absorbed.commands.is_empty();
        self.turn_again |= unheard;
        self.obeys_first = unheard && !matches!(why, Dropped::Refused(_));
        self.tried_ends = absorbed.finished.len();
    }

    /// What departed did not, and what was reported is to be reported again.
    fn take_flights_back(&mut self, progress: &Progress) {
        for (flight, first, count) in &progress.reports {
            self.flights.give_report_back(*flight, *first, *count);
        }
        for flight in &progress.departed {
            if let Some((crew, held)) = self.flights.get(*flight).map(|flight| (flight.crew, flight.all())) {
                held.iter().for_each(|held| self.hear_of_destinations(crew, held, Sign::None));
            }
            self.flights.release(*flight, &mut self.scheduler);
            self.flights.forget(*flight);
        }
    }

    /// Drops what the turn did to the store and to memory; where nobody answers any more, that is why it is dropped.
    fn drop_turn(&mut self, why: Dropped) -> Result<Dropped, StoreError> {
        match &why {
            Dropped::Full(_) | Dropped::Busy(_) | Dropped::Refused(_) => match self.start_over() {
                Err(StoreError::Away(what)) => {
                    self.store.rollback()?;
                    return Ok(Dropped::Away(what));
                }
                started => started?,
            },
            Dropped::Away(_) => self.store.rollback()?,
        }
        Ok(why)
    }

    /// Goes on so that what the database refuses is found out, or is known.
    fn find_what_is_refused(
        &mut self,
        what: &str,
        suspects: Suspects,
        asked: bool,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        match suspects {
            Suspects::Ends(ends) => self.one_by_one.ends = ends,
            Suspects::Lots(lots) => self.one_by_one.lots = lots,
            Suspects::OneEnd => return self.fail_what_cannot_end(what, effects),
            // Who pushed it has been told.
            Suspects::OnePush => {}
            Suspects::OneOfInbox => {
                let first = self.pending.iter().position(|event| matches!(event, Event::Ingested(_)));
                if let Some(Event::Ingested(mut lot)) = first.and_then(|at| self.pending.remove(at)) {
                    if self.part(&mut lot)? {
                        self.one_by_one.lots = self.one_by_one.lots.max(1);
                        self.pending.push_front(Event::Ingested(lot));
                        return Ok(());
                    }
                    // The inbox keeps what it has.
                    self.one_by_one.waiting.push(lot);
                    self.one_by_one.again_at = Some(self.now.after(REFUSED_RETRY));
                    effects.notes.push(format!("the database refuses what is in the inbox, which waits there: {what}"));
                }
            }
            Suspects::Aside => self.put_aside_off(),
            // Whoever asked has been told.
            Suspects::Nothing | Suspects::Schedules if asked => {}
            Suspects::Nothing | Suspects::Schedules => {
                return Err(StoreError::Io(format!("the database refuses what was to be written: {what}")));
            }
        }
        Ok(())
    }

    /// A job whose end cannot be written for what it emitted has failed; one whose end cannot be written at all is
    /// beyond help.
    fn fail_what_cannot_end(&mut self, what: &str, effects: &mut Effects) -> Result<(), StoreError> {
        let first = self.pending.iter_mut().find_map(|event| match event {
            Event::Finished(finished) => Some(finished),
            _ => None,
        });
        let Some(Finished { outcomes, emitted, .. }) = first else { return Ok(()) };
        let error = format!("what it emitted is refused by the database: {what}");
        let failed = Outcome::FailedForGood { error };
        if outcomes.iter().all(|(_, outcome)| matches!(outcome, Outcome::FailedForGood { .. })) && emitted.is_empty() {
            return Err(StoreError::Io(format!("the database refuses the end of a job: {what}")));
        }
        outcomes.iter_mut().for_each(|(_, outcome)| *outcome = failed.clone());
        emitted.clear();
        effects.notes.push(format!("the database refuses what a job emitted, which has failed: {what}"));
        Ok(())
    }

    /// What the inbox brings waits behind what the database refused of it.
    pub(super) fn queue_behind_the_refused(&mut self) {
        let Some(at) = self.one_by_one.again_at else { return };
        let mut lots = std::mem::take(&mut self.one_by_one.waiting);
        if at <= self.now || at > self.now.after(REFUSED_RETRY) {
            self.one_by_one.again_at = None;
            self.one_by_one.lots = self.one_by_one.lots.max(1);
            lots.drain(..).rev().for_each(|lot| self.pending.push_front(Event::Ingested(lot)));
            return;
        }
        for event in std::mem::take(&mut self.pending) {
            match event {
                Event::Ingested(lot) => lots.push(lot),
                event => self.pending.push_back(event),
            }
        }
        self.one_by_one.waiting = lots;
    }
}
