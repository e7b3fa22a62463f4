//! The suite that every store passes, also stores outside this crate: give it a `Bench`, call `run`.
//!
//! Each case begins with an empty store, and after every commit the committed view, the counters and the reported
//! changes are held against each other. Cases fail with sentences; `run` collects them and panics once. This file
//! owns the list of cases. It must not know any store.

use super::{Store, StoreView};
use rig::Rig;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub mod audit;
mod durable;
pub mod faults;
mod keys;
mod life;
mod model;
mod order;
mod particulars;
pub mod rig;
mod runs;
mod steer;
mod terms;
#[cfg(test)]
mod tests;
mod times;
mod travel;

/// How the suite gets at a store.
pub trait Bench {
    type Store: Store;

    /// A new, empty store.
    fn fresh(&mut self) -> Self::Store;

    /// The process that had this store open died, as by `kill -9`, and another opened it. Not recovered yet.
    fn crash(&mut self, store: Self::Store) -> Self::Store;

    /// What everyone else sees of the store while it is open.
    fn view<'a>(&'a self, store: &'a Self::Store) -> Box<dyn StoreView + 'a>;
}

/// One case: a sentence that holds for every store, and what checks it.
pub type Case<B> = (&'static str, fn(&mut Rig<'_, B>));

/// Every case of the suite.
pub fn cases<B: Bench>() -> Vec<Case<B>> {
    [told_cases(), model::cases()].concat()
}

/// The cases that tell a fixed story.
fn told_cases<B: Bench>() -> Vec<Case<B>> {
    let stories = [life::cases(), order::cases(), runs::cases(), durable::cases(), steer::cases()];
    let besides = [particulars::cases(), keys::cases(), terms::cases(), times::cases(), travel::cases()];
    [stories.concat(), besides.concat()].concat()
}

/// Runs every case and panics with all that failed.
pub fn run<B: Bench>(bench: &mut B) {
    run_cases(bench, cases());
}

fn run_cases<B: Bench>(bench: &mut B, cases: Vec<Case<B>>) {
    let mut failed = Vec::new();
    for (sentence, case) in cases {
        // A rig that a panic left half done is dropped at once; the next case has a store of its own.
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let mut rig = Rig::new(bench);
            case(&mut rig);
            rig.step();
        }));
        if let Err(panic) = ran {
            failed.push(format!("{sentence}: {}", words_of(&*panic)));
        }
    }
    assert!(failed.is_empty(), "{} cases failed\n{}", failed.len(), failed.join("\n"));
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}
