//! What an application's table does not take: it is said, and nobody is stopped by it.

use crate::rig::lines_of;
use crate::table::{Kind, Table};

#[test]
fn a_column_that_no_job_could_fill_is_told_before_anything_is_done() {
    for kind in [Kind::PostgreSql, Kind::MariaDb, Kind::Sqlite] {
        let table = Table::empty(kind);
        let key = match kind {
            Kind::PostgreSql => "bigserial PRIMARY KEY",
            Kind::MariaDb => "bigint AUTO_INCREMENT PRIMARY KEY",
            Kind::Sqlite => "integer PRIMARY KEY",
        };
        table.sql(&format!("CREATE TABLE jobs (id {key}, name varchar(40), tenant integer NOT NULL)"));
        let told = table.rig.call(&["attach", &table.url(), "--apply"]);
        assert_ne!(told.code, Some(0), "{told:?}");
        told.says("a column `tenant` without a default that must not be null");
        assert_eq!(table.sql("SELECT count(*) FROM jobs"), "0");
    }
}

#[test]
fn what_a_constraint_refuses_is_told_to_whoever_pushes_it_and_waits_in_the_inbox() {
    for kind in [Kind::PostgreSql, Kind::MariaDb] {
        let table = Table::ready(kind);
        let done = table.rig.path("done");
        let command = format!("echo $1 >> {}", done.display());
        let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\", \"sh\", \"{{}}\"]\n");
        let mut serving = table.serve(&queue);
        table.sql("ALTER TABLE jobs ADD CONSTRAINT sober CHECK (name <> 'strange')");
        let refused = table.rig.call(&["push", "strange", "x", "--durability", "full"]);
        assert_ne!(refused.code, Some(0), "{refused:?}");
        refused.says("nothing was stored: the database refuses it");
        table.rig.call(&["push", "q", "after", "--durability", "full"]).fine();
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "1");
        // What the inbox has taken cannot be refused any more.
        table.rig.call(&["push", "strange", "y", "--durability", "os"]).fine();
        serving.process.until("which waits there");
        table.insert("q", "of the application");
        table.nudge();
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "2");
        table.sql("ALTER TABLE jobs DROP CONSTRAINT sober");
        table.until("SELECT count(*) FROM jobs WHERE name = 'strange' AND data = 'y'", "1");
        assert_eq!(table.sql("SELECT count(*) FROM jobs"), "3", "what was refused was not stored");
        assert_eq!(lines_of(&done), ["after", "of the application"]);
        serving.stop();
    }
}

/// What a job emits comes in with its end; where that is refused the job has failed, and others go on.
#[test]
fn a_job_that_emits_what_a_constraint_refuses_has_failed() {
    let table = Table::ready(Kind::PostgreSql);
    let emits =
        "[queue.emits]\nrun = [\"sh\", \"-c\", \"windlass emit strange x; true\"]\n[queue.q]\nrun = [\"true\"]\n";
    let serving = table.serve(&emits.replace("windlass emit", &format!("{} emit", env!("CARGO_BIN_EXE_windlass"))));
    table.sql("ALTER TABLE jobs ADD CONSTRAINT sober CHECK (name <> 'strange')");
    table.insert("emits", "x");
    table.until("SELECT status FROM jobs WHERE name = 'emits'", "error");
    let details = table.sql("SELECT details FROM jobs WHERE name = 'emits'");
    assert!(details.starts_with("what it emitted is refused by the database"), "{details}");
    table.insert("q", "y");
    table.until("SELECT status FROM jobs WHERE name = 'q'", "completed");
    serving.stop();
}
