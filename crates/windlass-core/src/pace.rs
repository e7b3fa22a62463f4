//! How fast documents go through directories, and how long what is there will take: from where the time of the drivers
//! went, and from which stage feeds which.
//!
//! The stages may feed each other in any shape. It must not count documents or look at a directory: it is given both.

use crate::document::Times;
use std::time::Duration;

/// How fast the drivers of a stage are, in documents an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Over all of their time.
    pub achieved: f64,
    /// What they could do if they never had to wait, for documents or for room.
    pub possible: f64,
}

impl Pace {
    /// Of the drivers that live now. One that has not done a document yet can do what those before it could.
    pub fn of<'t>(living: impl IntoIterator<Item = &'t Times>, before: &Times) -> Pace {
        let mut pace = Pace::default();
        for times in living {
            let busy = times.work + times.overhead;
            pace.achieved += per_hour(times.documents, busy + times.wait + times.block);
            pace.possible += match times.documents {
                0 => per_hour(before.documents, before.work + before.overhead),
                documents => per_hour(documents, busy),
            };
        }
        pace
    }
}

fn per_hour(documents: u64, time: Duration) -> f64 {
    // Times are kept in milliseconds: what took less than one took one.
    documents as f64 * 3600.0 / time.max(Duration::from_millis(1)).as_secs_f64()
}

/// What is known of a stage that documents go through.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// Documents that are in it.
    pub here: u64,
    /// Documents an hour that its drivers can do; nought where it has none.
    pub possible: f64,
    /// The stages that it feeds, by their place.
    pub to: Vec<usize>,
}

/// How long each stage needs for what is in it and for what will come to it; none where nobody works on it.
pub fn time_left(stages: &[Load]) -> Vec<Option<Duration>> {
    let left = |stage: usize| {
        let coming: u64 = (0..stages.len()).filter(|from| feeds(stages, *from, stage)).map(|at| stages[at].here).sum();
        match (coming, stages[stage].possible) {
            (0, _) => Some(Duration::ZERO),
            (_, possible) if possible <= 0.0 => None,
            (coming, possible) => Duration::try_from_secs_f64(coming as f64 * 3600.0 / possible).ok(),
        }
    };
    (0..stages.len()).map(left).collect()
}

/// Whether what is in one stage comes to another; to itself it has come.
fn feeds(stages: &[Load], from: usize, to: usize) -> bool {
    let (mut reached, mut at) = (vec![false; stages.len()], vec![from]);
    while let Some(stage) = at.pop() {
        if !std::mem::replace(&mut reached[stage], true) {
            at.extend(&stages[stage].to);
        }
    }
    reached[to]
}

/// How far each stage is from those that nothing feeds, so that what feeds comes before what is fed; in a circle
/// somebody is first.
pub fn depths(to: &[Vec<usize>]) -> Vec<usize> {
    let mut depths: Vec<Option<usize>> = vec![None; to.len()];
    let fed = |stage: usize| to.iter().enumerate().any(|(from, to)| from != stage && to.contains(&stage));
    let first: Vec<usize> = (0..to.len()).filter(|stage| !fed(*stage)).collect();
    for begin in first.into_iter().chain(0..to.len()) {
        let (mut at, mut depth) = (vec![begin], 0);
        while !at.is_empty() {
            at.retain(|stage| depths[*stage].is_none());
            at.iter().for_each(|stage| depths[*stage] = Some(depth));
            at = at.iter().flat_map(|stage| &to[*stage]).copied().collect();
            depth += 1;
        }
    }
    depths.into_iter().map(Option::unwrap_or_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(documents: u64, work: u64, wait: u64) -> Times {
        let [work, wait] = [work, wait].map(Duration::from_secs);
        Times { documents, work, wait, ..Times::default() }
    }

    #[test]
    fn what_they_do_is_less_than_what_they_could_by_what_they_waited() {
        let pace = Pace::of(&[times(10, 10, 30), times(10, 20, 20)], &Times::default());
        assert_eq!((pace.achieved, pace.possible), (1800.0, 5400.0));
        let fresh = Pace::of(&[Times::default()], &times(10, 10, 1000));
        assert_eq!((fresh.achieved, fresh.possible), (0.0, 3600.0));
        assert_eq!(Pace::of(&[], &times(10, 10, 0)), Pace::default());
        assert_eq!(Pace::of(&[Times { documents: 1, ..Times::default() }], &Times::default()).achieved, 3_600_000.0);
    }

    #[test]
    fn a_stage_has_yet_to_do_what_is_in_the_stages_before_it() {
        let load = |here, possible, to: &[usize]| Load { here, possible, to: to.to_vec() };
        let line = [load(10, 3600.0, &[1]), load(5, 900.0, &[2]), load(7, 0.0, &[])];
        let seconds =
            |stages: &[Load]| time_left(stages).iter().map(|left| left.map(|left| left.as_secs())).collect::<Vec<_>>();
        assert_eq!(seconds(&line), [Some(10), Some(60), None]);
        let ring = [load(1, 3600.0, &[1]), load(1, 3600.0, &[0])];
        assert_eq!(seconds(&ring), [Some(2), Some(2)]);
        assert_eq!(seconds(&[load(0, 0.0, &[])]), [Some(0)]);
    }

    #[test]
    fn what_feeds_comes_before_what_is_fed() {
        assert_eq!(depths(&[vec![], vec![2], vec![0]]), [2, 0, 1]);
        assert_eq!(depths(&[vec![1], vec![0]]), [0, 1], "in a circle somebody is first");
        assert_eq!(depths(&[vec![2], vec![2], vec![]]), [0, 0, 1]);
    }
}
