//! What a job's process is given: data, arguments, environment, descriptors, process group, signals, directory.

use crate::rig::{Rig, command, shell};

#[test]
fn standard_input_is_the_data_to_the_byte() {
    let mut rig = Rig::new(1);
    let all_bytes: Vec<u8> = (0..=255).chain([0, 10, 13, 26, 4]).collect();
    assert_eq!(rig.stdout(command(&["cat"]).data(&all_bytes)), all_bytes);
    assert_eq!(rig.stdout(command(&["wc", "-c"]).data(b"")), b"0\n");
    // Larger than a packet: it travels in a memory file.
    let large: Vec<u8> = (0..1 << 20).map(|i| (i % 253) as u8).collect();
    let (_, finished) = rig.run(command(&["cat"]).data(&large).output_max(4 << 20));
    let file = finished.output.stdout.file.unwrap();
    assert_eq!(std::fs::read(rig.dir.output().join(file)).unwrap(), large);
}

#[test]
fn arguments_stay_whole_and_take_the_data_off_standard_input() {
    let mut rig = Rig::new(1);
    let nasty = "$(id) `id` ; 'a' \"b\" * \\ {id}\n-x \u{e9}";
    let job = command(&["printf", "%s|%s|%s", "{}", "{#}", "{queue}"]).data(nasty.as_bytes());
    assert_eq!(rig.stdout(job), format!("{nasty}|1|q.u e").as_bytes());
    assert_eq!(rig.stdout(shell("cat; echo $0").with(|c| c.argv.push(b"{}".to_vec())).data(b"x")), b"x\n");
    let long = "y".repeat(130_000);
    let job = command(&["sh", "-c", "printf %s ${#0}", "{}"]).data(long.as_bytes());
    assert_eq!(rig.stdout(job), b"130000");
}

#[test]
fn the_environment_is_what_was_built_and_nothing_else() {
    let mut rig = Rig::new(1);
    let job = command(&["/bin/cat", "/proc/self/environ"]).with(|command| {
        command.environment = vec![
            (b"A".to_vec(), b"1=2".to_vec()),
            (b"WINDLASS_JOB_ID".to_vec(), b"j-of-another".to_vec()),
            (b"B".to_vec(), vec![0xff, b'\n']),
        ];
    });
    let mut expected = b"A=1=2\0B=\xff\n\0".to_vec();
    let ours = format!("WINDLASS_JOB_ID=j-{}-1\0WINDLASS_QUEUE=q.u e\0WINDLASS_ATTEMPT=7\0", rig.origin);
    expected.extend_from_slice(ours.as_bytes());
    expected.extend_from_slice(b"WINDLASS_MAX_ATTEMPTS=5\0WINDLASS_RUN=r-1\0");
    let dir = rig.control().display().to_string();
    let files = format!("WINDLASS_CONTROL={dir}/0.0.control\0WINDLASS_EMIT={dir}/0.0.emit\0");
    expected.extend_from_slice(files.as_bytes());
    assert_eq!(String::from_utf8_lossy(&rig.stdout(job)), String::from_utf8_lossy(&expected));
}

#[test]
fn three_descriptors_and_no_more() {
    let mut rig = Rig::new(1);
    let listing = String::from_utf8(rig.stdout(command(&["ls", "-l", "/proc/self/fd"]))).unwrap();
    let open: Vec<&str> = listing.lines().filter_map(|line| line.split_once(" -> ")).map(|(_, to)| to).collect();
    assert_eq!(open.len(), 4, "{listing}");
    assert_eq!(open[0], "/dev/null");
    assert!(open[1].starts_with("pipe:") && open[2].starts_with("pipe:"), "{listing}");
    assert!(open[3].starts_with("/proc/"), "the listing itself: {listing}");
}

#[test]
fn a_process_group_of_its_own_without_a_terminal() {
    let mut rig = Rig::new(1);
    let stat = String::from_utf8(rig.stdout(command(&["cat", "/proc/self/stat"]))).unwrap();
    let fields: Vec<&str> = stat.split(' ').collect();
    let (pid, group, session, terminal) = (fields[0], fields[4], fields[5], fields[6]);
    assert_eq!((group, terminal), (pid, "0"));
    assert_eq!(session, rig.launchers()[0].to_string(), "it is not the session of whoever started the server");
}

#[test]
fn no_signal_is_blocked_or_ignored() {
    let mut rig = Rig::new(1);
    let status = String::from_utf8(rig.stdout(command(&["cat", "/proc/self/status"]))).unwrap();
    for mask in ["SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd"] {
        let line = status.lines().find(|line| line.starts_with(mask)).unwrap();
        assert_eq!(u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16), Ok(0), "{line}");
    }
}

#[test]
fn limits_are_those_the_launcher_was_born_with() {
    let mut rig = Rig::new(1);
    let mut ours = String::from_utf8(rig.stdout(shell("ulimit -Sn; ulimit -Hn"))).unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let word = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |n| n.to_string());
    ours.truncate(ours.trim_end().len());
    assert_eq!(ours, format!("{}\n{}", word(limit.current), word(limit.maximum)));
}

#[test]
fn the_directory_and_the_path_count_from_it() {
    let mut rig = Rig::new(1);
    let here = rig.dir.root().to_owned();
    let inside = |command: &mut windlass_core::policy::Command| command.directory = here.to_str().unwrap().into();
    assert_eq!(rig.stdout(command(&["pwd"]).with(inside)), format!("{}\n", here.display()).as_bytes());
    assert_eq!(rig.stdout(command(&["pwd"])), b"/\n");
    std::fs::create_dir(here.join("bin")).unwrap();
    std::os::unix::fs::symlink("/bin/echo", here.join("bin/mine")).unwrap();
    assert_eq!(rig.stdout(command(&["./bin/mine", "a"]).with(inside)), b"a\n");
    let job = command(&["mine", "b"]).with(inside).with(|c| c.environment = vec![(b"PATH".into(), b"bin".into())]);
    assert_eq!(rig.stdout(job), b"b\n");
    let job = command(&["true"]).with(|c| c.environment.clear());
    assert_eq!(rig.stdout(job), b"", "a default PATH where there is none");
}

#[test]
fn a_script_that_names_no_interpreter_is_given_to_the_shell() {
    use std::os::unix::fs::PermissionsExt;
    let mut rig = Rig::new(1);
    let path = rig.dir.root().join("script");
    std::fs::write(&path, "echo \"${0##*/} $# $1\"\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    let directory = rig.dir.root().as_os_str().as_encoded_bytes().to_vec();
    let here = |command: &mut windlass_core::policy::Command| command.directory = directory.clone();
    assert_eq!(rig.stdout(command(&["./script", "a b"]).with(here)), b"script 1 a b\n");
    assert_eq!(rig.stdout(command(&[path.to_str().unwrap()])), b"script 0 \n");
}
