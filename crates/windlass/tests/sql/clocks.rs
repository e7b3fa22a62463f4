//! Clocks that are wrong, and clocks that are set: the database's is the one that counts.
//!
//! PostgreSQL finds `clock_timestamp` by the search path, so a test can give a database a clock of its own.

use crate::table::{Kind, Table};

/// A table whose database's clock is ahead by as many seconds as a table of the test says.
fn with_own_clock(seconds: i64) -> Table {
    let table = Table::ready(Kind::PostgreSql);
    table.sql("CREATE SCHEMA fake");
    table.sql("CREATE TABLE fake.ahead (seconds double precision)");
    table.sql(&format!("INSERT INTO fake.ahead VALUES ({seconds})"));
    table.sql(
        "CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
         'SELECT pg_catalog.clock_timestamp() + make_interval(secs => (SELECT seconds FROM fake.ahead))'",
    );
    let database = table.sql("SELECT current_database()");
    table.sql(&format!("ALTER DATABASE {database} SET search_path = public, fake, pg_catalog"));
    table
}

const NOW: &str = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)";

#[test]
fn what_is_due_is_due_by_the_databases_clock() {
    for seconds in [7200, -7200] {
        let table = with_own_clock(seconds);
        // The first try of each fails, and the next one comes soon, by whatever clock.
        let tried = table.rig.path("tried");
        let config = format!(
            "[queue.q]\nrun = [\"sh\", \"-c\", \"test -e {0} || {{ touch {0}; exit 1; }}\"]\n\
             backoff = \"1s\"\nbackoff_max = \"1s\"\n",
            tried.display()
        );
        let server = table.serve(&config);
        table.sql(&format!(
            "INSERT INTO jobs (name, data, status, run_at) VALUES ('q', 'x', 'pending', {NOW} + 1000000)"
        ));
        table.nudge();
        table.until("SELECT status, attempts FROM jobs", "completed|2");
        let ended = table.sql(&format!("SELECT abs({NOW} - ended_at) < 60000000 FROM jobs"));
        assert_eq!(ended, "t", "times in rows are the database's");
        server.stop();
    }
}

#[test]
fn who_waits_for_another_try_waits_as_long_when_the_databases_clock_is_set() {
    let table = with_own_clock(0);
    let config = "[queue.q]\nrun = [\"false\"]\nbackoff = \"1h\"\nbackoff_max = \"1h\"\n";
    let server = table.rig.serve(&table.config_of(&table.url(), "3s", config));
    table.insert("q", "x");
    let named = table.sql(&format!(
        "INSERT INTO jobs (name, data, status, run_at) VALUES ('named', 'x', 'pending', {NOW} + 90000000000) \
         RETURNING run_at"
    ));
    table.nudge();
    table.until("SELECT state, attempts FROM jobs WHERE name = 'q'", "3|1");
    let due = table.sql("SELECT run_at FROM jobs WHERE name = 'q'").parse::<i64>().unwrap();
    table.sql("UPDATE fake.ahead SET seconds = 36000");
    table.until(&format!("SELECT run_at - {due} > 35000000000 FROM jobs WHERE name = 'q'"), "t");
    assert_eq!(table.sql("SELECT state, attempts FROM jobs WHERE name = 'q'"), "3|1");
    assert_eq!(table.sql("SELECT run_at FROM jobs WHERE name = 'named'"), named, "a time that was named stays");
    server.stop();
}
