//! `windlass crawl` against a real site: pages of nginx, and a small server for those that are slow, broken or endless.
//!
//! Nothing here sleeps: a slow page is one that is answered when something else has been asked for.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod ends;
#[path = "../shared/ports.rs"]
mod ports;
mod rules;
mod site;
