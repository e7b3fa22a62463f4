//! The real names of tables and columns: what people chose, quoted, in the place of `:word` in our statements.
//!
//! The seed's columns and ours beside them can have other names; our own tables are called after the jobs table. It
//! must not know what a statement does.

use super::dialect::Dialect;
use crate::store::StoreError;
use std::collections::{BTreeMap, HashMap};

/// The seed's columns, as a plain application knows them.
pub const SEED: [&str; 12] = [
    "id",
    "name",
    "data",
    "status",
    "created_at",
    "updated_at",
    "duration",
    "taskable_id",
    "taskable_type",
    "details",
    "locked_queue_id",
    "attempts",
];

/// Our columns beside them. ActiveRecord has no use for a column `errors`: its models cannot have one.
pub const OWN: [&str; 20] = [
    "priority",
    "run_at",
    "state",
    "queue_no",
    "lane_kind",
    "starts",
    "failures",
    "suspicions",
    "run_no",
    "job_origin",
    "job_offset",
    "holder",
    "admitted",
    "ended_at",
    "reason",
    "last_errors",
    "particulars",
    "body",
    "start_by",
    "finish_by",
];

/// Our tables, without the prefix.
pub(super) const TABLES: [&str; 12] = [
    "meta",
    "queues",
    "queue_counts",
    "runs",
    "run_counts",
    "keys",
    "waits",
    "notes",
    "overrides",
    "cursors",
    "outcomes",
    "servers",
];

/// The table that everybody knows if nobody says otherwise.
pub const TABLE: &str = "jobs";
const NAME_MAX: usize = 40;

#[derive(Clone, Debug)]
pub struct Names {
    pub(super) dialect: Dialect,
    pub(super) table: String,
    pub(super) schema: Option<String>,
    /// In front of our tables' names and our indexes'.
    pub(super) prefix: String,
    columns: BTreeMap<String, String>,
    words: HashMap<&'static str, String>,
}

impl Names {
    /// `columns` maps our word for a column to the table's.
    pub fn new(
        dialect: Dialect,
        schema: Option<&str>,
        table: &str,
        columns: &BTreeMap<String, String>,
    ) -> Result<Names, StoreError> {
        let bad = |what: &str, name: &str| {
            StoreError::Io(format!("expected a name of up to {NAME_MAX} letters, digits and _ for {what}, got: {name}"))
        };
        let plain = |name: &str| {
            let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            letters && !name.is_empty() && name.len() <= NAME_MAX && !name.as_bytes()[0].is_ascii_digit()
        };
        for (what, name) in [("the table", Some(table)), ("the schema", schema)] {
            name.filter(|name| !plain(name)).map_or(Ok(()), |name| Err(bad(what, name)))?;
        }
        if let (Some(schema), Some(why)) = (schema, dialect.without_schemas()) {
            return Err(StoreError::Io(format!("{why}, and there is a schema named: {schema}")));
        }
        for (word, name) in columns {
            if !SEED.contains(&word.as_str()) && !OWN.contains(&word.as_str()) {
                return Err(StoreError::Io(format!("no column of ours is called {word}; a map names ours first")));
            }
            if !plain(name) {
                return Err(bad(&format!("the column of {word}"), name));
            }
        }
        let real = |word: &&str| columns.get(*word).map_or_else(|| (*word).to_owned(), String::clone);
        let mut all: Vec<String> = SEED.iter().chain(&OWN).map(real).collect();
        all.sort_unstable();
        if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(StoreError::Io(format!("two columns of ours would be called {}; map one of them", pair[0])));
        }
        let prefix = if table == TABLE { "windlass_".to_owned() } else { format!("windlass_{table}_") };
        let (table, schema) = (table.to_owned(), schema.map(str::to_owned));
        let mut names = Names { dialect, table, schema, prefix, columns: columns.clone(), words: HashMap::new() };
        let columns = SEED.iter().chain(&OWN).map(|word| (*word, dialect.quoted(names.column(word))));
        let tables = TABLES.iter().map(|word| (*word, names.qualified(&format!("{}{word}", names.prefix))));
        let jobs = (TABLE, names.qualified(&names.table));
        names.words = columns.chain(tables).chain([jobs]).collect();
        Ok(names)
    }

    /// The table's name for a column of ours.
    pub fn column<'a>(&'a self, word: &'a str) -> &'a str {
        self.columns.get(word).map_or(word, String::as_str)
    }

    pub(super) fn qualified(&self, table: &str) -> String {
        let table = self.dialect.quoted(table);
        match &self.schema {
            Some(schema) => format!("{}.{table}", self.dialect.quoted(schema)),
            None => table,
        }
    }

    /// A statement with the real names in the place of `:word`.
    pub(super) fn sql(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 64);
        let mut rest = text;
        while let Some(at) = rest.find(':') {
            let (before, after) = (&rest[..at], &rest[at + 1..]);
            out.push_str(before);
            let length = after.bytes().take_while(|byte| byte.is_ascii_lowercase() || *byte == b'_').count();
            match self.words.get(&after[..length]).filter(|_| !out.ends_with(':')) {
                Some(name) => out.push_str(name),
                None => {
                    out.push(':');
                    out.push_str(&after[..length]);
                }
            }
            rest = &after[length..];
        }
        out.push_str(rest);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(table: &str, map: &[(&str, &str)]) -> Result<Names, StoreError> {
        let map = map.iter().map(|(word, name)| ((*word).to_owned(), (*name).to_owned())).collect();
        Names::new(Dialect::Postgres, Some("app"), table, &map)
    }

    #[test]
    fn words_become_names_and_casts_stay() {
        let names = names("jobs", &[("name", "kind_of_work")]).unwrap();
        let sql = names.sql("SELECT :name, $1::bigint[] FROM :jobs JOIN :queue_counts WHERE :job_offset = '00:00'");
        assert_eq!(
            sql,
            "SELECT \"kind_of_work\", $1::bigint[] FROM \"app\".\"jobs\" JOIN \"app\".\"windlass_queue_counts\" \
             WHERE \"job_offset\" = '00:00'"
        );
        assert_eq!(super::Names::sql(&names, ":meta"), "\"app\".\"windlass_meta\"");
    }

    #[test]
    fn names_that_could_be_statements_are_refused() {
        assert!(names("jobs; DROP TABLE x", &[]).is_err());
        assert!(names("", &[]).is_err());
        assert!(names("9", &[]).is_err());
        assert!(names("jobs", &[("name", "a\"b")]).is_err());
        assert!(names("jobs", &[("nothing", "x")]).is_err());
        assert!(names("jobs", &[("name", "priority")]).is_err(), "two columns cannot be one");
        assert_eq!(names("tasks", &[]).unwrap().prefix, "windlass_tasks_");
    }
}
