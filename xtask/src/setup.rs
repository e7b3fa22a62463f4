//! Installs what the tests, the benches and the proofs need beyond Rust where it is missing: programs from the
//! distribution's packages, modules of Python from theirs.
//!
//! Nothing is skipped silently: a program that is missing and cannot be installed is named, and what needs it fails.

use crate::steps::{program, root, step};
use std::process::{Command, Stdio};

/// Program, the package that brings it, and what needs it.
pub(crate) type Needed = (&'static str, &'static str, &'static str);

/// What the tests need.
const NEEDED: &[Needed] = &[
    ("cc", "gcc", "the bundled database and the C producer"),
    ("php", "php-cli", "the PHP of examples/inbox and examples/workers"),
    ("ruby", "ruby", "the Ruby of examples/inbox and examples/workers"),
    ("node", "nodejs", "the JavaScript of examples/inbox and examples/workers"),
    ("python3", "python3", "the Python of examples/inbox and examples/workers"),
    ("pip3", "python3-pip", "the Python package of examples/webhooks"),
    ("flock", "util-linux", "the shell producer of examples/inbox"),
    ("identify", "imagemagick", "examples/list"),
    ("pdftotext", "poppler-utils", "examples/documents"),
    ("nginx", "nginx-light", "the tests, the benches and the example of URLs"),
    ("wrk", "wrk", "the benches of URLs"),
    ("openssl", "openssl", "the tests of TLS, and secrets"),
    ("chromium", "chromium", "the tests of the page"),
    ("curl", "curl", "examples/webhooks"),
    ("wget", "wget", "examples/crawl and the bench of the crawler"),
    ("strace", "strace", "the tests that make system calls fail"),
    ("mkfs.ext4", "e2fsprogs", "the rigs that cut the power of a disk and fill it up"),
    ("e2fsck", "e2fsprogs", "the rig that cuts the power of a disk"),
    ("mount", "mount", "the rigs that cut the power of a disk and fill it up"),
    ("postgres", "postgresql", "the tests of the store on PostgreSQL"),
    ("psql", "postgresql-client", "the tests of the store on PostgreSQL"),
    ("pgbouncer", "pgbouncer", "the test of the store behind a pooler"),
    ("mariadbd", "mariadb-server", "the tests of the store on MariaDB"),
    ("mariadb", "mariadb-client", "the tests of the store on MariaDB"),
    ("memcached", "memcached", "the tests of progress that is kept in one"),
    ("sqlite3", "sqlite3", "the tests of the store on SQLite"),
    ("systemd-notify", "systemd", "the tests of what workers say by its protocol"),
    ("setpriv", "util-linux", "the databases of the tests, which do not run as root"),
];

/// Interpreter, what it must be able to load, the package that brings it, and what needs it.
const LIBRARIES: &[(&str, &str, &str, &str)] = &[
    ("/usr/bin/python3", "import sqlalchemy", "python3-sqlalchemy", "the application of the tests on databases"),
    ("/usr/bin/python3", "import psycopg2", "python3-psycopg2", "the application of the tests on databases"),
    ("/usr/bin/python3", "import pymysql", "python3-pymysql", "the application of the tests on databases"),
    ("ruby", "require 'sinatra/base'", "ruby-sinatra", "examples/rails-like"),
    ("ruby", "require 'active_record'", "ruby-activerecord", "examples/rails-like"),
    ("ruby", "require 'pg'", "ruby-pg", "examples/rails-like"),
    ("ruby", "require 'webrick'", "ruby-webrick", "examples/rails-like"),
];

/// Where Python packages go that the distribution does not have; the scripts of the examples know it.
const PYTHON: &str = "target/python";
/// Module, the package that brings it, and what needs it.
const MODULES: &[(&str, &str, &str)] =
    &[("standardwebhooks", "standardwebhooks==1.1.0", "the receiver of examples/webhooks")];

/// Makes sure that everything needed is there.
pub(crate) fn setup() -> Result<(), String> {
    let libraries = LIBRARIES.iter().filter(|(interpreter, load, _, _)| !loads(interpreter, load));
    install_with(NEEDED, libraries.map(|(_, load, package, needs)| (*load, *package, *needs)))?;
    MODULES.iter().try_for_each(|(module, package, needs)| python(module, package, needs))
}

/// Installs what is missing where that is possible. A bench or a proof needs some of it only, so what cannot be had is
/// said, and whoever needs it says so again.
pub(crate) fn setup_for_some() {
    if let Err(missing) = setup() {
        eprintln!("── packages: {missing}; going on, which works for what does not need them");
    }
}

fn python(module: &str, package: &str, needs: &str) -> Result<(), String> {
    let mut import = Command::new("python3");
    import.args(["-c", &format!("import {module}")]).env("PYTHONPATH", PYTHON).current_dir(root());
    if import.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    step("packages", &mut program("python3", &["-m", "pip", "install", "--quiet", "--target", PYTHON, package]))
        .map_err(|e| format!("{e}; {needs} needs it: pip install --target {PYTHON} {package}"))
}

/// Makes sure that each of these programs is there: its name, the package that brings it, and what needs it.
pub(crate) fn install(needed: &[Needed]) -> Result<(), String> {
    install_with(needed, std::iter::empty())
}

/// The same, and brings what else is missing.
fn install_with(needed: &[Needed], missing: impl Iterator<Item = Needed>) -> Result<(), String> {
    let missing: Vec<Needed> =
        needed.iter().filter(|(program, _, _)| !is_there(program)).copied().chain(missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    let by_hand = format!("install them and run again: apt-get install {}", names.join(" "));
    if !is_there("apt-get") || !rustix::process::geteuid().is_root() {
        for (program, package, needs) in missing {
            eprintln!("missing: {program} (package {package}), needed by {needs}");
        }
        return Err(by_hand);
    }
    step("packages", &mut program("apt-get", &["update", "-qq"]))?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(&names);
    step("packages", &mut program("apt-get", &arguments)).map_err(|e| format!("{e}; {by_hand}"))?;
    match needed.iter().find(|(program, _, _)| !is_there(program)) {
        None => Ok(()),
        Some((program, package, _)) => Err(format!("package {package} is installed but brought no `{program}`")),
    }
}

fn loads(interpreter: &str, load: &str) -> bool {
    let option = if interpreter.ends_with("python3") { "-c" } else { "-e" };
    let loaded = Command::new(interpreter).args([option, load]).stderr(Stdio::null()).status();
    loaded.is_ok_and(|status| status.success())
}

/// True where the program is there and is the one that is meant.
fn is_there(program: &str) -> bool {
    // Other programs have this name, too.
    let told = |word| {
        let output = Command::new(program).arg("-version").stdin(Stdio::null()).output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(word))
    };
    if program == "identify" {
        return told("ImageMagick");
    }
    if program == "postgres" {
        return crate::servers::database::postgres_programs().is_some();
    }
    let looked = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    looked.is_ok_and(|status| status.success())
}
