//! `[store]` and `[nudge]`: where the jobs are, and who may say that there are new ones.
//!
//! What is read here is laid over what the files before it said, key by key.

use super::{Table, positive};
use crate::config::Config;
use crate::error::Failure;
use crate::store::place::{JobsTable, StorePlace, check_name};
use std::net::SocketAddr;
use std::time::Duration;
use toml::Spanned;
use toml::de::DeValue;

/// A shorter lease would end between two signs of life; a longer one keeps a dead server's jobs for too long.
const LEASE_LEAST: Duration = Duration::from_secs(1);
const LEASE_MOST: Duration = Duration::from_secs(3600);

pub(super) fn read(root: &Table<'_, '_>, config: &mut Config) -> Result<(), Failure> {
    match root.get("store").map(Spanned::get_ref) {
        None => {}
        // The short form of a table with nothing but an address.
        Some(DeValue::String(_)) => {
            config.store =
                root.map("store", str::parse)?.map(JobsTable::new).map_or_else(StorePlace::default, StorePlace::Table);
        }
        Some(_) => {
            if let Some(table) = root.section("store")? {
                config.store = read_store(&table, &config.store)?;
            }
        }
    }
    if let Some(table) = root.section("nudge")? {
        table.only(&["udp"])?;
        let udp = table.map("udp", |text| {
            let refused = |_| format!("cannot read the address {text:?}, expected one such as 127.0.0.1:4488");
            text.parse::<SocketAddr>().map_err(refused)
        })?;
        config.nudge = udp.or(config.nudge);
    }
    Ok(())
}

fn read_store(table: &Table<'_, '_>, before: &StorePlace) -> Result<StorePlace, Failure> {
    table.only(&["url", "table", "schema", "map", "keep", "keep_most", "lease"])?;
    let mut store = match (table.map("url", str::parse)?, before) {
        (Some(database), StorePlace::Table(before)) => JobsTable { database, ..before.clone() },
        (Some(database), StorePlace::Embedded) => JobsTable::new(database),
        (None, StorePlace::Table(before)) => before.clone(),
        (None, StorePlace::Embedded) => {
            let place = table.table.iter().map(|(key, _)| key.span()).min_by_key(|span| span.start);
            let why = "[store] has no `url`, expected postgres://…, mysql://… or sqlite:PATH";
            return match place {
                Some(place) => Err(table.source.refuse(place, why)),
                None => Ok(StorePlace::Embedded),
            };
        }
    };
    let name = |text: &str| check_name(text).map(|()| text.to_owned());
    store.table = table.map("table", name)?.unwrap_or(store.table);
    let in_schema = |schema: &str| {
        let mut there = store.clone();
        there.set_schema(schema).map(|()| there)
    };
    store = table.map("schema", in_schema)?.unwrap_or(store);
    store.keep = table.map("keep", str::parse)?.unwrap_or(store.keep);
    store.keep_most = table.number("keep_most", 1)?.map(u64::from).or(store.keep_most);
    let lease = |text: &str| match positive(text)? {
        lease if (LEASE_LEAST..=LEASE_MOST).contains(&lease) => Ok(lease),
        _ => Err(format!("{text:?} is no lease of a server, expected 1s to 1h")),
    };
    store.lease = table.map("lease", lease)?.unwrap_or(store.lease);
    read_map(table, &mut store)?;
    Ok(StorePlace::Table(store))
}

fn read_map(table: &Table<'_, '_>, store: &mut JobsTable) -> Result<(), Failure> {
    let Some(value) = table.get("map") else { return Ok(()) };
    let DeValue::Table(map) = value.get_ref() else {
        return Err(table.wrong("map", value, "a table such as { name = \"kind\" }"));
    };
    for (column, name) in map {
        let column_name = column.get_ref().as_ref();
        let text = name.get_ref().as_str().ok_or_else(|| table.wrong(column_name, name, "the name of a column"))?;
        store.rename(column_name, text).map_err(|why| table.source.refuse(column.span(), &format!("`map`: {why}")))?;
    }
    Ok(())
}
