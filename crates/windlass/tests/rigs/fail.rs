//! FAIL: every system call of the hot paths fails, once and from then on, with the errors that it can have.
//!
//! A program may refuse, and a server may end with a sentence (a failed sync has to end it), but nobody panics, nobody
//! hangs, and a start without faults finds everything that was accepted. A plan is drawn from a run without faults: how
//! often each call is made. Threads race, so a point is sometimes not reached; those are counted.

use crate::chance::size;
use crate::random::Random;
use crate::scene::{Part, Scene};
use crate::tracer::{Act, Plan, Tally, Which};
use libc::{EAGAIN, ECONNRESET, EINTR, EIO, EMFILE, ENOLCK, ENOMEM, ENOSPC, EPIPE, c_long};
use std::collections::BTreeMap;
use std::path::Path;

/// Points of the short form, out of all of the hot paths.
const SHORT: u64 = 160;

/// `WINDLASS_FAIL_CALL` has the kernel's number of a call, to see all points of that one; without it, of every call.
const EVERY_CALL: u64 = u64::MAX;

/// The calls of the hot paths and the errors that each can have.
const HOT: &[(c_long, &[i32])] = &[
    (libc::SYS_write, &[ENOSPC, EIO, EINTR]),
    (libc::SYS_pwrite64, &[ENOSPC, EIO, EINTR]),
    (libc::SYS_fdatasync, &[EIO, ENOSPC]),
    (libc::SYS_fsync, &[EIO, ENOSPC]),
    (libc::SYS_openat, &[EMFILE, EIO, ENOSPC, EINTR]),
    (libc::SYS_renameat2, &[EIO, ENOSPC]),
    (libc::SYS_ftruncate, &[EIO, EINTR]),
    (libc::SYS_mmap, &[ENOMEM]),
    (libc::SYS_sendmsg, &[ENOMEM, EINTR]),
    (libc::SYS_recvmsg, &[ENOMEM, EINTR]),
    (libc::SYS_memfd_create, &[ENOSPC, EMFILE]),
    (libc::SYS_pipe2, &[EMFILE]),
    (libc::SYS_epoll_ctl, &[ENOMEM, ENOSPC]),
    (libc::SYS_clone, &[EAGAIN, ENOMEM]),
    (libc::SYS_clone3, &[EAGAIN, ENOMEM]),
    (libc::SYS_execve, &[ENOMEM, EMFILE]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, &[EMFILE, EIO, ENOSPC]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, &[EIO, ENOSPC]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, &[EIO]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_vfork, &[EAGAIN, ENOMEM]),
];

/// The other calls that can fail without anybody being at fault. `close` is not among them: it closes also where it
/// fails, and a call that is made to fail here is not done.
const COLD: &[(c_long, &[i32])] = &[
    (libc::SYS_read, &[EIO]),
    (libc::SYS_pread64, &[EIO, EINTR]),
    (libc::SYS_newfstatat, &[EIO, ENOMEM]),
    (libc::SYS_statx, &[EIO, ENOMEM]),
    (libc::SYS_getdents64, &[EIO]),
    (libc::SYS_unlinkat, &[EIO]),
    (libc::SYS_fallocate, &[ENOSPC, EIO]),
    (libc::SYS_flock, &[ENOMEM, EINTR]),
    (libc::SYS_socket, &[EMFILE]),
    (libc::SYS_connect, &[EAGAIN]),
    (libc::SYS_bind, &[ENOMEM]),
    (libc::SYS_setsockopt, &[ENOMEM]),
    (libc::SYS_recvfrom, &[ECONNRESET, ENOMEM]),
    (libc::SYS_writev, &[EPIPE, ENOMEM]),
    (libc::SYS_socketpair, &[EMFILE]),
    (libc::SYS_accept4, &[EMFILE]),
    (libc::SYS_eventfd2, &[EMFILE]),
    (libc::SYS_epoll_create1, &[EMFILE]),
    (libc::SYS_inotify_init1, &[EMFILE]),
    (libc::SYS_inotify_add_watch, &[ENOSPC]),
    (libc::SYS_pidfd_open, &[EMFILE]),
    (libc::SYS_signalfd4, &[EMFILE]),
    (libc::SYS_mprotect, &[ENOMEM]),
    (libc::SYS_fcntl, &[ENOLCK]),
    (libc::SYS_fstat, &[ENOMEM]),
    (libc::SYS_statfs, &[EIO]),
    (libc::SYS_fchown, &[EIO]),
    (libc::SYS_chdir, &[EIO]),
    (libc::SYS_dup3, &[EMFILE]),
    (libc::SYS_wait4, &[EINTR]),
    (libc::SYS_epoll_pwait, &[EINTR]),
    (libc::SYS_ppoll, &[EINTR]),
    (libc::SYS_waitid, &[EINTR]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, &[EINTR]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, &[EIO, ENOSPC]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, &[EIO]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_readlink, &[EIO]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_dup2, &[EMFILE]),
];

/// One thing to go wrong.
#[derive(Clone, Copy, Debug)]
struct Point {
    part: Part,
    call: c_long,
    nth: u64,
    errno: i32,
    from_then_on: bool,
}

#[derive(Default)]
struct Figures {
    points: usize,
    missed: usize,
    ended: usize,
    out_of_memory: usize,
    accepted: usize,
    panics: usize,
    hangs: usize,
    lost: usize,
    altered: usize,
    failed: usize,
}

#[test]
fn a_failing_call_loses_nothing_and_nobody_panics_or_hangs() {
    let wanted = size("WINDLASS_FAIL_POINTS", SHORT);
    let scene = Scene::new();
    scene.prepare_lived();
    let kept = scene.rig.path("kept");
    copy(&scene.rig.dir(), &kept);
    let mark = scene.witness.mark();
    let restore = || {
        scene.witness.rewind(mark);
        std::fs::remove_dir_all(scene.rig.dir()).unwrap();
        copy(&kept, &scene.rig.dir());
    };
    let mut all = Vec::new();
    for part in [Part::Push("full"), Part::Serve] {
        let plan = Plan { which: Which::None, nth: 0, act: Act::Count };
        let tally = scene.play(part, plan, true).unwrap();
        assert_eq!(tally.end, 0, "{}", tally.stderr);
        all.extend(points(part, &tally.calls, wanted > SHORT));
        restore();
    }
    let only = size("WINDLASS_FAIL_CALL", EVERY_CALL);
    all.retain(|point| only == EVERY_CALL || point.call as u64 == only);
    let chosen = choose(&all, wanted as usize, size("WINDLASS_FAIL_SEED", 1));
    let mut figures = Figures::default();
    for point in &chosen {
        restore();
        figures.points += 1;
        attempt(&scene, point, &mut figures);
    }
    let Figures { points, missed, ended, out_of_memory, accepted, panics, hangs, lost, altered, failed } = figures;
    println!(
        "fail: points {points} of {} (not reached {missed}) accepted {accepted} ended early {ended} (out of memory \
         {out_of_memory}) panics {panics} hangs {hangs} lost {lost} failed {failed} altered or merged \
         {altered}",
        all.len()
    );
    assert_eq!((panics, hangs, lost, failed, altered), (0, 0, 0, 0, 0));
}

/// Found by this rig: a refused `clone` was taken for a process of a negative number.
#[test]
fn a_launcher_that_cannot_clone_says_so_and_goes_on() {
    starts_survive(libc::SYS_clone, EAGAIN);
}

/// Found by this rig: a program that could not be looked for was called missing, and the job failed for good.
#[test]
fn a_program_that_cannot_be_looked_for_is_looked_for_again() {
    let scene = Scene::new();
    scene.prepare_lived();
    let mut figures = Figures::default();
    let path = |nth| Point { part: Part::Serve, call: libc::SYS_newfstatat, nth, errno: EIO, from_then_on: true };
    // Somewhere among the calls of a whole life; the launcher's are the last ones.
    let plan = Plan { which: Which::None, nth: 0, act: Act::Count };
    let looks = scene.play(Part::Serve, plan, true).unwrap().calls[&libc::SYS_newfstatat];
    for nth in [looks / 2, looks * 3 / 4] {
        assert!(scene.witness.push(&scene.rig, 3, "full"));
        attempt(&scene, &path(nth), &mut figures);
    }
    let Figures { panics, hangs, lost, failed, altered, .. } = figures;
    assert_eq!((panics, hangs, lost, failed, altered), (0, 0, 0, 0, 0));
}

/// Found by this rig: without memory for its data a job failed for good.
#[test]
fn a_shortage_before_a_start_fails_nobody() {
    starts_survive(libc::SYS_memfd_create, ENOSPC);
}

/// Found by this rig: a launcher that could not be sent to was neither used nor replaced, and the server never ended.
#[test]
fn a_server_that_cannot_send_to_its_launchers_ends_when_it_is_told_to() {
    for (call, nth) in [(libc::SYS_sendmsg, 1), (libc::SYS_sendmsg, 3), (libc::SYS_recvmsg, 1)] {
        let scene = Scene::new();
        scene.prepare_lived();
        let mut figures = Figures::default();
        attempt(&scene, &Point { part: Part::Serve, call, nth, errno: ENOMEM, from_then_on: true }, &mut figures);
        let Figures { missed, panics, hangs, lost, failed, altered, .. } = figures;
        assert_eq!((missed, panics, hangs, lost, failed, altered), (0, 0, 0, 0, 0, 0), "call {call}, {nth}");
    }
    starts_survive(libc::SYS_sendmsg, ENOMEM);
}

/// Found by this rig: a server that could take no connection did not end when it was told to.
#[test]
fn a_server_that_can_take_no_connection_ends_when_told() {
    let scene = Scene::new();
    scene.prepare_lived();
    let mut figures = Figures::default();
    let point = Point { part: Part::Serve, call: libc::SYS_accept4, nth: 2, errno: EMFILE, from_then_on: true };
    attempt(&scene, &point, &mut figures);
    let Figures { missed, panics, hangs, lost, failed, altered, .. } = figures;
    assert_eq!((missed, panics, hangs, lost, failed, altered), (0, 0, 0, 0, 0, 0));
}

/// Each of the first calls of this number fails once: every job runs in the end, and nothing has failed.
fn starts_survive(call: c_long, errno: i32) {
    for nth in 1..=4 {
        let scene = Scene::new();
        scene.prepare_lived();
        let mut figures = Figures::default();
        attempt(&scene, &Point { part: Part::Serve, call, nth, errno, from_then_on: false }, &mut figures);
        let Figures { missed, panics, hangs, lost, failed, altered, .. } = figures;
        assert_eq!((missed, panics, hangs, lost, failed, altered), (0, 0, 0, 0, 0, 0), "call {nth}");
    }
}

fn copy(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

/// Every call times every error, once and from then on. An interruption that never ends is none.
fn points(part: Part, calls: &BTreeMap<c_long, u64>, all: bool) -> Vec<Point> {
    let mut points = Vec::new();
    let cold = if all { COLD } else { &[] };
    for (call, errors) in HOT.iter().chain(cold) {
        let count = calls.get(call).unwrap_or(&0);
        for (nth, errno) in (1..=*count).flat_map(|nth| errors.iter().map(move |errno| (nth, *errno))) {
            for from_then_on in [false, true].into_iter().filter(|on| !(*on && errno == EINTR)) {
                points.push(Point { part, call: *call, nth, errno, from_then_on });
            }
        }
    }
    points
}

/// So many of all, the same every time.
fn choose(all: &[Point], count: usize, seed: u64) -> Vec<Point> {
    let mut random = Random::new(seed);
    let mut points = all.to_vec();
    for at in 0..points.len() {
        let other = at + random.below((points.len() - at) as u64) as usize;
        points.swap(at, other);
    }
    points.truncate(count);
    points
}

fn attempt(scene: &Scene, point: &Point, figures: &mut Figures) {
    let Point { part, call, nth, errno, from_then_on } = *point;
    let plan = Plan { which: Which::Call(call), nth, act: Act::Fail { errno, from_then_on } };
    let Some(tally) = scene.play(part, plan, !from_then_on) else {
        eprintln!("fail: {point:?}: hangs");
        figures.hangs += 1;
        return;
    };
    figures.missed += usize::from(!tally.hit);
    figures.ended += usize::from(tally.end != 0);
    let short_of_memory = is_out_of_memory(&tally);
    figures.out_of_memory += usize::from(short_of_memory);
    if is_a_crash(&tally) && !short_of_memory {
        eprintln!("fail: {point:?}: crashed with {}: {}", tally.end, tally.stderr);
        figures.panics += 1;
    }
    if tally.end != 0 && tally.stderr.trim().is_empty() {
        eprintln!("fail: {point:?}: ended with {} and said nothing", tally.end);
        figures.panics += 1;
    }
    let verdict = scene.heal();
    figures.accepted += verdict.accepted;
    if !verdict.failed.is_empty() {
        eprintln!("fail: {point:?}: failed {}: {}", verdict.failed, tally.stderr);
        figures.failed += 1;
    }
    for lost in &verdict.lost {
        eprintln!("fail: {point:?}: lost {lost:?}: {}", tally.stderr);
        figures.lost += 1;
    }
    if !verdict.altered.is_empty() || !verdict.doubled.is_empty() {
        eprintln!("fail: {point:?}: altered {:?}, doubled {:?}", verdict.altered, verdict.doubled);
        figures.altered += verdict.altered.len() + verdict.doubled.len();
    }
}

/// What the language says when it ends a process that gets no memory, or no stack for the signals of a thread, be it
/// the first one, before any line of ours has run; nobody can answer an error there.
const OUT_OF_MEMORY: [&str; 3] = [
    "memory allocation of",
    "failed to allocate an alternative stack",
    "failed to set up alternative stack guard page: Cannot allocate memory",
];

fn is_out_of_memory(tally: &Tally) -> bool {
    OUT_OF_MEMORY.iter().any(|text| tally.stderr.contains(text))
}

fn is_a_crash(tally: &Tally) -> bool {
    tally.stderr.contains("panicked at") || [-libc::SIGABRT, -libc::SIGSEGV, -libc::SIGBUS].contains(&tally.end)
}
