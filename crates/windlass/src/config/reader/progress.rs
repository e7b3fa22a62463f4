//! `[progress]`: the memcached in which progress is kept for others.

use super::Table;
use crate::error::Failure;
use crate::memcached::{KEEP_MAX, ProgressOptions};
use crate::when;
use std::time::Duration;
use windlass_core::progress::KeyTemplate;

pub(super) fn read(table: &Table<'_, '_>, default: ProgressOptions) -> Result<ProgressOptions, Failure> {
    table.only(&["memcached", "key", "keep"])?;
    let memcached = table.map("memcached", str::parse)?;
    let keep = table.map("keep", |text| match when::duration(text)? {
        keep if (Duration::from_secs(1)..=KEEP_MAX).contains(&keep) => Ok(keep),
        _ => Err(format!("{text:?} is no life time that a memcached takes, expected 1s to 30d")),
    })?;
    Ok(ProgressOptions {
        memcached: memcached.or(default.memcached),
        key: table.map("key", KeyTemplate::read)?.unwrap_or(default.key),
        keep: keep.unwrap_or(default.keep),
    })
}
