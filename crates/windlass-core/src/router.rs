//! Who hears a message: queues subscribe to names and patterns, and a job of such a name becomes a job for each.
//!
//! The queue of the message is a *topic*: nothing runs its jobs, they are handed on. A listener hears a message once,
//! however many of its patterns match; a listener may be a topic itself, but not in a circle. It must not move jobs:
//! the engine does, in the transaction that ends the message.

use crate::job::QueueName;
use crate::policy::pattern_matches;
use std::collections::BTreeSet;

/// Who listens to the names that a pattern has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub pattern: String,
    pub listeners: Vec<QueueName>,
}

impl Subscription {
    fn hears(&self, queue: &str) -> bool {
        pattern_matches(self.pattern.as_bytes(), queue.as_bytes())
    }
}

/// All subscriptions, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Router(Vec<Subscription>);

/// Messages to the first of these patterns would come back to it, by way of these listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    pub pattern: String,
    pub listeners: Vec<QueueName>,
}

impl Router {
    /// Refuses subscriptions in a circle: a message to one of them would never come to rest.
    pub fn new(subscriptions: Vec<Subscription>) -> Result<Router, Circle> {
        let router = Router(subscriptions);
        for start in 0..router.0.len() {
            let (mut way, mut seen) = (Vec::new(), vec![false; router.0.len()]);
            if router.comes_back(start, start, &mut way, &mut seen) {
                return Err(Circle { pattern: router.0[start].pattern.clone(), listeners: way });
            }
        }
        Ok(router)
    }

    /// Whether what goes to subscription `at` reaches `goal`; `way` has the listeners that it goes through then.
    fn comes_back(&self, at: usize, goal: usize, way: &mut Vec<QueueName>, seen: &mut [bool]) -> bool {
        for listener in &self.0[at].listeners {
            let next = (0..self.0.len()).filter(|next| self.0[*next].hears(listener.as_str()));
            for next in next {
                way.push(listener.clone());
                if next == goal || !std::mem::replace(&mut seen[next], true) && self.comes_back(next, goal, way, seen) {
                    return true;
                }
                way.pop();
            }
        }
        false
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Subscription> {
        self.0.iter()
    }

    /// Whether anybody has subscribed to this queue.
    pub fn is_topic(&self, queue: &str) -> bool {
        self.0.iter().any(|subscription| subscription.hears(queue))
    }

    /// Who hears a message to this queue, each once, in the order of the file; nobody where it is no topic.
    pub fn listeners(&self, queue: &str) -> Vec<QueueName> {
        let mut known = BTreeSet::new();
        let heard = self.0.iter().filter(|subscription| subscription.hears(queue));
        heard.flat_map(|subscription| &subscription.listeners).filter(|name| known.insert(*name)).cloned().collect()
    }

    /// Every queue that a message to this one reaches, by way of others too.
    pub fn reach(&self, queue: &QueueName) -> BTreeSet<QueueName> {
        let mut reached = BTreeSet::new();
        let mut next = vec![queue.clone()];
        while let Some(queue) = next.pop() {
            let fresh = self.listeners(queue.as_str()).into_iter().filter(|name| reached.insert(name.clone()));
            next.extend(fresh.collect::<Vec<_>>());
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> QueueName {
        QueueName::new(text.as_bytes()).unwrap()
    }

    fn router(subscriptions: &[(&str, &[&str])]) -> Result<Router, Circle> {
        let read = |(pattern, listeners): &(&str, &[&str])| Subscription {
            pattern: (*pattern).to_owned(),
            listeners: listeners.iter().map(|text| name(text)).collect(),
        };
        Router::new(subscriptions.iter().map(read).collect())
    }

    #[test]
    fn every_listener_of_every_pattern_hears_once_in_the_order_of_the_file() {
        let router = router(&[("order.*", &["mail", "bill"]), ("*.new", &["stock", "mail"])]).unwrap();
        let heard = |queue: &str| router.listeners(queue).iter().map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(heard("order.new"), ["mail", "bill", "stock"]);
        assert_eq!(heard("order.old"), ["mail", "bill"]);
        assert!(heard("orders").is_empty() && !router.is_topic("orders"));
    }

    #[test]
    fn circles_of_any_length_are_refused_and_chains_are_not() {
        assert_eq!(router(&[("a*", &["b", "ab"])]).unwrap_err().listeners, [name("ab")], "it hears itself");
        let circle = router(&[("x", &["y"]), ("a", &["b"]), ("b", &["q", "c"]), ("c", &["a"])]).unwrap_err();
        assert_eq!((circle.pattern.as_str(), circle.listeners), ("a", vec![name("b"), name("c"), name("a")]));
        let chain = router(&[("a", &["b", "c"]), ("b", &["d"]), ("c", &["d"]), ("d", &["e"])]).unwrap();
        let reached: Vec<_> = chain.reach(&name("a")).into_iter().map(|n| n.to_string()).collect();
        assert_eq!(reached, ["b", "c", "d", "e"]);
    }
}
