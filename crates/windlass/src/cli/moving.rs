//! `windlass move`: waiting jobs of some queues, or those that a selector means, go to another server for good.
//!
//! The server that has them sends them; this verb says which, where to, and what came of it. Asked again, it goes on
//! with what is left.

use super::Context;
use super::amend::selector_of;
use super::connect::{Connection, Link, Server, ServerOptions, idle_options};
use super::place::Place;
use super::print::{self, grouped};
use crate::api;
use crate::data_dir::DataDir;
use crate::engine::event::Departed;
use crate::error::{Failure, Kind};
use crate::store::place::{DatabaseUrl, JobsTable, StorePlace};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use windlass_core::job::{JobId, QueueName, RunId};
use windlass_core::life_cycle::State;

const EXAMPLES: &str = "\
Examples:
  windlass move mail --to http://10.0.0.7:4440 --token-file other.token
  windlass move 'queue:img.* state:scheduled' --to http://10.0.0.7:4440
  windlass move mail --from /srv/old --to /srv/new
  windlass move mail --to postgres://app@db.example/app";

#[derive(Debug, clap::Args)]
#[command(before_help = EXAMPLES)]
pub(super) struct Args {
    /// Queues by name, job ids, or a selector
    #[arg(required = true, value_name = "QUEUE|ID|SELECTOR")]
    targets: Vec<String>,
    /// Where they go: a server's address, a data directory of this machine, or a database
    #[arg(long, value_name = "URL|DIR|STORE")]
    to: String,
    /// What they leave, a data directory or a database; else the usual data directory
    #[arg(long, value_name = "DIR|STORE", conflicts_with_all = ["dir", "server"])]
    from: Option<String>,
    /// The file with the other server's token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

pub(super) fn moving(args: &Args, context: &Context) -> Result<u8, Failure> {
    let root = context.dir_path()?;
    let stores = Stores { configured: context.store_of(&root)?, root };
    let place = match &args.from {
        Some(from) => match stores.find(from)? {
            Some((dir, store)) => Place::Directory { dir, store },
            None => context.place_of(existing(Path::new(from))?)?,
        },
        None => context.place()?,
    };
    stores.refuse_same(&place, &args.to)?;
    let (Target { url, token_file, address_file }, other) = Target::find(args, &stores)?;
    let request = api::Move { to: url, token_file, address_file, ..wanted(&args.targets)? };
    let moved = Link::with_own(&place, |server, own| {
        // Millions of jobs take their time.
        server.set_patience(None);
        if own {
            await_earlier(server, context)?;
        }
        let moved = server.post_json::<Departed>("/api/v1/moves", &request)?;
        let status: Value = server.get_json("/api/v1/status")?;
        Ok((moved, status["totals"][State::Running.word()] == 0))
    });
    let closed = other.map_or(Ok(()), Server::retire);
    let (moved, quiet) = moved?;
    closed?;
    // What an earlier command had on its way when it was killed runs, and only by these directories it is asked about.
    if quiet {
        stores.tidy([args.from.as_deref(), Some(&args.to)].into_iter().flatten())?;
    }
    tell(&moved, context)
}

/// What an earlier command had on its way when it was killed arrives first, or not, before more goes.
fn await_earlier(server: &mut Connection, context: &Context) -> Result<(), Failure> {
    let status: Value = server.get_json("/api/v1/status")?;
    let under_way = status["totals"][State::Running.word()].as_u64().unwrap_or(0);
    if under_way > 0 {
        let jobs = print::jobs(under_way);
        context
            .say(format_args!("{jobs} of an earlier command are on their way: their server is asked about them first"));
        server.get("/api/v1/drained")?.checked()?;
    }
    Ok(())
}

/// Databases that jobs leave or come to. Whoever serves one for so long has a data directory of its own below the usual
/// one, always the same, so that a command that was killed goes on with what it had on its way.
struct Stores {
    root: PathBuf,
    /// The database that the config names is known by what the config calls its table and columns.
    configured: StorePlace,
}

impl Stores {
    /// The table that an address means, and the directory for it; none where it is no database's.
    fn find(&self, address: &str) -> Result<Option<(DataDir, StorePlace)>, Failure> {
        let Some(table) = self.table(address)? else { return Ok(None) };
        let dir = DataDir::open(&self.directory(&table))?;
        Ok(Some((dir, StorePlace::Table(table))))
    }

    fn table(&self, address: &str) -> Result<Option<JobsTable>, Failure> {
        if !SCHEMES.iter().any(|scheme| address.starts_with(scheme)) {
            return Ok(None);
        }
        let database: DatabaseUrl = address.parse().map_err(|why: String| Failure::new(Kind::Usage, why))?;
        let usual = JobsTable::new(database.clone());
        let is_meant = |table: &&JobsTable| JobsTable::new(table.database.clone()).identity() == usual.identity();
        let configured = self.configured.table().filter(is_meant);
        Ok(Some(configured.map_or(usual, |table| JobsTable { database, ..table.clone() })))
    }

    /// Nothing can go to where it is.
    fn refuse_same(&self, place: &Place, to: &str) -> Result<(), Failure> {
        let Place::Directory { dir, store } = place else { return Ok(()) };
        let same = match (store.table(), self.table(to)?) {
            (Some(here), Some(there)) => here.identity() == there.identity(),
            (None, None) => std::fs::canonicalize(to).ok() == std::fs::canonicalize(dir.root()).ok(),
            _ => false,
        };
        match same {
            true => Err(Failure::new(Kind::Usage, "the jobs are there already: --to names where they are")),
            false => Ok(()),
        }
    }

    fn directory(&self, table: &JobsTable) -> PathBuf {
        self.root.join("moves").join(format!("{:08x}", crc32fast::hash(table.identity().as_bytes())))
    }

    /// Nothing is on its way any more.
    fn tidy<'a>(&self, addresses: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
        for address in addresses {
            let Some(table) = self.table(address)? else { continue };
            let dir = self.directory(&table);
            let removed = std::fs::remove_dir_all(&dir);
            removed.map_err(|e| Failure::io(format_args!("cannot remove {}", dir.display()), &e))?;
        }
        Ok(())
    }
}

/// What the address of a database begins with.
const SCHEMES: [&str; 5] = ["postgres://", "postgresql://", "mysql://", "mariadb://", "sqlite:"];

/// The other server, and what shows it that one may use it.
struct Target {
    url: String,
    token_file: Option<String>,
    address_file: Option<String>,
}

impl Target {
    /// Where nobody serves a data directory, this process does until the move is over; and a database, too.
    fn find(args: &Args, stores: &Stores) -> Result<(Target, Option<Server>), Failure> {
        if args.to.starts_with("http://") || args.to.starts_with("https://") {
            let token_file = args.token_file.as_deref().map(absolute).transpose()?;
            return Ok((Target { url: args.to.clone(), token_file, address_file: None }, None));
        }
        let (dir, store) = match (stores.find(&args.to)?, args.to.split_once("://")) {
            (Some(found), _) => found,
            (None, None) => (DataDir::open(Path::new(&args.to))?, StorePlace::Embedded),
            // A directory of that name would be made otherwise. What follows the scheme may hold a password.
            (None, Some((scheme, _))) => {
                let text = format!("--to {scheme}://… is no server, data directory or database");
                return Err(Failure::new(Kind::Usage, text).hint("expected http://, https://, postgres://, mysql://"));
            }
        };
        let served = Link::to_server(&dir)?.is_some();
        let listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let own = ServerOptions { listen, ..idle_options(&dir, &store) };
        let server = if served { None } else { Some(Server::start(own)?) };
        let file = dir.run().join("address");
        let url = std::fs::read_to_string(&file).map_err(|e| {
            let text = format_args!("cannot read where the server of {} listens", dir.root().display());
            Failure::io(text, &e).hint("a verb that serves for a moment has no address: try again")
        });
        match url {
            Ok(url) => {
                let token_file = Some(absolute(&dir.run().join("token"))?);
                let address_file = Some(absolute(&file)?);
                Ok((Target { url: url.trim().to_owned(), token_file, address_file }, server))
            }
            Err(failure) => {
                // Why it cannot be reached is the failure to tell; the stop is only tidy.
                let _stopped = server.map(Server::retire);
                Err(failure)
            }
        }
    }
}

fn existing(dir: &Path) -> Result<DataDir, Failure> {
    let missing = || Failure::new(Kind::NoInput, format!("there is no data directory at {}", dir.display()));
    DataDir::find(dir)?.ok_or_else(missing)
}

fn absolute(path: &Path) -> Result<String, Failure> {
    let whole = std::path::absolute(path).map_err(|e| Failure::io(format_args!("no path {}", path.display()), &e))?;
    Ok(whole.display().to_string())
}

/// Ids are ids, plain names are queues, and everything else is a selector.
fn wanted(targets: &[String]) -> Result<api::Move, Failure> {
    if targets.iter().all(|target| target.parse::<JobId>().is_ok()) {
        return Ok(api::Move { ids: Some(targets.to_vec()), ..api::Move::default() });
    }
    if let Some(run) = targets.iter().find(|target| target.parse::<RunId>().is_ok()) {
        let text = format!("{run} is a run, and the jobs of a run stay with it");
        return Err(Failure::new(Kind::Usage, text).hint("name queues, job ids or a selector"));
    }
    let plain = |target: &String| {
        !target.contains([':', '<', '>', '=', '~', '*', ' ', '!']) && QueueName::new(target.as_bytes()).is_ok()
    };
    match targets.iter().all(plain) {
        true => Ok(api::Move { queues: Some(targets.to_vec()), ..api::Move::default() }),
        false => Ok(api::Move { selector: Some(selector_of(targets)), ..api::Move::default() }),
    }
}

fn tell(moved: &Departed, context: &Context) -> Result<u8, Failure> {
    if context.json {
        print::document(&serde_json::to_value(moved).unwrap_or_default())?;
    } else {
        let left: Vec<String> = moved.left.iter().map(|(why, count)| format!("{} {why}", grouped(*count))).collect();
        let left = if left.is_empty() { String::new() } else { format!("; left here: {}", left.join(", ")) };
        context.say(format_args!("moved {}{left}", print::jobs(moved.moved)));
        if moved.failed > 0 {
            let told =
                print::counted_do(moved.failed, "job", ("was not kept there and has", "were not kept there and have"));
            context.say(format_args!("{told} failed here: windlass ls state:failed"));
        }
    }
    match &moved.refused {
        None => Ok(0),
        Some(why) => {
            let text = format!("the other server did not take the rest, which is back: {why}");
            Err(Failure::new(Kind::TryLater, text).hint("the same command goes on with what is left"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ids_and_selectors_are_told_apart() {
        let read = |words: &[&str]| wanted(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let queues = read(&["mail", "img.thumb"]).unwrap();
        assert_eq!(queues.queues, Some(vec!["mail".to_owned(), "img.thumb".to_owned()]));
        assert!(read(&["j-0123456789-5"]).unwrap().ids.is_some());
        assert_eq!(read(&["queue:mail", "age>1h"]).unwrap().selector.as_deref(), Some("queue:mail age>1h"));
        assert_eq!(read(&["r-0123456789"]).unwrap_err().kind, Kind::Usage);
    }
}
