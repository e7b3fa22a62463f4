//! `[defaults]`: what the tables of queues, of stages and of the handlers have where they do not say otherwise.

use super::{Table, read_terms};
use crate::config::Config;
use crate::error::Failure;
use windlass_core::policy::Policy;

/// The keys it may have: terms that mean the same whatever serves a queue.
pub(in crate::config) const KEYS: [&str; 8] =
    ["slots", "weight", "attempts", "time_limit", "grace", "backoff", "backoff_max", "output"];

/// Lays what a file says over what the files before it said.
pub(super) fn read(root: &Table<'_, '_>, config: &mut Config) -> Result<(), Failure> {
    if let Some(table) = root.section("defaults")? {
        table.only(&KEYS)?;
        config.defaults = read_terms(&table, config.defaults.clone())?;
    }
    Ok(())
}

/// A policy before its own table is looked at.
pub(super) fn under(config: &Config, own: Policy) -> Policy {
    let Policy { slots, weight, attempts, time_limit, grace, backoff, output_max, .. } = config.defaults.clone();
    Policy { slots, weight, attempts, time_limit, grace, backoff, output_max, ..own }
}
