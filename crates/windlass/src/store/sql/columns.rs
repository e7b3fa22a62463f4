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
        return Err(StoreError::Io(format!(
            "the table `{table}` has a column `{name}` {what}: --map {word}=NAME names another one, which is added \
             where it is not there"
        )));
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

/// The columns of a table; none where it is not there.
pub(super) fn columns(db: &mut Database, names: &Names, table: &str) -> Result<Vec<Column>, StoreError> {
    let (sql, params): (&str, Vec<Value>) = match names.dialect {
        Dialect::Postgres => (
            "SELECT column_name::text, data_type::text, character_maximum_length::bigint, NULL::bigint, \
             (SELECT pg_encoding_to_char(encoding)::text FROM pg_database WHERE datname = current_database()), \
             CASE WHEN is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO' \
             AND is_generated = 'NEVER' THEN 1 ELSE 0 END \
             FROM information_schema.columns \
             WHERE table_schema = coalesce($1, current_schema()) AND table_name = $2 ORDER BY ordinal_position",
            vec![Value::Text(names.schema.clone()), table.into()],
        ),
        Dialect::Mariadb => (
            "SELECT column_name, data_type, character_maximum_length, character_octet_length, character_set_name, \
             CASE WHEN is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%auto_increment%' \
             AND extra NOT LIKE '%GENERATED%' THEN 1 ELSE 0 END \
             FROM information_schema.columns \
             WHERE table_schema = coalesce($1, database()) AND table_name = $2 ORDER BY ordinal_position",
            vec![Value::Text(names.schema.clone()), table.into()],
        ),
        Dialect::Sqlite => (
            "SELECT name, lower(type), NULL, NULL, NULL, \"notnull\" AND dflt_value IS NULL AND pk = 0 \
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
    let needed = cells.int()? != 0;
    Ok(Column { name, kind, holds: Holds { chars, bytes, letters }, needed })
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
