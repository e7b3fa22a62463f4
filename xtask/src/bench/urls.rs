//! Jobs as calls: a real nginx on the loopback interface, called by the whole server, beside `wrk` with the same bodies
//! over as many connections, in turn.

use super::bed::{Bed, Scratch};
use super::figure::{Bar, Figure, rounds};
use super::{Outcome, feed};
use std::cell::RefCell;
use std::fmt::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use windlass_core::policy::{Host, Service, Url};

/// Calls under way, and connections of `wrk`.
const CALLS: u32 = 64;
const BATCH: u32 = 100;

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let scratch = bed.scratch()?;
    let nginx = Nginx::start(&scratch)?;
    let times = bed.rounds();
    for (name, size, count, floor, goal) in
        [("url.single", 1, 100_000, 0.25, 0.35), ("url.batch", BATCH, 3_000_000, 0.3, 0.6)]
    {
        let count = bed.size(count);
        let seconds = if bed.quick { 1 } else { 3 };
        let shared = RefCell::new(&mut *bed);
        let ours = || live(*shared.borrow_mut(), count, nginx.port, size);
        let bare = || Ok(wrk(&scratch, nginx.port, size, seconds)? * f64::from(size));
        let (ours, raw) = rounds(times, ours, bare)?;
        bed.report(&Figure::new(name, ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(floor, goal)));
    }
    Ok(())
}

fn live(bed: &mut Bed, count: u64, port: u16, size: u32) -> Outcome<f64> {
    let host = Host { tls: false, name: "127.0.0.1".into(), port, inside: true };
    feed::live(bed, count, CALLS, Service::Url(Url { size, ..Url::new(host, "/") }))
}

/// Requests a second of `wrk` with a body such as ours.
fn wrk(scratch: &Scratch, port: u16, size: u32, seconds: u32) -> Outcome<f64> {
    let data = "x".repeat(feed::LINE - 5);
    let item = format!(r#"{{"id":"j-0123456789abcdef-1f","queue":"q.0","attempt":1,"data":"{data}"}}"#);
    let body = if size == 1 { data } else { format!("[{}]", vec![item; size as usize].join(",")) };
    let mut script = String::new();
    write!(script, "wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\nwrk.body = '{body}'\n")?;
    let path = scratch.path().join("wrk.lua");
    std::fs::write(&path, script)?;
    let output = Command::new("wrk")
        .args(["-t1", "-c", &CALLS.to_string(), "-d", &format!("{seconds}s"), "-s"])
        .arg(&path)
        .arg(format!("http://127.0.0.1:{port}/"))
        .output()
        .map_err(|e| format!("wrk (package wrk): {e}"))?;
    let told = String::from_utf8(output.stdout)?;
    if told.contains("Non-2xx") {
        return Err(format!("nginx refused wrk: {told}").into());
    }
    let rate = told.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    Ok(rate.ok_or_else(|| format!("wrk told no rate: {told}"))?.trim().parse()?)
}

/// A server of our own on a free port; ends with the bench.
pub(super) struct Nginx {
    child: Child,
    pub(super) port: u16,
}

impl Nginx {
    fn start(scratch: &Scratch) -> Outcome<Nginx> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let here = scratch.path().display();
        let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temp: String = kinds.iter().map(|kind| format!("{kind}_temp_path {here}/{kind};")).collect();
        let config = format!(
            "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;
             events {{ worker_connections 1024; }}
             http {{ access_log off; keepalive_requests 1000000000; {temp}
             server {{ listen 127.0.0.1:{port}; location / {{ return 200; }} }} }}"
        );
        std::fs::write(scratch.path().join("nginx.conf"), config)?;
        Nginx::with_config(scratch, port)
    }

    /// As the `nginx.conf` there says, which has it listen on this port.
    pub(super) fn with_config(scratch: &Scratch, port: u16) -> Outcome<Nginx> {
        let path = scratch.path().join("nginx.conf");
        let child =
            Command::new("nginx").arg("-p").arg(scratch.path()).arg("-c").arg(&path).stderr(Stdio::null()).spawn();
        let mut nginx = Nginx { child: child.map_err(|e| format!("nginx (package nginx-light): {e}"))?, port };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = nginx.child.try_wait()? {
                return Err(format!("nginx ended with {status}").into());
            }
            std::thread::yield_now();
        }
        Ok(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _gone_already = self.child.wait();
    }
}
