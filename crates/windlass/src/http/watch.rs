//! Watching: one line for each change of a job that a selector means, as it happens, until the client leaves.
//!
//! It uses the mailbox and the writer's manners of `follow`: the engine never waits, and a watcher that does not read
//! is let go with a line that says so.

use super::app::{App, Call, First, race, stopping};
use super::follow::{Letters, Pieces, mailbox};
use super::problem::Problem;
use super::selection::{self, Choice};
use crate::api;
use crate::engine::event::{Event, Followed, Follower};
use crate::error::Failure;
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use std::sync::Arc;
use tokio::sync::mpsc;
use windlass_core::job::RunId;

pub(super) async fn watch(call: Call) -> Result<Response, Problem> {
    let query = call.query(&["selector", "run", "starts"])?;
    let starts = query.truth("starts")?.unwrap_or(false);
    let choice = selection::parse(query.get("selector").unwrap_or(""))?;
    let run = query.get("run").map(|text| {
        text.parse::<RunId>().map_err(|bad| Problem::malformed(format!("run={text}: {bad}, expected r-…")))
    });
    let run = run.transpose()?;
    let place = call.app.stream()?;
    let (mailbox, letters) = mailbox();
    let follower = Follower(Box::new(move |what| match what {
        Followed::Begun(_) if !starts => mailbox.is_read(),
        told => mailbox.put(told),
    }));
    call.app.unless_stopped(call.app.ask(|answer| Event::Watch { follower, answer })).await?;
    let (pieces, body) = mpsc::channel(2);
    let app = call.app.clone();
    tokio::spawn(async move {
        let _place = place;
        let watcher = Watcher { app, choice: Arc::new(choice), run, pieces };
        watcher.write(letters).await;
    });
    let mut response = Response::new(Body::new(Pieces(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(api::NDJSON));
    Ok(response)
}

struct Watcher {
    app: Arc<App>,
    choice: Arc<Choice>,
    run: Option<RunId>,
    pieces: mpsc::Sender<Bytes>,
}

impl Watcher {
    /// Passes lines on until the run has ended, the client has left or the server stops.
    async fn write(self, mut letters: Letters) {
        // The first line says that from here on nothing is missed.
        if self.line(&serde_json::json!({ "watching": true })).await.is_none() {
            return;
        }
        loop {
            let gone = self.pieces.clone();
            let told = match race(letters.next(), race(gone.closed(), self.app.stopped())).await {
                First::Left(Some(letter)) => self.tell(letter).await,
                First::Left(None) => self.broken(letters.why_silent()).await,
                First::Right(First::Left(())) => None,
                First::Right(First::Right(())) => self.broken(stopping()).await,
            };
            if told.is_none() {
                return;
            }
        }
    }

    /// `None` ends the stream.
    async fn tell(&self, letter: Followed) -> Option<()> {
        match letter {
            Followed::Job(_) => Some(()),
            Followed::Change(change) | Followed::Begun(change) => {
                let ours = self.run.is_none() || self.run == change.run;
                match ours && self.choice.wants_change(&change) {
                    true => self.line(&api::Change::from(&change)).await,
                    false => Some(()),
                }
            }
            Followed::Amended { id, state } => {
                let (choice, run) = (self.choice.clone(), self.run);
                let found = self.app.read(move |reads| {
                    let info = (reads.view)()?.job(id)?;
                    Ok(info.filter(|info| choice.wants(info) && (run.is_none() || run == info.run)))
                });
                // A job that is gone by now is told of by what took it away.
                match found.await.ok().flatten() {
                    Some(info) => self.line(&api::Change::amended(&info, state)).await,
                    None => Some(()),
                }
            }
            Followed::Ended(info) => {
                let run = api::Run::from(&info);
                match self.run {
                    Some(run_id) if run_id == info.id => {
                        self.line(&serde_json::json!({ "ended": run })).await;
                        None
                    }
                    Some(_) => Some(()),
                    None if self.choice.is_everything() => self.line(&serde_json::json!({ "ended": run })).await,
                    None => Some(()),
                }
            }
        }
    }

    async fn broken(&self, failure: Failure) -> Option<()> {
        let error = Problem::from(failure).document();
        self.line(&api::FollowLine::Broken { error }).await;
        None
    }

    async fn line(&self, line: &impl serde::Serialize) -> Option<()> {
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        match race(self.pieces.send(text.into()), self.app.stopped()).await {
            First::Left(sent) => sent.ok(),
            First::Right(()) => None,
        }
    }
}
