//! Listening and serving: a thread of its own with a single-threaded runtime, and two threads for reads.
//!
//! Nothing here ticks: a server without requests does not wake. Connections have limits of number and of time, and
//! `stop` ends within a deadline although clients wait and follow. The Unix socket's path may be of any length.

use super::app::{App, First, race};
use super::caller::Uid;
use super::guard::{Access, Peer};
use super::{Options, Reads, routes};
use crate::client::connection::through_directory;
use crate::data_dir::DataDir;
use crate::engine::handle::EngineHandle;
use crate::error::{Failure, Kind};
use crate::log::Log;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Sleep;
use tower_service::Service;

const CONNECTIONS_MAX: u32 = 512;
/// Also how long an idle connection is kept; clients reuse one for half of it only.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// A TCP client that takes nothing for so long is let go.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);
const STOP_WITHIN: Duration = Duration::from_secs(3);
const HEADERS_MAX: usize = 32 << 10;
/// 128 bits, written in the densest common way.
const TOKEN_MIN: usize = 22;

/// A server that listens; it stops when it is told to or dropped.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    address: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// The TCP address, if it listens on one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The Unix socket.
    pub fn socket(&self) -> &std::path::Path {
        &self.socket
    }

    /// Takes no more requests, lets short ones end, and ends waiting and following ones.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.stop.send_replace(true);
        // A panic of that thread was printed by it; there is nothing more to end.
        let _ = thread.join();
        for file in [self.socket.clone(), self.socket.with_file_name("address")] {
            // Left behind, it says "nobody listens" just the same.
            let _ = fs::remove_file(file);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) fn start(options: Options, handle: EngineHandle, reads: Reads) -> Result<Server, Failure> {
    let wide = options.listen.is_some_and(|address| !address.ip().is_loopback());
    let token = match &options.token {
        Some(token) if token.len() < TOKEN_MIN || token.bytes().any(|b| !b.is_ascii_graphic()) => {
            let text =
                format!("the token is too weak: expected at least {TOKEN_MIN} printable characters without spaces");
            return Err(Failure::new(Kind::Config, text));
        }
        Some(token) => token.clone(),
        None if wide => {
            let text = format!(
                "refusing to listen on {} without a token of its own",
                options.listen.map_or(String::new(), |a| a.to_string())
            );
            return Err(Failure::new(Kind::Config, text).hint("set a token, or listen on 127.0.0.1"));
        }
        None => own_token(&options.dir)?,
    };
    let unix = bind_unix(&options.dir)?;
    let tcp = options.listen.map(bind_tcp).transpose()?;
    let address = tcp.as_ref().and_then(|listener| listener.local_addr().ok());
    if let Some(address) = address {
        let path = options.dir.run().join("address");
        fs::write(&path, format!("http://{address}\n"))
            .map_err(|e| Failure::io(format_args!("cannot write {}", path.display()), &e))?;
    }
    let socket = options.dir.socket();
    let access = Access { token, hosts: options.hosts.clone(), wide };
    let (stop, stopping) = watch::channel(false);
    let log = options.log.clone();
    let app = App::new(options, access, handle, reads, stopping);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(2)
        .thread_name("windlass-read")
        .build()
        .map_err(|e| Failure::io("cannot start the HTTP runtime", &e))?;
    let body = move || {
        runtime.block_on(serve(Arc::new(app), unix, tcp, log));
        // A read that hangs in the kernel must not hold up the end.
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("windlass-http".into()).spawn(body);
    let thread = thread.map_err(|e| Failure::io("cannot start the HTTP thread", &e))?;
    Ok(Server { socket, address, stop, thread: Some(thread) })
}

fn bind_unix(dir: &DataDir) -> Result<std::os::unix::net::UnixListener, Failure> {
    let path = dir.socket();
    let cannot = |e: &std::io::Error| Failure::io(format_args!("cannot listen on {}", path.display()), e);
    // Whoever made a socket here before is gone: the caller holds the lock of the directory.
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(cannot(&e)),
        Ok(()) | Err(_) => {}
    }
    let listener =
        through_directory(&path, |short| std::os::unix::net::UnixListener::bind(short)).map_err(|e| cannot(&e))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(|e| cannot(&e))?;
    listener.set_nonblocking(true).map_err(|e| cannot(&e))?;
    Ok(listener)
}

fn bind_tcp(address: SocketAddr) -> Result<std::net::TcpListener, Failure> {
    let cannot = |e: std::io::Error| Failure::io(format_args!("cannot listen on {address}"), &e);
    let listener = std::net::TcpListener::bind(address).map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    Ok(listener)
}

/// The directory's token: made once, so that clients that know it keep working after a restart.
fn own_token(dir: &DataDir) -> Result<String, Failure> {
    let path = dir.run().join("token");
    let cannot = |e: &std::io::Error| Failure::io(format_args!("cannot make the token {}", path.display()), e);
    match fs::read_to_string(&path) {
        Ok(text) if text.trim().len() >= TOKEN_MIN => return Ok(text.trim().to_owned()),
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(cannot(&e)),
        Ok(_) | Err(_) => {}
    }
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|e| Failure::new(Kind::Internal, format!("no random bits for a token: {e}")))?;
    let token: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
    let new = path.with_file_name(".token.new");
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(format!("{token}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)
    };
    write().map_err(|e| cannot(&e))?;
    Ok(token)
}

async fn serve(app: Arc<App>, unix: std::os::unix::net::UnixListener, tcp: Option<std::net::TcpListener>, log: Log) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
    let router = routes::router(&app);
    let mut doors = Vec::new();
    // Registering with the runtime fails only where epoll does; then nothing could be served at all.
    if let Ok(listener) = UnixListener::from_std(unix) {
        doors.push(tokio::spawn(admit(Door::Unix(listener), app.clone(), router.clone(), places.clone(), log.clone())));
    }
    if let Some(Ok(listener)) = tcp.map(TcpListener::from_std) {
        doors.push(tokio::spawn(admit(Door::Tcp(listener), app.clone(), router.clone(), places.clone(), log.clone())));
    }
    for door in doors {
        // A door ends by the sign to stop only.
        let _ = door.await;
    }
    // All places free means that every connection has ended; past the deadline the rest is dropped.
    let _ = tokio::time::timeout(STOP_WITHIN, places.acquire_many(CONNECTIONS_MAX)).await;
}

enum Door {
    Unix(UnixListener),
    Tcp(TcpListener),
}

enum Caller {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Door {
    async fn accept(&self) -> std::io::Result<Caller> {
        match self {
            Door::Unix(listener) => listener.accept().await.map(|(stream, _)| Caller::Unix(stream)),
            Door::Tcp(listener) => listener.accept().await.map(|(stream, _)| Caller::Tcp(stream)),
        }
    }
}

async fn admit(door: Door, app: Arc<App>, router: Router, places: Arc<Semaphore>, log: Log) {
    // An episode of trouble is told once.
    let mut told = false;
    loop {
        let next = async {
            let place = places.clone().acquire_owned().await;
            (place, door.accept().await)
        };
        let (place, caller) = match race(next, app.stopped()).await {
            First::Left(next) => next,
            First::Right(()) => return,
        };
        told &= caller.is_err();
        match caller {
            Ok(Caller::Unix(stream)) => {
                let (app, router) = (app.clone(), router.clone());
                let uid = Uid(stream.peer_cred().ok().map(|peer| peer.uid()));
                let peer = if is_own(uid) { Peer::Own } else { Peer::Stranger };
                tokio::spawn(async move {
                    converse(stream, (peer, uid), app, router).await;
                    drop(place);
                });
            }
            Ok(Caller::Tcp(stream)) => {
                let (app, router) = (app.clone(), router.clone());
                // Answers are single writes; waiting to fill a packet only delays them.
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move {
                    converse(Impatient { stream, stalled: None }, (Peer::Tcp, Uid(None)), app, router).await;
                    drop(place);
                });
            }
            // Out of descriptors or memory: the caller still stands at the door, so asking again at once would spin.
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    log.warn(format!("cannot take a connection: {error}; trying again until it can be taken"));
                }
                // A door that fails at once is always ready: only here is it seen that the server stops.
                if let First::Right(()) = race(tokio::time::sleep(Duration::from_millis(100)), app.stopped()).await {
                    return;
                }
            }
        }
    }
}

/// The kernel's word on who is at the other end.
fn is_own(uid: Uid) -> bool {
    let own = rustix::process::geteuid().as_raw();
    uid.0.is_some_and(|uid| uid == own || uid == 0)
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(stream: S, peer: (Peer, Uid), app: Arc<App>, router: Router) {
    let serving = app.clone();
    let service = service_fn(move |request| {
        let (app, router) = (serving.clone(), router.clone());
        async move { Ok::<_, Infallible>(respond(&app, router, peer, request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_header_size(HEADERS_MAX);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    match race(connection.as_mut(), app.stopped()).await {
        // A connection that broke has nobody to be told.
        First::Left(_) => {}
        First::Right(()) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

async fn respond(app: &App, mut router: Router, (peer, uid): (Peer, Uid), mut request: Request<Incoming>) -> Response {
    let mut response = match app.access.check(peer, &request) {
        Err(problem) => problem.closing().into_response(),
        Ok(()) => {
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(uid);
            match router.call(request.map(Body::new)).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        }
    };
    response.headers_mut().insert("windlass-version", HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    response
}

/// A TCP stream that is given up when its other end takes nothing for a minute.
///
/// The Unix socket has no such limit: a person may stop a pager behind `windlass run` for as long as he likes.
struct Impatient {
    stream: TcpStream,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn watch<T>(&mut self, cx: &mut Context<'_>, poll: Poll<std::io::Result<T>>) -> Poll<std::io::Result<T>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(TAKEN_WITHIN)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.watch(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
