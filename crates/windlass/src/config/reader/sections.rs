//! The tables that all files share key by key: limits, defaults, store, nudge, server, archive, log, traces and
//! progress.

use super::{Table, defaults, limits, notify, progress, store, traces, url};
use crate::config::units::size;
use crate::config::{Config, Server};
use crate::error::Failure;
use crate::log::{Format, Level, LogOptions};
use crate::server::ArchiveOptions;
use crate::when;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

/// Lays what a file says over what the files before it said.
pub(super) fn read(root: &Table<'_, '_>, config: &mut Config) -> Result<(), Failure> {
    if let Some(limits) = root.section("limits")? {
        limits.only(&[&["slots", "hosts"][..], &limits::MACHINE_KEYS].concat())?;
        config.slots = limits.count("slots")?.unwrap_or(config.slots);
        if limits.get("hosts").is_some() {
            config.hosts = url::read_hosts(&limits)?;
        }
        config.machine = limits::read_machine(&limits, &config.machine)?;
    }
    defaults::read(root, config)?;
    store::read(root, config)?;
    if let Some(server) = root.section("server")? {
        config.server = read_server(&server, config.server.clone())?;
    }
    if let Some(archive) = root.section("archive")? {
        config.archive = read_archive(&archive, config.archive)?;
    }
    if let Some(log) = root.section("log")? {
        config.log = read_log(&log, config.log.clone())?;
    }
    if let Some(table) = root.section("traces")? {
        config.traces = traces::read(&table, config.traces.clone())?;
    }
    if let Some(table) = root.section("progress")? {
        config.progress = progress::read(&table, config.progress.clone())?;
    }
    if let Some(table) = root.section("spool")? {
        config.spools = read_spools(&table)?;
    }
    Ok(())
}

fn read_server(table: &Table<'_, '_>, default: Server) -> Result<Server, Failure> {
    table.only(&["listen", "drain"])?;
    let listen = table.map("listen", |text| {
        let refused = || format!("cannot read the address {text:?}; expected an address such as 127.0.0.1:8737");
        let address: SocketAddr = text.parse().map_err(|_| refused())?;
        match address.ip().is_loopback() {
            true => Ok(address),
            false => Err(format!("{text} is not a loopback address, and this listener asks nobody for a password")),
        }
    })?;
    let drain = table.map("drain", when::duration)?;
    Ok(Server { listen: listen.unwrap_or(default.listen), drain: drain.unwrap_or(default.drain) })
}

/// Whether a directory is there is not asked: it may come and go, and whoever looks is told.
fn read_spools(table: &Table<'_, '_>) -> Result<Vec<PathBuf>, Failure> {
    table.only(&["show"])?;
    let base = table.source.path.parent().unwrap_or(Path::new(""));
    let shown = notify::texts(table, "show", "an array of directories such as [\"/srv/documents\"]")?;
    let path = |text: &str| match text {
        "" => Err(table.refuse_value("show", "`show` has \"\", expected a directory")),
        text => from(base, Path::new(text)).map_err(|e| table.refuse_value("show", &e.to_string())),
    };
    shown.into_iter().map(path).collect()
}

/// A path that begins at `base`, without the steps up that it begins with. What is above a link is not what stands
/// before it, so they are gone from where the base really is.
fn from(base: &Path, path: &Path) -> std::io::Result<PathBuf> {
    let base = std::path::absolute(Path::new(".").join(base))?;
    let steps = path.components().take_while(|part| *part == Component::ParentDir).count();
    match base.canonicalize() {
        Ok(real) if steps > 0 => {
            let above = real.ancestors().nth(steps).unwrap_or(Path::new("/"));
            Ok(above.join(path.components().skip(steps).collect::<PathBuf>()))
        }
        Ok(_) | Err(_) => std::path::absolute(base.join(path)),
    }
}

fn read_archive(table: &Table<'_, '_>, default: ArchiveOptions) -> Result<ArchiveOptions, Failure> {
    table.only(&["bodies", "keep_succeeded", "keep_failed", "max_size"])?;
    Ok(ArchiveOptions {
        bodies: table.flag("bodies")?.unwrap_or(default.bodies),
        keep_succeeded: table.map("keep_succeeded", when::duration)?.unwrap_or(default.keep_succeeded),
        keep_failed: table.map("keep_failed", when::duration)?.unwrap_or(default.keep_failed),
        max_size: table.map("max_size", size)?.unwrap_or(default.max_size),
    })
}

fn read_log(table: &Table<'_, '_>, default: LogOptions) -> Result<LogOptions, Failure> {
    table.only(&["format", "level", "file"])?;
    let format = table.map("format", |text| match text {
        "logfmt" => Ok(Format::Logfmt),
        "json" => Ok(Format::Json),
        other => Err(format!("{other:?} is not a format, expected \"logfmt\" or \"json\"")),
    })?;
    let level = table.map("level", |text| {
        let known = Level::ALL.into_iter().find(|level| level.word() == text);
        known.ok_or_else(|| format!("{text:?} is not a level, expected debug, info, warn or error"))
    })?;
    let file = table.map("file", |text| match text {
        "" => Err("the name is empty; without `file` the log goes to stderr".to_owned()),
        // As for directories: a relative one is meant from where the config stands.
        name => std::path::absolute(table.source.path.parent().unwrap_or(Path::new("")).join(name))
            .map_err(|e| e.to_string()),
    })?;
    Ok(LogOptions {
        format: format.unwrap_or(default.format),
        level: level.unwrap_or(default.level),
        file: file.or(default.file),
    })
}
