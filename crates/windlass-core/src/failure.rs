//! Who is told of a job that has ended: the queue that its table names in `on_failure`, the channels in `notify`, and
//! those that it names itself.
//!
//! A queue that is told of ends has nobody to tell of its own, nor of those of another such queue: a handler or a
//! channel that fails ends there, so no chain of them can turn in a circle. It must not know what is told; the engine
//! writes that.

use crate::job::QueueName;
use crate::notify::{Ending, Notify};
use crate::policy::{HandlerFiles, Policy};
use crate::router::Router;
use std::collections::BTreeSet;

/// The queues that are told of ends, out of all rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handlers {
    queues: BTreeSet<QueueName>,
    /// Some table asks for what succeeded; mostly none does, and then nobody has to be looked for.
    of_success: bool,
}

/// Who is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener<'p> {
    /// Its work is part of the failed job's run, which goes on until it is done.
    Handler(&'p QueueName),
    /// It only hears of it: no run waits for it.
    Channel(&'p QueueName),
}

impl Handlers {
    /// Those that tables name, and whoever hears what is sent to them.
    pub fn of(policies: &[Policy], router: &Router) -> Handlers {
        let names =
            |policy: &Policy| policy.on_failure.iter().chain(&policy.notify.channels).cloned().collect::<Vec<_>>();
        let named: BTreeSet<QueueName> = policies.iter().flat_map(names).collect();
        let hear: Vec<QueueName> = named.iter().flat_map(|queue| router.reach(queue)).collect();
        let of_success = policies.iter().any(|policy| policy.notify.hears(Ending::Succeeded));
        Handlers { queues: named.into_iter().chain(hear).collect(), of_success }
    }

    /// True for a queue of whose ends nobody is told.
    pub fn has(&self, queue: &QueueName) -> bool {
        self.queues.contains(queue)
    }

    /// Whether there can be anybody to tell of such an end.
    pub fn may_hear(&self, ending: Ending) -> bool {
        match ending {
            Ending::Failed | Ending::Late => !self.queues.is_empty(),
            Ending::Succeeded => self.of_success,
        }
    }

    /// Those who are told that a job of this queue, which this table serves, has ended so. It may name channels of its
    /// own; one that both name is told once.
    pub fn listeners<'p>(
        &self,
        policy: Option<&'p Policy>,
        own: Option<&'p Notify>,
        queue: &QueueName,
        ending: Ending,
    ) -> Vec<Listener<'p>> {
        if self.has(queue) {
            return Vec::new();
        }
        let handler = match ending {
            Ending::Failed | Ending::Late => policy.and_then(|policy| policy.on_failure.as_ref()),
            Ending::Succeeded => None,
        };
        let tables = policy.map_or(&[][..], |policy| policy.notify.of(ending));
        let own = own.map_or(&[][..], |own| own.of(ending)).iter().filter(|channel| !tables.contains(channel));
        let channels = tables.iter().chain(own).map(Listener::Channel);
        handler.map(Listener::Handler).into_iter().chain(channels).collect()
    }

    /// The same where only the rules are known, in their order.
    pub fn listeners_among<'p>(
        &self,
        policies: &'p [Policy],
        files: &HandlerFiles,
        own: Option<&'p Notify>,
        queue: &QueueName,
        ending: Ending,
    ) -> Vec<Listener<'p>> {
        let serving = policies.iter().find(|policy| policy.serves(queue.as_str(), files));
        self.listeners(serving, own, queue, ending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::Notify;
    use crate::policy::{Command, Service};
    use crate::router::Subscription;

    fn table(pattern: &str, on_failure: Option<&str>, notify: &[(&str, Ending)]) -> Policy {
        let on_failure = on_failure.map(name);
        let channels = notify.iter().map(|(channel, _)| name(channel)).collect();
        let notify = Notify { channels, on: notify.iter().map(|(_, ending)| *ending).collect() };
        Policy { on_failure, notify, ..Policy::new(pattern, Service::Command(Command::default())) }
    }

    fn name(text: &str) -> QueueName {
        QueueName::new(text.as_bytes()).unwrap()
    }

    /// The names of those who are told, handlers with a star.
    fn told(tables: &[Policy], router: &Router, queue: &str, ending: Ending) -> Vec<String> {
        let handlers = Handlers::of(tables, router);
        let listeners = handlers.listeners_among(tables, &HandlerFiles::new(), None, &name(queue), ending);
        assert!(listeners.is_empty() || handlers.may_hear(ending));
        let names = listeners.iter().map(|listener| match listener {
            Listener::Handler(queue) => format!("{queue}*"),
            Listener::Channel(queue) => queue.to_string(),
        });
        names.collect()
    }

    #[test]
    fn the_first_table_that_serves_a_queue_names_its_handler_and_a_handler_has_none() {
        let listeners = vec![name("pager")];
        let router = Router::new(vec![Subscription { pattern: "ops".into(), listeners }]).unwrap();
        let tables = [table("quiet", None, &[]), table("a", Some("ops"), &[]), table("*", Some("errors"), &[])];
        let of = |queue: &str| told(&tables, &router, queue, Ending::Failed);
        assert_eq!(of("a"), ["ops*"]);
        assert_eq!(of("b"), ["errors*"]);
        assert!(of("quiet").is_empty());
        assert!(of("pager").is_empty(), "who hears what is sent to a handler is one");
        assert!(of("errors").is_empty() && of("ops").is_empty(), "a pattern that has everything has them, too");
        assert!(told(&tables, &router, "a", Ending::Succeeded).is_empty(), "a handler is for failures");
        assert_eq!(told(&tables, &router, "a", Ending::Late), ["ops*"]);
    }

    #[test]
    fn a_job_names_channels_beside_those_of_its_table_and_each_is_told_once() {
        let tables = [table("a", None, &[("notify.ops", Ending::Failed)]), table("notify.*", None, &[])];
        let handlers = Handlers::of(&tables, &Router::default());
        let own = Notify::from_words(&["ops".into(), "mine".into()], &["failed".into(), "succeeded".into()]).unwrap();
        for (queue, ending, expected) in [
            ("a", Ending::Failed, &["notify.ops", "notify.mine"][..]),
            ("a", Ending::Succeeded, &["notify.ops", "notify.mine"]),
            ("a", Ending::Late, &[]),
            ("nobody.serves", Ending::Failed, &["notify.ops", "notify.mine"]),
            ("notify.ops", Ending::Failed, &[]),
        ] {
            let told = handlers.listeners_among(&tables, &HandlerFiles::new(), Some(&own), &name(queue), ending);
            let expected: Vec<QueueName> = expected.iter().map(|channel| name(channel)).collect();
            assert_eq!(told, expected.iter().map(Listener::Channel).collect::<Vec<_>>(), "{queue} {ending:?}");
        }
    }

    #[test]
    fn channels_hear_what_was_asked_for_beside_the_handler_and_nobody_hears_of_theirs() {
        let router = Router::new(vec![Subscription { pattern: "notify.all".into(), listeners: vec![name("heard")] }]);
        let router = router.unwrap();
        let tables = [
            table("a", Some("errors"), &[("notify.ops", Ending::Failed), ("notify.all", Ending::Late)]),
            table("b", None, &[("notify.ops", Ending::Succeeded)]),
            table("*", None, &[("notify.ops", Ending::Failed)]),
        ];
        for (queue, ending, expected) in [
            ("a", Ending::Failed, &["errors*", "notify.ops", "notify.all"][..]),
            ("a", Ending::Late, &["errors*", "notify.ops", "notify.all"]),
            ("a", Ending::Succeeded, &[]),
            ("b", Ending::Succeeded, &["notify.ops"]),
            ("b", Ending::Failed, &[]),
            ("c", Ending::Failed, &["notify.ops"]),
            ("c", Ending::Late, &[]),
            ("notify.ops", Ending::Failed, &[]),
            ("heard", Ending::Failed, &[]),
            ("errors", Ending::Failed, &[]),
        ] {
            assert_eq!(told(&tables, &router, queue, ending), expected, "{queue} {ending:?}");
        }
        let quiet = Handlers::of(&tables[..1], &Router::default());
        assert!(!quiet.may_hear(Ending::Succeeded), "where nobody asks, nobody is looked for");
        assert!(!Handlers::default().may_hear(Ending::Failed));
    }
}
