//! `[subscribe]`: who hears the jobs of which queues. Circles, and tables that nothing would be left for, are refused.

use super::{Table, check_pattern, queue_name, quoted};
use crate::error::{Failure, Kind};
use toml::de::DeValue;
use windlass_core::job::QueueName;
use windlass_core::policy::{Policy, pattern_matches};
use windlass_core::router::{Router, Subscription};

/// The subscriptions of one file, in its order.
pub(super) fn read(root: &Table<'_, '_>, served: &[Policy]) -> Result<Vec<Subscription>, Failure> {
    let Some(section) = root.section("subscribe")? else { return Ok(Vec::new()) };
    let mut entries: Vec<_> = section.table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    let mut subscriptions = Vec::new();
    for (name, _) in entries {
        let pattern = name.get_ref().as_ref();
        check_pattern(pattern).map_err(|why| root.source.refuse(name.span(), &why))?;
        let listeners = read_listeners(&section, pattern)?;
        let bare = served.iter().find(|policy| {
            let hears = pattern_matches(pattern.as_bytes(), policy.pattern.as_bytes());
            policy.by_file.is_none() && !policy.pattern.contains('*') && hears
        });
        if let Some(policy) = bare {
            let table = quoted(&policy.pattern);
            let why = format!("[queue.{table}] would do nothing: its jobs go to those who have subscribed to them");
            let hint = format!("give the table another name and let it listen: {} = [\"NAME\"]", quoted(pattern));
            return Err(root.source.refuse(name.span(), &why).hint(hint));
        }
        subscriptions.push(Subscription { pattern: pattern.to_owned(), listeners });
    }
    Ok(subscriptions)
}

/// Those of all files together.
pub(super) fn join(roots: &[Table<'_, '_>], all: Vec<Subscription>) -> Result<Router, Failure> {
    Router::new(all).or_else(|circle| {
        let names: Vec<&str> = circle.listeners.iter().map(QueueName::as_str).collect();
        let why = format!("a message would go in a circle: {} -> {}", quoted(&circle.pattern), names.join(" -> "));
        for root in roots.iter().rev() {
            if let Some(section) = root.section("subscribe")?.filter(|section| section.get(&circle.pattern).is_some()) {
                return Err(section.refuse_value(&circle.pattern, &why));
            }
        }
        Err(Failure::new(Kind::Config, why))
    })
}

fn read_listeners(section: &Table<'_, '_>, pattern: &str) -> Result<Vec<QueueName>, Failure> {
    let Some(value) = section.get(pattern) else { return Ok(Vec::new()) };
    let DeValue::Array(names) = value.get_ref() else {
        return Err(section.wrong(pattern, value, "an array of queue names"));
    };
    let mut listeners: Vec<QueueName> = Vec::new();
    for name in names {
        let text = name.get_ref().as_str().ok_or_else(|| section.wrong(pattern, name, "queue names only"))?;
        let listener = queue_name(text).map_err(|why| section.source.refuse(name.span(), &why))?;
        if listeners.contains(&listener) {
            return Err(section.source.refuse(name.span(), &format!("{text:?} stands here twice")));
        }
        listeners.push(listener);
    }
    match listeners.is_empty() {
        true => Err(section.refuse_value(pattern, "nobody listens: expected the names of one queue or more")),
        false => Ok(listeners),
    }
}
