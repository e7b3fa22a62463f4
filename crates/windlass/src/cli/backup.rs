//! `windlass backup` and `windlass restore`: a data directory as of one moment, and the way back.

use super::Context;
use super::connect::{Carry, Link};
use super::print::{self, counted};
use crate::backup;
use crate::clock;
use crate::config::units::spoken_size;
use crate::data_dir::{DataDir, write_durably};
use crate::error::{Failure, Kind};
use crate::store::place::StorePlace;
use crate::when;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A server that cannot read its inbox, as on a full disk, is not waited for longer: its files are in the backup.
const PATIENCE: Duration = Duration::from_secs(30);

const BACKUP_EXAMPLES: &str = "\
Examples:
  windlass backup /backups/monday.tar
  mkdir /backups/monday; windlass backup /backups/monday";

const RESTORE_EXAMPLES: &str = "\
Examples:
  windlass restore /backups/monday.tar --dir /srv/windlass
  windlass restore --check /backups/monday.tar";

#[derive(Debug, clap::Args)]
#[command(before_help = BACKUP_EXAMPLES)]
pub(super) struct BackupArgs {
    /// A new file, which becomes a tar, or an empty directory
    to: PathBuf,
    /// The config to take along; by default the one that `serve` would read
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(before_help = RESTORE_EXAMPLES)]
pub(super) struct RestoreArgs {
    /// What `backup` made
    from: PathBuf,
    /// Move what is in the directory aside; it is kept, under a name that is said
    #[arg(long)]
    force: bool,
    /// Only read it through and compare it with its checksums
    #[arg(long, conflicts_with = "force")]
    check: bool,
}

pub(super) fn backup(args: &BackupArgs, context: &Context) -> Result<u8, Failure> {
    let dir = context.existing_dir()?;
    if let StorePlace::Table(table) = context.store_of(dir.root())? {
        let text =
            format!("the jobs of {} are in the {table}, which its database has to back up", dir.root().display());
        return Err(
            Failure::new(Kind::Usage, text).hint("what has ended is also in archive/, which can be copied as it is")
        );
    }
    let to = std::path::absolute(&args.to).map_err(|e| Failure::io("cannot use that name", &e))?;
    if within(&to, &dir) {
        let text = format!("{} lies in the data directory itself", args.to.display());
        return Err(Failure::new(Kind::Usage, text).hint("a backup belongs on another disk"));
    }
    let config = context.config_file(args.config.as_deref(), dir.root());
    let mut link = Link::open_in(&dir, &StorePlace::Embedded, Carry::Idle)?;
    // A first page is answered when everything that was in the inbox is in the store, and what has ended is archived.
    link.connection.set_patience(Some(PATIENCE));
    let caught_up = link.connection.get_json::<Value>("/api/v1/jobs?limit=1");
    let made = backup::make(&dir, config.as_deref(), &to);
    let closed = link.close();
    let made = made?;
    closed?;
    let note = format!("{} {}\n", when::rfc3339(clock::now()), to.display());
    if let Err(error) = write_durably(dir.root(), "backup", note.as_bytes()) {
        context.say(format_args!("the backup is whole, but doctor will not know of it: {error}"));
    }
    if let Err(failure) = caught_up {
        context
            .say(format_args!("the server did not read its inbox to the end ({failure}): its files are in the backup"));
    }
    if context.json {
        let to = to.to_string_lossy();
        return print::document(&json!({ "backup": to, "files": made.files, "bytes": made.bytes, "turn": made.turn }));
    }
    let (files, size) = (counted(made.files as u64, "file"), spoken_size(made.bytes));
    context.say(format_args!("wrote {} with {files}, {size}", args.to.display()));
    Ok(0)
}

/// Whether a path that may not exist yet lies in the data directory.
fn within(path: &Path, dir: &DataDir) -> bool {
    let known = path.ancestors().find_map(|ancestor| ancestor.canonicalize().ok());
    known.is_some_and(|known| known.starts_with(dir.root()))
}

pub(super) fn restore(args: &RestoreArgs, context: &Context) -> Result<u8, Failure> {
    if args.check {
        let files = backup::verify(&args.from)?;
        context.say(format_args!("{} is whole: {}", args.from.display(), counted(files as u64, "file")));
        return Ok(0);
    }
    let to = context.dir_path()?;
    let aside = backup::restore(&args.from, &to, args.force)?;
    if context.json {
        let aside = aside.map(|path| path.to_string_lossy().into_owned());
        return print::document(&json!({ "dir": to.to_string_lossy(), "moved_aside": aside }));
    }
    context.say(format_args!("restored {} into {}", args.from.display(), to.display()));
    if let Some(aside) = aside {
        context.say(format_args!("what was there is in {}", aside.display()));
    }
    Ok(0)
}
