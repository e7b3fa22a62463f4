//! The crawler beside `wget --recursive`, on the site of `examples/crawl` behind a real nginx, in turn: as it is, and
//! once more without its slow pages, which are what one request after the other waits for.

use super::Outcome;
use super::bed::{Bed, Scratch};
use super::figure::{Bar, Figure, rounds};
use super::urls::Nginx;
use crate::steps::root;
use std::cell::Cell;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Instant;
use windlass::crawler::{Crawl, Order, Wishes};

/// The trap of the site has no end; both stop there.
const DEPTH: u32 = 12;
/// What slows the site's slow pages down.
const SLOW: &str = "limit_rate 1000;";

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    for (name, slow, bar) in [("crawl.site", true, Bar::RatioAtLeast(5.0, 8.0)), ("crawl.fast", false, Bar::None)] {
        let scratch = bed.scratch()?;
        let nginx = site(&scratch, bed.size(5000), slow)?;
        let start = format!("http://127.0.0.1:{}/", nginx.port);
        // What is saved stays until the end: a file system without a journal looks long for room for new files where
        // thousands were deleted within the last seconds.
        let number = Cell::new(0);
        let place = || {
            number.set(number.get() + 1);
            scratch.path().join(format!("saved-{}", number.get()))
        };
        let (ours, raw) = rounds(bed.rounds(), || crawl(&start, &place()), || mirror(&start, &place()))?;
        bed.report(&Figure::new(name, ours, "pages/s").raw(raw).bar(bar));
    }
    Ok(())
}

fn site(scratch: &Scratch, pages: u64, slow: bool) -> Outcome<Nginx> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let script = root().join("examples/crawl/site.py");
    let mut made = Command::new("python3");
    made.arg(script).arg(scratch.path()).args([port.to_string(), pages.to_string()]);
    if !made.status()?.success() {
        return Err("the site could not be made".into());
    }
    if !slow {
        let config = scratch.path().join("nginx.conf");
        std::fs::write(&config, std::fs::read_to_string(&config)?.replace(SLOW, ""))?;
    }
    Nginx::with_config(scratch, port)
}

/// Pages a second of ours, from the start to the end of the engine, the report included.
fn crawl(start: &str, out: &Path) -> Outcome<f64> {
    let wishes =
        Wishes { urls: vec![start.into()], depth: Some(DEPTH), out: Some(out.to_owned()), ..Wishes::default() };
    let begun = Instant::now();
    let (ended, end) = channel();
    let crawl = Crawl::begin(Order::new(&wishes)?, move |result| drop(ended.send(result)))?;
    end.recv()??;
    let report = crawl.report()?;
    let rate = report.counts.pages as f64 / begun.elapsed().as_secs_f64();
    Ok(rate)
}

/// Pages a second of `wget`.
fn mirror(start: &str, out: &Path) -> Outcome<f64> {
    let begun = Instant::now();
    let level = DEPTH.to_string();
    let status = Command::new("wget")
        .args(["--quiet", "--recursive", "--level", &level, "--directory-prefix"])
        .arg(out)
        .arg(start)
        .status()
        .map_err(|e| format!("wget (package wget): {e}"))?;
    // It says so where links are broken.
    if !matches!(status.code(), Some(0 | 8)) {
        return Err(format!("wget ended with {status}").into());
    }
    let took = begun.elapsed().as_secs_f64();
    let pages = files(out)?;
    Ok(pages as f64 / took)
}

fn files(dir: &Path) -> Outcome<u64> {
    let mut count = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        count += if entry.file_type()?.is_dir() { files(&entry.path())? } else { 1 };
    }
    Ok(count)
}
