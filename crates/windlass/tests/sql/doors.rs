//! What people say to reach a table: `attach`, `migrate`, `--store`, and what is refused in words.

use crate::rig::Rig;
use crate::table::{ALL, Kind, Table};
use serde_json::Value;

#[test]
fn attach_says_what_it_would_do_and_does_it_when_told() {
    for kind in ALL {
        let table = Table::empty(kind);
        let url = table.url();
        let told = table.rig.call(&["attach", &url]);
        let said = told.fine();
        assert!(said.contains("not there") && said.contains("nothing was changed; --apply does it"), "{said}");
        assert!(said.contains("would be done: the index `windlass_jobs_lane` gives the next jobs"), "{said}");
        assert!(!said.contains("windlass-test"), "no password: {said}");
        let again = table.rig.call(&["attach", &url, "--json"]).json();
        assert!(again["steps"].as_array().unwrap().len() > 3, "{again}");
        table.rig.call(&["attach", &url, "--apply"]).fine();
        let done = table.rig.call(&["attach", &url, "--json"]).json();
        assert_eq!(done["steps"].as_array().unwrap().len(), 0, "{done}");
        table.rig.call(&["--store", &url, "migrate", "--dry-run"]).says("is up to date");
        table.insert("q", "x");
        assert_eq!(table.sql("SELECT status, attempts, locked_queue_id FROM jobs"), "pending|0|");
    }
}

#[test]
fn a_table_that_is_there_is_extended_under_its_own_names() {
    for kind in ALL {
        let table = Table::empty(kind);
        let id = match kind {
            Kind::PostgreSql => "id bigserial PRIMARY KEY",
            Kind::MariaDb => "id bigint AUTO_INCREMENT PRIMARY KEY",
            Kind::Sqlite => "id integer PRIMARY KEY",
        };
        table.sql(&format!(
            "CREATE TABLE work ({id}, kind varchar(255), payload text, status varchar(255), note varchar(20))"
        ));
        table.sql("INSERT INTO work (kind, payload, status, note) VALUES ('q', 'x', 'pending', 'ours')");
        let words = ["attach", &table.url(), "--table", "work", "--map", "name=kind,data=payload", "--apply"];
        let told = table.rig.call(&words);
        assert!(told.fine().contains("columns id, kind, payload, status, note"), "{}", told.fine());
        assert_eq!(table.sql("SELECT note FROM work"), "ours");
        let config = format!(
            "[store]\nurl = {:?}\ntable = \"work\"\nmap = {{ name = \"kind\", data = \"payload\" }}\n\
             [queue.q]\nrun = [\"true\"]\n",
            table.url()
        );
        let server = table.rig.serve(&config);
        table.until("SELECT kind, payload, status FROM work", "q|x|completed");
        server.stop();
    }
}

#[test]
fn jobs_move_from_a_data_directory_to_a_table_and_on() {
    for kind in ALL {
        let table = Table::ready(kind);
        let (here, there) = (Rig::new(), Rig::new());
        let url = table.url();
        here.feed(&["push", "q", "-"], "one\ntwo\nthree\n").fine();
        here.call(&["push", "q", "later", "--at", "2099-01-01T00:00:00Z"]).fine();
        let told = here.call(&["move", "q", "--to", &url]);
        told.says("moved 4 jobs").fine();
        assert!(!told.stderr.contains("windlass-test"), "no password: {told:?}");
        assert_eq!(table.sql("SELECT count(*) FROM jobs WHERE name = 'q' AND status = 'pending'"), "4");
        table.insert("q", "of the application");
        let to = there.dir();
        there.call(&["move", "q", "--from", &url, "--to", to.to_str().unwrap()]).says("moved 5 jobs").fine();
        assert_eq!(table.sql("SELECT count(*) FROM jobs WHERE status IN ('pending', 'processing')"), "0");
        let listed = there.call(&["ls", "queue:q", "-o", "jsonl"]).fine().to_owned();
        let jobs = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut came: Vec<(String, String)> = jobs
            .map(|job| (job["state"].as_str().unwrap().to_owned(), job["data"].as_str().unwrap().to_owned()))
            .collect();
        came.sort();
        let ready = ["of the application", "one", "three", "two"].map(|data| ("ready".to_owned(), data.to_owned()));
        assert_eq!(came, [&ready[..], &[("scheduled".to_owned(), "later".to_owned())]].concat(), "{kind:?}");
        for rig in [&here, &there] {
            let left = std::fs::read_dir(rig.dir().join("moves")).unwrap().count();
            assert_eq!(left, 0, "what served the table for so long is gone");
        }
    }
}

#[test]
fn a_column_of_the_applications_is_never_taken_for_ours() {
    let table = Table::empty(Kind::Sqlite);
    table.sql("CREATE TABLE jobs (id integer PRIMARY KEY, name text, data text, status text, priority text)");
    table.sql("INSERT INTO jobs (name, data, status, priority) VALUES ('q', 'x', 'pending', 'urgent')");
    let told = table.rig.call(&["attach", &table.url(), "--apply"]);
    assert!(told.code != Some(0), "{told:?}");
    told.says("has a column `priority` of its own");
    table.rig.call(&["attach", &table.url(), "--map", "priority=windlass_priority", "--apply"]).fine();
    assert_eq!(table.sql("SELECT priority, windlass_priority FROM jobs"), "urgent|0");
}

#[test]
fn jobs_come_through_every_door() {
    for kind in ALL {
        let table = Table::ready(kind);
        let url = table.url();
        let pushed = table.rig.call(&["--store", &url, "push", "q", "by inbox"]);
        let id = pushed.fine().trim().to_owned();
        let server = table.serve("[queue.q]\nrun = [\"true\"]\n");
        table.rig.call(&["push", "q", "by socket"]).fine();
        table.rig.drained();
        let told = table.sql("SELECT data, status FROM jobs ORDER BY data");
        assert_eq!(told, "by inbox|completed\nby socket|completed");
        assert_eq!(table.rig.call(&["show", &id, "--json"]).json()["state"], "succeeded");
        server.stop();
        // Without a server the verb becomes one, on the same table.
        let listed = table.rig.call(&["ls", "--json"]).json();
        assert!(listed.as_array().is_some_and(|jobs| jobs.iter().any(|job| job["id"] == id)), "{listed}");
    }
}

#[test]
fn a_run_goes_through_a_table_to_its_end() {
    for kind in ALL {
        let table = Table::ready(kind);
        let told = table.rig.feed(&["--store", &table.url(), "run", "--", "echo", "did", "{}"], "a\nb\nc\n");
        let mut lines: Vec<&str> = told.fine().lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["did a", "did b", "did c"]);
    }
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let table = Table::empty(Kind::Sqlite);
    let url = table.url();
    let told = table.rig.call(&["--store", &url, "serve"]);
    assert!(told.code != Some(0), "{told:?}");
    told.says("windlass attach says what a table lacks");
    table.rig.call(&["attach", &url, "--apply"]).fine();
    table.rig.call(&["--store", &url, "status"]).fine();
    let told = table.rig.call(&["status"]);
    assert_eq!(told.code, Some(78), "{told:?}");
    told.says("and no store was named").says("--store URL");
    let told = table.rig.call(&["--store", &url, "backup", "b.tar"]);
    assert_eq!(told.code, Some(64), "{told:?}");
    told.says("which its database has to back up");
    let told = table.rig.call(&["--store", &url, "doctor"]);
    assert!(told.fine().contains("is ready"), "{}", told.fine());
    let other = Rig::new();
    other.call(&["push", "q", "x"]).fine();
    other.call(&["status"]).fine();
    let told = other.call(&["--store", &url, "status"]);
    assert_eq!(told.code, Some(78), "{told:?}");
    told.says("jobs of its own");
    for (wrong, why) in [("redis://h/0", "no store of the kind"), ("postgres://h", "names no database")] {
        let told = other.call(&["--store", wrong, "status"]);
        assert_eq!(told.code, Some(64), "{told:?}");
        told.says(why);
    }
    let told = table.rig.call(&["attach", &url, "--schema", "app"]);
    assert_eq!(told.code, Some(64), "{told:?}");
    told.says("SQLite has no schemas");
    std::fs::write(table.rig.path("letter"), "no database at all, but a letter of some length").unwrap();
    let told = table.rig.call(&["attach", &format!("sqlite:{}", table.rig.path("letter").display())]);
    told.says("letter is no SQLite database");
    let gone = table.rig.call(&["--store", "postgres://windlass:secret@127.0.0.1:1/none", "attach", &url]);
    gone.fine();
    let gone = table.rig.call(&["attach", "postgres://windlass:secret@127.0.0.1:1/none"]);
    assert!(gone.code != Some(0) && !gone.stderr.contains("secret"), "{gone:?}");
}
