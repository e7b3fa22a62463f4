//! What lives in the database and makes things easier: a function to push by, and a trigger that wakes servers.
//!
//! A store works without them, and whoever may not make them is told so and goes on. SQLite has neither. The trigger
//! speaks once a statement and only for other programs: what servers write they know, and a word of each to all would
//! wake everybody for nothing.

use super::database::{Database, Value};
use super::dialect::Dialect;
use super::names::Names;
use super::schema::Step;
use crate::store::StoreError;

/// What a session of ours is called, so that the trigger passes over it.
pub(super) const APPLICATION: &str = "windlass";

impl Names {
    /// The channel on which PostgreSQL tells of new rows; also the name of the trigger and its function.
    pub(crate) fn channel(&self) -> String {
        format!("{}nudge", self.prefix)
    }
}

/// Those that are missing.
pub(super) fn plan(db: &mut Database, names: &Names) -> Result<Vec<Step>, StoreError> {
    let there = names_of(db, names)?;
    let missing = |(name, _, _): &(String, &str, String)| !there.contains(name);
    let wanted = match names.dialect {
        Dialect::Postgres => vec![push_in_postgres(names), nudge(names), trigger(names)],
        Dialect::Mariadb => vec![push_in_mariadb(names, false), push_in_mariadb(names, true)],
        Dialect::Sqlite => Vec::new(),
    };
    let step = |(_, why, sql): (String, &str, String)| Step { why: why.to_owned(), sql };
    Ok(wanted.into_iter().filter(missing).map(step).collect())
}

fn names_of(db: &mut Database, names: &Names) -> Result<Vec<String>, StoreError> {
    let sql = match names.dialect {
        Dialect::Postgres => {
            "SELECT p.proname::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
             WHERE n.nspname = coalesce($1, current_schema()) UNION ALL \
             SELECT 'trigger ' || t.tgname::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid \
             JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = coalesce($1, current_schema())"
        }
        Dialect::Mariadb => {
            "SELECT routine_name FROM information_schema.routines WHERE routine_schema = coalesce($1, database())"
        }
        Dialect::Sqlite => return Ok(Vec::new()),
    };
    db.query(sql, &[Value::Text(names.schema.clone())])?.into_iter().map(|mut row| row.text()).collect()
}

const PUSH: &str = "a function to push jobs by, for programs that would rather call one than insert";

fn push_in_postgres(names: &Names) -> (String, &'static str, String) {
    let name = format!("{}push", names.prefix);
    let function = names.qualified(&name);
    let sql = names.sql(&format!(
        "CREATE FUNCTION {function} (queue text, data text DEFAULT '', priority integer DEFAULT 0, \
         at timestamptz DEFAULT NULL, subject_type text DEFAULT NULL, subject_id bigint DEFAULT NULL) \
         RETURNS bigint LANGUAGE sql AS $push$ INSERT INTO :jobs \
         (:name, :data, :status, :priority, :run_at, :taskable_type, :taskable_id, :created_at, :updated_at) VALUES \
         ($1, $2, 'pending', $3, CAST(extract(epoch FROM $4) * 1000000 AS bigint), $5, $6, \
         now() AT TIME ZONE 'UTC', now() AT TIME ZONE 'UTC') RETURNING :id $push$"
    ));
    (name, PUSH, sql)
}

/// Arguments cannot be left out there: whoever names a record calls another function.
fn push_in_mariadb(names: &Names, about: bool) -> (String, &'static str, String) {
    let name = format!("{}push{}", names.prefix, if about { "_about" } else { "" });
    let (arguments, columns, values) = match about {
        true => (
            ", subject_type varchar(255), subject_id bigint",
            ", :taskable_type, :taskable_id",
            ", subject_type, subject_id",
        ),
        false => ("", "", ""),
    };
    let function = names.qualified(&name);
    let at = names.dialect.micros("at");
    let sql = names.sql(&format!(
        "CREATE FUNCTION {function} (queue varchar(255), data longtext, priority smallint, at datetime(6){arguments}) \
         RETURNS bigint NOT DETERMINISTIC MODIFIES SQL DATA BEGIN INSERT INTO :jobs \
         (:name, :data, :status, :priority, :run_at, :created_at, :updated_at{columns}) VALUES \
         (queue, data, 'pending', coalesce(priority, 0), {at}, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6){values}); \
         RETURN LAST_INSERT_ID(); END"
    ));
    (name, PUSH, sql)
}

fn nudge(names: &Names) -> (String, &'static str, String) {
    let name = names.channel();
    let function = names.qualified(&name);
    let sql = format!(
        "CREATE FUNCTION {function} () RETURNS trigger LANGUAGE plpgsql AS $nudge$ BEGIN \
         IF current_setting('application_name', true) IS DISTINCT FROM '{APPLICATION}' THEN \
         PERFORM pg_notify('{name}', ''); END IF; RETURN NULL; END $nudge$"
    );
    (name, "tells servers that listen that another program has written", sql)
}

fn trigger(names: &Names) -> (String, &'static str, String) {
    let name = names.channel();
    let (function, quoted) = (names.qualified(&name), names.dialect.quoted(&name));
    let sql = names.sql(&format!(
        "CREATE TRIGGER {quoted} AFTER INSERT OR UPDATE OF :status ON :jobs FOR EACH STATEMENT \
         EXECUTE FUNCTION {function} ()"
    ));
    (format!("trigger {name}"), "calls that once a statement, so that nobody has to nudge", sql)
}
