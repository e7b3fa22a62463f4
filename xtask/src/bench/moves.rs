//! `windlass move` of 100-byte jobs: from one embedded store to another, both served by the one process that moves,
//! beside a bare copy of the same bytes with as many syncs; and to a server on PostgreSQL, beside a COPY of such rows.

use super::bed::Bed;
use super::databases::Place;
use super::figure::{Bar, Figure, rounds};
use super::{Outcome, feed, raw};
use crate::servers::Servers;
use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use windlass::data_dir::DataDir;
use windlass::server::{Server, ServerOptions};
use windlass::store::place::StorePlace;
use windlass::store::sql::Keep;
use windlass_core::life_cycle::State;
use windlass_core::policy::Forward;

pub(super) fn bench(bed: &mut Bed) -> Outcome<()> {
    bed.needs_disk()?;
    let (count, times) = (bed.size(2_000_000), bed.rounds());
    let program = std::env::current_exe()?.with_file_name("windlass");
    let help = Command::new(&program).args(["move", "--help"]).stderr(Stdio::null()).output();
    if help.map_or(true, |help| help.stdout.is_empty()) {
        println!("# move.embedded is left out: no {} that knows `move`", program.display());
        return Ok(());
    }
    let shared = RefCell::new(&mut *bed);
    let ours = || {
        let (_source, from) = shared.borrow_mut().data_dir()?;
        let (_target, to) = shared.borrow_mut().data_dir()?;
        fill(&from, count)?;
        let rate = moved(&program, &from, &to, count)?;
        feed::expect(&to, State::Ready, count)?;
        feed::expect(&from, State::Ready, 0)?;
        Ok(rate)
    };
    let bare = || raw::copy(shared.borrow_mut().scratch()?.path(), count, feed::LINE, u64::from(Forward::JOBS));
    let (ours, raw) = rounds(times, ours, bare)?;
    let figure = Figure::new("move.embedded", ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.3, 0.6));
    shared.borrow().report(&figure);
    to_postgres(bed, &program)
}

fn to_postgres(bed: &mut Bed, program: &Path) -> Outcome<()> {
    let servers = Servers::start()?;
    let (_, url) = servers.variables().first().ok_or("a PostgreSQL is needed")?;
    let (place, count, times) = (Place::of(url), bed.size(500_000), bed.rounds());
    let shared = RefCell::new(&mut *bed);
    let ours = || {
        let (_source, from) = shared.borrow_mut().data_dir()?;
        let (_target, to) = shared.borrow_mut().data_dir()?;
        fill(&from, count)?;
        let database = place.make()?;
        let table = database.table(Keep::Rows)?;
        table.options("bench").apply()?;
        let listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let store = StorePlace::Table(table);
        let server = Server::start(ServerOptions { listen, store, ..ServerOptions::new(to.clone()) })?;
        let rate = moved(program, &from, &to, count)?;
        server.stop()?;
        feed::expect(&from, State::Ready, 0)?;
        match database.waiting()? {
            waiting if waiting == count => Ok(rate),
            waiting => Err(format!("{waiting} rows wait, expected {count}").into()),
        }
    };
    let (ours, raw) = rounds(times, ours, || place.make()?.copy(count, u64::from(Forward::JOBS)))?;
    bed.report(&Figure::new("move.postgres", ours, "jobs/s").raw(raw).bar(Bar::RatioAtLeast(0.5, 0.8)));
    Ok(())
}

/// Jobs that wait in an embedded store.
fn fill(dir: &DataDir, count: u64) -> Outcome<()> {
    feed::write(dir, count, 1)?;
    let server = Server::start(ServerOptions::new(dir.clone()))?;
    feed::ingest(dir, &server)?;
    Ok(server.stop()?)
}

/// Jobs a second of the verb, from its start to its end.
fn moved(program: &Path, from: &DataDir, to: &DataDir, count: u64) -> Outcome<f64> {
    let begun = Instant::now();
    let mut command = Command::new(program);
    command.args(["move", "q.0", "--from"]).arg(from.root()).arg("--to").arg(to.root());
    let output = command.stdin(Stdio::null()).env_remove("WINDLASS_DIR").output()?;
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{} move: {}: {told}", program.display(), output.status).into());
    }
    Ok(rate)
}
