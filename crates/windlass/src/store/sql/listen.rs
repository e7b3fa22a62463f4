//! Listens to PostgreSQL for the word that another program, or another server, has written to the table.
//!
//! On a connection of its own. A pooler that gives a connection to one transaction after another passes no words on,
//! and answers LISTEN as if it did; so the listener says something on another connection and waits until it hears it.
//! Where it does not, the looks that a server makes by itself are what is left. It must not look at the table.

use super::postgres::{failed, open, tls};
use super::{SqlOptions, StoreError};
use std::future::{Future, poll_fn};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};

/// A database that is gone without a word is noticed after about this time.
const SILENCE: Duration = Duration::from_secs(30);
/// Where the listener's own word is not there after so long, none is.
const PROBE: Duration = Duration::from_secs(5);
/// Where listeners hear themselves; what is said there is no work.
const PROBES: &str = "windlass_probes";

/// How listening ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listened {
    /// With the connection, or because nobody wants to hear more.
    Ended,
    /// It was of no use: words do not come through.
    InVain,
}

/// What was heard.
enum Word {
    Rows,
    Probe(String),
}

/// Listens until the connection ends, which it always does some day. `heard` is called at first, too: what was said
/// before is not told.
pub(crate) async fn listen<F: Future<Output = bool>>(
    options: &SqlOptions,
    heard: impl FnMut() -> F,
) -> Result<Listened, StoreError> {
    let bad = |error: tokio_postgres::Error| StoreError::Io(format!("bad address of a database: {error}"));
    let mut config = Config::from_str(&options.url).map_err(bad)?;
    config.application_name("windlass listens").connect_timeout(options.time_limit).keepalives_idle(SILENCE);
    let channel = options.names()?.channel();
    let (tell, mut told) = unbounded_channel();
    let attempt = options.pace.enter()?;
    let client = match tls(&config)? {
        None => {
            let (client, connection) = attempt.ended(config.connect(NoTls).await.map_err(failed))?;
            tokio::spawn(drive(connection, options.server.clone(), tell));
            client
        }
        Some(tls) => {
            let (client, connection) = attempt.ended(config.connect(tls).await.map_err(failed))?;
            tokio::spawn(drive(connection, options.server.clone(), tell));
            client
        }
    };
    client.batch_execute(&format!("LISTEN \"{channel}\"; LISTEN {PROBES}")).await.map_err(failed)?;
    if !hears_itself(config, &options.server, &mut told).await? {
        return Ok(Listened::InVain);
    }
    follow(&client, told, heard).await;
    Ok(Listened::Ended)
}

/// Passes words on until the connection ends, but for this server's own.
async fn drive<S, T>(mut connection: Connection<S, T>, own: String, tell: UnboundedSender<Word>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        let word = match message {
            AsyncMessage::Notification(said) if said.channel() == PROBES => Word::Probe(said.payload().to_owned()),
            AsyncMessage::Notification(said) if said.payload() != own => Word::Rows,
            _ => continue,
        };
        if tell.send(word).is_err() {
            return;
        }
    }
}

/// Says a word that nobody else says, and waits for it. Words of rows may be passed over: a look comes first anyway.
async fn hears_itself(
    mut config: Config,
    server: &str,
    told: &mut UnboundedReceiver<Word>,
) -> Result<bool, StoreError> {
    static SAID: AtomicU64 = AtomicU64::new(0);
    let probe = format!("{server} {} {}", std::process::id(), SAID.fetch_add(1, Ordering::Relaxed));
    config.application_name("windlass says a word");
    let (said, on) = (&probe, PROBES);
    let speaker = open(config).await?;
    let words: [(&(dyn ToSql + Sync), Type); 2] = [(&on, Type::TEXT), (said, Type::TEXT)];
    speaker.execute_typed("SELECT pg_notify($1, $2)", &words).await.map_err(failed)?;
    let heard = async {
        while let Some(word) = told.recv().await {
            if matches!(word, Word::Probe(heard) if heard == probe) {
                return true;
            }
        }
        false
    };
    Ok(tokio::time::timeout(PROBE, heard).await.unwrap_or(false))
}

async fn follow<F: Future<Output = bool>>(
    client: &Client,
    mut told: UnboundedReceiver<Word>,
    mut heard: impl FnMut() -> F,
) {
    loop {
        // Words that came while the last ones were being acted upon ask for one look more, not for one each.
        while told.try_recv().is_ok() {}
        if !heard().await {
            return;
        }
        loop {
            match told.recv().await {
                Some(Word::Rows) => break,
                Some(Word::Probe(_)) => {}
                None => return,
            }
        }
        if client.is_closed() {
            return;
        }
    }
}
