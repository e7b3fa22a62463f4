//! The keys of a queue that say how fast it may go: `rate`, `rate_key` and `dead_after`.

use super::Table;
use crate::config::units::rate;
use crate::error::Failure;
use windlass_core::policy::Policy;
use windlass_core::template;

pub(super) const KEYS: [&str; 3] = ["rate", "rate_key", "dead_after"];

/// Reads them into a policy that has the defaults.
pub(super) fn read(table: &Table<'_, '_>, policy: Policy) -> Result<Policy, Failure> {
    let policy = Policy {
        rate: table.map("rate", rate)?,
        rate_key: table.map("rate_key", key)?,
        dead_after: table.number("dead_after", 0)?.unwrap_or(policy.dead_after),
        ..policy
    };
    if policy.rate_key.is_some() && policy.rate.is_none() && policy.dead_after == 0 {
        let text = "`rate_key` tells destinations apart, and there is neither a `rate` nor a `dead_after` for them";
        return Err(table.refuse_value("rate_key", text));
    }
    Ok(policy)
}

fn key(text: &str) -> Result<String, String> {
    for name in ["{id}", "{attempt}", "{#}"] {
        if text.contains(name) {
            return Err(format!("{text:?} has {name}, which is another for each job or attempt"));
        }
    }
    match template::takes_data(&[text.as_bytes().to_vec()]) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} takes nothing of the data, expected a template such as {{data.host}}")),
    }
}
