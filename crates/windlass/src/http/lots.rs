//! Lots of other servers: taken once by their number, and each job of them once by its id.
//!
//! The number is looked up first of all: a lot that was taken is answered as it was then, whatever has become of its
//! jobs. Then each job is looked for here, waiting or ended; one lot at a time, so that no other can bring it in
//! between the look and its admission. What the server cannot take is said in words, and nothing of the lot is taken.

use super::app::{Call, blocking, json};
use super::problem::Problem;
use super::{Archive, Reads};
use crate::engine::event::{Event, Parcel};
use crate::engine::handle::IdSource;
use crate::error::{Failure, Kind};
use crate::lot::{self, BadLot, Group, LotNo, Manner, Travelled};
use crate::store::chunk::Chunk;
use crate::store::{Arriving, Gone, Lot, MOVED, NewJobs, Past, StoreView};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::collections::HashMap;
use std::sync::Arc;
use windlass_core::job::{JobId, Priority, QueueName, Record};
use windlass_core::life_cycle::State;

pub(super) async fn take(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let number = number(&call)?;
    let (_, whole) = call.body(&[lot::MEDIA]).await?;
    let bytes = whole.bytes.clone();
    let (manner, groups) = blocking(move || lot::read(&bytes).map_err(refusal)).await?;
    let _alone = call.app.imports.lock().await;
    if let Some(known) = call.app.ask(|answer| Event::KnownLot { number, answer }).await? {
        return json(StatusCode::OK, &known);
    }
    // The archive tells what was given away from here from what ended here; after this it has all of it.
    call.app.catch_up().await?;
    let app = Arc::clone(&call.app);
    let sorted = call.app.read(move |reads| sort(number, manner, groups, reads, app.handle.ids())).await?;
    match sorted {
        Ok(parcel) => json(StatusCode::OK, &call.app.ask(|answer| Event::Parcel { parcel, answer }).await?),
        Err(why) => json(StatusCode::OK, &lot::Answer { why, ..lot::Answer::default() }),
    }
}

/// What was answered to a lot.
pub(super) async fn show(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let number = number(&call)?;
    let known = call.app.ask(|answer| Event::KnownLot { number, answer }).await?;
    let known =
        known.ok_or_else(|| Problem::not_found(format!("no lot {number} was taken here, or it was settled")))?;
    json(StatusCode::OK, &known)
}

/// The server that gave it has settled it.
pub(super) async fn settled(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let number = number(&call)?;
    call.app.ask(|answer| Event::LotSettled { number, answer }).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn number(call: &Call) -> Result<LotNo, Problem> {
    call.id.parse().map_err(Problem::refused)
}

fn refusal(bad: BadLot) -> Failure {
    let kind = if matches!(bad, BadLot::Version(_)) { Kind::Version } else { Kind::BadData };
    Failure::new(kind, bad.to_string())
}

/// What is new here of a lot; an error is why none of it is taken.
fn sort(
    number: LotNo,
    manner: Manner,
    groups: Vec<Group>,
    reads: &Reads,
    ids: &IdSource,
) -> Result<Result<Parcel, String>, Failure> {
    let view = (reads.view)()?;
    let archived = archived(&groups, &reads.archive)?;
    let mut parcel = Parcel { number, lot: Lot::default(), pasts: Vec::new(), known: 0 };
    for Group { queue, priority, past, jobs } in groups {
        let mut new = vec![true; jobs.len()];
        if may_be_known(&jobs, &*view, &archived, ids)? {
            let all: Vec<JobId> = (0..jobs.len()).map(|index| jobs.id(index)).collect();
            let gone: HashMap<JobId, Gone> = view.gone(&all)?.into_iter().collect();
            for (index, is_new) in new.iter_mut().enumerate() {
                let known = gone.get(&all[index]).or_else(|| archived.get(&all[index]));
                match look(all[index], manner, &*view, known.copied(), ids)? {
                    Ok(found) => *is_new = found,
                    Err(why) => return Ok(Err(why)),
                }
                parcel.known += u64::from(!*is_new);
                // It goes to the row that it left, which is not for many at once.
                if *is_new && past.is_none() && gone.contains_key(&all[index]) {
                    *is_new = false;
                    parcel.pasts.push((back(&queue, priority, &jobs, index), String::new()));
                }
            }
        }
        let count = new.iter().filter(|is_new| **is_new).count();
        let jobs: Arc<Chunk> = match count {
            0 => continue,
            all if all == jobs.len() => jobs,
            _ => Arc::new(jobs.rebuilt(jobs.particulars().cloned(), |index| new[index])),
        };
        match past {
            None => parcel.lot.jobs.push(NewJobs { queue, priority, run: None, not_before: None, jobs }),
            Some(Travelled { past, checkpoint }) => {
                parcel.pasts.push((Arriving { queue, priority, past, jobs }, checkpoint));
            }
        }
    }
    Ok(Ok(parcel))
}

/// A job that was here before, alone, as it comes.
fn back(queue: &QueueName, priority: Priority, jobs: &Chunk, index: usize) -> Arriving {
    let past = Past { state: State::Ready, due: None, record: Record::default(), errors: Vec::new() };
    let jobs = Arc::new(jobs.rebuilt(jobs.particulars().cloned(), |other| other == index));
    Arriving { queue: queue.clone(), priority, past, jobs }
}

/// How the jobs of a lot that the archive knows ended here last.
fn archived(groups: &[Group], archive: &Archive) -> Result<HashMap<JobId, Gone>, Failure> {
    let each = |group: &Group| (0..group.jobs.len()).map(|index| group.jobs.id(index)).collect::<Vec<_>>();
    let mut ids: Vec<JobId> = groups.iter().flat_map(each).collect();
    ids.sort_unstable();
    let gone = |word: String| if word == MOVED { Gone::Moved } else { Gone::Ended };
    Ok((archive.last)(&ids)?.into_iter().map(|(id, word)| (id, gone(word))).collect())
}

/// False where none of a chunk's jobs can have been here: most chunks come whole, and only once.
fn may_be_known(
    jobs: &Chunk,
    view: &dyn StoreView,
    archived: &HashMap<JobId, Gone>,
    ids: &IdSource,
) -> Result<bool, Failure> {
    let (first, last) = (jobs.id(0), jobs.id(jobs.len() - 1));
    let in_archive = !archived.is_empty() && (0..jobs.len()).any(|index| archived.contains_key(&jobs.id(index)));
    Ok(in_archive || ids.will_give(last) || view.may_hold(first, last)?)
}

/// Whether a job is new here; an error is why it cannot be taken. `known` is how it ended here last.
fn look(
    id: JobId,
    manner: Manner,
    view: &dyn StoreView,
    known: Option<Gone>,
    ids: &IdSource,
) -> Result<Result<bool, String>, Failure> {
    match view.job(id)?.map(|job| job.state) {
        // It may be on its way from here to whoever sends it.
        Some(State::Running) => return Ok(Err(format!("{id} runs here, or is on its way from here"))),
        Some(_) => return Ok(Ok(false)),
        None => {}
    }
    Ok(match known {
        Some(Gone::Moved) if manner == Manner::Forward => {
            Err(format!("{id} was given away from here and comes back: the forwards go in a circle"))
        }
        Some(Gone::Moved) => Ok(true),
        Some(Gone::Ended) => Ok(false),
        None if ids.will_give(id) => Err(format!("{id} is an id that this server will give to another job")),
        None => Ok(true),
    })
}
