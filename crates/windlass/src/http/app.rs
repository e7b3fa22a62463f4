//! What every route has at hand: the engine's handle, the readers, the limits, and the sign to stop.
//!
//! Questions to the engine are awaited here and nowhere else; reads run on the two threads for blocking work.

use super::caller::Uid;
use super::guard::{Access, Peer};
use super::problem::Problem;
use super::query::Query;
use super::runs::Waiting;
use super::{Options, Reads};
use crate::config::Loaded;
use crate::data_dir::DataDir;
use crate::engine::event::{Answer, Event};
use crate::engine::handle::EngineHandle;
use crate::error::{Failure, Kind};
use crate::runner::remote::Counter;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use windlass_core::job::{JobId, RunId};

/// Answers that may take for ever (wait, follow, drained): at most so many at once.
const STREAMS_MAX: usize = 256;
/// How long what is told may be behind before it is told as it is.
const CATCH_UP_PATIENCE: Duration = Duration::from_secs(2);

/// Shared by all requests.
pub(super) struct App {
    pub(super) handle: EngineHandle,
    pub(super) reads: Arc<Reads>,
    pub(super) dir: DataDir,
    pub(super) reload: Arc<super::Reload>,
    pub(super) config: Box<dyn Fn() -> Arc<Loaded> + Send + Sync>,
    pub(super) access: Access,
    pub(super) counter: Arc<Counter>,
    pub(super) bodies: Arc<Semaphore>,
    /// Held by the one import there may be.
    pub(super) imports: tokio::sync::Mutex<()>,
    pub(super) waiting: Arc<Waiting>,
    /// What was last seen of the directories that are shown.
    pub(super) spools: super::spools::Looks,
    /// Somebody asked this server to stop.
    pub(super) draining: AtomicBool,
    streams: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

/// A request, taken apart.
pub(super) struct Call {
    pub(super) app: Arc<App>,
    pub(super) peer: Peer,
    pub(super) uid: Uid,
    pub(super) id: String,
    pub(super) query: Option<String>,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
}

impl App {
    pub(super) fn new(
        options: Options,
        access: Access,
        handle: EngineHandle,
        reads: Reads,
        stopping: watch::Receiver<bool>,
    ) -> App {
        App {
            handle,
            reads: Arc::new(reads),
            dir: options.dir,
            reload: options.reload.into(),
            config: options.config,
            access,
            counter: options.counter,
            bodies: Arc::new(Semaphore::new(super::body::BUDGET)),
            imports: tokio::sync::Mutex::default(),
            waiting: Arc::default(),
            spools: super::spools::Looks::default(),
            draining: AtomicBool::new(false),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            stopping,
        }
    }

    /// Asks the engine; the answer comes after the commit.
    pub(super) async fn ask<T: Send + 'static>(&self, question: impl FnOnce(Answer<T>) -> Event) -> Result<T, Failure> {
        let (give, answer) = oneshot::channel();
        self.handle.send(question(Answer::new(move |result| {
            // A client that has gone away no longer wants its answer.
            let _ = give.send(result);
        })))?;
        answer.await.unwrap_or_else(|_| {
            // The same to whoever asks as a server that goes away: a run goes on with the next one.
            Err(Failure::new(Kind::Io, "the engine ended before it answered")
                .hint("the change may or may not have been made; look before you ask again"))
        })
    }

    /// Comes back when what stands in the inbox now is in the store, and what has ended in the archive: an id is told
    /// before its job is read in.
    pub(super) async fn catch_up(&self) -> Result<(), Failure> {
        self.unless_stopped(self.ask(|answer| Event::CatchUp { answer })).await
    }

    /// Catches up, unless that takes long: an archive that cannot go on, as on a full disk, keeps nobody from what is
    /// known.
    pub(super) async fn catch_up_in_time(&self) {
        let _in_time = tokio::time::timeout(CATCH_UP_PATIENCE, self.catch_up()).await;
    }

    /// Reads the store or the archive on a thread that may block.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reads) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let reads = self.reads.clone();
        blocking(move || read(&reads)).await
    }

    /// A place among the answers that may take for ever.
    pub(super) fn stream(&self) -> Result<OwnedSemaphorePermit, Failure> {
        self.streams.clone().try_acquire_owned().map_err(|_| {
            Failure::new(Kind::TryLater, format!("{STREAMS_MAX} clients wait or follow already, no more are taken"))
        })
    }

    /// Ends when the server is being stopped.
    pub(super) async fn stopped(&self) {
        // A sender that is gone means the same as its sign.
        let _ = self.stopping.clone().wait_for(|stop| *stop).await;
    }

    /// The result, unless the server stops first.
    pub(super) async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        match race(work, self.stopped()).await {
            First::Left(result) => result,
            First::Right(()) => Err(stopping()),
        }
    }
}

pub(super) fn stopping() -> Failure {
    Failure::new(Kind::TryLater, "the server is stopping").hint("ask again: another may be taking over")
}

/// Runs what may block on one of the two threads for it.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(Failure::new(Kind::Internal, format!("a read did not end: {e}"))))
}

/// Which of two futures was ready first.
#[derive(Debug)]
pub(super) enum First<A, B> {
    Left(A),
    Right(B),
}

/// Waits for either; the left one wins a tie.
pub(super) async fn race<A: Future, B: Future>(left: A, right: B) -> First<A::Output, B::Output> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|cx| {
        if let Poll::Ready(value) = left.as_mut().poll(cx) {
            return Poll::Ready(First::Left(value));
        }
        right.as_mut().poll(cx).map(First::Right)
    })
    .await
}

impl Call {
    pub(super) fn query(&self, known: &[&str]) -> Result<Query, Problem> {
        Query::parse(self.query.as_deref(), known)
    }

    pub(super) fn job(&self) -> Result<JobId, Problem> {
        self.id.parse().map_err(|bad| Problem::not_found(format!("no job {}: {bad}", self.id)))
    }

    pub(super) fn run(&self) -> Result<RunId, Problem> {
        self.id.parse().map_err(|bad| Problem::not_found(format!("no run {}: {bad}", self.id)))
    }
}

/// A JSON answer.
pub(super) fn json(status: StatusCode, document: &impl Serialize) -> Result<Response, Problem> {
    let bytes = serde_json::to_vec(document)
        .map_err(|e| Problem::from(Failure::new(Kind::Internal, format!("cannot write the answer: {e}"))))?;
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(crate::api::JSON));
    Ok(response)
}

/// Says where the thing that was made is found.
pub(super) fn located(mut response: Response, path: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(path) {
        response.headers_mut().insert(LOCATION, value);
    }
    response
}
