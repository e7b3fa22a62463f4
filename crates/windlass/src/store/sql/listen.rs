//! Listens to PostgreSQL for the word that another program, or another server, has written to the table.
//!
//! On a connection of its own, which a pooler between transactions would not do for: who has one in between gets no
//! words, and the looks that a server makes by itself are what is left. It must not look at the table.

use super::postgres::{failed, tls};
use super::{SqlOptions, StoreError};
use std::future::{Future, poll_fn};
use std::str::FromStr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};

/// A database that is gone without a word is noticed after about this time.
const SILENCE: Duration = Duration::from_secs(30);

/// Listens until the connection ends, which it always does some day. `heard` is called at first, too: what was said
/// before is not told.
pub(crate) async fn listen<F: Future<Output = bool>>(
    options: &SqlOptions,
    heard: impl FnMut() -> F,
) -> Result<(), StoreError> {
    let bad = |error: tokio_postgres::Error| StoreError::Io(format!("bad address of a database: {error}"));
    let mut config = Config::from_str(&options.url).map_err(bad)?;
    config.application_name("windlass listens").connect_timeout(options.time_limit).keepalives_idle(SILENCE);
    let channel = options.names()?.channel();
    let (tell, told) = unbounded_channel();
    let client = match tls(&config)? {
        None => {
            let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
            tokio::spawn(drive(connection, options.server.clone(), tell));
            client
        }
        Some(tls) => {
            let (client, connection) = config.connect(tls).await.map_err(failed)?;
            tokio::spawn(drive(connection, options.server.clone(), tell));
            client
        }
    };
    follow(&client, &channel, told, heard).await
}

/// Passes words on until the connection ends, but for this server's own.
async fn drive<S, T>(mut connection: Connection<S, T>, own: String, tell: UnboundedSender<()>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        let new = matches!(&message, AsyncMessage::Notification(word) if word.payload() != own);
        if new && tell.send(()).is_err() {
            return;
        }
    }
}

async fn follow<F: Future<Output = bool>>(
    client: &Client,
    channel: &str,
    mut told: UnboundedReceiver<()>,
    mut heard: impl FnMut() -> F,
) -> Result<(), StoreError> {
    client.batch_execute(&format!("LISTEN \"{channel}\"")).await.map_err(failed)?;
    loop {
        // Words that came while the last ones were being acted upon ask for one look more, not for one each.
        while told.try_recv().is_ok() {}
        if !heard().await || told.recv().await.is_none() {
            return Ok(());
        }
    }
}
