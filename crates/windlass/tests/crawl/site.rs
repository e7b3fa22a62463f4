//! The site, and the program that crawls it.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};

/// Pages of nginx.
pub(crate) const PAGES: usize = 300;

/// What was asked of the small server so far, by path, and who waits for it.
#[derive(Default)]
pub(crate) struct Asked {
    counts: Mutex<BTreeMap<String, usize>>,
    more: Condvar,
}

impl Asked {
    fn note(&self, path: &str) -> usize {
        let mut counts = self.counts.lock().unwrap();
        let count = counts.entry(path.to_owned()).or_default();
        *count += 1;
        let count = *count;
        drop(counts);
        self.more.notify_all();
        count
    }

    pub(crate) fn times(&self, path: &str) -> usize {
        self.counts.lock().unwrap().get(path).copied().unwrap_or(0)
    }

    /// Waits until what was asked for so far is enough.
    pub(crate) fn wait_until(&self, enough: impl Fn(&BTreeMap<String, usize>) -> bool) {
        let counts = self.counts.lock().unwrap();
        drop(self.more.wait_while(counts, |counts| !enough(counts)).unwrap());
    }

    /// Waits until a page was asked for so often.
    pub(crate) fn wait(&self, path: &str, times: usize) {
        self.wait_until(|counts| counts.get(path).copied().unwrap_or(0) >= times);
    }
}

/// One request: its path, its header, how often its page was asked for, and the books.
pub(crate) struct Request<'a> {
    pub(crate) path: &'a str,
    pub(crate) head: &'a str,
    pub(crate) times: usize,
    pub(crate) asked: &'a Asked,
}

/// A server whose answers a test writes: whole, with the status line. It ends with the process.
pub(crate) struct Small {
    pub(crate) address: SocketAddr,
    pub(crate) asked: Arc<Asked>,
}

impl Small {
    pub(crate) fn new(answer: impl Fn(&Request<'_>) -> String + Send + Sync + 'static) -> Small {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::<Asked>::default());
        let (answer, books) = (Arc::new(answer), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, books) = (Arc::clone(&answer), Arc::clone(&books));
                std::thread::spawn(move || serve(stream.unwrap(), &*answer, &books));
            }
        });
        Small { address, asked }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// One request a connection: whoever asks is told so.
fn serve(mut stream: TcpStream, answer: &dyn Fn(&Request<'_>) -> String, asked: &Asked) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while reader.read_line(&mut head).is_ok_and(|read| read > 2) {}
    let Some(path) = head.split(' ').nth(1) else { return };
    let times = asked.note(path);
    let text = answer(&Request { path, head: &head, times, asked });
    // One that was killed meanwhile does not listen.
    let _ = stream.write_all(text.as_bytes());
}

pub(crate) fn html(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

pub(crate) fn links(paths: &[&str]) -> String {
    html(&paths.iter().map(|path| format!("<a href='{path}'>x</a>")).collect::<String>())
}

pub(crate) fn status(status: &str, headers: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n")
}

pub(crate) fn moved(to: &str) -> String {
    status("302 Found", &format!("Location: {to}\r\n"))
}

/// nginx with its pages, and the small server behind `/live/`.
pub(crate) struct Site {
    nginx: Child,
    dir: tempfile::TempDir,
    pub(crate) port: u16,
    pub(crate) small: Small,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _gone = self.nginx.kill();
        let _gone = self.nginx.wait();
    }
}

impl Site {
    pub(crate) fn start() -> Site {
        let dir = tempfile::tempdir().unwrap();
        write_pages(&dir.path().join("pages"));
        let small = Small::new(live);
        let port = crate::ports::free_port();
        let here = dir.path().display();
        let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temp: String = temp.iter().map(|kind| format!("{kind}_temp_path {here}/{kind};")).collect();
        let config = format!(
            "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;
             events {{ worker_connections 512; }}
             http {{ types {{ text/html html; text/plain txt; }} log_format paths '$request_uri'; {temp}
             server {{ listen 127.0.0.1:{port}; root {here}/pages; access_log {here}/access.log paths;
             location /live/ {{ proxy_pass http://{}; proxy_read_timeout 600s; }} }} }}",
            small.address
        );
        std::fs::write(dir.path().join("nginx.conf"), config).unwrap();
        let mut nginx = Command::new("nginx")
            .args(["-p", &here.to_string(), "-c", &format!("{here}/nginx.conf")])
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("this test needs nginx (package nginx-light): {e}"));
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert_eq!(nginx.try_wait().unwrap(), None, "nginx has ended");
            std::thread::yield_now();
        }
        Site { nginx, dir, port, small }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// How often nginx was asked for each path.
    pub(crate) fn requests(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for path in std::fs::read_to_string(self.dir.path().join("access.log")).unwrap().lines() {
            *counts.entry(path.to_owned()).or_default() += 1;
        }
        counts
    }
}

/// A tree with cross links and loops: page n leads to 2n+1 and 2n+2, back to its parent and the start, and on to a far
/// one. Some links are broken, and the pages of the small server hang off some of them.
fn write_pages(root: &Path) {
    for page in 0..PAGES {
        let mut text = "<!doctype html><title>page</title><a href='/'>start</a>".to_owned();
        let mut link = |to: String| write!(text, "<a href='{to}'>x</a>").unwrap();
        [2 * page + 1, 2 * page + 2].into_iter().filter(|to| *to < PAGES).for_each(|to| link(path(to)));
        link(path(page.saturating_sub(1) / 2));
        link(path(page * 7 % PAGES));
        link(format!("{}#part", path(page)));
        match page {
            17 => link("/missing.html".into()),
            18 => link("/missing.html".into()),
            40 => link("/private/secret.html".into()),
            5 => ["slow", "flaky", "busy", "moved", "round"].iter().for_each(|name| link(format!("/live/{name}"))),
            6 => ["trap/", "cut", "down"].iter().for_each(|name| link(format!("/live/{name}"))),
            7 => link("http://other.example/".into()),
            0 | 30 | 150 | 299 => link(format!("/live/bell/{page}")),
            _ => {}
        }
        let file = root.join(path(page).trim_start_matches('/'));
        let file = if page == 0 { root.join("index.html") } else { file };
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    std::fs::create_dir_all(root.join("private")).unwrap();
    std::fs::write(root.join("private/secret.html"), "nobody may read this").unwrap();
    std::fs::write(root.join("robots.txt"), "User-agent: *\nDisallow: /private/\n").unwrap();
}

fn path(page: usize) -> String {
    if page == 0 { "/".to_owned() } else { format!("/d{}/p{page}.html", page % 10) }
}

fn live(request: &Request<'_>) -> String {
    match request.path {
        "/live/slow" => {
            // Slower than the last page of all.
            request.asked.wait("/live/bell/299", 1);
            links(&["/live/behind-slow"])
        }
        "/live/flaky" if request.times == 1 => status("500 Oops", ""),
        "/live/busy" if request.times == 1 => status("429 Busy", "Retry-After: 0\r\n"),
        "/live/moved" => moved("/live/target"),
        "/live/round" => moved("/live/and-round"),
        "/live/and-round" => moved("/live/round"),
        "/live/cut" => "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1000\r\n\r\nhalf".to_owned(),
        "/live/down" => status("500 Oops", ""),
        path if path.starts_with("/live/trap/") => links(&["deeper/", "./"]),
        _ => links(&["/"]),
    }
}

/// Every page that must be there, as the report names it.
pub(crate) fn expected_pages() -> BTreeSet<String> {
    let mut expected: BTreeSet<String> = (0..PAGES).map(path).collect();
    let live = ["slow", "behind-slow", "flaky", "busy", "target", "trap/", "trap/deeper/", "trap/deeper/deeper/"];
    expected.extend(live.iter().map(|name| format!("/live/{name}")));
    expected.extend([0, 30, 150, 299].map(|bell| format!("/live/bell/{bell}")));
    expected
}

/// A directory of its own to crawl into.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.0.path().join("out")
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.env_remove("WINDLASS_CONFIG").env_remove("XDG_CONFIG_HOME").env("HOME", self.0.path());
        command.env_remove("WINDLASS_DIR").current_dir(self.0.path()).stdin(Stdio::null());
        command.arg("crawl").args(words).arg("--out").arg(self.out());
        command
    }

    pub(crate) fn crawl(&self, words: &[&str]) -> Told {
        Told::of(self.command(words).output().unwrap())
    }

    /// The files under the directory, as their paths.
    pub(crate) fn files(&self) -> BTreeSet<String> {
        let mut files = BTreeSet::new();
        let mut left = vec![self.out()];
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true if entry.file_name().to_string_lossy().starts_with('.') => {}
                    true => left.push(entry.path()),
                    false => {
                        let path = entry.path();
                        files.insert(path.strip_prefix(self.out()).unwrap().to_string_lossy().into_owned());
                    }
                }
            }
        }
        files
    }
}

/// How a crawl ended, and what it said.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Told {
    pub(crate) fn of(output: Output) -> Told {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Told { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    #[track_caller]
    pub(crate) fn ended(&self, code: i32) -> &Told {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stderr, self.stdout);
        self
    }

    #[track_caller]
    pub(crate) fn report(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {} {}", self.stdout, self.stderr))
    }
}

/// The paths of the pages that a report says are saved.
pub(crate) fn saved(report: &Value) -> BTreeSet<String> {
    let pages = report["pages"].as_array().unwrap().iter().filter(|page| page["file"].is_string());
    pages.map(|page| path_of(page["url"].as_str().unwrap())).collect()
}

/// What a report says of one path.
pub(crate) fn page<'r>(report: &'r Value, path: &str) -> &'r Value {
    let pages = report["pages"].as_array().unwrap();
    pages.iter().find(|page| path_of(page["url"].as_str().unwrap()) == path).unwrap_or(&Value::Null)
}

pub(crate) fn path_of(url: &str) -> String {
    url.splitn(4, '/').nth(3).map(|path| format!("/{path}")).unwrap()
}
