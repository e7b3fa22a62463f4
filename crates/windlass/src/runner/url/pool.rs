//! Connections that are kept, and how new ones are dialled.
//!
//! A name is resolved for each new connection; every address it leads to is judged, and the very address that was
//! judged is connected to, so nothing can change in between. There is a limit for each host, and connections that
//! nobody used for a while are closed. It must not know what is sent over them.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use windlass_core::address::reach;
use windlass_core::policy::Host;

/// Connections to one host at once, over all crews.
pub(crate) const CONNECTIONS_MOST: usize = 256;
/// A connection that nobody used for so long is closed; many servers close theirs not much later.
const IDLE_MOST: Duration = Duration::from_secs(15);
/// For resolving, connecting and the handshake together.
const DIAL_MOST: Duration = Duration::from_secs(10);
/// How long a connection that has answered may take to be ready for the next request.
const READY_MOST: Duration = Duration::from_secs(1);
/// The largest header of an answer.
const HEADER_MOST: usize = 64 << 10;

/// A connection that can take a request now.
pub struct Connection {
    pub sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
    idle_since: Instant,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.borrow().keys().map(Host::to_string).collect();
        f.debug_struct("Pool").field("hosts", &hosts).finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Kept {
    /// The one that was used last is used next, so that those at the front age and go.
    idle: RefCell<VecDeque<Connection>>,
    reaped: RefCell<bool>,
    places: Arc<Semaphore>,
}

/// The connections of one thread.
#[derive(Default)]
pub struct Pool {
    hosts: RefCell<HashMap<Host, Rc<Kept>>>,
    tls: RefCell<Option<Arc<ClientConfig>>>,
}

impl Pool {
    fn of(&self, host: &Host) -> Rc<Kept> {
        if let Some(kept) = self.hosts.borrow().get(host) {
            return Rc::clone(kept);
        }
        let places = Arc::new(Semaphore::new(CONNECTIONS_MOST));
        let kept = Rc::new(Kept { idle: RefCell::default(), reaped: RefCell::default(), places });
        self.hosts.borrow_mut().insert(host.clone(), Rc::clone(&kept));
        kept
    }

    /// Waits until there may be one more connection to this host.
    pub async fn place(&self, host: &Host) -> Option<OwnedSemaphorePermit> {
        // It is never closed.
        Arc::clone(&self.of(host).places).acquire_owned().await.ok()
    }

    /// A connection that is open, as far as anybody knows.
    pub fn kept(&self, host: &Host) -> Option<Connection> {
        let kept = self.of(host);
        let mut idle = kept.idle.borrow_mut();
        while let Some(connection) = idle.pop_back() {
            if connection.sender.is_ready() && connection.idle_since.elapsed() < IDLE_MOST {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for the next call, once it is ready for one.
    pub async fn keep(&self, host: &Host, mut connection: Connection) {
        if !matches!(tokio::time::timeout(READY_MOST, connection.sender.ready()).await, Ok(Ok(()))) {
            return;
        }
        connection.idle_since = Instant::now();
        let kept = self.of(host);
        kept.idle.borrow_mut().push_back(connection);
        if !kept.reaped.replace(true) {
            tokio::task::spawn_local(reap(kept));
        }
    }

    /// A new connection; an error is the sentence of a call that could not be made.
    pub async fn dial(&self, host: &Host) -> Result<Connection, String> {
        let name = format!("{}:{}", host.name, host.port);
        match tokio::time::timeout(DIAL_MOST, self.connect(host)).await {
            Ok(dialled) => dialled.map_err(|why| format!("cannot reach {name}: {why}")),
            Err(_) => Err(format!("cannot reach {name}: no connection within {DIAL_MOST:?}")),
        }
    }

    async fn connect(&self, host: &Host) -> Result<Connection, String> {
        let until = Instant::now() + DIAL_MOST;
        let stream = connect_to(&resolve(host).await?, until).await?;
        // Without it the last packet of a request would wait for an acknowledgement.
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        if !host.tls {
            return shake_hands(TokioIo::new(stream)).await;
        }
        let name = ServerName::try_from(host.name.clone()).map_err(|e| e.to_string())?;
        let secured = TlsConnector::from(self.tls()?).connect(name, stream).await;
        shake_hands(TokioIo::new(secured.map_err(|e| format!("TLS: {e}"))?)).await
    }

    /// Read when it is first needed.
    fn tls(&self) -> Result<Arc<ClientConfig>, String> {
        if let Some(config) = &*self.tls.borrow() {
            return Ok(Arc::clone(config));
        }
        let config = tls_config()?;
        *self.tls.borrow_mut() = Some(Arc::clone(&config));
        Ok(config)
    }
}

/// Trusts whom the system trusts.
pub(crate) fn tls_config() -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    let (taken, _unreadable) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if taken == 0 {
        return Err("this system has no certificates to trust; the package ca-certificates brings them".into());
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.map_err(|e| e.to_string())?.with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::new(config))
}

/// Every address of a host, all of them allowed.
async fn resolve(host: &Host) -> Result<Vec<SocketAddr>, String> {
    let addresses: Vec<SocketAddr> = match host.name.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, host.port)],
        Err(_) => tokio::net::lookup_host((host.name.as_str(), host.port)).await.map_err(|e| e.to_string())?.collect(),
    };
    // A name that leads outside and inside at once is a trap.
    let refused = addresses.iter().find(|address| !reach(address.ip()).is_allowed(host.inside));
    match refused {
        None => Ok(addresses),
        Some(address) => {
            let (ip, words) = (address.ip(), reach(address.ip()).words());
            Err(format!("{ip} is {words}; hosts inside are named in `hosts` of [limits]"))
        }
    }
}

/// Tries one address after the other; each has its share of the time that is left, so that one which never answers
/// does not hide those behind it.
async fn connect_to(addresses: &[SocketAddr], until: Instant) -> Result<TcpStream, String> {
    let mut last = "its name has no address".to_owned();
    for (address, left) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let share = until.saturating_duration_since(Instant::now()) / left;
        match tokio::time::timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(e)) => last = e.to_string(),
            Err(_) => last = format!("{} did not answer within {share:.1?}", address.ip()),
        }
    }
    Err(last)
}

async fn shake_hands<T>(io: T) -> Result<Connection, String>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
{
    let shaken = Builder::new().max_buf_size(HEADER_MOST).handshake(io).await;
    let (sender, connection) = shaken.map_err(|e| e.to_string())?;
    // How it ends is told to the call that uses it.
    let task = tokio::task::spawn_local(async move { drop(connection.await) }).abort_handle();
    Ok(Connection { sender, task, idle_since: Instant::now() })
}

/// Closes what nobody used for a while; ends when nothing is left.
async fn reap(kept: Rc<Kept>) {
    loop {
        let oldest = kept.idle.borrow().front().map(|connection| connection.idle_since);
        let Some(oldest) = oldest else { break };
        tokio::time::sleep_until(oldest + IDLE_MOST).await;
        let is_old = |connection: &Connection| connection.idle_since.elapsed() >= IDLE_MOST;
        kept.idle.borrow_mut().retain(|connection| !is_old(connection) && !connection.sender.is_closed());
    }
    kept.reaped.replace(false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream as Plain};
    use std::os::fd::AsRawFd;

    /// A listener whose queue is full: who connects to it hears nothing.
    fn deaf() -> (TcpListener, Vec<Plain>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: a listening socket is made to listen with another queue.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().unwrap();
        let short = Duration::from_millis(200);
        let filling = std::iter::from_fn(|| Plain::connect_timeout(&address, short).ok()).collect();
        (listener, filling)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_address_that_never_answers_does_not_hide_those_behind_it() {
        let (deaf, _filling) = deaf();
        let fine = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [&deaf, &deaf, &fine].map(|listener| listener.local_addr().unwrap());
        let connected = connect_to(&addresses, Instant::now() + Duration::from_secs(3)).await.unwrap();
        assert_eq!(connected.peer_addr().unwrap(), addresses[2]);
        let silent = connect_to(&addresses[..1], Instant::now() + Duration::from_millis(50)).await.unwrap_err();
        assert!(silent.starts_with("127.0.0.1 did not answer within "), "{silent}");
    }
}
