//! The page at `/`, in a real browser: its numbers are those of the API and of `spool status`, names are text whatever
//! they hold, the token stands before everything, and it goes on by itself.

use crate::rig::{PATIENCE, Rig, is_ready};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// What browsers take for markup, and what nobody may see as something else.
const HOSTILE: &str = "<img src=x onerror=\"window.evil=1\">'&amp;";

/// A browser that is told what to do through a pipe, with one page open.
struct Browser {
    child: Child,
    tell: ChildStdin,
    answers: ChildStdout,
    heard: Vec<u8>,
    count: u64,
    session: Option<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn start() -> Browser {
        let profile = tempfile::tempdir().unwrap();
        // The browser wants the ends of the pipe under these numbers.
        let script = "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-proxy-server \
                      --remote-debugging-pipe --user-data-dir=\"$1\" about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut browser =
            Browser { child, tell, answers, heard: Vec::new(), count: 0, session: None, _profile: profile };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", &json!({ "targetId": target, "flatten": true }));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        browser
    }

    fn send(&mut self, method: &str, params: &Value) -> std::io::Result<()> {
        self.count += 1;
        let mut order = json!({ "id": self.count, "method": method, "params": params });
        if let Some(session) = &self.session {
            order["sessionId"] = json!(session);
        }
        self.tell.write_all(format!("{order}\0").as_bytes())
    }

    #[track_caller]
    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.send(method, params).unwrap();
        let began = Instant::now();
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == 0) {
                let message: Vec<u8> = self.heard.drain(..=end).collect();
                let mut message: Value = serde_json::from_slice(&message[..end]).unwrap();
                if message["id"] == self.count {
                    assert!(message.get("error").is_none(), "{method} {params}: {message}");
                    return message["result"].take();
                }
                continue;
            }
            let left = PATIENCE.saturating_sub(began.elapsed());
            assert!(!left.is_zero() && is_ready(&self.answers, left), "no answer to {method} {params}");
            let mut bytes = [0; 1 << 16];
            let length = self.answers.read(&mut bytes).unwrap();
            assert!(length > 0, "the browser went away");
            self.heard.extend_from_slice(&bytes[..length]);
        }
    }

    /// Opens an address; comes back when the document there has begun to be this one.
    #[track_caller]
    fn open(&mut self, address: &str) {
        // Else a change of what is behind `#` alone would leave the old document standing.
        self.call("Page.navigate", &json!({ "url": "about:blank" }));
        let opened = self.call("Page.navigate", &json!({ "url": address }));
        assert!(opened.get("errorText").is_none(), "{opened}");
    }

    /// What an expression comes to; a promise is waited for.
    #[track_caller]
    fn eval(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut told = self.call("Runtime.evaluate", &asked);
        assert!(told.get("exceptionDetails").is_none(), "{expression}: {told}");
        told["result"]["value"].take()
    }

    /// Comes back when this is true of the page, told by its own changes; says what the page had where it never is.
    #[track_caller]
    fn until(&mut self, condition: &str) {
        let patience = PATIENCE.as_millis() / 2;
        let waited = self.eval(&format!(
            "new Promise(done => {{
                const look = () => ({condition}) && done(true);
                const all = {{ subtree: true, childList: true, characterData: true, attributes: true }};
                new MutationObserver(look).observe(document, all);
                setTimeout(() => done(document.body.innerText), {patience});
                look();
            }})"
        ));
        assert_eq!(waited, true, "never: {condition}");
    }

    /// The texts of all cells of a table.
    #[track_caller]
    fn rows(&mut self, table: &str) -> Vec<Vec<String>> {
        let rows = format!(
            "[...document.querySelectorAll('{table} tbody tr')]
                .map(row => [...row.cells].map(cell => cell.textContent))"
        );
        serde_json::from_value(self.eval(&rows)).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        // It ends with all its processes; one that is gone already needs no order.
        let _ = self.send("Browser.close", &json!({}));
        let _ = self.child.wait();
    }
}

/// A row as `spool status` prints it and as the page has it: words, whatever stands between them.
fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn text_of(rig: &Rig, name: &str) -> String {
    std::fs::read_to_string(rig.dir().join("run").join(name)).unwrap().trim_end().to_owned()
}

/// Two stages of documents, of which one has been worked off, with a name that is neither text nor harmless.
fn put_documents(rig: &Rig) -> PathBuf {
    let docs = rig.path("docs");
    let (feed, parsed, file) = (docs.join(OsStr::from_bytes(b"<b>\xff'\"")), docs.join("parsed"), rig.path("file"));
    std::fs::write(&file, "x").unwrap();
    let spool = |words: &[&dyn AsRef<OsStr>]| {
        rig.call(&words.iter().map(|word| (*word).as_ref()).collect::<Vec<_>>()).fine();
    };
    spool(&[&"spool", &"put", &feed, &file, &"--done"]);
    spool(&[&"drive", &"--in", &feed, &"--out", &parsed, &"--", &"cp", &"{in}", &"{out}"]);
    docs
}

fn check_queues(rig: &Rig, browser: &mut Browser) {
    let status = rig.call(&["status", "--json"]).json();
    let queues = browser.rows("#queues");
    assert_eq!(queues.len(), status["queues"].as_object().unwrap().len());
    for row in &queues {
        let counts = &status["queues"][&row[0]];
        let told = [counts["running"].to_string(), counts["failed"].to_string()];
        assert_eq!(row[3..5], told, "{row:?}");
    }
    let queue = |name: &str| queues.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{name}: {queues:?}"));
    assert_eq!(queue("shut")[1..3], ["paused", "2"]);
    assert!(queue("shut")[8].contains("<u>for a while"), "{queues:?}");
    assert!(queue(HOSTILE)[8].contains("no entry of the config serves this queue"), "{queues:?}");
}

/// The numbers of the documents are those of `spool status`, as they are printed and as they are counted.
fn check_documents(rig: &Rig, browser: &mut Browser, docs: &Path) {
    let docs = docs.to_str().unwrap();
    let printed = rig.call(&["spool", "status", docs]).fine().to_owned();
    let counted = rig.call(&["spool", "status", docs, "--json"]).json();
    let (shown, stages) = (browser.rows("#documents"), counted["stages"].as_array().unwrap());
    assert_eq!(shown.len(), stages.len(), "{shown:?}");
    for (row, stage) in shown.iter().zip(stages) {
        assert_eq!(row[0], stage["stage"].as_str().unwrap());
        let line = printed.lines().find(|line| line.starts_with(&row[0])).unwrap();
        assert_eq!(words(&row.join(" ")), words(line));
        assert_eq!(row[1..3], [stage["waiting"].to_string(), stage["working"].to_string()]);
    }
    assert!(shown.iter().any(|row| row[0] == "<b>\u{fffd}'\"" && row[6] != "-"), "{shown:?}");
    let asked = browser.eval(
        "fetch('api/v1/spools', { headers: { authorization: `Bearer ${sessionStorage.getItem('windlass-token')}` } })
            .then(answer => answer.text())",
    );
    let asked: Value = serde_json::from_str(asked.as_str().unwrap()).unwrap();
    assert_eq!(asked["items"][0]["stages"], counted["stages"], "the API has the same");
    assert!(browser.eval("document.querySelector('#documents').innerText").as_str().unwrap().contains("/nowhere"));
}

/// Nothing that was shown became more than text, and nothing came from elsewhere.
fn check_harmless(browser: &mut Browser) {
    let markup = "document.querySelectorAll('main script, main img, main b, main i, main u').length";
    assert_eq!(browser.eval(&format!("[typeof window.evil, {markup}]")), json!(["undefined", 0]));
    let own = "performance.getEntriesByType('resource').every(r => r.name.startsWith(location.origin + '/'))";
    assert_eq!(browser.eval(own), true);
    let markup = "(() => { try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.name } })()";
    assert_eq!(browser.eval(markup), "TypeError", "the policy lets no text become markup");
    assert_eq!(browser.eval("location.hash"), "", "the token does not stay in the address");
}

#[test]
fn the_page_shows_the_numbers_of_the_api_and_of_spool_status_and_names_as_text() {
    let rig = Rig::new();
    let (mut bell, mut gate) = (rig.bell("bell"), rig.gate("gate"));
    let docs = put_documents(&rig);
    let program = env!("CARGO_BIN_EXE_windlass");
    let script = format!("{program} progress 3/10 '<b>pages'; echo > {}; read x < {}", bell.path, gate.path);
    let server = rig.serve(&format!(
        "[queue.work]\nrun = [\"sh\", \"-c\", {script:?}]\n\
         [queue.bad]\nrun = [\"sh\", \"-c\", \"echo '<i>no' >&2; exit 65\"]\n\
         [queue.shut]\nrun = [\"true\"]\n[spool]\nshow = [{docs:?}, \"/nowhere\"]\n"
    ));
    rig.call(&["pause", "shut", "--reason", "<u>for a while"]).fine();
    rig.call(&["push", "shut", "x", "y"]).fine();
    rig.call(&["push", HOSTILE, "x"]).fine();
    rig.call(&["push", "bad", "x"]).fine();
    rig.call(&["wait", "queue:bad"]).ended(1);
    let data = b"<script>window.evil=1</script>\xff\x1b[2J";
    let run = rig.feed(&["push", "work", "--run", "new", "-0"], data).fine().to_owned();
    bell.next();

    let mut browser = Browser::start();
    browser.open(&format!("{}/#token={}", text_of(&rig, "address"), text_of(&rig, "token")));
    browser.until("document.querySelector('#running tbody progress') && document.querySelector('#documents tbody tr')");
    check_queues(&rig, &mut browser);
    let running = browser.rows("#running");
    let (progress, data) = (running[0][3].as_str(), running[0][5].as_str());
    assert_eq!((progress, data), ("3/10 <b>pages", "<script>window.evil=1</script>\u{fffd}\\u{1b}[2J"));
    let bar = browser.eval("(bar => [bar.value, bar.max])(document.querySelector('#running progress'))");
    assert_eq!(bar, json!([3, 10]));
    assert_eq!(browser.rows("#runs")[0][..2], [run.trim_end(), "0/1"]);
    assert!(browser.rows("#failed")[0][4].contains("<i>no"));
    check_documents(&rig, &mut browser, &docs);
    check_harmless(&mut browser);

    // On a phone nothing is wider than it.
    let phone = json!({ "width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": true });
    browser.call("Emulation.setDeviceMetricsOverride", &phone);
    assert_eq!(browser.eval("document.documentElement.scrollWidth <= 390"), true);

    // It goes on by itself, and says when it cannot.
    gate.open(1);
    browser.until("document.querySelector('#running tbody').rows.length === 0");
    server.stop();
    browser.until("document.querySelector('#trouble').textContent.startsWith('trying again')");
    assert!(!browser.rows("#documents").is_empty(), "what was known stays");
}

#[test]
fn the_page_writes_times_as_the_command_line_does() {
    let rig = Rig::new();
    let server = rig.serve("# nothing but the page\n");
    let mut browser = Browser::start();
    browser.open(&text_of(&rig, "address"));
    browser.until("typeof spoken === 'function' && document.querySelector('#login')");
    for seconds in
        [0.0, 0.04, 0.25, 1.25, 2.75, 3.15, 9.99, 10.0, 59.9, 60.0, 61.0, 3599.0, 3600.0, 3661.5, 86400.0, 270_000.0]
    {
        let ours = windlass::when::spoken(Duration::from_secs_f64(seconds));
        assert_eq!(browser.eval(&format!("spoken({seconds})")), ours, "{seconds}");
    }
    server.stop();
}

#[test]
fn the_page_shows_nothing_without_the_token() {
    let rig = Rig::new();
    let server = rig.serve("[queue.q]\nrun = [\"true\"]\n");
    rig.call(&["push", "q", "x"]).fine();
    rig.drained();
    let mut browser = Browser::start();
    browser.open(&text_of(&rig, "address"));
    browser.until("document.querySelector('#login') && !document.querySelector('#login').hidden");
    assert_eq!(
        browser.eval("document.querySelector('main').hidden && document.querySelectorAll('tr').length === 0"),
        true
    );
    let give = |browser: &mut Browser, token: &str| {
        browser.eval(&format!(
            "document.querySelector('#token').value = {token:?}; document.querySelector('#login').requestSubmit()"
        ));
    };
    give(&mut browser, "wrong");
    browser.until("document.querySelector('#trouble').textContent === \"this is not the server's token\"");
    assert_eq!(browser.eval("document.querySelector('main').hidden"), true);
    give(&mut browser, &text_of(&rig, "token"));
    browser.until("document.querySelector('#queues tbody tr')");
    assert_eq!(browser.rows("#queues")[0][0], "q");
    // A filter stands in the address, so that it can be sent to others.
    browser.eval(
        "(box => { box.value = 'zzz'; box.dispatchEvent(new Event('input')) })(document.querySelector('#filter'))",
    );
    assert!(browser.rows("#queues").is_empty());
    assert_eq!(browser.eval("location.search"), "?filter=zzz");
    let policy = "fetch('.').then(a => a.headers.get('content-security-policy'))";
    assert!(browser.eval(policy).as_str().unwrap().starts_with("default-src 'none'; script-src 'self';"));
    server.stop();
}
