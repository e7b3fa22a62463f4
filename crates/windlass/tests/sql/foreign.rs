//! Programs that know nothing but SQL: they insert jobs and read what became of them.

use crate::table::{ALL, Kind, Table};
use std::process::Command;

/// Runs the same on each database.
fn on_each(test: fn(&Table)) {
    for kind in ALL {
        eprintln!("on {kind:?}");
        test(&Table::ready(kind));
    }
}

#[test]
fn a_row_is_a_job_and_tells_what_became_of_it() {
    on_each(|table| {
        let mut bell = table.rig.bell("bell");
        let ring = format!("echo $WINDLASS_SUBJECT_TYPE:$WINDLASS_SUBJECT_ID $1 > {}", bell.path);
        let config = format!(
            "[queue.ring]\nrun = [\"sh\", \"-c\", \"{ring}\", \"sh\", \"{{}}\"]\n\
             [queue.fail]\nrun = [\"sh\", \"-c\", \"echo broken >&2; exit 3\"]\nattempts = 1\n"
        );
        let server = table.serve(&config);
        table.sql(
            "INSERT INTO jobs (name, data, status, taskable_type, taskable_id) \
             VALUES ('ring', 'hello', 'pending', 'Comment', 7)",
        );
        table.insert("fail", "x");
        table.nudge();
        assert_eq!(bell.next(), "Comment:7 hello");
        let told = "SELECT name, status, attempts, locked_queue_id FROM jobs ORDER BY id";
        table.until(told, "ring|completed|1|\nfail|error|1|");
        let details = table.sql("SELECT details FROM jobs WHERE name = 'fail'");
        assert!(details.contains("broken") || details.contains('3'), "{details}");
        let listed = table.rig.call(&["ls", "--json"]).json();
        assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
        server.stop();
    });
}

/// SQLite has no functions of its own; an INSERT does there.
#[test]
fn a_function_pushes_in_the_callers_transaction() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let server = table.serve("[queue.q]\nrun = [\"true\"]\n");
        let push = |data: &str, priority: u32| format!("SELECT windlass_push('q', '{data}', {priority}, NULL)");
        let id = table.sql(&push("kept", 7));
        let undone = table.sql(&format!("BEGIN; {}; ROLLBACK", push("rolled back", 0)));
        assert!(undone.parse::<u64>().unwrap() > id.parse::<u64>().unwrap(), "it was called: {undone}");
        table.nudge();
        table.until("SELECT id, data, status, priority FROM jobs", &format!("{id}|kept|completed|7"));
        let id = table.sql(match kind {
            Kind::PostgreSql => "SELECT windlass_push('q', 'about', subject_type => 'Upload', subject_id => 42)",
            _ => "SELECT windlass_push_about('q', 'about', 0, NULL, 'Upload', 42)",
        });
        table.nudge();
        let row = format!("SELECT status, taskable_type, taskable_id FROM jobs WHERE id = {id}");
        table.until(&row, "completed|Upload|42");
        server.stop();
    }
}

/// PostgreSQL is given a time with its zone; MariaDB has none, and is given the time in UTC, whatever the session's
/// zone.
#[test]
fn a_function_pushes_for_later() {
    for (kind, zone, at) in [
        (Kind::PostgreSql, "SET TIME ZONE 'Asia/Tokyo'", "at => '2040-01-01 02:00:00+02'"),
        (Kind::MariaDb, "SET time_zone = '+09:00'", "0, '2040-01-01 00:00:00'"),
    ] {
        let table = Table::ready(kind);
        let server = table.serve("[queue.q]\nrun = [\"true\"]\n");
        table.sql(&format!("{zone}; SELECT windlass_push('q', 'later', {at})"));
        table.sql("INSERT INTO jobs (name, data, status) VALUES ('q', 'now', 'pending')");
        table.nudge();
        table.until("SELECT status FROM jobs WHERE data = 'now'", "completed");
        let row = table.sql("SELECT status, state, run_at FROM jobs WHERE data = 'later'");
        assert_eq!(row, "pending|0|2208988800000000");
        server.stop();
    }
}

/// A table of an older program lacks something: the dry run says what, changes nothing, and `migrate` adds it.
#[test]
fn a_table_that_lacks_a_column_and_an_index_is_migrated() {
    on_each(|table| {
        let drop = if table.kind == Kind::MariaDb { " ON jobs" } else { "" };
        table.insert("q", "kept");
        table.sql(&format!("DROP INDEX windlass_jobs_ended{drop}"));
        table.sql("ALTER TABLE jobs DROP COLUMN reason");
        let (url, rig) = (table.url(), &table.rig);
        let refused = rig.call(&["--store", &url, "ls"]);
        assert_ne!(refused.code, Some(0), "{refused:?}");
        for _ in 0..2 {
            let told = rig.call(&["--store", &url, "migrate", "--dry-run"]);
            let said = String::from_utf8_lossy(&told.stdout).into_owned();
            assert!(said.contains("ADD COLUMN") && said.contains("reason"), "{said}");
            assert!(said.contains("CREATE INDEX") && said.contains("windlass_jobs_ended"), "{said}");
        }
        rig.call(&["--store", &url, "migrate"]).fine();
        let told = rig.call(&["--store", &url, "migrate", "--dry-run"]);
        assert_eq!(String::from_utf8_lossy(&told.stdout), "", "there is nothing left to do");
        let server = table.serve("[queue.q]\nrun = [\"true\"]\n");
        table.until("SELECT status FROM jobs WHERE data = 'kept'", "completed");
        server.stop();
    });
}

/// Whoever serves for a moment knows no config: what that keeps stays.
#[test]
fn a_verb_that_serves_for_a_moment_removes_nothing() {
    on_each(|table| {
        let config = |days: u32| format!("[archive]\nkeep_succeeded = \"{days}d\"\n[queue.q]\nrun = [\"true\"]\n");
        let server = table.serve(&config(30));
        table.insert("q", "x");
        table.nudge();
        table.until("SELECT status FROM jobs", "completed");
        server.stop();
        table.sql("UPDATE jobs SET ended_at = ended_at - 864000000000");
        table.rig.call(&["--store", &table.url(), "ls"]).fine();
        assert_eq!(table.sql("SELECT count(*) FROM jobs"), "1");
        let server = table.serve(&config(9));
        table.until("SELECT count(*) FROM jobs", "0");
        server.stop();
    });
}

#[test]
fn a_retry_is_made_by_writing_pending() {
    on_each(|table| {
        let mut bell = table.rig.bell("bell");
        let flag = table.rig.path("mended");
        let command = format!("echo ran > {}; test -e {}", bell.path, flag.display());
        let server = table.serve(&format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\"]\nattempts = 1\n"));
        table.insert("q", "x");
        table.nudge();
        assert_eq!(bell.next(), "ran");
        table.until("SELECT status FROM jobs", "error");
        std::fs::write(flag, "").unwrap();
        table.sql("UPDATE jobs SET status = 'pending', locked_queue_id = ''");
        table.nudge();
        assert_eq!(bell.next(), "ran");
        table.until("SELECT status, locked_queue_id FROM jobs", "completed|");
        server.stop();
    });
}

#[test]
fn a_row_that_makes_no_sense_is_marked_and_left() {
    on_each(|table| {
        let server = table.serve("[queue.q]\nrun = [\"true\"]\n");
        table.insert("-no-queue", "x");
        table.insert("q", "fine");
        table.nudge();
        table.until("SELECT name, status FROM jobs ORDER BY id", "-no-queue|error\nq|completed");
        assert!(!table.sql("SELECT details FROM jobs WHERE status = 'error'").is_empty());
        server.stop();
    });
}

#[test]
fn yaml_arrives_as_json_and_its_fields_as_arguments() {
    let table = Table::ready(Kind::PostgreSql);
    let mut bell = table.rig.bell("bell");
    let command = format!("read -r data; echo $1 $data > {}", bell.path);
    let config = format!(
        "[queue.arguments]\nrun = [\"sh\", \"-c\", \"echo $1 > {}\", \"sh\", \"{{data.comment.id}}\"]\n\
         data = \"yaml\"\n[queue.whole]\nrun = [\"sh\", \"-c\", \"{command}\"]\ndata = \"yaml\"\n",
        bell.path
    );
    let server = table.serve(&config);
    table.insert("arguments", "---\n:comment:\n  :id: 7\n");
    table.nudge();
    assert_eq!(bell.next(), "7");
    table.insert("whole", "---\n:a: [1, two]\n");
    table.nudge();
    assert_eq!(bell.next(), r#"{"a":[1,"two"]}"#);
    table.insert("whole", "--- !ruby/object:Gem::Installer\ni: x\n");
    table.nudge();
    table.until("SELECT count(*) FROM jobs WHERE status = 'error'", "1");
    let details = table.sql("SELECT details FROM jobs WHERE status = 'error'");
    assert!(details.contains("not the YAML that is expected"), "{details}");
    server.stop();
}

/// An application with an object-relational mapper, from the distribution's packages and thus with its Python.
#[test]
fn a_python_orm_inserts_and_reads() {
    const SCRIPT: &str = r#"
import sys
from sqlalchemy import Column, BigInteger, Integer, String, Text, create_engine
from sqlalchemy.orm import Session, declarative_base

class Job(declarative_base()):
    __tablename__ = "jobs"
    id = Column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True)
    name = Column(String)
    data = Column(Text)
    status = Column(String)

engine = create_engine(sys.argv[1])
if sys.argv[2] == "insert":
    with Session(engine) as session:
        session.add(Job(name="q", data="rolled back", status="pending"))
        session.flush()
        session.rollback()
        session.add_all([Job(name="q", data=f"row {n}", status="pending") for n in range(50)])
        session.commit()
else:
    with Session(engine) as session:
        jobs = session.query(Job).order_by(Job.id).all()
        print(len(jobs), {job.status for job in jobs}, jobs[0].data)
"#;
    on_each(|table| {
        let server = table.serve("[queue.q]\nrun = [\"true\"]\n");
        let url = table.url().replace("postgres://", "postgresql://").replace("mysql://", "mysql+pymysql://");
        let url = if table.kind == Kind::Sqlite { url.replace("sqlite:", "sqlite:///") } else { url };
        let python = |word: &str| {
            let output = Command::new("/usr/bin/python3").args(["-c", SCRIPT, &url, word]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        python("insert");
        table.nudge();
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "50");
        assert_eq!(python("read").trim(), "50 {'completed'} row 0");
        server.stop();
    });
}
