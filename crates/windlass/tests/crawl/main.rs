//! `windlass crawl` against a real site: pages of nginx, and a small server for those that are slow, broken or endless.
//!
//! Nothing here sleeps: a slow page is one that is answered when something else has been asked for.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod ends;
mod rules;
mod site;

/// The crawler once more, as a part of this program, which is none of the library: what it says `crate::` to is what
/// the library gives to everybody, so one that used more would not compile here.
#[path = "../../src/crawler/mod.rs"]
#[expect(dead_code, unused_imports, unreachable_pub, reason = "only that it compiles is asked for")]
mod crawler;
use windlass::{archiver, client, clock, data_dir, engine, error, runner, server, store};
