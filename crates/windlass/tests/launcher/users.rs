//! Running as another user is exact, and where any step of it fails nothing runs.
//!
//! These tests need root, as the server does, and fail where they do not have it.

use crate::rig::{Rig, batch, kept, nobody, shell};
use std::os::unix::fs::MetadataExt;
use windlass_core::outcome::Outcome;
use windlass_core::policy::{Identity, Limits, Policy};

/// A shell script as nobody.
fn told(rig: &mut Rig, script: &str) -> String {
    String::from_utf8(rig.stdout(shell(script).user(nobody()))).unwrap()
}

#[test]
fn a_job_has_exactly_its_users_rights() {
    let mut rig = Rig::new(1);
    let status = told(&mut rig, "cat /proc/self/status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(field("Uid"), "65534 65534 65534 65534");
    assert_eq!(field("Gid"), "65533 65533 65533 65533");
    assert_eq!(field("Groups"), "7 4242 65533");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Umask"), "0077");
    assert_eq!(field("SigBlk"), "0000000000000000");
    // The listing itself has one open for the directory.
    assert_eq!(told(&mut rig, "ls /proc/self/fd"), "0\n1\n2\n3\n");
    // Streams can be opened again by their names, which they belong to the user for.
    assert_eq!(told(&mut rig, "echo by name > /dev/stdout; echo aside > /dev/stderr; cat /dev/stdin"), "by name\n");
}

#[test]
fn a_kept_worker_of_another_user_is_heard_and_its_socket_is_that_users_alone() {
    let mut rig = Rig::new(1);
    let script = "while read line; do systemd-notify STATUS=sorting || exit 1
        echo ok $(stat -c '%u %g %a' $NOTIFY_SOCKET $(dirname $NOTIFY_SOCKET)); done";
    let policy = Policy { user: Some(nobody()), ..kept(script, 1, |_| {}) };
    assert_eq!(rig.all(&policy, &[b"a"]), ["ok 65534 65533 600 0 65533 710"]);
}

#[test]
fn data_and_follow_ups_pass_and_nobody_else_reads_them() {
    let mut rig = Rig::new(1);
    let script = "cat; stat -c '%u %g %a' $WINDLASS_CONTROL $WINDLASS_EMIT
        stat -c '%u %g %a' $(dirname $WINDLASS_CONTROL); ls $(dirname $WINDLASS_CONTROL) 2>&1 | grep -c denied
        rm -f $WINDLASS_EMIT 2>/dev/null; mv $WINDLASS_CONTROL /tmp 2>/dev/null
        echo result well >> $WINDLASS_CONTROL; printf 'next\\tx\\n' >> $WINDLASS_EMIT";
    for round in 0..2 {
        let (outcome, finished) = rig.run(shell(script).data(b"data\n").user(nobody()));
        assert_eq!(outcome, Outcome::Succeeded { message: "well".into() }, "{round}");
        let said = String::from_utf8(finished.output.stdout.head).unwrap();
        assert_eq!(said, "data\n65534 65533 600\n65534 65533 600\n0 65533 710\n1\n");
        assert_eq!(finished.emitted.len(), 1);
    }
    // The same numbers go to jobs of the server itself and of another user in turn, each with files of its own.
    let other = Identity { name: "daemon".into(), uid: 1, gid: 1, groups: vec![1], home: b"/".to_vec() };
    let owner = "stat -c '%u %a' $WINDLASS_CONTROL; wc -c < $WINDLASS_EMIT; echo x >> $WINDLASS_CONTROL";
    assert_eq!(rig.stdout(shell(owner)), b"0 600\n0\n");
    assert_eq!(rig.stdout(shell(owner).user(other)), b"1 600\n0\n");
    assert_eq!(rig.stdout(shell(owner).user(nobody())), b"65534 600\n0\n");
    // The other's directory is passed by its own group alone.
    let name = rig.stdout(shell("dirname $WINDLASS_CONTROL").user(nobody()));
    let path = std::path::PathBuf::from(String::from_utf8(name).unwrap().trim_end());
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (0, 65533, 0o710));
    drop(rig);
    assert!(!path.exists(), "it goes with its runner");
}

#[test]
fn batches_and_workers_run_as_their_user_too() {
    let mut rig = Rig::new(1);
    let script = "while read line; do echo ok $line as $(id -u) $(id -g) $(umask); done";
    let mut policies = [batch(script, |_| {}), kept(script, 1, |_| {})];
    for policy in &mut policies {
        policy.user = Some(nobody());
        policy.limits = Limits { memory: 500 << 20, processes: 50, ..Limits::default() };
        assert_eq!(rig.all(policy, &[b"a", b"b"]), ["ok a as 65534 65533 0077", "ok b as 65534 65533 0077"]);
    }
    // Descriptor 3 of a worker is there, and nothing behind it.
    let look = "i=0; open=; while [ $i -lt 300 ]; do [ -e /proc/$$/fd/$i ] && open=$open$i; i=$((i + 1)); done";
    let mut policy = kept(&format!("{look}; while read line; do echo ok $open; done"), 1, |_| {});
    policy.user = Some(nobody());
    assert_eq!(rig.all(&policy, &[b"a"]), ["ok 0123"]);
}

#[test]
fn a_users_tree_ends_with_its_job_and_with_its_launcher() {
    let mut rig = Rig::new(1);
    let script = "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &); echo begun";
    assert_eq!(told(&mut rig, script), "begun\n");
    let fifo = rig.fifo("begun");
    std::os::unix::fs::chown(&fifo, Some(65534), None).unwrap();
    std::os::unix::fs::chown(rig.dir.root(), Some(65534), None).unwrap();
    let id = rig.start(shell(&format!("echo > {}; exec sleep 1000", fifo.display())).user(nobody()));
    std::fs::read(&fifo).unwrap();
    let launcher = rustix::process::Pid::from_raw(rig.launchers()[0]).unwrap();
    rustix::process::kill_process(launcher, rustix::process::Signal::KILL).unwrap();
    assert_eq!(rig.hear().outcomes, [(1, Outcome::Lost)]);
    assert_eq!(crate::rig::survivors(id), Vec::<i32>::new());
}

/// Lets one system call fail for this thread and for all that it starts, where its first argument is as given.
fn refuse(call: libc::c_long, argument: Option<u32>) {
    let statement = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, equal, answer) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ, libc::BPF_RET);
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // The number of the call is first, its first argument sixteen bytes behind.
    let mut program = match argument {
        None => vec![
            statement(load, 0, 0, 0),
            statement(equal, 0, 1, call as u32),
            statement(answer, 0, 0, refused),
            statement(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        ],
        Some(argument) => vec![
            statement(load, 0, 0, 0),
            statement(equal, 0, 3, call as u32),
            statement(load, 0, 0, 16),
            statement(equal, 0, 1, argument),
            statement(answer, 0, 0, refused),
            statement(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        ],
    };
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter of the length that is said.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn where_a_step_fails_nothing_runs_and_the_step_is_named() {
    let steps: [(libc::c_long, Option<u32>, &str); 8] = [
        (libc::SYS_fchown, None, "cannot hand over or close descriptors"),
        (libc::SYS_setgroups, None, "cannot take its groups (setgroups)"),
        (libc::SYS_prctl, Some(libc::PR_CAPBSET_DROP as u32), "cannot give up capabilities"),
        (libc::SYS_setresgid, None, "cannot take its group (setresgid)"),
        (libc::SYS_setresuid, None, "cannot take its user id (setresuid)"),
        (libc::SYS_capset, None, "cannot give up capabilities"),
        (libc::SYS_prctl, Some(libc::PR_SET_NO_NEW_PRIVS as u32), "cannot give up new privileges (no_new_privs)"),
        (libc::SYS_getgroups, None, "the kernel still sees somebody else, or more rights than it may have"),
    ];
    for (call, argument, words) in steps {
        // The launcher is started by this thread and has its filter.
        let tried = std::thread::spawn(move || {
            refuse(call, argument);
            let mut rig = Rig::new(1);
            // Without the control files, whose owner is changed by the same call.
            let mut policy = kept("touch ran; while read line; do echo ok; done", 1, |_| {});
            policy.user = Some(nobody());
            rig.start_many(&policy, &[b"x"], 1);
            let board = rig.board();
            let trouble = loop {
                if let Some((_, trouble)) = board.troubles().into_iter().next() {
                    break trouble;
                }
                std::thread::yield_now();
            };
            let error = if call == libc::SYS_fchown {
                String::new()
            } else {
                rig.error(shell("echo ran > /dev/null").user(nobody()))
            };
            (trouble, error)
        });
        let (trouble, error) = tried.join().unwrap();
        let expected = format!("as nobody: {words}: Operation not permitted");
        assert!(trouble.contains(&expected), "{trouble}");
        if call != libc::SYS_fchown {
            assert!(error.starts_with("failed_for_good cannot run `sh` as nobody: "), "{error}");
            assert!(error.contains(words), "{error}");
        }
    }
}
