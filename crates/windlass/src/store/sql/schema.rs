//! The tables: what must be there, what is there, and the steps from one to the other.
//!
//! The jobs table is the seed's, with our columns beside its own; a plain INSERT of name, data and status is a job,
//! because all of ours have defaults. A plan says what it would do, sentence by sentence, and `apply` does it. It must
//! never drop or change what was there.

use super::columns;
use super::database::{Database, Value};
use super::dialect::Dialect;
use super::names::{Names, OWN, SEED};
use super::routines;
use crate::store::StoreError;

/// The format of our tables and columns.
pub const FORMAT: u32 = 2;

/// The index of all jobs' ids.
const WHOLE_IDENTITY: &str = "identity";

/// One statement, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub why: String,
    pub sql: String,
}

/// What was found and what is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The columns of the jobs table, if it is there.
    pub found: Vec<String>,
    pub steps: Vec<Step>,
    /// What is missing, too, and makes things easier; a store works without it.
    pub beside: Vec<Step>,
    /// Of that, what the database did not let us make, each with why.
    pub refused: Vec<String>,
    /// What of the application's own will be in the way one day, in words.
    pub remarks: Vec<String>,
}

impl Plan {
    /// True where everything is as it must be.
    pub fn is_done(&self) -> bool {
        self.steps.is_empty()
    }
}

/// Rows that are not what our columns say of them: new ones, and those that another program changed or gave a value
/// that makes no sense. What another program works at has no holder.
pub(super) fn strange(dialect: Dialect) -> String {
    let status = "coalesce(:status, '')";
    let odd = match dialect {
        Dialect::Postgres | Dialect::Mariadb => ":priority NOT BETWEEN -100 AND 100",
        // A text is no number between two others, and stays a text in a column of numbers.
        Dialect::Sqlite => ":priority NOT BETWEEN -100 AND 100 OR typeof(:run_at) NOT IN ('integer', 'null')",
    };
    format!(
        "(:state IS NULL AND {status} NOT IN ('processing', 'loading', 'completed', 'complete', 'error') \
         OR :state IN (0, 1, 3, 4) AND ({status} <> 'pending' OR {odd}) \
         OR :state = 2 AND ({status} NOT IN ('processing', 'loading') OR {status} = 'loading' AND :holder IS NOT NULL) \
         OR :state = 5 AND {status} NOT IN ('completed', 'complete') OR :state IN (6, 7) AND {status} <> 'error')"
    )
}

/// MariaDB indexes no condition; a column that is computed is what it has instead.
pub(super) const STRANGE_COLUMN: &str = "windlass_strange";

/// Looks, and changes nothing.
pub(super) fn plan(db: &mut Database, names: &Names) -> Result<Plan, StoreError> {
    refuse_old(db)?;
    columns::refuse_view(db, names)?;
    let columns = columns::columns(db, names, &names.table)?;
    columns::refuse_types(&columns, names)?;
    columns::refuse_unnumbered(db, &columns, names)?;
    columns::refuse_without_default(&columns, names)?;
    let found: Vec<String> = columns.into_iter().map(|column| column.name).collect();
    let mut steps = Vec::new();
    // Ours are made first, so that whoever finds them knows that the columns are ours, too.
    for (word, sql) in own_tables(names) {
        let table = format!("{}{word}", names.prefix);
        if columns::columns(db, names, &table)?.is_empty() {
            if word == "meta" {
                refuse_taken_names(names, &found)?;
            }
            steps.push(Step { why: format!("`{table}` is ours: {}", purpose(word)), sql });
        }
    }
    if found.is_empty() {
        let why = format!("the table `{}` is not there: it is made as the seed has it, with our columns", names.table);
        steps.push(Step { why, sql: jobs_table(names) });
    }
    for word in SEED.iter().chain(&OWN).filter(|_| !found.is_empty()) {
        let column = names.column(word);
        if !found.iter().any(|found| found.eq_ignore_ascii_case(column)) {
            let why = format!("the table `{}` has no column `{column}`: {}", names.table, purpose(word));
            // The application may have a key of its own already.
            let kind = column_type(names.dialect, word).replace("PRIMARY KEY", "UNIQUE");
            let sql = names.sql(&format!("ALTER TABLE :jobs ADD COLUMN :{word} {kind}"));
            steps.push(Step { why, sql });
        }
    }
    let indexes = indexes(db, names)?;
    if names.dialect == Dialect::Mariadb && !found.iter().any(|found| found == STRANGE_COLUMN) {
        let sql = names.sql(&format!(
            "ALTER TABLE :jobs ADD COLUMN {STRANGE_COLUMN} smallint AS (IF({}, 1, NULL)) VIRTUAL",
            strange(names.dialect)
        ));
        let why = format!("the column `{STRANGE_COLUMN}`, which is computed: finds rows that other programs wrote");
        steps.push(Step { why, sql });
    }
    for (name, sql, why) in index_texts(names, !found.is_empty()) {
        match indexes.iter().find(|(known, _)| *known == name) {
            Some((_, true)) => continue,
            Some((_, false)) => {
                let sql = format!("DROP INDEX {}", names.qualified(&name));
                steps.push(Step { why: format!("the index `{name}` was begun and not finished"), sql });
            }
            None => {}
        }
        steps.push(Step { why: format!("the index `{name}` {why}"), sql });
    }
    steps.extend(steps_from_older_formats(db, names, &indexes)?);
    let beside = routines::plan(db, names)?;
    let remarks = referring_tables(db, names)?;
    Ok(Plan { found, steps, beside, refused: Vec::new(), remarks })
}

/// What the statements of a store need has not always been there.
fn refuse_old(db: &mut Database) -> Result<(), StoreError> {
    let version = match db.dialect {
        Dialect::Postgres => db.one("SELECT current_setting('server_version')", &[])?.text()?,
        Dialect::Mariadb => db.one("SELECT version()", &[])?.text()?,
        // It is built in.
        Dialect::Sqlite => return Ok(()),
    };
    match too_old(db.dialect, &version) {
        None => Ok(()),
        Some(least) => Err(StoreError::Io(format!("the database is {version}, expected {least} or later"))),
    }
}

/// The version that is needed, where this one is older. One that cannot be read is given a try.
fn too_old(dialect: Dialect, version: &str) -> Option<&'static str> {
    let mut numbers = version.split(['.', '-', ' ']).map_while(|part| part.parse::<u32>().ok());
    let found = (numbers.next()?, numbers.next().unwrap_or(0));
    let (least, called) = match dialect {
        // CTEs that are materialised where that is asked for.
        Dialect::Postgres => ((12, 0), "PostgreSQL 12"),
        // Rows that others have locked are passed over, and a text of JSON is read as rows.
        Dialect::Mariadb if version.contains("MariaDB") => ((10, 6), "MariaDB 10.6"),
        Dialect::Mariadb => ((8, 0), "MySQL 8.0"),
        Dialect::Sqlite => return None,
    };
    (found < least).then_some(called)
}

/// A column of the application that is called as one of ours would be taken for ours.
fn refuse_taken_names(names: &Names, found: &[String]) -> Result<(), StoreError> {
    let taken = |word: &&&str| found.iter().any(|found| found.eq_ignore_ascii_case(names.column(word)));
    match OWN.iter().find(taken) {
        None => Ok(()),
        Some(word) => Err(StoreError::Io(format!(
            "the table `{}` has a column `{}` of its own, and one of ours would be called so ({}): name ours \
             otherwise, as in --map {word}=windlass_{word}",
            names.table,
            names.column(word),
            purpose(word)
        ))),
    }
}

/// Does what the plan says, each step by itself: some databases cannot make tables in a transaction. A step that was
/// done is not in the next plan, so a plan that broke off can be applied again. Tells what of the things beside was
/// refused.
pub(super) fn apply(db: &mut Database, names: &Names, plan: &Plan) -> Result<Vec<String>, StoreError> {
    for step in &plan.steps {
        db.batch(&[&step.sql])?;
    }
    let random = getrandom::u64().map_err(|error| StoreError::Io(format!("no random numbers: {error}")))?;
    let select = "SELECT 1, $1, $2, 0, 0, 0";
    let columns = names.sql(":meta (one, format, origin, epoch, controller, controller_until)");
    let sql = match names.dialect {
        // A selection without a table cannot be told from a join there.
        Dialect::Sqlite => format!("INSERT OR IGNORE INTO {columns} {select}"),
        dialect => dialect.insert_new(&columns, select),
    };
    let origin = windlass_core::job::Origin::from_random(random).bits() as i64;
    db.execute(&sql, &[i64::from(FORMAT).into(), origin.into()])?;
    let mut refused = Vec::new();
    for step in &plan.beside {
        match db.batch(&[&step.sql]) {
            Err(StoreError::Io(why)) => refused.push(format!("{}: {why}", step.why)),
            done => done?,
        }
    }
    Ok(refused)
}

/// Tables of the application that refer to jobs, and do not let go of them by themselves.
fn referring_tables(db: &mut Database, names: &Names) -> Result<Vec<String>, StoreError> {
    let (sql, params): (&str, Vec<Value>) = match names.dialect {
        Dialect::Postgres => (
            "SELECT DISTINCT r.relname::text FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid \
             JOIN pg_class t ON t.oid = c.confrelid JOIN pg_namespace n ON n.oid = t.relnamespace \
             WHERE c.contype = 'f' AND c.confdeltype IN ('a', 'r') \
             AND n.nspname = coalesce($1, current_schema()) AND t.relname = $2 ORDER BY 1",
            vec![Value::Text(names.schema.clone()), names.table.as_str().into()],
        ),
        Dialect::Mariadb => (
            "SELECT DISTINCT table_name FROM information_schema.referential_constraints \
             WHERE unique_constraint_schema = coalesce($1, database()) AND referenced_table_name = $2 \
             AND delete_rule IN ('RESTRICT', 'NO ACTION') ORDER BY 1",
            vec![Value::Text(names.schema.clone()), names.table.as_str().into()],
        ),
        // Foreign keys are checked there only where a connection asks for it, and ours does not.
        Dialect::Sqlite => return Ok(Vec::new()),
    };
    let told = |table: String| {
        format!(
            "the table `{table}` refers to `{}`: rows that it refers to cannot be removed when they are old, and stay, \
             unless its foreign key says ON DELETE CASCADE or SET NULL",
            names.table
        )
    };
    db.query(sql, &params)?.into_iter().map(|mut row| Ok(told(row.text()?))).collect()
}

/// In format 1 each row of another program said its job's id, and PostgreSQL had an index of all of them. Such rows
/// are read as before.
fn steps_from_older_formats(
    db: &mut Database,
    names: &Names,
    indexes: &[(String, bool)],
) -> Result<Vec<Step>, StoreError> {
    let mut steps = Vec::new();
    let whole = format!("{}{}_{WHOLE_IDENTITY}", names.prefix, names.table);
    if names.dialect == Dialect::Postgres && indexes.iter().any(|(known, _)| *known == whole) {
        let why = format!("the index `{whole}` has rows that are found by their number now");
        steps.push(Step { why, sql: format!("DROP INDEX CONCURRENTLY {}", names.qualified(&whole)) });
    }
    if let Some(found) = format_of(db, names)?.filter(|found| *found < FORMAT) {
        let why = format!("the tables have format {found}, and this program writes {FORMAT}");
        steps.push(Step { why, sql: names.sql(&format!("UPDATE :meta SET format = {FORMAT}")) });
    }
    Ok(steps)
}

/// The format that our tables are known to have; one of a newer program is left alone.
fn format_of(db: &mut Database, names: &Names) -> Result<Option<u32>, StoreError> {
    if columns::columns(db, names, &format!("{}meta", names.prefix))?.is_empty() {
        return Ok(None);
    }
    let found = db.maybe_one(&names.sql("SELECT format FROM :meta"), &[])?;
    match found.map(|mut row| row.number::<u32>()).transpose()? {
        Some(found) if found > FORMAT => Err(StoreError::Newer { found, known: FORMAT }),
        found => Ok(found),
    }
}

/// The indexes of the jobs table, and whether each was finished.
fn indexes(db: &mut Database, names: &Names) -> Result<Vec<(String, bool)>, StoreError> {
    let (sql, params): (&str, Vec<Value>) = match names.dialect {
        Dialect::Postgres => (
            "SELECT i.relname::text, x.indisvalid FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid \
             JOIN pg_class t ON t.oid = x.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace \
             WHERE n.nspname = coalesce($1, current_schema()) AND t.relname = $2",
            vec![Value::Text(names.schema.clone()), names.table.as_str().into()],
        ),
        Dialect::Mariadb => (
            "SELECT DISTINCT index_name, 1 FROM information_schema.statistics \
             WHERE table_schema = coalesce($1, database()) AND table_name = $2",
            vec![Value::Text(names.schema.clone()), names.table.as_str().into()],
        ),
        Dialect::Sqlite => (
            "SELECT name, 1 FROM sqlite_master WHERE type = 'index' AND tbl_name = $1",
            vec![names.table.as_str().into()],
        ),
    };
    db.query(sql, &params)?.into_iter().map(|mut row| Ok((row.text()?, row.int()? != 0))).collect()
}

/// The types that differ.
struct Types {
    identity: &'static str,
    big: &'static str,
    bytes: &'static str,
    text: &'static str,
    time: &'static str,
    /// A text that is compared byte by byte and can be a key.
    exact: &'static str,
    hash: &'static str,
    suffix: &'static str,
}

fn types(dialect: Dialect) -> Types {
    match dialect {
        Dialect::Postgres => Types {
            identity: "bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
            big: "bigint",
            bytes: "bytea",
            text: "text",
            time: "timestamp",
            exact: "text COLLATE \"C\"",
            hash: "bytea",
            suffix: "",
        },
        Dialect::Mariadb => Types {
            identity: "bigint NOT NULL AUTO_INCREMENT PRIMARY KEY",
            big: "bigint",
            bytes: "longblob",
            text: "longtext",
            time: "datetime(6)",
            exact: "varbinary(500)",
            hash: "varbinary(16)",
            suffix: " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4",
        },
        Dialect::Sqlite => Types {
            identity: "integer PRIMARY KEY AUTOINCREMENT",
            big: "integer",
            bytes: "blob",
            text: "text",
            time: "datetime",
            exact: "text",
            hash: "blob",
            suffix: "",
        },
    }
}

fn column_type(dialect: Dialect, word: &str) -> String {
    let types = types(dialect);
    match word {
        "id" => types.identity.into(),
        "name" => "varchar(255)".into(),
        "data" | "details" => types.text.into(),
        "status" => "varchar(255) DEFAULT 'pending'".into(),
        "created_at" | "updated_at" => types.time.into(),
        "taskable_type" => "varchar(255)".into(),
        "locked_queue_id" => "varchar(255) DEFAULT ''".into(),
        "attempts" => "integer DEFAULT 0".into(),
        "duration" => "integer".into(),
        "priority" => "smallint NOT NULL DEFAULT 0".into(),
        "state" | "lane_kind" | "reason" => "smallint".into(),
        "queue_no" | "run_no" => types.big.into(),
        "starts" | "failures" | "suspicions" => "integer NOT NULL DEFAULT 0".into(),
        "last_errors" | "particulars" | "body" => types.bytes.into(),
        _ => types.big.into(),
    }
}

fn jobs_table(names: &Names) -> String {
    let column = |word: &str| names.sql(&format!(":{word} {}", column_type(names.dialect, word)));
    let columns = SEED.iter().chain(&OWN).map(|word| column(word)).collect::<Vec<_>>().join(", ");
    names.sql(&format!("CREATE TABLE :jobs ({columns}){}", types(names.dialect).suffix))
}

/// Name, statement and purpose of each index. PostgreSQL and SQLite index only the rows that matter. A table that was
/// there is in use: PostgreSQL can make an index beside that, MariaDB does so by itself.
fn index_texts(names: &Names, used: bool) -> Vec<(String, String, &'static str)> {
    let partial = names.dialect != Dialect::Mariadb;
    let beside = if used && names.dialect == Dialect::Postgres { "CONCURRENTLY " } else { "" };
    let made = |name: &str, columns: &str, only: &str, unique: &str, why| {
        let name = format!("{}{}_{name}", names.prefix, names.table);
        // An index lies where its table does; only SQLite wants the schema before its own name.
        let quoted = names.dialect.quoted(&name);
        let only = if partial && !only.is_empty() { format!(" WHERE {only}") } else { String::new() };
        let sql = names.sql(&format!("CREATE {unique}INDEX {beside}{quoted} ON :jobs ({columns}){only}"));
        (name, sql, why)
    };
    let (lane, times) = match partial {
        true => (":queue_no, :lane_kind, :priority, :run_at, :id", ":run_at, :id"),
        false => (":state, :queue_no, :lane_kind, :priority, :run_at, :id", ":state, :run_at, :id"),
    };
    // Elsewhere an index costs nothing where its columns stay as they are.
    let (identity, with_id) = match names.dialect {
        Dialect::Postgres => ("named", ":job_origin IS NOT NULL"),
        Dialect::Mariadb | Dialect::Sqlite => (WHOLE_IDENTITY, ""),
    };
    let (strange, first) = (strange(names.dialect), format!("{STRANGE_COLUMN}, :id"));
    let first = if partial { ":id" } else { &first };
    vec![
        made("lane", lane, ":state = 1", "", "gives the next jobs of a queue, by priority and arrival"),
        made(identity, ":job_origin, :job_offset", with_id, "UNIQUE ", "finds a job by the id that people see"),
        made("times", times, ":state IN (0, 3, 4)", "", "finds what is due"),
        made("run", ":run_no, :state", if partial { ":run_no IS NOT NULL" } else { "" }, "", "finds a run's jobs"),
        made("holder", ":holder", ":holder IS NOT NULL", "", "finds what a server holds"),
        made("start_by", ":start_by", ":start_by IS NOT NULL", "", "finds what should have begun"),
        made("finish_by", ":finish_by", ":finish_by IS NOT NULL", "", "finds what should have ended"),
        made("ended", ":ended_at", ":ended_at IS NOT NULL", "", "finds what is old enough to be forgotten"),
        made("strange", first, &strange, "", "finds rows that other programs wrote, without a scan"),
    ]
}

/// Our tables. Types that differ stand for themselves: SERIAL, BIG, BYTES, TEXT, EXACT and HASH; ENDS are three
/// counters.
const TABLES: [(&str, &str); 12] = [
    (
        "meta",
        "one smallint PRIMARY KEY, format integer NOT NULL, origin BIG NOT NULL, epoch BIG NOT NULL, \
         controller BIG NOT NULL, controller_until BIG NOT NULL",
    ),
    ("queues", "number SERIAL, name EXACT NOT NULL UNIQUE"),
    (
        "queue_counts",
        "queue BIG NOT NULL, server EXACT NOT NULL, ENDS, started BIG NOT NULL, waited BIG NOT NULL, \
         ran BIG NOT NULL, PRIMARY KEY (queue, server)",
    ),
    (
        "runs",
        "number SERIAL, origin BIG NOT NULL, generation integer NOT NULL, name EXACT NOT NULL, \
         spec BYTES NOT NULL, terms BYTES NOT NULL, sealed smallint NOT NULL, stopped smallint, \
         taken_lines BIG NOT NULL, taken_hash BIG NOT NULL, seal_after BYTES, created BIG NOT NULL, ended_at BIG, \
         UNIQUE (origin, generation)",
    ),
    ("run_counts", "run BIG NOT NULL, server EXACT NOT NULL, ENDS, dropped BIG NOT NULL, PRIMARY KEY (run, server)"),
    (
        "keys",
        "scope smallint NOT NULL, owner BIG NOT NULL, hash HASH NOT NULL, origin BIG NOT NULL, \
         job_offset BIG NOT NULL, PRIMARY KEY (scope, owner, hash)",
    ),
    (
        "waits",
        "origin BIG NOT NULL, job_offset BIG NOT NULL, waiting_origin BIG NOT NULL, \
         waiting_offset BIG NOT NULL, PRIMARY KEY (origin, job_offset, waiting_origin, waiting_offset)",
    ),
    ("notes", "server EXACT NOT NULL, note EXACT NOT NULL, kept BYTES NOT NULL, PRIMARY KEY (server, note)"),
    (
        "overrides",
        "target EXACT NOT NULL, word EXACT NOT NULL, kept BIG NOT NULL, made_by TEXT NOT NULL, \
         since BIG NOT NULL, ends_at BIG, reason TEXT NOT NULL, PRIMARY KEY (target, word)",
    ),
    (
        "cursors",
        "server EXACT NOT NULL, origin BIG NOT NULL, file_offset BIG NOT NULL, tail BIG NOT NULL, \
         closed smallint NOT NULL, PRIMARY KEY (server, origin)",
    ),
    ("outcomes", "server EXACT NOT NULL, turn BIG NOT NULL, settlements BYTES NOT NULL, PRIMARY KEY (server, turn)"),
    (
        "servers",
        "epoch BIG PRIMARY KEY, server EXACT NOT NULL, lock_text EXACT NOT NULL, lease_until BIG NOT NULL, \
         turn BIG NOT NULL, slots BIG NOT NULL, memory BIG NOT NULL, draining smallint NOT NULL",
    ),
];

fn own_tables(names: &Names) -> Vec<(&'static str, String)> {
    let Types { identity, big, bytes, text, exact, hash, suffix, .. } = types(names.dialect);
    let ends = "succeeded BIG NOT NULL, failed BIG NOT NULL, cancelled BIG NOT NULL";
    let typed = |columns: &str| {
        let columns = columns.replace("ENDS", ends).replace("BIG", big).replace("BYTES", bytes).replace("TEXT", text);
        columns.replace("EXACT", exact).replace("HASH", hash).replace("SERIAL", identity)
    };
    let made = |(word, columns): (&'static str, &str)| {
        (word, names.sql(&format!("CREATE TABLE :{word} ({}){suffix}", typed(columns))))
    };
    TABLES.into_iter().map(made).collect()
}

/// What a column or table of ours is there for, for whoever reads a plan.
fn purpose(word: &str) -> &'static str {
    match word {
        "priority" => "larger is sooner, 0 by itself",
        "run_at" => "not before this time, in microseconds since 1970",
        "state" => "our word for what `status` says in the seed's",
        "queue_no" => "the number of the queue that `name` names",
        "lane_kind" => "whether it waits among new jobs, retries or suspects",
        "starts" | "failures" | "suspicions" => "how often it was started, failed, or was there when a server died",
        "run_no" => "the run that it belongs to",
        "job_origin" | "job_offset" => "the id that people see, where it is not the row's number",
        "holder" => "the opening of the store that runs it",
        "admitted" | "ended_at" => "when it was taken in, and when it ended",
        "reason" | "last_errors" => "why it failed, and its last errors",
        "particulars" => "what most jobs lack: subject, trace, unique key, deadlines",
        "body" => "data that is not text",
        "start_by" | "finish_by" => "when it must have begun, or ended",
        "meta" => "the format, and the numbers that are given out once",
        "queues" | "queue_counts" => "queues, and what they came to",
        "runs" | "run_counts" => "runs, and what they came to",
        "keys" => "unique keys that are taken",
        "waits" => "jobs that wait for others",
        "notes" => "what a server has begun and must know again",
        "overrides" => "what people changed while running",
        "cursors" => "how far inbox files were read",
        "outcomes" => "ends that the archive does not hold yet",
        "servers" => "who is alive, by the database's clock",
        "id" => "numbers the rows",
        _ => "the seed has it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_that_are_too_old_are_named() {
        assert_eq!(too_old(Dialect::Postgres, "11.22 (Debian 11.22-1)"), Some("PostgreSQL 12"));
        assert_eq!(too_old(Dialect::Postgres, "17.2"), None);
        assert_eq!(too_old(Dialect::Mariadb, "10.5.23-MariaDB-0+deb11u1"), Some("MariaDB 10.6"));
        assert_eq!(too_old(Dialect::Mariadb, "10.11.6-MariaDB"), None);
        assert_eq!(too_old(Dialect::Mariadb, "5.7.44-log"), Some("MySQL 8.0"));
        assert_eq!(too_old(Dialect::Mariadb, "8.4.0"), None);
        assert_eq!(too_old(Dialect::Postgres, "devel"), None, "who knows");
    }
}
