//! The route of the directories of documents that the config names: how each stands.
//!
//! A look reads names from a file system that may be slow, or may not answer at all: it has a thread of its own, reads
//! a bounded number of names, and there is one at a time, whose result is shared by all who ask meanwhile and for a
//! moment after. It changes nothing on disk.

use super::app::{Call, json};
use super::problem::Problem;
use crate::api::Page;
use crate::api::spools::Spool;
use crate::error::{Failure, Kind};
use crate::spool::status::{Budget, Status};
use axum::http::StatusCode;
use axum::response::Response;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

/// Names that one look reads in each directory that is shown; what lies beyond is told as "at least".
const NAMES_MAX: u64 = 200_000;
/// A look holds for this long at least, and for a few times as long as it took.
const HOLDS_FOR: Duration = Duration::from_millis(500);
const HOLDS_TIMES: u32 = 4;
/// Whoever asks is not kept longer by a file system that does not answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// The last look, held locked while there is another.
#[derive(Clone, Debug, Default)]
pub(super) struct Looks(Arc<Mutex<Option<Seen>>>);

#[derive(Debug)]
struct Seen {
    of: Vec<PathBuf>,
    until: Instant,
    items: Arc<Vec<Spool>>,
}

pub(super) async fn list(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let directories = (call.app.config)().config.spools.clone();
    let looked = tokio::time::timeout(ANSWERED_WITHIN, call.app.spools.clone().look(directories)).await;
    let items = looked.map_err(|_| Failure::new(Kind::TryLater, "the directories of [spool] do not answer"))??;
    json(StatusCode::OK, &Page { items: items.to_vec(), next: None })
}

impl Looks {
    async fn look(self, directories: Vec<PathBuf>) -> Result<Arc<Vec<Spool>>, Failure> {
        let last = self.0.lock_owned().await;
        if let Some(seen) = last.as_ref().filter(|seen| seen.of == directories && Instant::now() < seen.until) {
            return Ok(seen.items.clone());
        }
        let (give, looked) = oneshot::channel();
        let look = move || {
            // Nobody may wait any more; then the next one who asks has it.
            let _ = give.send(Looks::renew(last, directories));
        };
        let thread = std::thread::Builder::new().name("spool look".into()).spawn(look);
        thread.map_err(|e| Failure::io("cannot start a thread to look at directories", &e))?;
        looked.await.map_err(|_| Failure::new(Kind::Internal, "the look at the directories did not end"))
    }

    /// The lock goes with the look: one that nobody waits for any more still keeps others from a second one beside it.
    fn renew(mut last: OwnedMutexGuard<Option<Seen>>, of: Vec<PathBuf>) -> Arc<Vec<Spool>> {
        let began = Instant::now();
        let items: Arc<Vec<Spool>> = Arc::new(of.iter().map(|path| see(path)).collect());
        let until = Instant::now() + HOLDS_FOR.max(began.elapsed() * HOLDS_TIMES);
        *last = Some(Seen { of, until, items: items.clone() });
        items
    }
}

/// One directory; what is wrong with it is told beside the others.
fn see(path: &Path) -> Spool {
    let directory = path.to_string_lossy().into_owned();
    match Status::look_within(&[path.to_owned()], false, &mut Budget::of(NAMES_MAX)) {
        Ok(status) => Spool::new(directory, &status),
        Err(failure) => Spool { directory, error: Some(failure.text), ..Spool::default() },
    }
}
