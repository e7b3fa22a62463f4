//! An emulated machine: a kernel of Debian's, and a disk in memory with some programs of this machine.
//!
//! It owns what is under `target/groups`. Whether the processor could be lent to the machine is not asked: emulated it
//! is slow, and the same everywhere. It must not know what runs in it.

use crate::prove::answer;
use crate::setup::{Needed, install};
use crate::steps::{program, root, step};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NEEDED: &[Needed] = &[
    ("qemu-system-x86_64", "qemu-system-x86", "the machine of the proof of control groups"),
    ("busybox", "busybox-static", "the first process of that machine"),
    ("setfattr", "attr", "the groups that are handed down in that machine"),
    ("cpio", "cpio", "the disk of that machine"),
    ("timeout", "coreutils", "the end of that machine"),
];
/// The package that names the newest package of a kernel for emulated machines.
const KERNEL: &str = "linux-image-cloud-amd64";
/// What the kernel is made of besides itself: a disk for the swap, in memory.
const MODULES: [&str; 4] = ["lzo", "lzo-rle", "zsmalloc", "zram"];
/// What the tests and the first process run.
const PROGRAMS: &[&str] = &[
    "busybox", "cat", "dd", "echo", "env", "grep", "head", "ls", "mkdir", "rm", "sed", "seq", "setfattr", "setpriv",
    "setsid", "sh", "sleep", "tail", "tr", "true", "wc", "yes",
];
/// No run takes so many seconds, not even on a busy machine.
const DEADLINE: &str = "3600";

/// What is started: a kernel and a disk.
pub(super) struct Machine {
    kernel: PathBuf,
    disk: PathBuf,
}

/// Makes a machine with these programs, each at its path here, and this script as its first process.
pub(super) fn make(programs: &[PathBuf], init: &str) -> Result<Machine, String> {
    install(NEEDED)?;
    let folder = root().join("target/groups");
    let files = unpack_kernel(&folder)?;
    let kernel = find(&files.join("boot"), "vmlinuz-")?;
    let tree = folder.join("disk");
    if tree.exists() {
        fs::remove_dir_all(&tree).map_err(|e| format!("cannot remove {}: {e}", tree.display()))?;
    }
    for place in ["bin", "dev", "etc", "modules", "proc", "sys", "tmp"] {
        make_folder(&tree.join(place))?;
    }
    let modules = find(&files.join("lib/modules"), "")?.join("kernel");
    for module in MODULES {
        copy(&find(&modules, &format!("{module}.ko"))?, &tree.join(format!("modules/{module}.ko")))?;
    }
    for name in PROGRAMS {
        add(&tree, &search(name)?, &tree.join("bin").join(name))?;
    }
    for path in programs {
        let place = tree.join(path.strip_prefix("/").unwrap_or(path));
        add(&tree, path, &place)?;
    }
    write(&tree.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nada:x:1000:1000::/tmp:/bin/sh\n")?;
    write(&tree.join("etc/group"), "root:x:0:\nada:x:1000:\n")?;
    write(&tree.join("init"), init)?;
    let disk = folder.join("disk.cpio.gz");
    let pack = "chmod +x init && find . | cpio -o -H newc --quiet | gzip -1 > \"$0\"";
    step("disk", Command::new("sh").args(["-c", pack]).arg(&disk).current_dir(&tree))?;
    Ok(Machine { kernel, disk })
}

impl Machine {
    /// Runs it until it switches itself off, passes on what it says, and returns that.
    pub(super) fn run(&self, told: &[(&str, &str)]) -> Result<String, String> {
        // The kernel hands words that it does not know to the first process, as its environment.
        let told: Vec<String> = told.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let words = format!("console=ttyS0 loglevel=1 panic=-1 cgroup_no_v1=all {}", told.join(" "));
        let mut command = program("timeout", &["--kill-after=10", DEADLINE, "qemu-system-x86_64"]);
        command.args(["-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "1024"]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.disk).args(["-append", &words]);
        eprintln!("── machine: {command:?}");
        let wrong = |e: std::io::Error| format!("cannot run the machine: {e}");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(wrong)?;
        let mut said = String::new();
        if let Some(serial) = child.stdout.take() {
            for line in BufReader::new(serial).split(b'\n') {
                let line = line.map_err(wrong)?;
                let line = String::from_utf8_lossy(&line);
                let line = line.trim_end_matches('\r');
                println!("{line}");
                said.extend([line, "\n"]);
            }
        }
        let status = child.wait().map_err(wrong)?;
        match (status.success(), said.contains("machine: over\n")) {
            (true, true) => Ok(said),
            (true, false) => Err("the machine ended before its time".into()),
            (false, _) => Err(format!("the machine was ended after {DEADLINE} s at most: {status}")),
        }
    }
}

/// The newest kernel of the distribution, unpacked; one that is there already is taken as it is.
fn unpack_kernel(folder: &Path) -> Result<PathBuf, String> {
    let files = folder.join("kernel");
    if files.join("boot").exists() {
        return Ok(files);
    }
    let listed = answer("apt-cache", &["depends", "--no-recommends", "--no-suggests", KERNEL])?;
    let package = listed.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let package = package.ok_or_else(|| format!("{KERNEL} is not known here: this proof needs Debian on amd64"))?;
    let downloads = folder.join("downloads");
    make_folder(&downloads)?;
    step("kernel", program("apt-get", &["download", "-q", package]).current_dir(&downloads))?;
    let archive = find(&downloads, package)?;
    step("kernel", program("dpkg", &["-x"]).arg(archive).arg(&files))?;
    Ok(files)
}

/// Where a program is that a shell would run; many of these are also words of the shell's own.
fn search(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|place| place.is_file()).ok_or_else(|| format!("there is no {name} in PATH"))
}

/// Puts a program and the libraries that it is loaded with onto the disk.
fn add(tree: &Path, from: &Path, to: &Path) -> Result<(), String> {
    copy(from, to)?;
    // One that needs none makes `ldd` fail.
    let output = Command::new("ldd").arg(from).output().map_err(|e| format!("cannot run ldd: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let libraries: BTreeSet<&str> = text.split_whitespace().filter(|word| word.starts_with('/')).collect();
    for library in libraries.into_iter().filter(|path| !path.ends_with(':')) {
        let place = tree.join(library.trim_start_matches('/'));
        if !place.exists() {
            copy(Path::new(library), &place)?;
        }
    }
    Ok(())
}

/// The first file or folder in a folder, or below it, whose name begins so.
fn find(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let listed = fs::read_dir(&folder).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
        let mut paths: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let is_it = |path: &&PathBuf| path.file_name().is_some_and(|found| found.to_string_lossy().starts_with(name));
        if let Some(found) = paths.iter().find(is_it) {
            return Ok(found.clone());
        }
        folders.extend(paths.into_iter().filter(|path| path.is_dir()));
    }
    Err(format!("{} holds no {name}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if let Some(folder) = to.parent() {
        make_folder(folder)?;
    }
    let copied = fs::copy(from, to).map(drop);
    copied.map_err(|e| format!("cannot copy {} to {}: {e}", from.display(), to.display()))
}

fn make_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|e| format!("cannot make {}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}
