//! What lives in the database and makes things easier: a function to push by, and a trigger that wakes servers.
//!
//! A store works without them, and whoever may not make them is told so and goes on. SQLite has neither. The trigger
//! speaks once a statement and only for other programs: what servers write they know, and a word of each to all would
//! wake everybody for nothing.

use super::columns;
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
    let missing = |(name, _, _): &(String, String, String)| !there.contains(name);
    let subject = subject_type(names.dialect, columns::type_of(db, names, "taskable_id")?);
    let wanted = match names.dialect {
        Dialect::Postgres => vec![push_in_postgres(names, &subject), nudge(names), trigger(names)],
        Dialect::Mariadb => vec![push_in_mariadb(names, None), push_in_mariadb(names, Some(&subject))],
        Dialect::Sqlite => Vec::new(),
    };
    let step = |(_, why, sql)| Step { why, sql };
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

/// What the functions take for the number of a record: a whole number where the column has those, else what it has.
fn subject_type(dialect: Dialect, column: Option<String>) -> String {
    match (dialect, column) {
        (_, Some(kind)) if ["text", "uuid"].contains(&kind.as_str()) => kind,
        (Dialect::Postgres, Some(kind)) if kind == "character varying" => kind,
        (Dialect::Mariadb, Some(kind)) if ["char", "varchar", "uuid"].contains(&kind.as_str()) => "varchar(255)".into(),
        _ => "bigint".into(),
    }
}

fn calls(name: &str) -> String {
    format!("the function `{name}` pushes jobs, for programs that would rather call one than insert")
}

fn push_in_postgres(names: &Names, subject: &str) -> (String, String, String) {
    let name = format!("{}push", names.prefix);
    let function = names.qualified(&name);
    let sql = names.sql(&format!(
        "CREATE FUNCTION {function} (queue text, data text DEFAULT '', priority integer DEFAULT 0, \
         at timestamptz DEFAULT NULL, subject_type text DEFAULT NULL, subject_id {subject} DEFAULT NULL) \
         RETURNS bigint LANGUAGE sql AS $push$ INSERT INTO :jobs \
         (:name, :data, :status, :priority, :run_at, :taskable_type, :taskable_id, :created_at, :updated_at) VALUES \
         ($1, $2, 'pending', $3, CAST(extract(epoch FROM $4) * 1000000 AS bigint), $5, $6, \
         now() AT TIME ZONE 'UTC', now() AT TIME ZONE 'UTC') RETURNING :id $push$"
    ));
    let why = calls(&name);
    (name, why, sql)
}

/// Arguments cannot be left out there: whoever names a record calls another function.
fn push_in_mariadb(names: &Names, about: Option<&str>) -> (String, String, String) {
    let name = format!("{}push{}", names.prefix, if about.is_some() { "_about" } else { "" });
    let (arguments, columns, values) = match about {
        Some(subject) => (
            format!(", subject_type varchar(255), subject_id {subject}"),
            ", :taskable_type, :taskable_id",
            ", subject_type, subject_id",
        ),
        None => (String::new(), "", ""),
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
    let why = calls(&name);
    (name, why, sql)
}

fn nudge(names: &Names) -> (String, String, String) {
    let name = names.channel();
    let function = names.qualified(&name);
    let sql = format!(
        "CREATE FUNCTION {function} () RETURNS trigger LANGUAGE plpgsql AS $nudge$ BEGIN \
         IF current_setting('application_name', true) IS DISTINCT FROM '{APPLICATION}' THEN \
         PERFORM pg_notify('{name}', ''); END IF; RETURN NULL; END $nudge$"
    );
    let why = format!("the function `{name}` tells servers that listen that another program has written");
    (name, why, sql)
}

fn trigger(names: &Names) -> (String, String, String) {
    let name = names.channel();
    let (function, quoted) = (names.qualified(&name), names.dialect.quoted(&name));
    let sql = names.sql(&format!(
        "CREATE TRIGGER {quoted} AFTER INSERT OR UPDATE OF :status ON :jobs FOR EACH STATEMENT \
         EXECUTE FUNCTION {function} ()"
    ));
    let why = format!("the trigger `{name}` calls that once a statement, so that nobody has to nudge");
    (format!("trigger {name}"), why, sql)
}
