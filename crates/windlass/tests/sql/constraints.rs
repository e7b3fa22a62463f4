//! What an application's table does not take: it is said, and nobody is stopped by it.

use crate::rig::lines_of;
use crate::table::{ALL, Kind, Table};

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

/// Has the table refuse rows, by a constraint or by a trigger that says so.
fn refuse(table: &Table, of: &str) {
    match table.kind {
        Kind::PostgreSql | Kind::MariaDb => {
            table.sql(&format!("ALTER TABLE jobs ADD CONSTRAINT sober CHECK (NOT ({of}))"))
        }
        Kind::Sqlite => table.sql(&format!(
            "CREATE TRIGGER sober BEFORE INSERT ON jobs WHEN NEW.{of} BEGIN SELECT RAISE(ABORT, 'sober'); END"
        )),
    };
}

fn allow(table: &Table) {
    match table.kind {
        Kind::PostgreSql | Kind::MariaDb => table.sql("ALTER TABLE jobs DROP CONSTRAINT sober"),
        Kind::Sqlite => table.sql("DROP TRIGGER sober"),
    };
}

#[test]
fn what_the_table_refuses_is_told_to_whoever_pushes_it_and_set_aside_of_the_inbox() {
    for kind in ALL {
        let table = Table::ready(kind);
        let done = table.rig.path("done");
        let command = format!("echo $1 >> {}", done.display());
        let queue = format!("[queue.q]\nrun = [\"sh\", \"-c\", \"{command}\", \"sh\", \"{{}}\"]\n");
        let mut serving = table.serve(&queue);
        refuse(&table, "name = 'strange'");
        let refused = table.rig.call(&["push", "strange", "x", "--durability", "full"]);
        assert_ne!(refused.code, Some(0), "{refused:?}");
        refused.says("nothing was stored: the database refuses it");
        // What the inbox has taken cannot be refused any more.
        let id = table.rig.call(&["push", "strange", "y", "--durability", "os"]).fine().trim().to_owned();
        table.rig.call(&["push", "q", "after", "--durability", "os"]).fine();
        serving.process.until("are set aside and tried again");
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "1");
        assert_eq!(table.rig.call(&["status", "--json"]).json()["aside"]["strange"]["jobs"], 1, "{kind:?}");
        table.rig.call(&["status"]).says("the database refuses 1 job of queue `strange`").fine();
        for asked in ["strange", id.as_str()] {
            let why = table.rig.call(&["why", asked]).fine().to_owned();
            assert!(why.contains("that came by the inbox") && why.contains("sober"), "{kind:?}: {why}");
        }
        // It outlives the server, and nothing waits behind it.
        serving.kill();
        let serving = table.rig.serve_again();
        assert_eq!(table.rig.call(&["status", "--json"]).json()["aside"]["strange"]["jobs"], 1, "{kind:?}");
        table.insert("q", "of the application");
        table.nudge();
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "2");
        assert_eq!(table.sql("SELECT count(*) FROM jobs"), "2", "what was refused was not stored");
        allow(&table);
        table.rig.call(&["nudge"]).fine();
        table.until("SELECT count(*) FROM jobs WHERE name = 'strange' AND data = 'y'", "1");
        assert_eq!(table.rig.call(&["show", &id, "--json"]).json()["state"], "ready");
        table.rig.call(&["nudge"]).fine();
        assert_eq!(table.sql("SELECT count(*) FROM jobs"), "3");
        assert!(table.rig.call(&["status", "--json"]).json()["aside"].is_null());
        assert_eq!(lines_of(&done), ["after", "of the application"]);
        serving.stop();
    }
}

#[test]
fn of_many_jobs_that_the_inbox_brings_together_only_those_are_set_aside_that_are_refused() {
    for kind in ALL {
        let table = Table::ready(kind);
        refuse(&table, "data = 'bad'");
        let lines: String = (0..2_000).map(|n| if n % 700 == 5 { "bad\n".into() } else { format!("n{n}\n") }).collect();
        let ids = table.rig.feed(&["push", "q", "-", "--ids", "--durability", "os"], lines);
        assert_eq!(ids.fine().lines().count(), 2_000);
        let serving = table.serve("");
        table.until("SELECT count(*), count(DISTINCT data) FROM jobs", "1997|1997");
        let aside = || table.rig.call(&["status", "--json"]).json()["aside"]["q"]["jobs"].clone();
        assert_eq!(aside(), 3, "{kind:?}");
        allow(&table);
        table.rig.call(&["nudge"]).fine();
        table.until("SELECT count(*) FROM jobs WHERE data = 'bad'", "3");
        assert_eq!(table.sql("SELECT count(*) FROM jobs"), "2000");
        serving.stop();
    }
}

/// What a server has dealt with of a schedule: its times up to so many minutes ago.
pub(crate) fn has_fired_up_to(table: &Table, schedule: &str, minutes: i64) {
    let mark = windlass::clock::now().as_micros() - minutes * 60_000_000;
    let note = format!(r#"{{"mark":{mark},"waiting":[],"runs":[],"fired":null,"fired_count":0,"skipped_count":0}}"#);
    let hex: String = note.bytes().map(|byte| format!("{byte:02x}")).collect();
    let bytes = match table.kind {
        Kind::PostgreSql => format!("decode('{hex}', 'hex')"),
        Kind::MariaDb | Kind::Sqlite => format!("x'{hex}'"),
    };
    table.sql(&format!("INSERT INTO windlass_notes (server, note, kept) VALUES ('', 'schedule/{schedule}', {bytes})"));
}

#[test]
fn a_schedule_whose_work_is_refused_is_an_error_of_its_own_and_the_server_goes_on() {
    for kind in ALL {
        let table = Table::ready(kind);
        refuse(&table, "name = 'strange'");
        let schedule = |name: &str| {
            let push = format!("push = {{ queue = \"{name}\", data = \"x\" }}\n");
            format!("[schedule.{name}]\ncron = \"* * * * *\"\nzone = \"UTC\"\n{push}")
        };
        for name in ["strange", "usual"] {
            has_fired_up_to(&table, name, 5);
        }
        let config = format!("{}{}[queue.q]\nrun = [\"true\"]\n", schedule("strange"), schedule("usual"));
        let mut serving = table.serve(&config);
        serving.process.until("schedule `strange`: the database refuses what it pushes, which is tried again");
        table.until("SELECT min(status) FROM jobs WHERE name = 'usual'", "pending");
        let listed = table.rig.call(&["schedule", "ls", "-o", "json"]).json();
        let of = |name: &str| listed.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone();
        assert!(of("strange")["error"].as_str().is_some_and(|why| why.contains("sober")), "{kind:?}: {listed}");
        assert!(of("usual")["error"].is_null() && of("strange")["fired"].is_null(), "{kind:?}: {listed}");
        table.rig.call(&["schedule", "ls"]).fine().contains("refused, and tried again").then_some(()).unwrap();
        let refused = table.rig.call(&["schedule", "run", "strange"]);
        assert_ne!(refused.code, Some(0), "{refused:?}");
        refused.says("the database refuses it");
        table.insert("q", "x");
        table.nudge();
        table.until("SELECT count(*) FROM jobs WHERE status = 'completed'", "1");
        assert_eq!(table.sql("SELECT count(*) FROM jobs WHERE name = 'strange'"), "0");
        allow(&table);
        serving.process.until("schedule `strange` fires again");
        table.until("SELECT min(status) FROM jobs WHERE name = 'strange'", "pending");
        let listed = table.rig.call(&["schedule", "ls", "-o", "json"]).json();
        assert!(!listed.to_string().contains("sober"), "{listed}");
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
