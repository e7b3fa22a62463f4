//! What the archive keeps of a page beside its address: the message of its job.

use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) status: u16,
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) bytes: u64,
    /// Where a redirect leads.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) to: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) skipped: Option<Skipped>,
}

/// Why a page was not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Skipped {
    /// Another job had it.
    Known,
    Robots,
    MaxPages,
}

impl Note {
    pub(super) fn skipped(why: Skipped) -> Note {
        Note { skipped: Some(why), ..Note::default() }
    }

    pub(super) fn read(message: &str) -> Option<Note> {
        serde_json::from_str(message).ok()
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(status: &u16) -> bool {
    *status == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back_as_they_were() {
        let page = Note { status: 200, kind: "text/html".into(), bytes: 5, ..Note::default() };
        for (note, text) in [
            (page, r#"{"status":200,"type":"text/html","bytes":5}"#),
            (Note::skipped(Skipped::MaxPages), r#"{"bytes":0,"skipped":"max_pages"}"#),
        ] {
            assert_eq!(note.to_string(), text);
            assert_eq!(Note::read(text), Some(note));
        }
        assert_eq!(Note::read("done"), None);
    }
}
