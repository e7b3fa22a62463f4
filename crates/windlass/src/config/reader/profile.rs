//! `[profile.NAME]`: a name for a data directory or a server, chosen with `-P NAME`; read by verbs, and checked with
//! the rest.

use super::super::Profile;
use super::{Source, Table, quoted};
use crate::config::units::nearest;
use crate::error::{Failure, Kind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

const KEYS: [&str; 4] = ["dir", "config", "server", "token_file"];

pub(super) fn read(root: &Table<'_, '_>) -> Result<BTreeMap<String, Profile>, Failure> {
    let Some(section) = root.section("profile")? else { return Ok(BTreeMap::new()) };
    let read = section.table.iter().map(|(name, value)| {
        let title = format!("[profile.{}]", quoted(name.get_ref()));
        let DeValue::Table(table) = value.get_ref() else {
            return Err(root
                .source
                .refuse(value.span(), &format!("{title} is {}, expected a table", super::article(value))));
        };
        Ok((name.get_ref().to_string(), profile(&Table { source: root.source, title, table })?))
    });
    read.collect()
}

fn profile(table: &Table<'_, '_>) -> Result<Profile, Failure> {
    table.only(&KEYS)?;
    let base = table.source.path.parent().unwrap_or(Path::new(""));
    // A relative one is meant from where the file stands.
    let path = |text: &str| match text {
        "" => Err("the name is empty".to_owned()),
        text => std::path::absolute(base.join(text)).map_err(|e| e.to_string()),
    };
    Ok(Profile {
        dir: table.map("dir", path)?,
        config: table.map("config", path)?,
        server: table.text("server")?.map(str::to_owned),
        token_file: table.map("token_file", path)?,
    })
}

/// One profile of a text, whatever else stands in it: a verb must not fail over the config of a server.
pub(in crate::config) fn of_text(path: &Path, text: &str, name: &str) -> Result<Profile, Failure> {
    let source = Source { path, text, asks_machine: false };
    let mut parsed: DeTable<'_> = source.parse_only()?;
    // Other tables may have variables that only their server has.
    if let Some(profiles) = parsed.get_mut("profile") {
        super::variables::fill_value(profiles, &source)?;
    }
    let mut profiles = read(&Table { source: &source, title: "the file".into(), table: &parsed })?;
    let found = profiles.remove(name);
    found.ok_or_else(|| {
        let names: Vec<&str> = profiles.keys().map(String::as_str).collect();
        let failure = Failure::new(Kind::Config, format!("{} has no [profile.{}]", path.display(), quoted(name)));
        match (nearest(name, &names), names.is_empty()) {
            (Some(near), _) => failure.hint(format!("did you mean {near}?")),
            (None, false) => failure.hint(format!("it has {}", names.join(", "))),
            (None, true) => failure.hint(format!("write one: [profile.{}] with dir = \"DIR\"", quoted(name))),
        }
    })
}

/// No file to look for profiles in.
pub(in crate::config) fn no_file(name: &str, looked: &[PathBuf]) -> Failure {
    let looked: Vec<String> = looked.iter().map(|path| path.display().to_string()).collect();
    let text = format!("no profile {name:?}: there is no config to find it in ({})", looked.join(", "));
    Failure::new(Kind::Config, text).hint(format!("write [profile.{}] with dir = \"DIR\" there", quoted(name)))
}
