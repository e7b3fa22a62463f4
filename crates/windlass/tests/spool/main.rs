//! Documents through directories, with the real program: drivers of ours and of others, what is planted in their way,
//! deaths, and what is on disk before what.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod by_hand;
mod crash;
#[path = "../rigs/databases.rs"]
#[expect(dead_code, reason = "shared with the rigs, which use the rest")]
mod databases;
#[path = "../rigs/disk.rs"]
mod disk;
mod drivers;
mod durable;
mod feeding;
mod foreign;
mod hostile;
mod large;
mod mixed;
#[path = "../it/mount.rs"]
mod mount;
#[path = "../../../windlass-sim/src/random.rs"]
#[expect(dead_code, reason = "shared with the simulator, which uses the rest")]
mod random;
#[path = "../it/rig.rs"]
#[expect(dead_code, reason = "shared with the tests of the verbs, which use the rest")]
mod rig;
mod scenes;
mod spool;
mod stages;
mod told;
#[path = "../rigs/tracer.rs"]
#[expect(dead_code, reason = "shared with the rigs, which use the rest")]
mod tracer;
mod tries;
mod watchdog;
