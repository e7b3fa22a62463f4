//! What makes trouble: jobs that will not die, hide, hold on, meddle or talk without end; each is served in every way
//! that processes are, by the server's user and by another.
//!
//! It owns what the trouble is and which end is the right one. It must not start anything.
//!
//! One kind is missing: a job that sheds its marks and forks again and again in sessions of its own. Without a control
//! group it is nobody's until all is quiet, and `docs/runners.md` says so.

use crate::rig::{argv, batch, command, kept};
use std::path::Path;
use std::time::Duration;
use windlass::runner::lua;
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Identity, Limits, Lua, Policy, Service};

/// How a job of a kind ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KilledBy {
    Time,
    Person,
    Limit(Limits),
}

use KilledBy::{Limit, Person, Time};

const NONE: Limits = Limits { memory: 0, processes: 0, cpu: Duration::ZERO, output: 0 };

/// A script of the shell, and how it is ended.
const KINDS: [(&str, &str, KilledBy); 23] = [
    ("ignores TERM", "trap '' TERM HUP INT; while :; do sleep 1000; done", Time),
    ("double-forks", "(setsid sh -c 'trap \"\" TERM; sleep 1000; :' &) ; sleep 1000", Time),
    ("sheds its marks", "(env -i setsid sleep 1000 &); sleep 1000", Time),
    ("stops itself", "sleep 1000 & kill -STOP $$; sleep 1000", Time),
    ("fills both pipes", "yes & yes >&2; :", Time),
    ("says nothing", "exec >&- 2>&-; sleep 1000", Time),
    ("leaves its pipes open", "sleep 1000 & setsid sleep 1000 & sleep 1000", Person),
    ("is cancelled", "trap 'exit 3' TERM; sleep 1000 & wait", Person),
    ("makes many", "for i in 1 2 3 4 5 6 7 8 9 10; do setsid sleep 1000 & done; wait", Person),
    ("talks too much", "yes & yes >&2; :", Limit(Limits { output: 100_000, ..NONE })),
    ("grows", "dd if=/dev/zero bs=60M count=1 2>/dev/null | sleep 1000", Limit(Limits { memory: 32 << 20, ..NONE })),
    (
        "multiplies",
        "for i in 1 2 3 4 5 6 7 8; do (setsid sleep 1000 &); done; sleep 1000",
        Limit(Limits { processes: 5, ..NONE }),
    ),
    ("computes without end", "while :; do :; done", Limit(Limits { cpu: Duration::from_millis(30), ..NONE })),
    ("forks while it is killed", "trap '' HUP INT QUIT TERM USR1 USR2; f() { f & }; f; sleep 1000", Time),
    (
        "forks into new sessions while it is killed",
        r#"export C='trap "" TERM; setsid sh -c "$C" &'; sh -c "$C"; sleep 1000"#,
        Time,
    ),
    ("becomes another program again and again", r#"export C='trap "" TERM; exec sh -c "$C"'; exec sh -c "$C""#, Time),
    (
        "has a namespace of its own",
        "for how in -pf -Upf; do unshare $how sh -c 'setsid sleep 1000 & sleep 1000; :'; done; sleep 1000",
        Time,
    ),
    (
        "stops its siblings",
        "for pid in $(cat /proc/$PPID/task/$PPID/children); do
             [ $pid = $$ ] || { kill -STOP $pid; kill -CONT $pid; }
         done 2>/dev/null; sleep 1000",
        Time,
    ),
    ("traces its siblings", TRACES, Time),
    ("holds its pipes from afar", "(env -i setsid sh -c 'sleep 1000; :' &); exec sleep 1000", Time),
    ("closes every descriptor", "exec 0<&- 1>&- 2>&- 3>&-; sleep 1000", Time),
    ("says without end how far it is", "while :; do echo phase x; done >> ${WINDLASS_CONTROL:-/dev/fd/3}", Time),
    ("leaves files of a tebibyte", "truncate -s 1T $WINDLASS_CONTROL $WINDLASS_EMIT 2>/dev/null; sleep 1000", Time),
];

/// Seizes every thread beside it and never looks at what comes of it: each signal stops its victim until it dies.
const TRACES: &str = r#"exec python3 -c '
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
for pid in open("/proc/%s/task/%s/children" % (sys.argv[1], sys.argv[1])).read().split():
    try:
        for thread in os.listdir("/proc/%s/task" % pid):
            libc.ptrace(0x4206, int(thread), None, None)
    except OSError:
        pass
time.sleep(1000)' $PPID"#;

/// A module of Lua, each ended by its time limit.
const MODULES: [(&str, &str); 6] = [
    ("turns in Lua", "while true do end"),
    ("catches every error in Lua", "while true do pcall(error, 'x') end"),
    ("is lost in one call of Lua", "return (('a'):rep(100000) .. 'b'):find(('.-'):rep(12) .. 'c')"),
    ("never ends a finalizer of Lua", "setmetatable({}, {__gc = function() while true do end end}); return 'ok'"),
    ("prints without end in Lua", "while true do print(('x'):rep(1000)) end"),
    ("says without end in Lua how far it is", "while true do windlass.phase('x') end"),
];

/// What serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Command,
    Batch,
    Kept,
    Lua,
}

/// One kind in one way.
pub(crate) struct Trouble {
    pub(crate) name: &'static str,
    pub(crate) way: Way,
    pub(crate) killed: KilledBy,
    pub(crate) policy: Policy,
}

/// Every kind in every way. The modules of Lua are laid into the directory.
pub(crate) fn all(dir: &Path, together: u32, other: &Identity) -> Vec<Trouble> {
    let scripts = KINDS.into_iter().flat_map(|(name, script, killed)| {
        let ways = [Way::Command, Way::Batch, Way::Kept].into_iter().flat_map(|way| [(way, None), (way, Some(other))]);
        ways.map(move |(way, user)| {
            // A cancelled line of a kept worker mostly has not begun, and its output has no limit.
            let by_time = way == Way::Kept && matches!(killed, Person | Limit(Limits { output: 1.., .. }));
            let by_time = by_time || way == Way::Kept && matches!(killed, Limit(limits) if !limits.cpu.is_zero());
            let killed = if by_time { Time } else { killed };
            let policy = Policy { user: user.cloned(), ..served(way, script, together) };
            Trouble { name, way, killed, policy: ended_by(policy, killed, script == TRACES) }
        })
    });
    let modules = MODULES.into_iter().enumerate().map(|(number, (name, body))| {
        let file = dir.join(format!("{number}.lua"));
        std::fs::write(&file, format!("return function(job) {body} end")).unwrap();
        let file = file.into_os_string().into_encoded_bytes();
        let worker = lua::worker(argv(&[]), Lua { file, memory: Lua::MEMORY });
        let policy = Policy { slots: 1, ..Policy::new("lines", Service::Worker(worker)) };
        Trouble { name, way: Way::Lua, killed: Time, policy: ended_by(policy, Time, false) }
    });
    scripts.chain(modules).collect()
}

fn served(way: Way, script: &str, together: u32) -> Policy {
    match way {
        Way::Command => command(&["sh", "-c", script]).slots(together).policy,
        Way::Batch => Policy { slots: together, ..batch(&format!("read -r line\n{script}"), |_| {}) },
        Way::Kept | Way::Lua => kept(&format!("while read -r line; do\n{script}\ndone"), 1, |_| {}),
    }
}

fn ended_by(policy: Policy, killed: KilledBy, slow_to_begin: bool) -> Policy {
    let policy = Policy { grace: Duration::from_millis(10), output_max: 1 << 16, ..policy };
    match killed {
        Time => Policy { time_limit: Some(Duration::from_millis(if slow_to_begin { 400 } else { 60 })), ..policy },
        Person => policy,
        Limit(limits) => Policy { limits, ..policy },
    }
}

impl Trouble {
    pub(crate) fn is_its_end(&self, outcome: &Outcome) -> bool {
        // Where replies are read, what it writes there or closes, or emits, may be called wrong before anything else.
        let blamed = matches!(outcome, Outcome::Failed { .. }) && self.way != Way::Command && self.is_heard();
        blamed
            || match self.killed {
                Time => matches!(outcome, Outcome::TimedOut { .. }),
                // A stop may come before it has begun.
                Person => *outcome == Outcome::Cancelled,
                Limit(_) => matches!(outcome, Outcome::Failed { error } if error.contains("its limit is")),
            }
    }

    fn is_heard(&self) -> bool {
        let heard = ["fills both pipes", "talks too much", "says nothing", "closes every descriptor"];
        heard.contains(&self.name) || self.name == "leaves files of a tebibyte"
    }
}
