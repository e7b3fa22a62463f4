//! Who is told of a job that has failed for good: the queue that its table names in `on_failure`.
//!
//! A queue that handles failures is never handed its own, nor those of another such queue: a handler that fails ends
//! there, so no chain of handlers can turn in a circle. It must not know what is told; the engine writes that.

use crate::job::QueueName;
use crate::policy::{HandlerFiles, Policy};
use crate::router::Router;
use std::collections::BTreeSet;

/// The queues that handle failures, out of all rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handlers(BTreeSet<QueueName>);

impl Handlers {
    /// Those that tables name, and whoever hears what is sent to them.
    pub fn of(policies: &[Policy], router: &Router) -> Handlers {
        let named: BTreeSet<QueueName> = policies.iter().filter_map(|policy| policy.on_failure.clone()).collect();
        let hear: Vec<QueueName> = named.iter().flat_map(|queue| router.reach(queue)).collect();
        Handlers(named.into_iter().chain(hear).collect())
    }

    /// True for a queue whose failures nobody is told of.
    pub fn has(&self, queue: &QueueName) -> bool {
        self.0.contains(queue)
    }

    /// The queue that is told of the failures of this one, which this table serves.
    pub fn handler<'p>(&self, policy: &'p Policy, queue: &QueueName) -> Option<&'p QueueName> {
        policy.on_failure.as_ref().filter(|_| !self.has(queue))
    }

    /// The same where only the rules are known, in their order.
    pub fn handler_among<'p>(
        &self,
        policies: &'p [Policy],
        files: &HandlerFiles,
        queue: &QueueName,
    ) -> Option<&'p QueueName> {
        let serving = policies.iter().find(|policy| policy.serves(queue.as_str(), files))?;
        self.handler(serving, queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Command, Service};
    use crate::router::Subscription;

    fn table(pattern: &str, on_failure: Option<&str>) -> Policy {
        let on_failure = on_failure.map(name);
        Policy { on_failure, ..Policy::new(pattern, Service::Command(Command::default())) }
    }

    fn name(text: &str) -> QueueName {
        QueueName::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_first_table_that_serves_a_queue_names_its_handler_and_a_handler_has_none() {
        let listeners = vec![name("pager")];
        let router = Router::new(vec![Subscription { pattern: "ops".into(), listeners }]).unwrap();
        let tables = [table("quiet", None), table("a", Some("ops")), table("*", Some("errors"))];
        let (handlers, files) = (Handlers::of(&tables, &router), HandlerFiles::new());
        let of = |queue: &str| handlers.handler_among(&tables, &files, &name(queue)).map(QueueName::as_str);
        assert_eq!(of("a"), Some("ops"));
        assert_eq!(of("b"), Some("errors"));
        assert_eq!(of("quiet"), None);
        assert_eq!(of("pager"), None, "who hears what is sent to a handler is one");
        assert_eq!((of("errors"), of("ops")), (None, None), "a pattern that has everything has them, too");
    }
}
