//! One PostgreSQL or MariaDB: on a port of its own with data of its own and syncs switched on, ended as people and
//! accidents end one, started again, and copied by a standby that follows it.
//!
//! The kernel stops a server also where the program that started it is killed. The rigs of `windlass` share this file;
//! it must not know what is tested, nor where anybody finds its server.

use super::ports::free_port;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const USER: &str = "windlass";
/// The servers listen on loopback, for as long as the tests run.
const PASSWORD: &str = "windlass-test";

/// A server takes seconds to come up and to stop; one that takes minutes hangs.
const DEADLINE: Duration = Duration::from_secs(120);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// One process, which stops when it is dropped.
pub(crate) struct Database {
    pub(crate) name: &'static str,
    pub(crate) url: String,
    serve: Command,
    /// Succeeds where the server lets somebody in.
    ask: Command,
    child: Child,
    folder: PathBuf,
    /// What makes it break off what its clients do, and end.
    stop: Signal,
}

impl Database {
    /// Comes back when the server answers; what it says goes to a log in its folder.
    fn start(
        name: &'static str,
        url: String,
        (mut serve, ask): (Command, Command),
        folder: PathBuf,
        stop: Signal,
    ) -> Result<Database, String> {
        let log = File::create(log_of(&folder)).and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = log.map_err(|e| format!("cannot write the log of {name}: {e}"))?;
        let child = serve.stdout(out).stderr(err).spawn().map_err(|e| format!("cannot start {name}: {e}"))?;
        let mut database = Database { name, url, serve, ask, child, folder, stop };
        database.wait_until_it_answers()?;
        Ok(database)
    }

    /// Ends it by this signal, and comes back when it is gone.
    pub(crate) fn end(&mut self, signal: Signal) -> Result<(), String> {
        let told = rustix::process::kill_process(Pid::from_child(&self.child), signal);
        told.map_err(|e| format!("cannot end {}: {e}", self.name))?;
        if !self.ended_within(DEADLINE) {
            return Err(format!("{} does not end by {signal:?}: {}", self.name, self.last_words()));
        }
        self.child.wait().map(drop).map_err(|e| format!("cannot end {}: {e}", self.name))
    }

    /// The same server, after its end, on what it had on disk.
    pub(crate) fn start_again(&mut self) -> Result<(), String> {
        self.child = self.serve.spawn().map_err(|e| format!("cannot start {} again: {e}", self.name))?;
        self.wait_until_it_answers()
    }

    /// Waits for an end that nobody asked for, and tells of it.
    pub(crate) fn ended_by_itself(&mut self) -> String {
        match self.child.wait() {
            Ok(status) => format!("{} ended by itself: {status}; {}", self.name, self.last_words()),
            Err(error) => error.to_string(),
        }
    }

    fn wait_until_it_answers(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while begun.elapsed() < DEADLINE {
            if self.ended_within(BETWEEN_LOOKS) {
                return Err(format!("{} ended while it started: {}", self.name, self.last_words()));
            }
            if self.ask.status().is_ok_and(|status| status.success()) {
                return Ok(());
            }
        }
        Err(format!("{} did not answer within {} s: {}", self.name, DEADLINE.as_secs(), self.last_words()))
    }

    fn ended_within(&self, time: Duration) -> bool {
        let Ok(pidfd) = rustix::process::pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()) else {
            return true;
        };
        let patience = Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos().into() };
        let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, Some(&patience))).is_ok_and(|ready| ready > 0)
    }

    /// The end of its log.
    fn last_words(&self) -> String {
        let log = fs::read_to_string(log_of(&self.folder)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // The number of one that has ended may be anybody's by now.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = rustix::process::kill_process(Pid::from_child(&self.child), self.stop);
            if !self.ended_within(DEADLINE) {
                eprintln!("── servers: {} does not stop, and is killed", self.name);
                let _ = self.child.kill();
            }
            let _ = self.child.wait();
        }
        // Left-overs are in `target`, and the next start removes them.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The user that a server runs as: its own where root starts it, else whoever starts it.
struct Account {
    name: &'static str,
    ids: Option<(u32, u32)>,
}

impl Account {
    fn find(name: &'static str) -> Result<Account, String> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Account { name, ids: None });
        }
        let known = Command::new("getent").args(["passwd", name]).output();
        let known = known.map_err(|e| format!("cannot run getent: {e}"))?;
        let line = String::from_utf8_lossy(&known.stdout).into_owned();
        let mut fields = line.trim().split(':').skip(2).map(str::parse::<u32>);
        match (fields.next(), fields.next()) {
            (Some(Ok(user)), Some(Ok(group))) => Ok(Account { name, ids: Some((user, group)) }),
            _ => Err(format!(
                "no user `{name}`, whom the server's package makes, and the server does not run as root: \
                 apt-get install postgresql mariadb-server"
            )),
        }
    }

    /// A command as that user; told by the kernel to stop when this program is gone.
    fn command(&self, program: &Path, stop: &str) -> Command {
        let mut command = Command::new("setpriv");
        if let Some((user, group)) = self.ids {
            command.args(["--reuid", &user.to_string(), "--regid", &group.to_string(), "--clear-groups"]);
        }
        command.args(["--pdeathsig", stop, "--"]).arg(program).stdin(Stdio::null());
        command
    }

    /// A new empty folder that only this user can look into. Below a folder that is closed to the user there is no
    /// such thing; the one for temporary files is open to all.
    fn folder(&self, within: &Path, name: &str) -> Result<PathBuf, String> {
        let mut folder = within.join(name);
        let reached = self.command(Path::new("test"), "KILL").arg("-x").arg(within).status();
        if !reached.is_ok_and(|status| status.success()) {
            folder = std::env::temp_dir().join(format!("windlass-{name}-{}", std::process::id()));
            eprintln!("── servers: {} cannot reach {}: in {}", self.name, within.display(), folder.display());
        }
        let wrong = |e: std::io::Error| format!("cannot make {} anew: {e}", folder.display());
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(wrong(error)),
            _ => fs::create_dir(&folder).map_err(wrong)?,
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).map_err(wrong)?;
        if let Some((user, group)) = self.ids {
            chown(&folder, Some(user), Some(group)).map_err(wrong)?;
        }
        Ok(folder)
    }
}

/// A new PostgreSQL in a folder of this name.
pub(crate) fn start_postgres(within: &Path, name: &str) -> Result<Database, String> {
    let programs = postgres_programs().ok_or("no PostgreSQL server: apt-get install postgresql")?;
    let account = Account::find("postgres")?;
    let folder = account.folder(within, name)?;
    let (data, password) = (folder.join("data"), folder.join("password"));
    fs::write(&password, PASSWORD).map_err(|e| format!("cannot write {}: {e}", password.display()))?;
    let mut make = account.command(&programs.join("initdb"), "KILL");
    // What is made here is worth nothing after a crash; what the tests write is synced.
    make.args(["--no-sync", "--encoding=UTF8", "--locale=C.UTF-8", "--auth=scram-sha-256", "--username", USER]);
    make.arg("--pwfile").arg(&password).arg("-D").arg(&data);
    done("initdb", &mut make)?;
    serve_postgres(&account, &programs, folder, &data)
}

/// A copy of a PostgreSQL that follows it, and can be promoted in its place.
pub(crate) fn start_standby(of: &Database, within: &Path, name: &str) -> Result<Database, String> {
    let programs = postgres_programs().ok_or("no PostgreSQL server: apt-get install postgresql")?;
    let account = Account::find("postgres")?;
    let folder = account.folder(within, name)?;
    let data = folder.join("data");
    let mut copy = account.command(&programs.join("pg_basebackup"), "KILL");
    copy.args(["--no-sync", "--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf"]);
    copy.arg(format!("--dbname={}", of.url)).arg("-D").arg(&data);
    done("pg_basebackup", &mut copy)?;
    serve_postgres(&account, &programs, folder, &data)
}

fn serve_postgres(account: &Account, programs: &Path, folder: PathBuf, data: &Path) -> Result<Database, String> {
    let port = free_port();
    // Interrupted, it ends its sessions and stops; terminated, it would wait for them.
    let mut serve = account.command(&programs.join("postgres"), "INT");
    serve.arg("-D").arg(data).args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    serve.args(["-c", &format!("port={port}"), "-c", "max_connections=200", "-c", "shared_buffers=64MB"]);
    // A standby looks for the server that it follows so often.
    serve.args(["-c", "wal_retrieve_retry_interval=200ms"]);
    let mut ask = Command::new(programs.join("pg_isready"));
    ask.args(["--quiet", "--host=127.0.0.1", &format!("--port={port}")]);
    let url = format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres");
    Database::start("PostgreSQL", url, (serve, ask), folder, Signal::INT)
}

/// The folder with the programs of the newest PostgreSQL: Debian does not put them on the path.
pub(crate) fn postgres_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let numbered = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let packaged = numbered.max().map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")));
    let on_path = std::env::var_os("PATH");
    let folders = on_path.iter().flat_map(std::env::split_paths).chain(packaged);
    folders.filter(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file()).last()
}

/// A new MariaDB in a folder of this name.
pub(crate) fn start_mariadb(within: &Path, name: &str) -> Result<Database, String> {
    let account = Account::find("mysql")?;
    let folder = account.folder(within, name)?;
    let (data, first, port) = (folder.join("data"), folder.join("first.sql"), free_port());
    let mut make = account.command(Path::new("mariadb-install-db"), "KILL");
    make.arg("--no-defaults").arg(format!("--datadir={}", data.display()));
    make.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
    done("mariadb-install-db", &mut make)?;
    // Carried out before the first client is let in.
    let users = format!(
        "CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';\n\
         GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n\
         DELETE FROM mysql.global_priv WHERE user = 'root';\n\
         FLUSH PRIVILEGES;\n\
         CREATE DATABASE IF NOT EXISTS windlass;\n"
    );
    let readable =
        fs::write(&first, users).and_then(|()| fs::set_permissions(&first, PermissionsExt::from_mode(0o644)));
    readable.map_err(|e| format!("cannot write {}: {e}", first.display()))?;
    let mut serve = account.command(Path::new("mariadbd"), "TERM");
    serve.arg("--no-defaults").arg(format!("--datadir={}", data.display()));
    serve.arg(format!("--socket={}", folder.join("socket").display()));
    serve.arg(format!("--init-file={}", first.display())).args(["--bind-address=127.0.0.1", "--max-connections=200"]);
    serve.args([&format!("--port={port}"), "--innodb-flush-log-at-trx-commit=1", "--character-set-server=utf8mb4"]);
    let mut ask = Command::new("mariadb-admin");
    ask.args(["--no-defaults", "--host=127.0.0.1", &format!("--port={port}"), &format!("--user={USER}")]);
    ask.args([&format!("--password={PASSWORD}"), "--silent", "ping"]).stdout(Stdio::null()).stderr(Stdio::null());
    let url = format!("mysql://{USER}:{PASSWORD}@127.0.0.1:{port}/windlass");
    Database::start("MariaDB", url, (serve, ask), folder, Signal::TERM)
}

fn log_of(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// Runs a command to its end; what it says is told only where it fails.
fn done(what: &str, command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("cannot run {what}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let (said, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(format!("{what} failed: {}\n{said}{error}", output.status))
}
