//! What a server stands on: a store that is open, and what the parts beside the engine need of it.
//!
//! A data directory belongs to one place of its jobs: where they are in a database, the file `store` says so, because
//! what was read from the inbox is known there and nowhere else. This file must not start anything.

use crate::data_dir::{DataDir, STORE_NOTE, boot_id, write_durably};
use crate::error::{Failure, Kind};
use crate::http::OpenView;
use crate::store::embedded::{BodyWriter, Embedded, View};
use crate::store::place::{JobsTable, StorePlace};
use crate::store::sql::{SqlOptions, SqlStore, SqlView};
use crate::store::{Filter, StoreError, StoreView};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use windlass_core::job::{Arrival, Origin};

/// The file with what tells this server from others, drawn once.
const SERVER_NOTE: &str = "server";
/// A server's name has to fit into a column of forty characters, with a number behind it.
const HOST_MOST: usize = 16;

/// An open store, and what comes with it.
pub struct Ground<S> {
    pub store: S,
    /// Random, for the ids that this opening gives out.
    pub origin: Origin,
    /// False after a reboot and for a new store: what was claimed then was not killed by its jobs.
    pub same_boot: bool,
    /// How its committed state is read.
    pub view: OpenView,
    /// Who brings the bodies of large lots to disk before they are admitted, where the store has one.
    pub bodies: Option<BodyWriter>,
    /// How the store is listened to, where it says of itself that there is work.
    pub speaks: Option<SqlOptions>,
}

impl<S> std::fmt::Debug for Ground<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ground").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Ground<Embedded> {
    /// The data directory itself.
    pub fn embedded(dir: &DataDir) -> Result<Ground<Embedded>, Failure> {
        let (store, opened) = Embedded::open(dir, &boot_id())?;
        let (bodies, state_db) = (Some(store.body_writer()), dir.state_db());
        let view: OpenView = Arc::new(move || Ok(Box::new(View::open(&state_db)?) as Box<dyn StoreView + Send>));
        Ok(Ground { store, origin: opened.origin, same_boot: opened.same_boot, view, bodies, speaks: None })
    }
}

impl Ground<SqlStore> {
    /// A table of a database, which others may use as well; the options say how it is opened but for who does.
    pub fn table(table: &JobsTable, dir: &DataDir, options: SqlOptions) -> Result<Ground<SqlStore>, Failure> {
        let (outbox, server) = (Some(dir.root().join("outbox")), server_name(dir)?);
        let options = SqlOptions { outbox, server, ..options };
        let store = SqlStore::open(options.clone()).map_err(|error| unready(error, table))?;
        let speaks = Some(options.clone()).filter(|_| table.speaks());
        let shared = Arc::new(SqlView::open(options)?);
        let view: OpenView = Arc::new(move || Ok(Box::new(Arc::clone(&shared)) as Box<dyn StoreView + Send>));
        let random = getrandom::u64().map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))?;
        let same_boot = same_boot(dir)?;
        Ok(Ground { store, origin: Origin::from_random(random), same_boot, view, bodies: None, speaks })
    }
}

/// A table that lacks something says what to do about it, and so does a database that nobody finds.
fn unready(error: StoreError, table: &JobsTable) -> Failure {
    let hint = match error {
        StoreError::Away(_) => "is the address right, and does the database run? what is pushed meanwhile is kept",
        _ => "windlass attach says what a table lacks, and adds it with --apply",
    };
    let failure = Failure::from(error);
    Failure { text: format!("cannot use {table}: {}", failure.text), ..failure }.hint(hint)
}

/// What this server is called among others on the same table: the same after a restart, and another one for a copy of
/// the data directory.
fn server_name(dir: &DataDir) -> Result<String, Failure> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (host, machine) = (read("/proc/sys/kernel/hostname"), read("/etc/machine-id"));
    let file = dir.root().join(SERVER_NOTE);
    let own = match std::fs::read_to_string(&file) {
        Ok(own) => own,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let random =
                getrandom::u64().map_err(|e| Failure::new(Kind::Internal, format!("no random numbers: {e}")))?;
            let own = format!("{random:016x}\n");
            write_durably(dir.root(), SERVER_NOTE, own.as_bytes())
                .map_err(|e| Failure::io(format_args!("cannot write {}", file.display()), &e))?;
            own
        }
        Err(error) => return Err(Failure::io(format_args!("cannot read {}", file.display()), &error)),
    };
    let parts = [host.as_bytes(), machine.as_bytes(), own.as_bytes(), dir.root().as_os_str().as_bytes()];
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-' || *c == '.';
    let host: String = host.chars().filter(plain).take(HOST_MOST).collect();
    Ok(format!("{host}-{:08x}", hasher.finalize()))
}

/// Whether the machine has gone on since this was asked last; notes what it is now.
fn same_boot(dir: &DataDir) -> Result<bool, Failure> {
    let (file, now) = (dir.run().join("boot"), boot_id());
    let same = std::fs::read_to_string(&file).is_ok_and(|noted| noted.trim() == now);
    if !same {
        write_durably(&dir.run(), "boot", now.as_bytes())
            .map_err(|e| Failure::io(format_args!("cannot write {}", file.display()), &e))?;
    }
    Ok(same)
}

/// Holds that this data directory goes with that place, and notes it where it is new. The caller has the lock.
pub(super) fn belongs(dir: &DataDir, place: &StorePlace) -> Result<(), Failure> {
    let (file, root) = (dir.store_note(), dir.root().display());
    let noted = match std::fs::read_to_string(&file) {
        Ok(noted) => Some(noted.trim().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::io(format_args!("cannot read {}", file.display()), &error)),
    };
    let wanted = place.table().map(|table| table.identity());
    let refused = |text: String, hint: &str| Err(Failure::new(Kind::Config, text).hint(hint));
    match (noted, wanted) {
        (noted, wanted) if noted == wanted => Ok(()),
        (None, None) => Ok(()),
        (Some(noted), None) => {
            let text = format!("the jobs of {root} are in {noted}, and no store was named");
            refused(text, "name it with --store URL, WINDLASS_STORE or [store] of the config")
        }
        (Some(noted), Some(wanted)) => {
            let text = format!("the jobs of {root} are in {noted}, and {wanted} was named");
            refused(text, "name another --dir; or remove its file `store` if both names mean the same table")
        }
        (None, Some(_)) if holds_jobs(dir)? => {
            let text = format!("{root} has jobs of its own, and {place} was named");
            refused(
                text,
                "name another --dir for this store; `windlass export` and `import` take jobs from one to another",
            )
        }
        (None, Some(wanted)) => write_durably(dir.root(), STORE_NOTE, format!("{wanted}\n").as_bytes())
            .map_err(|e| Failure::io(format_args!("cannot write {}", file.display()), &e)),
    }
}

/// Whether the embedded store of this directory has jobs, or has read some of an inbox file.
fn holds_jobs(dir: &DataDir) -> Result<bool, Failure> {
    if !dir.state_db().exists() {
        return Ok(false);
    }
    let view = View::open(&dir.state_db())?;
    Ok(!view.cursors()?.is_empty() || !view.list(&Filter::default(), Arrival(0), 1)?.jobs.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::store::chunk::ChunkBuilder;
    use crate::store::{Durability, Lot, NewJobs, Store};
    use windlass_core::job::{Priority, QueueName};

    fn table(url: &str) -> StorePlace {
        StorePlace::Table(JobsTable::new(url.parse().unwrap()))
    }

    #[test]
    fn a_directory_belongs_to_one_store() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        belongs(&dir, &StorePlace::Embedded).unwrap();
        drop(Ground::embedded(&dir).unwrap());
        // A store without jobs, which a verb that only asked has made, is in nobody's way.
        belongs(&dir, &table("postgres://ann:not.told@db/app")).unwrap();
        belongs(&dir, &table("postgresql://bob@db:5432/app")).unwrap();
        let told = belongs(&dir, &StorePlace::Embedded).unwrap_err().text;
        assert!(told.contains("postgres://db:5432/app") && !told.contains("not.told"), "{told}");
        assert!(belongs(&dir, &table("postgres://db/other")).unwrap_err().text.contains("was named"));
    }

    #[test]
    fn a_directory_with_jobs_of_its_own_takes_no_other_store() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir::open(place.path()).unwrap();
        let mut ground = Ground::embedded(&dir).unwrap();
        let mut built = ChunkBuilder::new(ground.origin);
        built.push(0, b"x");
        let (queue, jobs) = (QueueName::new(b"q").unwrap(), Arc::new(built.finish()));
        let new = NewJobs { queue, priority: Priority::default(), run: None, not_before: None, jobs };
        ground.store.admit(&Lot { jobs: vec![new], ..Lot::default() }, clock::now()).unwrap();
        ground.store.commit(Durability::Full).unwrap();
        drop(ground);
        assert!(belongs(&dir, &table("sqlite:/a")).unwrap_err().text.contains("jobs of its own"));
        assert!(!dir.store_note().exists());
    }
}
