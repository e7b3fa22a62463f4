//! Statements to MariaDB and MySQL. An update tells how many rows it found, not how many it changed.

use super::database::{Cells, Driver, Limits, Value, runtime, too_slow};
use super::dialect::positional;
use crate::store::StoreError;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Opts, OptsBuilder, Params, Row};
use std::future::Future;
use std::time::Duration;
use tokio::runtime::Runtime;

pub(super) struct Mariadb {
    runtime: Runtime,
    conn: Conn,
    limit: Duration,
}

/// What a session of ours takes for granted.
const SESSION: [&str; 3] = [
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET time_zone = '+00:00'",
    "SET sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
];

impl Mariadb {
    pub(super) fn connect(url: &str, limits: Limits) -> Result<Mariadb, StoreError> {
        let Limits { connect: within, call: limit, .. } = limits;
        let url = url.replacen("mariadb://", "mysql://", 1);
        let bad = |error| StoreError::Io(format!("bad address of a database: {error}"));
        let opts = OptsBuilder::from_opts(Opts::from_url(&url).map_err(bad)?).client_found_rows(true);
        // The address that was given is the one that is meant.
        let opts = opts.prefer_socket(false);
        let runtime = runtime()?;
        let opened = runtime.block_on(async { tokio::time::timeout(within, Conn::new(opts)).await });
        let conn = opened.map_err(|_| too_slow(within))?.map_err(failed)?;
        let mut opened = Mariadb { runtime, conn, limit };
        opened.batch(&SESSION)?;
        // MySQL knows neither, and lets a transaction stand as long as its connection does, and a statement go on.
        let idle = format!("SET SESSION idle_transaction_timeout = {}", limits.idle.as_secs().max(1));
        // What we wait for no longer must not go on there: whoever tries again would wait for its locks.
        let statement = format!("SET SESSION max_statement_time = {}", limit.as_secs_f64());
        let lock = format!("SET SESSION innodb_lock_wait_timeout = {}", limits.lock.as_secs().max(1));
        for wish in [idle, statement, lock] {
            match opened.batch(&[&wish]) {
                Ok(()) | Err(StoreError::Io(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(opened)
    }
}

fn wait<T>(runtime: &Runtime, limit: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
    let answer = runtime.block_on(async { tokio::time::timeout(limit, call).await });
    answer.map_err(|_| too_slow(limit))?.map_err(failed)
}

impl Driver for Mariadb {
    fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Cells>, StoreError> {
        let (sql, params) = bound(sql, params);
        let rows: Vec<Row> = wait(&self.runtime, self.limit, self.conn.exec(sql, params))?;
        rows.into_iter().map(cells).collect()
    }

    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64, StoreError> {
        let (sql, params) = bound(sql, params);
        wait(&self.runtime, self.limit, self.conn.exec_drop(sql, params))?;
        Ok(self.conn.affected_rows())
    }

    fn batch(&mut self, statements: &[&str]) -> Result<(), StoreError> {
        statements.iter().try_for_each(|sql| wait(&self.runtime, self.limit, self.conn.query_drop(*sql)))
    }
}

/// The statement with a mark for each value, in the order of the marks.
fn bound(sql: &str, params: &[Value]) -> (String, Params) {
    let (sql, order) = positional(sql);
    let values: Vec<_> = order.into_iter().map(|at| bind(&params[at])).collect();
    (sql, if values.is_empty() { Params::Empty } else { Params::Positional(values) })
}

fn bind(value: &Value) -> mysql_async::Value {
    match value {
        Value::Int(Some(value)) => mysql_async::Value::Int(*value),
        Value::Text(Some(text)) => mysql_async::Value::Bytes(text.clone().into_bytes()),
        Value::Bytes(Some(bytes)) => mysql_async::Value::Bytes(bytes.clone()),
        Value::Int(None) | Value::Text(None) | Value::Bytes(None) => mysql_async::Value::NULL,
        // Rows come as one text of JSON here.
        Value::Ints(_) | Value::Texts(_) | Value::Blobs(_) => mysql_async::Value::NULL,
    }
}

fn cells(row: Row) -> Result<Cells, StoreError> {
    let values = row.unwrap_raw().into_iter().map(|value| match value.unwrap_or(mysql_async::Value::NULL) {
        mysql_async::Value::NULL => Ok(Value::Int(None)),
        mysql_async::Value::Bytes(bytes) => Ok(Value::Bytes(Some(bytes))),
        mysql_async::Value::Int(value) => Ok(Value::Int(Some(value))),
        mysql_async::Value::UInt(value) => Ok(Value::Int(i64::try_from(value).ok())),
        // An application's column may be of any type; what we need of those are words.
        other => Ok(Value::Text(Some(other.as_sql(true).trim_matches('\'').to_owned()))),
    });
    Ok(Cells::new(values.collect::<Result<_, _>>()?))
}

/// What is over some time later: too many connections, of all or of one user; a server that ends, or may not be written
/// to now; no thread or memory for us; a connection or a statement that was killed, timed out or lost on the way.
const PASSES: [u16; 21] = [
    1040, 1203, 1226, 1053, 1077, 1079, 1290, 1792, 1836, 1037, 1041, 1135, 1317, 1927, 1969, 3024, 4031, 1158, 1159,
    1160, 1161,
];

/// The one table from MariaDB's errors to ours.
fn failed(error: Error) -> StoreError {
    match &error {
        // The table or the disk is full; a deadlock, a wait for a lock, a server that goes or has no room for us, or a
        // statement that takes too long.
        Error::Server(told) => match told.code {
            1021 | 1114 => StoreError::Full(error.to_string()),
            1205 | 1213 => StoreError::Busy(error.to_string()),
            code if PASSES.contains(&code) => StoreError::Away(error.to_string()),
            // A column without a default, and what a column, a constraint or a trigger does not take.
            1364 => StoreError::Refused(error.to_string()),
            _ if ["22", "23", "45"].iter().any(|class| told.state.starts_with(class)) => {
                StoreError::Refused(error.to_string())
            }
            _ => StoreError::Io(error.to_string()),
        },
        Error::Io(_) | Error::Driver(_) => StoreError::Away(error.to_string()),
        Error::Url(_) | Error::Other(_) => StoreError::Io(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mysql_async::ServerError;

    #[test]
    fn what_is_over_some_time_later_costs_the_turn_and_no_server() {
        let told = |code, state: &str| {
            failed(Error::Server(ServerError { code, message: "as it says".into(), state: state.into() }))
        };
        // Too many connections of one user, read-only since a failover, idle for too long, a thread that there is not.
        for (code, state) in [(1226, "42000"), (1290, "HY000"), (1836, "HY000"), (4031, "HY000"), (1135, "HY000")] {
            assert!(matches!(told(code, state), StoreError::Away(_)), "{code}");
        }
        assert!(matches!(told(1213, "40001"), StoreError::Busy(_)));
        assert!(matches!(told(1062, "23000"), StoreError::Refused(_)));
        assert!(matches!(told(1114, "HY000"), StoreError::Full(_)));
        assert!(matches!(told(1146, "42S02"), StoreError::Io(_)), "a table that is missing stays so");
    }
}
