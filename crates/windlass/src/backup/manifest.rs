//! The list at the end of a backup: every file with its length and checksum, and a checksum of the list itself.
//!
//! ```text
//! windlass backup 1
//! made 2026-11-16T00:00:00Z turn 17
//! 5f3a9c01 4096 state.db
//! end 9d2c4411 1
//! ```

use crate::error::{Failure, Kind};
use crate::when;
use std::collections::BTreeMap;
use windlass_core::time::Time;

/// The name of the list in a backup; it comes last.
pub(super) const NAME: &str = "MANIFEST";
const VERSION: u32 = 1;

/// Length and checksum of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) length: u64,
    pub(super) crc: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) files: BTreeMap<String, Sum>,
}

impl Manifest {
    /// The lines before the list.
    pub(super) fn head(turn: u64, made: Time) -> String {
        format!("windlass backup {VERSION}\nmade {} turn {turn}\n", when::rfc3339(made))
    }

    pub(super) fn to_text(&self, head: &str) -> String {
        let mut text = head.to_owned();
        for (name, sum) in &self.files {
            text.push_str(&format!("{:08x} {} {name}\n", sum.crc, sum.length));
        }
        let crc = crc32fast::hash(text.as_bytes());
        text.push_str(&format!("end {crc:08x} {}\n", self.files.len()));
        text
    }

    /// Reads a list and believes nothing of it before its own checksum is right.
    pub(super) fn parse(text: &str) -> Result<Manifest, Failure> {
        let bad = |why: &str| Failure::new(Kind::BadData, format!("its manifest {why}"));
        let first = text.lines().next().unwrap_or_default();
        let version = first.strip_prefix("windlass backup ").and_then(|version| version.parse::<u32>().ok());
        match version {
            Some(VERSION) => {}
            Some(newer) if newer > VERSION => {
                let text = format!("the backup has format {newer}, this program knows formats up to {VERSION}");
                return Err(Failure::new(Kind::Version, text).hint("use the newer windlass that made it"));
            }
            Some(_) | None => return Err(bad("does not begin with `windlass backup N`")),
        }
        let end = text.rfind("end ").filter(|at| text[..*at].ends_with('\n')).ok_or_else(|| bad("has no end"))?;
        let mut last = text[end..].split_whitespace().skip(1);
        let crc = last.next().and_then(|crc| u32::from_str_radix(crc, 16).ok());
        let count = last.next().and_then(|count| count.parse::<usize>().ok());
        if crc != Some(crc32fast::hash(&text.as_bytes()[..end])) {
            return Err(bad("is damaged"));
        }
        let mut files = BTreeMap::new();
        for line in text[..end].lines().skip(2) {
            let mut parts = line.splitn(3, ' ');
            let crc = parts.next().and_then(|crc| u32::from_str_radix(crc, 16).ok());
            let length = parts.next().and_then(|length| length.parse().ok());
            match (crc, length, parts.next().filter(|name| is_safe(name))) {
                (Some(crc), Some(length), Some(name)) => files.insert(name.to_owned(), Sum { length, crc }),
                _ => return Err(bad(&format!("has a strange line: {line:?}"))),
            };
        }
        if count != Some(files.len()) {
            return Err(bad("has lost lines"));
        }
        Ok(Manifest { files })
    }
}

/// A name that stays within the directory: one or two plain parts.
pub(super) fn is_safe(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    let plain = |part: &&str| !part.is_empty() && !part.starts_with('.') && !part.contains(char::is_control);
    parts.len() <= 2 && parts.iter().all(plain) && name != NAME
}
