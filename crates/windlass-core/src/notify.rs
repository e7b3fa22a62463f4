//! Who asked to be told of the ends of jobs and runs, and of which.
//!
//! A channel is a queue of its own, `notify.NAME`, served as any other. Every end is exactly one of three words, or
//! none for what a person cancelled. It must not know what is told; the engine writes that.

use crate::job::QueueName;
use crate::judge::{Reason, Verdict};
use crate::life_cycle::State;
use crate::run::RunCounts;
use crate::run::terms::{RunTerms, Stopped};

/// What the queues of channels begin with.
pub const CHANNELS: &str = "notify.";
/// The most channels of one table, run or job: the latter two keep their names.
pub const MOST: usize = 16;

/// The ends that somebody can ask to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Failed,
    Succeeded,
    /// It failed because its time had passed.
    Late,
}

impl Ending {
    pub const ALL: [Ending; 3] = [Ending::Failed, Ending::Succeeded, Ending::Late];

    pub fn word(self) -> &'static str {
        match self {
            Ending::Failed => "failed",
            Ending::Succeeded => "succeeded",
            Ending::Late => "late",
        }
    }

    pub fn from_text(text: &str) -> Option<Ending> {
        Ending::ALL.into_iter().find(|ending| ending.word() == text)
    }

    /// What is said of a word that is none of them.
    pub fn unknown(word: &str) -> String {
        format!("notify_on: {word:?} is not known, expected some of failed, succeeded, late")
    }

    /// How a job ends by this verdict; none where it goes on or was cancelled.
    pub fn of_verdict(verdict: &Verdict) -> Option<Ending> {
        match (verdict.state(), verdict) {
            (State::Failed, Verdict::Fail { reason, .. }) => Some(Ending::of_failure(*reason)),
            (State::Failed, _) => Some(Ending::Failed),
            (State::Succeeded, _) => Some(Ending::Succeeded),
            (State::Scheduled | State::Ready | State::Running | State::Retrying, _) => None,
            (State::Suspended | State::Cancelled, _) => None,
        }
    }

    /// How a job ended that failed for this reason.
    pub fn of_failure(reason: Reason) -> Ending {
        match reason {
            Reason::Expired => Ending::Late,
            Reason::Exhausted | Reason::Refused | Reason::Poison => Ending::Failed,
        }
    }

    /// How a run ended.
    pub fn of_run(terms: &RunTerms, counts: &RunCounts) -> Ending {
        match counts.stopped {
            Some(Stopped::TimeLimit) => Ending::Late,
            Some(Stopped::Failures) => Ending::Failed,
            None if terms.succeeded(counts) => Ending::Succeeded,
            None => Ending::Failed,
        }
    }

    fn bit(self) -> u8 {
        match self {
            Ending::Failed => 1,
            Ending::Succeeded => 2,
            Ending::Late => 4,
        }
    }
}

/// Some of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endings(u8);

impl Endings {
    pub fn has(self, ending: Ending) -> bool {
        self.0 & ending.bit() != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Ending> {
        Ending::ALL.into_iter().filter(move |ending| self.has(*ending))
    }

    /// As one byte of an encoding.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// None where a newer program knows more of them.
    pub fn from_bits(bits: u8) -> Option<Endings> {
        let all: Endings = Ending::ALL.into_iter().collect();
        (bits & !all.0 == 0).then_some(Endings(bits))
    }
}

impl FromIterator<Ending> for Endings {
    fn from_iter<I: IntoIterator<Item = Ending>>(endings: I) -> Endings {
        Endings(endings.into_iter().fold(0, |bits, ending| bits | ending.bit()))
    }
}

/// What goes wrong is what people want to be woken for.
impl Default for Endings {
    fn default() -> Endings {
        [Ending::Failed, Ending::Late].into_iter().collect()
    }
}

/// The name of a channel as people say it.
pub fn name_of(queue: &str) -> &str {
    queue.strip_prefix(CHANNELS).unwrap_or(queue)
}

/// Channels, and what they are told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Notify {
    /// The queues of the channels.
    pub channels: Vec<QueueName>,
    pub on: Endings,
}

impl Notify {
    /// From the words that people say; a channel that nobody serves yet is told all the same, and its jobs wait.
    pub fn from_words(names: &[String], on: &[String]) -> Result<Notify, String> {
        let Some(first) = names.first() else {
            return match on {
                [] => Ok(Notify::default()),
                [..] => Err("notify_on says of what, and there is no notify".into()),
            };
        };
        let mut channels: Vec<QueueName> = Vec::new();
        for name in names {
            let channel = QueueName::new(format!("{CHANNELS}{name}").as_bytes());
            let channel = channel.map_err(|why| format!("notify: {name:?} is no channel's name: {why}"))?;
            if name.is_empty() || channels.contains(&channel) || channels.len() == MOST {
                return Err(format!(
                    "notify: expected up to {MOST} channels, each once, got {name:?} beside {first:?}"
                ));
            }
            channels.push(channel);
        }
        let ending = |word: &String| Ending::from_text(word).ok_or_else(|| Ending::unknown(word));
        let on = match on {
            [] => Endings::default(),
            words => words.iter().map(ending).collect::<Result<_, _>>()?,
        };
        Ok(Notify { channels, on })
    }

    /// The names of the channels as people say them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.channels.iter().map(|queue| name_of(queue.as_str()))
    }

    /// The channels that are told of this end.
    pub fn of(&self, ending: Ending) -> &[QueueName] {
        if self.on.has(ending) { &self.channels } else { &[] }
    }

    pub fn hears(&self, ending: Ending) -> bool {
        !self.of(ending).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suspicion::Ruling;
    use crate::time::Time;

    #[test]
    fn every_end_is_one_word_and_what_was_cancelled_has_none() {
        let fail = |reason| Verdict::Fail { reason, error: String::new() };
        for (verdict, ending) in [
            (Verdict::Succeed { message: String::new() }, Some(Ending::Succeeded)),
            (Verdict::Retry { at: Time(1), error: String::new() }, None),
            (Verdict::Snooze { at: Time(1) }, None),
            (Verdict::Return, None),
            (Verdict::Cancel, None),
            (Verdict::Suspect(Ruling::Wait(Time(1))), None),
            (Verdict::Suspect(Ruling::Convicted), Some(Ending::Failed)),
            (fail(Reason::Exhausted), Some(Ending::Failed)),
            (fail(Reason::Refused), Some(Ending::Failed)),
            (fail(Reason::Poison), Some(Ending::Failed)),
            (fail(Reason::Expired), Some(Ending::Late)),
        ] {
            assert_eq!(Ending::of_verdict(&verdict), ending, "{verdict:?}");
        }
    }

    #[test]
    fn a_run_is_late_by_its_time_limit_and_has_failed_by_whatever_else_it_lacks() {
        let run = |state: State, stopped| {
            let mut counts = RunCounts { stopped, ..RunCounts::default() };
            counts.admit(State::Succeeded, 3);
            counts.admit(state, 1);
            Ending::of_run(&RunTerms::default(), &counts)
        };
        assert_eq!(run(State::Succeeded, None), Ending::Succeeded);
        assert_eq!(run(State::Failed, None), Ending::Failed);
        assert_eq!(run(State::Cancelled, None), Ending::Failed);
        assert_eq!(run(State::Cancelled, Some(Stopped::Failures)), Ending::Failed);
        assert_eq!(run(State::Cancelled, Some(Stopped::TimeLimit)), Ending::Late);
    }

    #[test]
    fn a_channel_hears_what_it_was_asked_for_and_by_default_what_went_wrong() {
        let channels = vec![QueueName::new(b"notify.ops").unwrap()];
        let by_default = Notify { channels: channels.clone(), on: Endings::default() };
        assert_eq!(Ending::ALL.map(|ending| by_default.hears(ending)), [true, false, true]);
        let asked = Notify { channels, on: [Ending::Succeeded].into_iter().collect() };
        assert_eq!(Ending::ALL.map(|ending| asked.hears(ending)), [false, true, false]);
        assert_eq!(Ending::ALL.map(|ending| Notify::default().hears(ending)), [false; 3], "nobody is there");
    }

    #[test]
    fn words_that_people_say_become_channels_or_a_sentence() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let read = |names: &[&str], on: &[&str]| Notify::from_words(&words(names), &words(on));
        let told = read(&["ops", "b"], &["late"]).unwrap();
        assert_eq!(told.names().collect::<Vec<_>>(), ["ops", "b"]);
        assert_eq!(told.channels[0].as_str(), "notify.ops");
        assert_eq!(Ending::ALL.map(|ending| told.hears(ending)), [false, false, true]);
        assert_eq!(read(&["ops"], &[]).unwrap().on, Endings::default());
        assert_eq!(read(&[], &[]), Ok(Notify::default()));
        for (names, on, why) in [
            (&[][..], &["late"][..], "there is no notify"),
            (&["ops", "ops"], &[], "each once"),
            (&[""], &[], "each once"),
            (&["a\nb"], &[], "no channel's name"),
            (&["ops"], &["lost"], "expected some of failed, succeeded, late"),
        ] {
            let refused = read(names, on).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let many: Vec<String> = (0..=MOST).map(|number| number.to_string()).collect();
        assert!(Notify::from_words(&many, &[]).is_err() && Notify::from_words(&many[1..], &[]).is_ok());
        for ending in Ending::ALL {
            assert_eq!(Ending::from_text(ending.word()), Some(ending));
        }
        for bits in 0..8 {
            assert_eq!(Endings::from_bits(bits).map(Endings::bits), Some(bits));
        }
        assert_eq!(Endings::from_bits(8), None);
    }
}
