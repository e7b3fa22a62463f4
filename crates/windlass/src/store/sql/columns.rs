//! The columns of a table as the database has them: of which type they are, and what each has room for.
//!
//! The jobs table may be older than we are. Types that cannot be written to are refused in words before anything is
//! done. Where a column is only too small, what it cannot hold is cut for it, and our own columns have the whole. It
//! must not know what jobs are.

use super::database::{Cells, Database, Value};
use super::dialect::Dialect;
use super::names::Names;
use crate::store::StoreError;
use std::ops::RangeInclusive;

/// The longest word of ours in `status`.
const STATUS_LEAST: usize = 10;

/// A column that is there.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: String,
    /// Its type, in the database's words.
    kind: String,
    holds: Holds,
    /// A row cannot be inserted without it.
    needed: bool,
    /// The database gives it a value by itself.
    filled: bool,
}

/// Which letters a column can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Letters {
    All,
    /// Those of up to three bytes, as in an older MariaDB's `utf8`.
    Short,
    Ascii,
}

/// What a column of text has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holds {
    chars: usize,
    bytes: usize,
    letters: Letters,
}

impl Default for Holds {
    fn default() -> Holds {
        Holds { chars: usize::MAX, bytes: usize::MAX, letters: Letters::All }
    }
}

impl Holds {
    /// Whether this can stand there as it is.
    pub(super) fn takes(&self, text: &str) -> bool {
        let short = text.len() <= self.bytes && (text.len() <= self.chars || text.chars().count() <= self.chars);
        short && text.chars().all(|letter| self.knows(letter))
    }

    fn knows(&self, letter: char) -> bool {
        match self.letters {
            _ if letter == '\0' => false,
            Letters::All => true,
            Letters::Short => letter.len_utf8() <= 3,
            Letters::Ascii => letter.is_ascii(),
        }
    }

    /// As much of it as can stand there, with a mark for each letter that cannot.
    pub(super) fn cut(&self, text: &str) -> String {
        let unknown = if self.letters == Letters::Ascii { '?' } else { '\u{fffd}' };
        let mut left = String::with_capacity(text.len().min(self.bytes));
        for letter in text.chars().take(self.chars) {
            let letter = if self.knows(letter) { letter } else { unknown };
            if left.len() + letter.len_utf8() > self.bytes {
                break;
            }
            left.push(letter);
        }
        left
    }
}

/// What can stand in the column for the record that a job is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Ids {
    /// Nothing that we could write: the job itself knows.
    #[default]
    None,
    Numbers(RangeInclusive<i64>),
    Texts(Holds),
}

/// What the columns of the jobs table have room for.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    pub(super) name: Holds,
    pub(super) data: Holds,
    pub(super) details: Holds,
    pub(super) lock: Holds,
    pub(super) subject_type: Holds,
    pub(super) subject_id: Ids,
}

impl Room {
    pub(super) fn of(db: &mut Database, names: &Names) -> Result<Room, StoreError> {
        let columns = columns(db, names, &names.table)?;
        let holds = |word| find(&columns, names, word).map(|column| column.holds).unwrap_or_default();
        let subject_id = find(&columns, names, "taskable_id").map(|column| ids(names.dialect, column));
        Ok(Room {
            name: holds("name"),
            data: holds("data"),
            details: holds("details"),
            lock: holds("locked_queue_id"),
            subject_type: holds("taskable_type"),
            subject_id: subject_id.unwrap_or_default(),
        })
    }
}

fn find<'a>(columns: &'a [Column], names: &Names, word: &str) -> Option<&'a Column> {
    columns.iter().find(|column| column.name.eq_ignore_ascii_case(names.column(word)))
}

fn ids(dialect: Dialect, column: &Column) -> Ids {
    if dialect == Dialect::Sqlite {
        return Ids::Numbers(i64::MIN..=i64::MAX);
    }
    match column.kind.as_str() {
        "tinyint" => Ids::Numbers(0..=i64::from(i8::MAX)),
        "smallint" => Ids::Numbers(0..=i64::from(i16::MAX)),
        "mediumint" => Ids::Numbers(0..=(1 << 23) - 1),
        "integer" | "int" => Ids::Numbers(0..=i64::from(i32::MAX)),
        "bigint" => Ids::Numbers(0..=i64::MAX),
        _ if is_text(dialect, &column.kind) => Ids::Texts(column.holds),
        _ => Ids::None,
    }
}

fn is_text(dialect: Dialect, kind: &str) -> bool {
    match dialect {
        Dialect::Postgres => matches!(kind, "text" | "character varying"),
        Dialect::Mariadb => matches!(kind, "varchar" | "tinytext" | "text" | "mediumtext" | "longtext"),
        Dialect::Sqlite => true,
    }
}

fn is_whole(dialect: Dialect, kind: &str) -> bool {
    match dialect {
        Dialect::Postgres | Dialect::Mariadb => {
            matches!(kind, "tinyint" | "smallint" | "mediumint" | "int" | "integer" | "bigint")
        }
        // A type is a hint there, but for the key, which is a number only where it is called one.
        Dialect::Sqlite => kind.contains("int"),
    }
}

fn is_time(dialect: Dialect, kind: &str) -> bool {
    match dialect {
        Dialect::Postgres => kind.starts_with("timestamp"),
        Dialect::Mariadb => matches!(kind, "datetime" | "timestamp"),
        Dialect::Sqlite => true,
    }
}

/// Refuses a jobs table with columns that cannot be what they are called.
pub(super) fn refuse_types(columns: &[Column], names: &Names) -> Result<(), StoreError> {
    let dialect = names.dialect;
    for word in super::names::SEED {
        let Some(column) = find(columns, names, word) else { continue };
        let kind = column.kind.as_str();
        let number = || is_whole(dialect, kind) || dialect == Dialect::Sqlite || matches!(kind, "numeric" | "decimal");
        let (fits, expected) = match word {
            "id" => (is_whole(dialect, kind), "a whole number"),
            "created_at" | "updated_at" => (is_time(dialect, kind), "a time"),
            "attempts" | "duration" => (number(), "a number"),
            // The job itself knows what it is about.
            "taskable_id" => (true, "anything"),
            _ => (is_text(dialect, kind), "text"),
        };
        let small = word == "status" && column.holds.chars < STATUS_LEAST;
        if fits && !small {
            continue;
        }
        let (table, name) = (&names.table, &column.name);
        let what = match fits {
            true => format!("for {} characters, expected at least {STATUS_LEAST}", column.holds.chars),
            false => format!("of type {kind}, expected {expected}"),
        };
        let instead = match (dialect, word) {
            (Dialect::Sqlite, "id") => format!("make the table anew with `{name} integer PRIMARY KEY`"),
            _ => format!("--map {word}=NAME names another one, which is added where it is not there"),
        };
        return Err(StoreError::Io(format!("the table `{table}` has a column `{name}` {what}: {instead}")));
    }
    Ok(())
}

/// Refuses a jobs table with a column of the application that has no default and must have a value: no job of ours
/// would be let in.
pub(super) fn refuse_without_default(columns: &[Column], names: &Names) -> Result<(), StoreError> {
    let ours = |column: &&Column| {
        let mut words = super::names::SEED.iter().chain(&super::names::OWN);
        words.any(|word| column.name.eq_ignore_ascii_case(names.column(word)))
    };
    match columns.iter().find(|column| column.needed && !ours(column)) {
        None => Ok(()),
        Some(column) => Err(StoreError::Io(format!(
            "the table `{}` has a column `{}` without a default that must not be null, so no job could be pushed: give \
             it a default, or let it be null",
            names.table, column.name
        ))),
    }
}

/// Refuses what is called as the jobs table and is none.
pub(super) fn refuse_view(db: &mut Database, names: &Names) -> Result<(), StoreError> {
    match is_view(db, names)? {
        true => Err(StoreError::Io(format!("`{}` is a view, expected a table", names.table))),
        false => Ok(()),
    }
}

/// Refuses a table whose rows have no number of their own: a job that we push would have none, and nobody would find
/// it.
pub(super) fn refuse_unnumbered(db: &mut Database, columns: &[Column], names: &Names) -> Result<(), StoreError> {
    let (dialect, table) = (names.dialect, &names.table);
    if columns.is_empty() {
        return Ok(());
    }
    let name = names.column("id");
    let Some(column) = find(columns, names, "id") else {
        return match dialect {
            Dialect::Postgres | Dialect::Mariadb => Ok(()),
            Dialect::Sqlite => Err(StoreError::Io(format!(
                "the table `{table}` has no column `{name}`, and SQLite adds no key to a table that is there: make it \
                 anew with `{name} integer PRIMARY KEY`"
            ))),
        };
    };
    if !column.filled {
        let how = match dialect {
            Dialect::Postgres => format!("ALTER TABLE {table} ALTER {name} ADD GENERATED BY DEFAULT AS IDENTITY"),
            Dialect::Mariadb => format!("ALTER TABLE {table} MODIFY {name} {} AUTO_INCREMENT UNIQUE", column.kind),
            Dialect::Sqlite => format!("make the table anew with `{name} integer PRIMARY KEY`"),
        };
        return Err(StoreError::Io(format!(
            "the table `{table}` does not number its rows: `{name}` has no value where an INSERT names none, and no \
             job could be pushed: {how}"
        )));
    }
    if !is_key(db, names)? {
        return Err(StoreError::Io(format!(
            "two rows of the table `{table}` could have the same `{name}`: ALTER TABLE {table} ADD UNIQUE ({name})"
        )));
    }
    Ok(())
}

fn is_view(db: &mut Database, names: &Names) -> Result<bool, StoreError> {
    let (sql, mut params) = match names.dialect {
        Dialect::Postgres => (
            "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = coalesce($1, current_schema()) AND c.relname = $2 AND c.relkind NOT IN ('r', 'p')",
            vec![Value::Text(names.schema.clone())],
        ),
        Dialect::Mariadb => (
            "SELECT count(*) FROM information_schema.tables \
             WHERE table_schema = coalesce($1, database()) AND table_name = $2 AND table_type LIKE '%VIEW%'",
            vec![Value::Text(names.schema.clone())],
        ),
        Dialect::Sqlite => ("SELECT count(*) FROM sqlite_master WHERE name = $1 AND type = 'view'", Vec::new()),
    };
    params.push(names.table.as_str().into());
    Ok(db.one(sql, &params)?.int()? > 0)
}

/// Whether a row is found by its number, and no other has it.
fn is_key(db: &mut Database, names: &Names) -> Result<bool, StoreError> {
    let sql = match names.dialect {
        // In a table of several parts the key has what divides it, too.
        Dialect::Postgres => {
            "SELECT count(*) FROM pg_index x JOIN pg_class t ON t.oid = x.indrelid \
             JOIN pg_namespace n ON n.oid = t.relnamespace \
             JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = x.indkey[0] \
             WHERE n.nspname = coalesce($1, current_schema()) AND t.relname = $2 AND a.attname = $3 \
             AND x.indisunique AND x.indisvalid AND x.indpred IS NULL"
        }
        Dialect::Mariadb => {
            "SELECT count(*) FROM information_schema.statistics \
             WHERE table_schema = coalesce($1, database()) AND table_name = $2 AND column_name = $3 \
             AND non_unique = 0 AND seq_in_index = 1"
        }
        // What numbers rows there is their key.
        Dialect::Sqlite => return Ok(true),
    };
    let params = [Value::Text(names.schema.clone()), names.table.as_str().into(), names.column("id").into()];
    Ok(db.one(sql, &params)?.int()? > 0)
}

/// The type of a column of the jobs table, in the database's words; none where it is not there.
pub(super) fn type_of(db: &mut Database, names: &Names, word: &str) -> Result<Option<String>, StoreError> {
    let columns = columns(db, names, &names.table)?;
    Ok(find(&columns, names, word).map(|column| column.kind.clone()))
}

/// The columns of a table; none where it is not there. PostgreSQL's `information_schema` hides what a user may not
/// touch: a table that is there would be made once more.
pub(super) fn columns(db: &mut Database, names: &Names, table: &str) -> Result<Vec<Column>, StoreError> {
    let (sql, params): (&str, Vec<Value>) = match names.dialect {
        Dialect::Postgres => (
            "SELECT a.attname::text, format_type(coalesce(nullif(t.typbasetype, 0), a.atttypid), NULL)::text, \
             CASE WHEN coalesce(nullif(t.typbasetype, 0), a.atttypid) IN ('varchar'::regtype, 'bpchar'::regtype) \
             AND greatest(a.atttypmod, t.typtypmod) > 4 THEN greatest(a.atttypmod, t.typtypmod) - 4 END::bigint, \
             NULL::bigint, \
             (SELECT pg_encoding_to_char(encoding)::text FROM pg_database WHERE datname = current_database()), \
             CASE WHEN a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' THEN 1 ELSE 0 END, \
             CASE WHEN a.atthasdef OR a.attidentity <> '' THEN 1 ELSE 0 END \
             FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = coalesce($1, current_schema()) AND c.relname = $2 \
             AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            vec![Value::Text(names.schema.clone()), table.into()],
        ),
        Dialect::Mariadb => (
            "SELECT column_name, data_type, character_maximum_length, character_octet_length, character_set_name, \
             CASE WHEN is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%auto_increment%' \
             AND extra NOT LIKE '%GENERATED%' THEN 1 ELSE 0 END, \
             CASE WHEN extra LIKE '%auto_increment%' OR coalesce(column_default, 'NULL') <> 'NULL' THEN 1 ELSE 0 END \
             FROM information_schema.columns \
             WHERE table_schema = coalesce($1, database()) AND table_name = $2 ORDER BY ordinal_position",
            vec![Value::Text(names.schema.clone()), table.into()],
        ),
        Dialect::Sqlite => (
            "SELECT name, lower(type), NULL, NULL, NULL, \"notnull\" AND dflt_value IS NULL AND pk = 0, \
             lower(type) = 'integer' AND pk = 1 AND (SELECT max(pk) FROM pragma_table_info($1)) = 1 \
             AND NOT EXISTS (SELECT 1 FROM pragma_table_list WHERE name = $1 AND wr) \
             FROM pragma_table_info($1)",
            vec![table.into()],
        ),
    };
    db.query(sql, &params)?.iter_mut().map(column).collect()
}

fn column(cells: &mut Cells) -> Result<Column, StoreError> {
    let (name, kind) = (cells.text()?, cells.text()?.to_ascii_lowercase());
    let most = |most: Option<i64>| most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let (chars, bytes) = (most(cells.maybe_int()?), most(cells.maybe_int()?));
    let letters = match cells.maybe_text()?.as_deref() {
        None | Some("UTF8" | "utf8mb4") => Letters::All,
        Some("utf8mb3" | "utf8") => Letters::Short,
        Some(_) => Letters::Ascii,
    };
    let (needed, filled) = (cells.int()? != 0, cells.int()? != 0);
    Ok(Column { name, kind, holds: Holds { chars, bytes, letters }, needed, filled })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_column_cannot_hold_is_cut() {
        let holds = |chars, bytes, letters| Holds { chars, bytes, letters };
        let all = Holds::default();
        assert!(all.takes("gr\u{fc}n \u{1f600}") && !all.takes("a\0b"));
        assert_eq!(all.cut("a\0b"), "a\u{fffd}b");
        let short = holds(4, usize::MAX, Letters::Short);
        assert!(short.takes("gr\u{fc}n") && !short.takes("green") && !short.takes("\u{1f600}"));
        assert_eq!(short.cut("\u{1f600}green"), "\u{fffd}gre");
        let plain = holds(usize::MAX, 3, Letters::Ascii);
        assert!(plain.takes("abc") && !plain.takes("abcd") && !plain.takes("\u{fc}"));
        assert_eq!(plain.cut("\u{fc}bcd"), "?bc");
        assert_eq!(holds(9, 3, Letters::All).cut("a\u{fc}\u{fc}"), "a\u{fc}", "never half a letter");
    }
}
