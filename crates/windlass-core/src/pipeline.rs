//! Pipelines: stages joined by where their results go, in any shape, circles included.
//!
//! A pipeline is checked as a whole before any of it runs. What waits in a stage holds the stages before it at its
//! `limit`, but never inside a circle: there every stage is before every other, and two full ones would hold each
//! other for ever. So a stage is held only by stages of other components (strongly connected ones), which form no
//! circle, and the last of which nothing holds. It must not count what waits: the scheduler does.

use crate::job::QueueName;
use crate::size;
use std::fmt;

/// What of a job goes to the stages after its own when it has succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pass {
    /// What it emits.
    #[default]
    Emitted,
    /// And its message: `result TEXT`, the text of its reply, or the last line of its output.
    Message,
    /// And each line of its standard output.
    Lines,
    /// And its own data, as it is.
    Data,
}

impl Pass {
    pub const ALL: [(&'static str, Pass); 4] =
        [("emitted", Pass::Emitted), ("message", Pass::Message), ("lines", Pass::Lines), ("data", Pass::Data)];

    pub fn word(self) -> &'static str {
        match self {
            Pass::Emitted => "emitted",
            Pass::Message => "message",
            Pass::Lines => "lines",
            Pass::Data => "data",
        }
    }
}

/// A stage as its queue's rules have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    pub pipeline: String,
    pub stage: String,
    /// What may wait here before the stages before it are held; nought means that nothing is.
    pub limit: u32,
    /// The same in bytes, which only directories count.
    pub limit_bytes: u64,
    /// How often a document of it is tried where it is a directory; nought for no end.
    pub tries: u32,
    pub pass: Pass,
    /// Where its results go.
    pub to: Vec<QueueName>,
    /// The stages whose limits hold it: those of `to` that are in no circle with it.
    pub held_by: Vec<QueueName>,
}

impl Flow {
    /// A stage that goes by what its jobs emit, all of whose next stages lead back to it: nothing holds it.
    pub fn in_circle(pipeline: &str, stage: &str, to: impl IntoIterator<Item = QueueName>) -> Flow {
        Flow {
            pipeline: pipeline.to_owned(),
            stage: stage.to_owned(),
            limit: 0,
            limit_bytes: 0,
            tries: 0,
            pass: Pass::Emitted,
            to: to.into_iter().collect(),
            held_by: Vec::new(),
        }
    }

    /// What of a job that has succeeded goes to every next stage beside what it emitted; its lines are emitted.
    pub fn passes<'d>(&self, message: &'d str, data: &'d [u8]) -> Option<&'d [u8]> {
        match self.pass {
            Pass::Message if !message.is_empty() => Some(message.as_bytes()),
            Pass::Data => Some(data),
            Pass::Message | Pass::Emitted | Pass::Lines => None,
        }
    }

    /// The queue that a name means within the pipeline: one of its stages, or none of them.
    pub fn stage_named(&self, name: &[u8]) -> Option<QueueName> {
        let whole = [self.pipeline.as_bytes(), b".", name].concat();
        self.to.iter().find(|queue| queue.as_str().as_bytes() == whole).cloned()
    }
}

/// A stage as it is planned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    pub name: String,
    /// Workers at most, and the memory that each needs.
    pub slots: u32,
    pub memory: u64,
    pub to: Vec<String>,
}

/// What is wrong with a pipeline, and at which of its stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    Duplicate {
        stage: usize,
    },
    Unknown {
        stage: usize,
        to: String,
        known: Vec<String>,
    },
    Unreachable {
        stage: usize,
        first: String,
    },
    /// One worker of each stage, all together.
    DoesNotFit {
        need: u64,
        budget: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Duplicate { .. } => f.write_str("an earlier stage has this name"),
            Fault::Unknown { to, known, .. } => {
                write!(f, "`to` names the stage {to:?}, which is not there; the stages are {}", known.join(", "))
            }
            Fault::Unreachable { first, .. } => {
                write!(f, "nothing reaches this stage: no way leads to it from `{first}`, where the input comes in")
            }
            Fault::DoesNotFit { need, budget } => {
                let (need, budget) = (size::spoken(*need), size::spoken(*budget));
                write!(f, "one worker of each stage needs {need} together, and there is {budget}")
            }
        }
    }
}

/// The stages in the order of the file; input comes in at the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// By stage: the stages after it.
    after: Vec<Vec<usize>>,
    /// By stage: a number that the stages of one circle share.
    component: Vec<usize>,
}

impl Plan {
    /// Checks how the stages are joined.
    pub fn new(stages: &[Stage]) -> Result<Plan, Fault> {
        let position = |name: &str| stages.iter().position(|stage| stage.name == name);
        let mut after = Vec::new();
        for (at, stage) in stages.iter().enumerate() {
            if position(&stage.name) != Some(at) {
                return Err(Fault::Duplicate { stage: at });
            }
            let known = || stages.iter().map(|stage| stage.name.clone()).collect();
            let found = stage
                .to
                .iter()
                .map(|to| position(to).ok_or_else(|| Fault::Unknown { stage: at, to: to.clone(), known: known() }));
            after.push(found.collect::<Result<Vec<_>, _>>()?);
        }
        let reach: Vec<Vec<bool>> = (0..stages.len()).map(|from| reached(&after, from)).collect();
        if let Some(stage) = (1..stages.len()).find(|stage| !reach[0][*stage]) {
            return Err(Fault::Unreachable { stage, first: stages[0].name.clone() });
        }
        let same = |one: usize, other: usize| one == other || reach[one][other] && reach[other][one];
        let component = (0..stages.len()).map(|at| (0..at).find(|other| same(at, *other)).unwrap_or(at)).collect();
        Ok(Plan { after, component })
    }

    /// The stages whose limits hold this one.
    pub fn held_by(&self, stage: usize) -> impl Iterator<Item = usize> + '_ {
        let outside = move |next: &usize| self.component[*next] != self.component[stage];
        self.after[stage].iter().copied().filter(outside)
    }

    /// Joins stages that are kept in one store, by its number, and feed each other into parts; a directory, which has
    /// no number, is a part of its own. By stage, the part it is in, which has the number of its first stage. A part
    /// has ended when all before it have, and it has nothing left; that can be said of none that feeds itself by way
    /// of another, nor of a directory that does: the first such stage is the error.
    pub fn parts(&self, stores: &[Option<usize>]) -> Result<Vec<usize>, usize> {
        let ways = || self.after.iter().enumerate().flat_map(|(from, after)| after.iter().map(move |to| (from, *to)));
        let mut part: Vec<usize> = (0..self.after.len()).collect();
        for (from, to) in ways().filter(|(from, to)| stores[*from].is_some() && stores[*from] == stores[*to]) {
            let (one, other) = (part[from].min(part[to]), part[from].max(part[to]));
            part.iter_mut().filter(|number| **number == other).for_each(|number| *number = one);
        }
        let mut after = vec![Vec::new(); part.len()];
        for (from, to) in ways().filter(|(from, to)| part[*from] != part[*to] || stores[*from].is_none()) {
            after[part[from]].push(part[to]);
        }
        match (0..part.len()).find(|stage| reached(&after, part[*stage])[part[*stage]]) {
            Some(stage) => Err(stage),
            None => Ok(part),
        }
    }
}

/// What can be reached from a stage in one step or more.
fn reached(after: &[Vec<usize>], from: usize) -> Vec<bool> {
    let mut reached = vec![false; after.len()];
    let mut next = after[from].clone();
    while let Some(at) = next.pop() {
        if !std::mem::replace(&mut reached[at], true) {
            next.extend(&after[at]);
        }
    }
    reached
}

/// How many workers of each stage fit into so much memory: one of each first, then in turns, each up to its slots.
pub fn fit(stages: &[Stage], budget: Option<u64>) -> Result<Vec<u32>, Fault> {
    let Some(budget) = budget else { return Ok(stages.iter().map(|stage| stage.slots).collect()) };
    let need = stages.iter().fold(0u64, |sum, stage| sum.saturating_add(stage.memory));
    let Some(mut left) = budget.checked_sub(need) else { return Err(Fault::DoesNotFit { need, budget }) };
    let mut fitted = vec![1; stages.len()];
    loop {
        let mut grown = false;
        for (stage, count) in stages.iter().zip(&mut fitted) {
            if *count < stage.slots && stage.memory <= left {
                *count = if stage.memory == 0 { stage.slots } else { *count + 1 };
                left -= stage.memory;
                grown = true;
            }
        }
        if !grown {
            return Ok(fitted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(all: &[(&str, &[&str])]) -> Vec<Stage> {
        let stage = |(name, to): &(&str, &[&str])| Stage {
            name: (*name).to_owned(),
            slots: 1,
            memory: 0,
            to: to.iter().map(|to| (*to).to_owned()).collect(),
        };
        all.iter().map(stage).collect()
    }

    fn held_by(all: &[(&str, &[&str])]) -> Vec<Vec<usize>> {
        let plan = Plan::new(&stages(all)).unwrap();
        (0..all.len()).map(|stage| plan.held_by(stage).collect()).collect()
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |all: &[(&str, &[&str])]| Plan::new(&stages(all)).unwrap_err();
        assert_eq!(wrong(&[("a", &[]), ("a", &[])]), Fault::Duplicate { stage: 1 });
        assert!(matches!(wrong(&[("a", &["b"])]), Fault::Unknown { stage: 0, .. }));
        assert!(matches!(wrong(&[("a", &["b"]), ("b", &[]), ("c", &["b"])]), Fault::Unreachable { stage: 2, .. }));
    }

    #[test]
    fn a_limit_holds_the_stage_before_it_and_nothing_in_a_circle() {
        assert_eq!(held_by(&[("a", &["b"]), ("b", &["c"]), ("c", &[])]), [vec![1], vec![2], vec![]]);
        assert_eq!(held_by(&[("a", &["b"]), ("b", &["a"])]), [vec![], Vec::new()], "a ring");
        assert_eq!(held_by(&[("a", &["a", "b"]), ("b", &[])]), [vec![1], vec![]], "who feeds itself");
        // Two rings that are joined: only the way from the one to the other holds.
        let joined = held_by(&[("a", &["b"]), ("b", &["a", "c"]), ("c", &["d"]), ("d", &["c", "e"]), ("e", &[])]);
        assert_eq!(joined, [vec![], vec![2], vec![], vec![4], vec![]]);
    }

    /// However the stages are joined, there is always one that nothing holds although all are full.
    #[test]
    fn no_graph_of_stages_can_hold_itself() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..2000 {
            let count = 2 + round % 7;
            let mut after: Vec<Vec<usize>> = (1..count).map(|at| vec![at]).chain([Vec::new()]).collect();
            for _ in 0..count {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (from, to) = ((random >> 33) as usize % count, (random >> 45) as usize % count);
                after[from].push(to);
            }
            let stage = |(at, to): (usize, &Vec<usize>)| Stage {
                name: at.to_string(),
                to: to.iter().map(usize::to_string).collect(),
                ..Stage::default()
            };
            let plan = Plan::new(&after.iter().enumerate().map(stage).collect::<Vec<_>>()).unwrap();
            // Whoever follows those who hold comes to one whom nothing holds, and never to the same one twice.
            for start in 0..count {
                let (mut at, mut steps) = (start, 0);
                while let Some(next) = plan.held_by(at).next() {
                    (at, steps) = (next, steps + 1);
                    assert!(steps <= count, "{after:?}");
                }
            }
        }
    }

    #[test]
    fn stages_of_one_store_that_feed_each_other_are_one_part() {
        let parts = |all: &[(&str, &[&str])], stores: &[Option<usize>]| Plan::new(&stages(all)).unwrap().parts(stores);
        let line: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &["c"]), ("c", &["d"]), ("d", &[])];
        assert_eq!(parts(line, &[None, None, None, None]), Ok(vec![0, 1, 2, 3]));
        assert_eq!(parts(line, &[None, Some(0), Some(0), None]), Ok(vec![0, 1, 1, 3]));
        assert_eq!(parts(line, &[Some(0), None, Some(0), Some(1)]), Ok(vec![0, 1, 2, 3]), "nothing leads from a to c");
        // Joined late: both ways of a fork meet again in one store.
        let fork: &[(&str, &[&str])] = &[("a", &["b", "c"]), ("b", &["d"]), ("c", &["d"]), ("d", &[])];
        assert_eq!(parts(fork, &[None, Some(0), Some(0), Some(0)]), Ok(vec![0, 1, 1, 1]));
        let ring: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &["a", "c"]), ("c", &[])];
        assert_eq!(parts(ring, &[Some(0), Some(0), None]), Ok(vec![0, 0, 2]), "a circle within a store has an end");
        assert_eq!(parts(ring, &[Some(0), None, None]), Err(0));
        assert_eq!(parts(ring, &[None, None, None]), Err(0));
        assert_eq!(parts(&[("a", &["a"])], &[None]), Err(0));
        assert_eq!(parts(&[("a", &["a"])], &[Some(0)]), Ok(vec![0]));
        // A store that a directory feeds and is fed by.
        let back: &[(&str, &[&str])] = &[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])];
        assert_eq!(parts(back, &[Some(0), None, Some(0)]), Err(0));
    }

    #[test]
    fn workers_are_fitted_into_memory_one_of_each_first() {
        let stage = |slots, memory| Stage { slots, memory, ..Stage::default() };
        let all = [stage(3, 2), stage(4, 1), stage(9, 0)];
        assert_eq!(fit(&all, Some(9)), Ok(vec![3, 3, 9]));
        assert_eq!(fit(&all, Some(3)), Ok(vec![1, 1, 9]));
        assert_eq!(fit(&all, None), Ok(vec![3, 4, 9]));
        assert_eq!(fit(&all, Some(2)), Err(Fault::DoesNotFit { need: 3, budget: 2 }));
    }
}
