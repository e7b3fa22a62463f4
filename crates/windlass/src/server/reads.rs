//! What the routes may read: a view of the store per question, and the archive.

use crate::archiver::read::{self, ArchiveReader, ListFilter};
use crate::data_dir::DataDir;
use crate::http::{Archive, Reads};
use crate::runner::progress::Board;
use crate::store::embedded::View;
use crate::store::{Filter, StoreView};
use std::sync::Arc;

pub(super) fn reads(dir: &DataDir, board: Arc<Board>) -> Reads {
    let state_db = dir.state_db();
    let (finder, lister, outputs, groups) = (reader(dir), reader(dir), reader(dir), reader(dir));
    let output_dir = dir.output();
    Reads {
        board,
        view: Box::new(move || Ok(Box::new(View::open(&state_db)?) as Box<dyn StoreView + Send>)),
        archive: Archive {
            find: Box::new(move |id| Ok(finder.find(id)?.iter().map(|attempt| attempt.to_json()).collect())),
            list: Box::new(move |filter: &Filter, place, limit| {
                let before = place.map(str::parse).transpose()?;
                let wanted = ListFilter {
                    queues: filter.queues.iter().cloned().collect(),
                    states: filter.states.clone(),
                    run: filter.run,
                    limit,
                    before,
                    ..ListFilter::default()
                };
                let found = lister.list(&wanted)?;
                let items = found.attempts.iter().map(|attempt| attempt.to_json()).collect();
                Ok((items, found.next.map(|place| place.to_string())))
            }),
            groups: Box::new(move |since, show| groups.groups(since, show)),
            output: Box::new(move |id, start, stderr| {
                let attempts = outputs.find(id)?;
                let wanted = attempts.iter().rev().find(|attempt| start.is_none_or(|start| start == attempt.start));
                let stream = wanted.map(|attempt| if stderr { &attempt.stderr } else { &attempt.stdout });
                stream.map(|stream| Ok(read::output(&output_dir, stream)?.into_bytes())).transpose()
            }),
        },
    }
}

fn reader(dir: &DataDir) -> ArchiveReader {
    ArchiveReader::open(dir.archive())
}
