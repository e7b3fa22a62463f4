//! Statements to PostgreSQL. Each but COPY is one round trip, or goes with the next; none leaves a prepared statement
//! behind, so that a pooler between transactions is no obstacle.

use super::database::{Cells, Driver, Limits, Value, runtime, too_slow};
use super::routines::APPLICATION;
use crate::store::StoreError;
use futures_util::SinkExt;
use futures_util::future::{join, join_all};
use std::future::Future;
use std::io::Cursor;
use std::pin::pin;
use std::str::FromStr;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

pub(super) struct Postgres {
    runtime: Runtime,
    client: Client,
    limit: Duration,
    ahead: Vec<Ahead>,
}

/// What is sent with the next call, before it.
enum Ahead {
    Batch(String),
    Statement(String, Vec<Value>),
}

impl Ahead {
    async fn run(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        match self {
            Ahead::Batch(text) => client.batch_execute(text).await,
            Ahead::Statement(sql, params) => client.execute_typed(sql, &typed(params)).await.map(|_| ()),
        }
    }
}

/// So many statements wait at most for the next call.
const AHEAD_MOST: usize = 16;

impl Postgres {
    pub(super) fn connect(url: &str, limits: Limits) -> Result<Postgres, StoreError> {
        let Limits { connect: within, call: limit, .. } = limits;
        let bad = |error: tokio_postgres::Error| StoreError::Io(format!("bad address of a database: {error}"));
        let mut config = Config::from_str(url).map_err(bad)?;
        config.application_name(APPLICATION);
        // Of several addresses the one that can be written to, also after another has become that.
        if !limits.reads {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let runtime = runtime()?;
        let opening = open(config);
        let opened = runtime.block_on(async { tokio::time::timeout(within, opening).await });
        let client = opened.map_err(|_| too_slow(within))??;
        Ok(Postgres { runtime, client, limit, ahead: Vec::new() })
    }

    /// Waits for a call, and for what was to be done before it. A statement is sent when its future is polled first,
    /// so all of them are under way before the first is answered; where one fails, those after it do nothing.
    fn wait<T>(
        &self,
        ahead: &[Ahead],
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        let all = async {
            let (before, answer) = join(join_all(ahead.iter().map(|first| first.run(&self.client))), call).await;
            before.into_iter().collect::<Result<(), _>>().and(answer)
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(self.limit, all).await });
        answer.map_err(|_| too_slow(self.limit))?.map_err(failed)
    }
}

impl Postgres {
    fn put_ahead(&mut self, statement: Ahead) -> Result<(), StoreError> {
        self.ahead.push(statement);
        if self.ahead.len() < AHEAD_MOST {
            return Ok(());
        }
        let ahead = std::mem::take(&mut self.ahead);
        self.wait(&ahead, std::future::ready(Ok(())))
    }
}

/// Connects, in the clear only where the address says so or the server has nothing better.
pub(super) async fn open(config: Config) -> Result<Client, StoreError> {
    let Some(tls) = tls(&config)? else {
        let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
        tokio::spawn(connection);
        return Ok(client);
    };
    let (client, connection) = config.connect(tls).await.map_err(failed)?;
    tokio::spawn(connection);
    Ok(client)
}

/// How a connection is made safe; none where it is to be in the clear.
pub(super) fn tls(config: &Config) -> Result<Option<MakeRustlsConnect>, StoreError> {
    let plain = match config.get_ssl_mode() {
        SslMode::Disable => true,
        // What stays on this machine is not hidden from it.
        SslMode::Prefer => config.get_hosts().iter().all(is_local),
        _ => false,
    };
    if plain {
        return Ok(None);
    }
    let tls = crate::runner::url::pool::tls_config().map_err(StoreError::Io)?;
    Ok(Some(MakeRustlsConnect::new((*tls).clone())))
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    }
}

impl Driver for Postgres {
    fn query(&mut self, sql: &str, params: &[Value]) -> Result<Vec<Cells>, StoreError> {
        let (params, ahead) = (typed(params), std::mem::take(&mut self.ahead));
        let rows = self.wait(&ahead, self.client.query_typed(sql, &params))?;
        rows.iter().map(cells).collect()
    }

    fn execute(&mut self, sql: &str, params: &[Value]) -> Result<u64, StoreError> {
        let (params, ahead) = (typed(params), std::mem::take(&mut self.ahead));
        self.wait(&ahead, self.client.execute_typed(sql, &params))
    }

    fn batch(&mut self, statements: &[&str]) -> Result<(), StoreError> {
        let (text, ahead) = (statements.join("; "), std::mem::take(&mut self.ahead));
        self.wait(&ahead, self.client.batch_execute(&text))
    }

    fn execute_ahead(&mut self, sql: String, params: Vec<Value>) -> Result<(), StoreError> {
        self.put_ahead(Ahead::Statement(sql, params))
    }

    fn batch_ahead(&mut self, statements: &[&str]) -> Result<(), StoreError> {
        self.put_ahead(Ahead::Batch(statements.join("; ")))
    }

    /// It has to be prepared; it is closed before the transaction ends, so that no other session finds it.
    fn copy(&mut self, sql: &str, text: Vec<u8>) -> Result<(), StoreError> {
        let ahead = std::mem::take(&mut self.ahead);
        self.wait(&ahead, async {
            let mut rows = pin!(self.client.copy_in(sql).await?);
            rows.send(Cursor::new(text)).await?;
            rows.finish().await.map(|_| ())
        })
    }
}

fn typed(params: &[Value]) -> Vec<(&(dyn ToSql + Sync), Type)> {
    let typed = params.iter().map(|param| -> (&(dyn ToSql + Sync), Type) {
        match param {
            Value::Int(value) => (value, Type::INT8),
            Value::Text(value) => (value, Type::TEXT),
            Value::Bytes(value) => (value, Type::BYTEA),
            Value::Ints(values) => (values, Type::INT8_ARRAY),
            Value::Texts(values) => (values, Type::TEXT_ARRAY),
            Value::Blobs(values) => (values, Type::BYTEA_ARRAY),
        }
    });
    typed.collect()
}

fn cells(row: &Row) -> Result<Cells, StoreError> {
    let columns = row.columns().iter().enumerate();
    let values = columns.map(|(at, column)| {
        let value = match *column.type_() {
            Type::INT2 => row.try_get::<_, Option<i16>>(at).map(|value| Value::Int(value.map(i64::from))),
            Type::INT4 => row.try_get::<_, Option<i32>>(at).map(|value| Value::Int(value.map(i64::from))),
            Type::INT8 => row.try_get(at).map(Value::Int),
            Type::BOOL => row.try_get::<_, Option<bool>>(at).map(|value| Value::Int(value.map(i64::from))),
            Type::BYTEA => row.try_get(at).map(Value::Bytes),
            _ => row.try_get(at).map(Value::Text),
        };
        value.map_err(|error| StoreError::Corrupt(format!("column {}: {error}", column.name())))
    });
    Ok(Cells::new(values.collect::<Result<_, _>>()?))
}

/// The one table from PostgreSQL's errors to ours.
pub(super) fn failed(error: tokio_postgres::Error) -> StoreError {
    let Some(told) = error.as_db_error() else {
        let mut text = error.to_string();
        if let Some(cause) = std::error::Error::source(&error) {
            text = format!("{text}: {cause}");
        }
        // What did not come from the server came from the way to it.
        return StoreError::Away(text);
    };
    let (code, text) = (told.code(), format!("{} ({})", told.message(), told.code().code()));
    let locked = [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE, SqlState::LOCK_NOT_AVAILABLE];
    let passes = [
        SqlState::QUERY_CANCELED,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::TOO_MANY_CONNECTIONS,
        SqlState::READ_ONLY_SQL_TRANSACTION,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        // A session or a transaction that the database finds too old; another connection is let in.
        SqlState::IDLE_SESSION_TIMEOUT,
        SqlState::from_code("25P04"),
    ];
    // It has no room for us now, or does not speak as it should: a pooler says so of a server that is gone.
    let passing = ["08", "53"].iter().any(|class| code.code().starts_with(class));
    match code {
        code if *code == SqlState::DISK_FULL => StoreError::Full(text),
        // What a column or a constraint does not take, and what a trigger of the application says no to.
        code if ["22", "23", "P0001"].iter().any(|class| code.code().starts_with(class)) => StoreError::Refused(text),
        code if locked.contains(code) => StoreError::Busy(text),
        code if passing || passes.contains(code) => StoreError::Away(text),
        code if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED => StoreError::Corrupt(text),
        _ => StoreError::Io(text),
    }
}
