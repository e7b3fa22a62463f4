//! The keys of a queue whose jobs another server takes over.
//!
//! The address is judged as every URL is; the file with the other server's token is read for each lot, so that a new
//! token needs no reload, and it must be there when the config is read.

use super::Table;
use super::url::{is_inside, parse, refuse_address};
use crate::error::Failure;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use windlass_core::policy::Forward;

pub(super) fn read_forward(table: &Table<'_, '_>, hosts: &[String], enabled: bool) -> Result<Forward, Failure> {
    for key in ["environment", "directory", "attempts", "on_failure", "notify", "time_limit", "unique"] {
        if table.get(key).is_some() {
            let text = format!("`{key}` does nothing where another server has the jobs; what stands there holds");
            return Err(table.refuse_value(key, &text));
        }
    }
    let text = table.text("forward")?.unwrap_or_default();
    let refuse = |why: String| table.refuse_value("forward", &format!("`forward`: {why}"));
    let to = target(text, hosts).map_err(refuse)?;
    refuse_address(table, "forward", &to.host, enabled)?;
    let Some(name) = table.text("token_file")? else { return Ok(to) };
    let base = table.source.path.parent().unwrap_or(Path::new(""));
    let path = std::path::absolute(base.join(name)).map_err(|e| table.refuse_value("token_file", &e.to_string()))?;
    if enabled {
        let refuse = |why| table.refuse_value("token_file", &format!("`token_file` {}: {why}", path.display()));
        token_file(&path).map_err(refuse)?;
    }
    Ok(Forward { token_file: Some(path.display().to_string()), ..to })
}

/// Takes the address of another server apart; whether it leads inside is said by the list.
pub(crate) fn target(text: &str, hosts: &[String]) -> Result<Forward, String> {
    let (mut host, base) = parse(text)?;
    if base.contains(['?', '{']) {
        return Err(format!("{text:?} is no server's address, expected http://HOST:PORT"));
    }
    host.inside = is_inside(&host, hosts);
    Ok(Forward { host, base: base.trim_end_matches('/').to_owned(), token_file: None, address_file: None })
}

/// Whether a file can hold a token that is nobody else's business.
pub(crate) fn token_file(path: &Path) -> Result<(), String> {
    let meta = path.metadata().map_err(|e| e.to_string())?;
    if !meta.is_file() || meta.len() > 4096 {
        return Err("is not a small file".into());
    }
    if meta.mode() & 0o007 != 0 {
        return Err("everybody can read or write it".into());
    }
    Ok(())
}
