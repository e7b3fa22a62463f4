//! The keys of a queue that calls a URL, and which hosts inside may be called at all.
//!
//! A URL is taken apart once, here; data can fill its path and query but never choose its host. The file with the
//! secret is read with the config, so that a reload takes a new one over, whole or not at all.

use super::service::{read_bytes, read_linger, refuse_template};
use super::{Table, Value};
use crate::api::base64;
use crate::error::Failure;
use crate::runner::url::leads_elsewhere;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use toml::de::DeValue;
use windlass_core::address::reach;
use windlass_core::policy::{Framing, Host, Method, Reply, Secret, Url};

/// A signing secret is as long as Standard Webhooks wants it.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The hosts that may be on this machine or in a private network: `NAME:PORT`, or `NAME` for any port.
pub(super) fn read_hosts(limits: &Table<'_, '_>) -> Result<Vec<String>, Failure> {
    let Some(value) = limits.get("hosts") else { return Ok(Vec::new()) };
    let DeValue::Array(array) = value.get_ref() else {
        return Err(limits.wrong("hosts", value, "an array of strings such as [\"127.0.0.1:8080\"]"));
    };
    let host = |value: &Value<'_>| {
        let text = value.get_ref().as_str().ok_or_else(|| limits.wrong("hosts", value, "strings only"))?;
        let why = |why: String| limits.source.refuse(value.span(), &format!("`hosts` has {text:?}: {why}"));
        split(text).map_err(why)?;
        Ok(text.to_ascii_lowercase())
    };
    array.iter().map(host).collect()
}

pub(super) fn read_url(table: &Table<'_, '_>, hosts: &[String], enabled: bool) -> Result<Url, Failure> {
    for key in ["environment", "directory"] {
        if table.get(key).is_some() {
            let text = format!("`{key}` belongs to commands, and {} has `url`", table.title);
            return Err(table.refuse_value(key, &text));
        }
    }
    let text = table.text("url")?.unwrap_or_default();
    let (mut host, target) = parse(text).map_err(|why| table.refuse_value("url", &format!("`url`: {why}")))?;
    host.inside = is_inside(&host, hosts);
    refuse_address(table, "url", &host, enabled)?;
    let default = Url::new(host, target);
    let size = table.count("batch_size")?.unwrap_or(default.size);
    if size > 1 {
        refuse_template(table, "url", &[default.target.clone().into_bytes()])?;
    }
    let url = Url {
        method: table.map("method", method)?.unwrap_or(default.method),
        size,
        bytes: read_bytes(table)?.unwrap_or(default.bytes),
        linger: read_linger(table)?.unwrap_or(default.linger),
        reply: table.map("reply", reply)?.unwrap_or(default.reply),
        framing: table.map("framing", framing)?.unwrap_or(default.framing),
        secret: read_secret(table)?,
        ..default
    };
    if url.method == Method::Get && url.size > 1 {
        return Err(table.refuse_value("method", "`method` is GET, which has no body to carry a batch; expected POST"));
    }
    if url.size == 1
        && let Some(key) =
            ["reply", "framing", "batch_linger", "batch_bytes"].into_iter().find(|key| table.get(key).is_some())
    {
        let text = format!("`{key}` is for calls with many jobs, and `batch_size` is 1");
        return Err(table.refuse_value(key, &text));
    }
    Ok(url)
}

/// Whether a host is on the list of those that may be on this machine or in a private network.
pub(super) fn is_inside(host: &Host, hosts: &[String]) -> bool {
    let name = host.name.to_ascii_lowercase();
    hosts.iter().any(|allowed| match split(allowed) {
        Ok((allowed, port)) => allowed == name && port.is_none_or(|port| port == host.port),
        Err(_) => false,
    })
}

/// An address that may not be called is refused with the config; what a name leads to is judged with each connection.
pub(super) fn refuse_address(table: &Table<'_, '_>, key: &str, host: &Host, enabled: bool) -> Result<(), Failure> {
    if let Ok(address) = host.name.parse::<IpAddr>()
        && enabled
        && !reach(address).is_allowed(host.inside)
    {
        let text = format!("`{key}` leads to {}, {}", host.name, reach(address).words());
        let hint =
            format!("to allow it: [limits] hosts = [\"{}:{}\"]; link-local addresses cannot be", host.name, host.port);
        return Err(table.refuse_value(key, &text).hint(hint));
    }
    Ok(())
}

fn method(text: &str) -> Result<Method, String> {
    match text {
        "GET" => Ok(Method::Get),
        "POST" => Ok(Method::Post),
        other => Err(format!("`method` is {other:?}, expected \"GET\" or \"POST\"")),
    }
}

fn reply(text: &str) -> Result<Reply, String> {
    match text {
        "lines" => Ok(Reply::Lines),
        "status" => Ok(Reply::Exit),
        other => Err(format!("`reply` is {other:?}, expected \"lines\" or \"status\"")),
    }
}

fn framing(text: &str) -> Result<Framing, String> {
    match text {
        "array" => Ok(Framing::Array),
        "json" => Ok(Framing::Json),
        "raw" => Ok(Framing::Raw),
        other => Err(format!("`framing` is {other:?}, expected \"array\", \"json\" or \"raw\"")),
    }
}

/// Takes `http://HOST[:PORT][/PATH][?QUERY]` apart.
pub(super) fn parse(text: &str) -> Result<(Host, String), String> {
    let refuse = |why: &str| Err(format!("{text:?} {why}"));
    let (tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        (None, None) => return refuse("is no URL that can be called, expected http:// or https://"),
    };
    if text.bytes().any(|b| !b.is_ascii_graphic() || matches!(b, b'\\' | b'"' | b'<' | b'>' | b'^' | b'`' | b'|')) {
        return refuse("has a space or another character that must be encoded");
    }
    if text.contains('#') {
        return refuse("has a `#`, and what follows it is never sent");
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    if authority.contains(['{', '}']) {
        return refuse("has a template in its host; data may fill the path and the query only");
    }
    if authority.contains('@') {
        return refuse("has a user in it, which would be kept in a readable file");
    }
    let (name, port) = split(authority).map_err(|why| format!("{text:?}: {why}"))?;
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    if leads_elsewhere(target.as_bytes()) {
        return refuse("has `.` or `..` as a part of its path");
    }
    let port = port.unwrap_or(if tls { 443 } else { 80 });
    Ok((Host { tls, name: name.to_owned(), port, inside: false }, target))
}

/// A host and its port, if it has one; brackets around an IPv6 address are taken off.
fn split(authority: &str) -> Result<(&str, Option<u16>), String> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (name, behind) = rest.split_once(']').ok_or("the address has no closing bracket")?;
            name.parse::<std::net::Ipv6Addr>().map_err(|_| format!("{name} is no IPv6 address"))?;
            (name, behind)
        }
        None => {
            let at = authority.find(':').unwrap_or(authority.len());
            let (name, behind) = authority.split_at(at);
            let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            if name.is_empty() || !name.chars().all(known) {
                return Err(format!("{name:?} is no host"));
            }
            (name, behind)
        }
    };
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok((name, None)),
        None => Err(format!("{port:?} behind the host is no port")),
        Some(port) => match port.parse() {
            Ok(port) if port != 0 => Ok((name, Some(port))),
            _ => Err(format!("{port:?} is no port")),
        },
    }
}

/// The secret as `whsec_` and base64, alone in a file that not everybody reads. It must be there also where the queue
/// is switched off: a person may switch it on, and no call may go out unsigned.
fn read_secret(table: &Table<'_, '_>) -> Result<Option<Secret>, Failure> {
    let Some(text) = table.text("secret_file")? else { return Ok(None) };
    let base = table.source.path.parent().unwrap_or(Path::new(""));
    let path = base.join(text);
    let refuse = |why: String| table.refuse_value("secret_file", &format!("`secret_file` {}: {why}", path.display()));
    let meta = path.metadata().map_err(|e| refuse(e.to_string()))?;
    if !meta.is_file() || meta.len() > 4096 {
        return Err(refuse("is not a small file".into()));
    }
    if meta.mode() & 0o007 != 0 {
        return Err(refuse("everybody can read or write it".into()).hint(format!("chmod o= {}", path.display())));
    }
    let whole = std::fs::read_to_string(&path).map_err(|e| refuse(e.to_string()))?;
    let coded = whole.trim();
    let bytes = base64::decode(coded.strip_prefix("whsec_").unwrap_or(coded));
    match bytes.filter(|bytes| SECRET_BYTES.contains(&bytes.len())) {
        Some(key) => Ok(Some(Secret { file: text.to_owned(), key })),
        None => {
            let hint = "printf 'whsec_%s\\n' \"$(openssl rand -base64 32)\" > FILE makes one";
            Err(refuse("expected whsec_ and the base64 of 24 to 64 bytes".into()).hint(hint))
        }
    }
}
