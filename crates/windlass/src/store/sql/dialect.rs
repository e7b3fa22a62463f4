//! What differs between the databases, as text: the one place where it is written down.
//!
//! Statements are written once, with `$1` for values and `:word` for tables and columns, whose real names are the
//! options' (`names`). Many rows go into one statement as arrays in PostgreSQL, and as one text of JSON elsewhere.
//! It must not know what a statement is for.

use super::database::Value;
use crate::store::StoreError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Postgres,
    /// And MySQL.
    Mariadb,
    Sqlite,
}

impl Dialect {
    /// Which database an address means.
    pub fn of(url: &str) -> Result<Dialect, StoreError> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => Ok(Dialect::Postgres),
            Some("mysql" | "mariadb") => Ok(Dialect::Mariadb),
            Some("sqlite") => Ok(Dialect::Sqlite),
            _ => Err(StoreError::Io(format!(
                "expected postgres://…, mysql://… or sqlite:PATH as the address of a database, got: {url}"
            ))),
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Dialect::Postgres => "PostgreSQL",
            Dialect::Mariadb => "MariaDB",
            Dialect::Sqlite => "SQLite",
        }
    }

    /// Why it can have no schema, where it cannot.
    pub(crate) fn without_schemas(self) -> Option<&'static str> {
        match self {
            Dialect::Postgres => None,
            Dialect::Mariadb => Some("a schema is a database in MariaDB and MySQL, which the address names"),
            Dialect::Sqlite => Some("SQLite has no schemas"),
        }
    }

    /// A name that people chose, or ours.
    pub(super) fn quoted(self, name: &str) -> String {
        match self {
            Dialect::Postgres | Dialect::Sqlite => format!("\"{}\"", name.replace('"', "\"\"")),
            Dialect::Mariadb => format!("`{}`", name.replace('`', "``")),
        }
    }

    /// Whether a statement that changes rows can give them back.
    pub(super) fn returns_updated(self) -> bool {
        match self {
            Dialect::Postgres | Dialect::Sqlite => true,
            Dialect::Mariadb => false,
        }
    }

    /// After a selection of rows that are to be changed. SQLite has one writer at a time.
    pub(super) fn for_update(self) -> &'static str {
        match self {
            Dialect::Postgres | Dialect::Mariadb => "FOR UPDATE",
            Dialect::Sqlite => "",
        }
    }

    /// The same, passing over what another has locked.
    pub(super) fn skip_locked(self) -> &'static str {
        match self {
            Dialect::Postgres | Dialect::Mariadb => "FOR UPDATE SKIP LOCKED",
            Dialect::Sqlite => "",
        }
    }

    /// After a selection of rows that must not change until the commit.
    pub(super) fn for_share(self) -> &'static str {
        match self {
            Dialect::Postgres => "FOR SHARE",
            Dialect::Mariadb => "LOCK IN SHARE MODE",
            Dialect::Sqlite => "",
        }
    }

    /// Microseconds since 1970 as a time of the database, without a zone, in UTC.
    pub(super) fn timestamp(self, micros: &str) -> String {
        match self {
            Dialect::Postgres => format!("(timestamp 'epoch' + ({micros}) * interval '1 microsecond')"),
            Dialect::Mariadb => format!("TIMESTAMPADD(MICROSECOND, {micros}, '1970-01-01 00:00:00')"),
            Dialect::Sqlite => format!("strftime('%Y-%m-%d %H:%M:%f', ({micros}) / 1000000.0, 'unixepoch')"),
        }
    }

    /// And back.
    pub(super) fn micros(self, timestamp: &str) -> String {
        match self {
            // A time that never comes is none.
            Dialect::Postgres => format!(
                "CASE WHEN isfinite({timestamp}) THEN CAST(extract(epoch FROM {timestamp}) * 1000000 AS bigint) END"
            ),
            Dialect::Mariadb => format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {timestamp})"),
            Dialect::Sqlite => format!("CAST(round(unixepoch({timestamp}, 'subsec') * 1000000) AS INTEGER)"),
        }
    }

    /// The database's own clock, in microseconds.
    pub(super) fn now(self) -> &'static str {
        match self {
            Dialect::Postgres => "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
            Dialect::Mariadb => "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))",
            Dialect::Sqlite => "CAST(round(unixepoch('now', 'subsec') * 1000000) AS INTEGER)",
        }
    }

    /// A sum as a number of ours.
    pub(super) fn integer(self, expression: &str) -> String {
        match self {
            Dialect::Postgres | Dialect::Sqlite => format!("CAST({expression} AS bigint)"),
            Dialect::Mariadb => format!("CAST({expression} AS signed)"),
        }
    }

    pub(super) fn as_text(self, expression: &str) -> String {
        match self {
            Dialect::Postgres | Dialect::Sqlite => format!("CAST({expression} AS text)"),
            Dialect::Mariadb => format!("CAST({expression} AS char)"),
        }
    }

    /// Changes the rows of a table that rows of a statement's own name.
    pub(super) fn update_from(self, table: &str, set: &str, rows: &str, matching: &str) -> String {
        match self {
            Dialect::Postgres | Dialect::Sqlite => {
                format!("UPDATE {table} AS j SET {set} FROM {rows} WHERE {matching}")
            }
            Dialect::Mariadb => format!("UPDATE {} SET {set}", self.found(table, rows, matching)),
        }
    }

    /// The rows of a table, `j`, that rows of a statement's own name. MariaDB would rather read a small table as a
    /// whole, and locks what it reads: who has one row locked would keep all others. So it begins with what is named.
    pub(super) fn found(self, table: &str, rows: &str, matching: &str) -> String {
        match self {
            Dialect::Postgres | Dialect::Sqlite => format!("{table} AS j JOIN {rows} ON {matching}"),
            Dialect::Mariadb => format!("{rows} STRAIGHT_JOIN {table} AS j ON {matching}"),
        }
    }

    pub(super) fn delete_from(self, table: &str, rows: &str, matching: &str) -> String {
        match self {
            Dialect::Postgres => format!("DELETE FROM {table} AS j USING {rows} WHERE {matching}"),
            Dialect::Mariadb => format!("DELETE j FROM {}", self.found(table, rows, matching)),
            // A cross join is done in the order in which it is written: each row is looked for by its key. The other
            // way round all rows would be looked through for each of the table.
            Dialect::Sqlite => {
                let found = format!("SELECT j.rowid FROM {rows} CROSS JOIN {table} AS j WHERE {matching}");
                format!("DELETE FROM {table} WHERE rowid IN ({found})")
            }
        }
    }

    /// What a row that another program inserted is given as its job's id: that of its number. PostgreSQL writes a row
    /// anew into each index that has it whenever it changes, so there it says nothing, and is in no index of ids.
    pub(super) fn own_identity(self) -> &'static str {
        match self {
            Dialect::Postgres => ":job_origin = NULL, :job_offset = NULL",
            Dialect::Mariadb | Dialect::Sqlite => ":job_origin = (SELECT origin FROM :meta), :job_offset = j.:id",
        }
    }

    /// The condition that a row, `j`, is that of the job with this origin and offset: one that says so, or that says
    /// nothing and has this number.
    pub(super) fn is_job(self, origin: &str, offset: &str) -> String {
        match self {
            Dialect::Postgres => format!(
                "j.:id = coalesce((SELECT i.:id FROM :jobs AS i WHERE i.:job_origin = {origin} \
                 AND i.:job_offset = {offset}), CASE WHEN {origin} = (SELECT origin FROM :meta) THEN {offset} END) \
                 AND coalesce(j.:job_origin, {origin}) = {origin} AND coalesce(j.:job_offset, j.:id) = {offset}"
            ),
            Dialect::Mariadb | Dialect::Sqlite => {
                format!("j.:job_origin = {origin} AND j.:job_offset = {offset}")
            }
        }
    }

    /// A column that is only compared, and by which nothing is looked for: its index would be taken before a key's.
    pub(super) fn compared(self, column: &str) -> String {
        match self {
            Dialect::Postgres => format!("coalesce({column}, 0)"),
            Dialect::Mariadb => column.to_owned(),
            Dialect::Sqlite => format!("+{column}"),
        }
    }

    /// What an insert does with rows whose key is there: nothing.
    pub(super) fn insert_new(self, into: &str, select: &str) -> String {
        match self {
            Dialect::Postgres => format!("INSERT INTO {into} {select} ON CONFLICT DO NOTHING"),
            Dialect::Mariadb => format!("INSERT IGNORE INTO {into} {select}"),
            Dialect::Sqlite => format!("INSERT INTO {into} {select} ON CONFLICT DO NOTHING"),
        }
    }

    /// Inserts rows, or changes those whose `key` is there: `value` columns are replaced, or added to.
    pub(super) fn upsert(self, table: &str, key: &[&str], columns: &[&str], adds: bool, rows: &str) -> String {
        let all = [key, columns].concat().join(", ");
        let (base, new): (String, fn(&str) -> String) = match self {
            Dialect::Postgres | Dialect::Sqlite => (table.to_owned(), |column| format!("excluded.{column}")),
            Dialect::Mariadb => (table.to_owned(), |column| format!("VALUES({column})")),
        };
        let set = columns.iter().map(|column| match adds {
            true => format!("{column} = {base}.{column} + {}", new(column)),
            false => format!("{column} = {}", new(column)),
        });
        let set = set.collect::<Vec<_>>().join(", ");
        let on = match self {
            Dialect::Postgres | Dialect::Sqlite => format!("ON CONFLICT ({}) DO UPDATE SET {set}", key.join(", ")),
            Dialect::Mariadb => format!("ON DUPLICATE KEY UPDATE {set}"),
        };
        // Without a WHERE, SQLite would take ON for a join's.
        format!("INSERT INTO {table} ({all}) SELECT {all} FROM {rows} WHERE true {on}")
    }

    /// Rows as a table `t` of a statement, with their place as `n`; the values are added to the statement's.
    pub(super) fn rows(self, rows: Rows, params: &mut Vec<Value>) -> String {
        match self {
            Dialect::Postgres => arrays(rows, params),
            Dialect::Mariadb | Dialect::Sqlite => {
                let at = params.len() + 1;
                let source = self.json_table(&rows, at);
                params.push(rows.into_json().into());
                source
            }
        }
    }

    fn json_table(self, rows: &Rows, at: usize) -> String {
        let columns = rows.0.iter().enumerate();
        match self {
            Dialect::Mariadb | Dialect::Postgres => {
                let typed = columns.map(|(at, (name, column))| match column {
                    Column::Ints(_) => format!("{name} BIGINT PATH '$[{at}]'"),
                    Column::Texts(_) => format!("{name} LONGTEXT CHARACTER SET utf8mb4 PATH '$[{at}]'"),
                    // Of a longer kind of text it cannot tell how long the bytes would be.
                    Column::Blobs(_) => format!("{name} MEDIUMTEXT PATH '$[{at}]'"),
                });
                let read = rows.0.iter().map(|(name, column)| match column {
                    Column::Ints(_) | Column::Texts(_) => (*name).to_owned(),
                    Column::Blobs(_) => format!("UNHEX({name}) AS {name}"),
                });
                let (typed, read) = (typed.collect::<Vec<_>>().join(", "), read.collect::<Vec<_>>().join(", "));
                let table = format!("JSON_TABLE(${at}, '$[*]' COLUMNS (n FOR ORDINALITY, {typed})) AS u");
                format!("(SELECT n, {read} FROM {table}) AS t")
            }
            Dialect::Sqlite => {
                let read = columns.map(|(at, (name, column))| match column {
                    Column::Ints(_) | Column::Texts(_) => format!("json_extract(value, '$[{at}]') AS {name}"),
                    Column::Blobs(_) => format!("unhex(json_extract(value, '$[{at}]')) AS {name}"),
                });
                let read = read.collect::<Vec<_>>().join(", ");
                format!("(SELECT key AS n, {read} FROM json_each(${at})) AS t")
            }
        }
    }
}

fn arrays(rows: Rows, params: &mut Vec<Value>) -> String {
    let (mut arrays, mut names) = (Vec::new(), Vec::new());
    for (name, column) in rows.0 {
        names.push(name);
        let at = params.len() + 1;
        match column {
            Column::Ints(values) => {
                arrays.push(format!("${at}::bigint[]"));
                params.push(Value::Ints(values));
            }
            Column::Texts(values) => {
                arrays.push(format!("${at}::text[]"));
                params.push(Value::Texts(values));
            }
            Column::Blobs(values) => {
                arrays.push(format!("${at}::bytea[]"));
                params.push(Value::Blobs(values));
            }
        }
    }
    format!("unnest({}) WITH ORDINALITY AS t({}, n)", arrays.join(", "), names.join(", "))
}

/// Rows of a statement's own, by columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows(Vec<(&'static str, Column)>);

#[derive(Clone, Debug)]
enum Column {
    Ints(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
    Blobs(Vec<Option<Vec<u8>>>),
}

impl Rows {
    #[must_use]
    pub(super) fn ints(self, name: &'static str, values: impl IntoIterator<Item = i64>) -> Rows {
        self.maybe_ints(name, values.into_iter().map(Some))
    }

    #[must_use]
    pub(super) fn maybe_ints(mut self, name: &'static str, values: impl IntoIterator<Item = Option<i64>>) -> Rows {
        self.0.push((name, Column::Ints(values.into_iter().collect())));
        self
    }

    #[must_use]
    pub(super) fn texts(mut self, name: &'static str, values: impl IntoIterator<Item = Option<String>>) -> Rows {
        self.0.push((name, Column::Texts(values.into_iter().collect())));
        self
    }

    #[must_use]
    pub(super) fn blobs(mut self, name: &'static str, values: impl IntoIterator<Item = Option<Vec<u8>>>) -> Rows {
        self.0.push((name, Column::Blobs(values.into_iter().collect())));
        self
    }

    /// A list of lists, one for each row.
    fn into_json(self) -> String {
        let length = self.0.first().map_or(0, |(_, column)| match column {
            Column::Ints(values) => values.len(),
            Column::Texts(values) => values.len(),
            Column::Blobs(values) => values.len(),
        });
        let mut text = String::with_capacity(length * 32 + 2);
        for row in 0..length {
            text.push(if row == 0 { '[' } else { ',' });
            for (at, (_, column)) in self.0.iter().enumerate() {
                text.push(if at == 0 { '[' } else { ',' });
                column.write_json(row, &mut text);
            }
            text.push(']');
        }
        text.push_str(if length == 0 { "[]" } else { "]" });
        text
    }
}

impl Column {
    fn write_json(&self, row: usize, into: &mut String) {
        match self {
            Column::Ints(values) => match values[row] {
                Some(value) => into.push_str(&value.to_string()),
                None => into.push_str("null"),
            },
            Column::Texts(values) => match &values[row] {
                Some(text) => into.push_str(&serde_json::Value::from(text.as_str()).to_string()),
                None => into.push_str("null"),
            },
            Column::Blobs(values) => match &values[row] {
                Some(bytes) => {
                    into.push('"');
                    bytes.iter().for_each(|byte| into.push_str(&format!("{byte:02x}")));
                    into.push('"');
                }
                None => into.push_str("null"),
            },
        }
    }
}

/// The statement with `?` for each value, and which value each of them is.
pub(super) fn positional(sql: &str) -> (String, Vec<usize>) {
    let mut order = Vec::new();
    let text = with_marks(sql, |number, into| {
        order.push(number - 1);
        into.push('?');
    });
    (text, order)
}

/// The statement with `?1` for `$1`.
pub(super) fn numbered(sql: &str) -> String {
    with_marks(sql, |number, into| into.push_str(&format!("?{number}")))
}

fn with_marks(sql: &str, mut mark: impl FnMut(usize, &mut String)) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some(at) = rest.find('$') {
        let digits = rest[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
        text.push_str(&rest[..at]);
        match rest[at + 1..at + 1 + digits].parse() {
            Ok(number) => mark(number, &mut text),
            // A path of JSON.
            Err(_) => text.push('$'),
        }
        rest = &rest[at + 1 + digits..];
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_marked_as_each_database_wants_it() {
        let sql = "a = $2 AND b = $1 AND c = $2 AND d = '$[*]'";
        assert_eq!(positional(sql), ("a = ? AND b = ? AND c = ? AND d = '$[*]'".into(), vec![1, 0, 1]));
        assert_eq!(numbered(sql), "a = ?2 AND b = ?1 AND c = ?2 AND d = '$[*]'");
    }

    #[test]
    fn rows_are_lists_of_lists() {
        let rows = Rows::default().ints("a", [1, -2]).texts("b", [Some("x\"\n".into()), None]);
        let rows = rows.blobs("c", [None, Some(vec![0, 255])]);
        assert_eq!(rows.into_json(), "[[1,\"x\\\"\\n\",null],[-2,null,\"00ff\"]]");
        assert_eq!(Rows::default().ints("a", []).into_json(), "[]");
    }
}
