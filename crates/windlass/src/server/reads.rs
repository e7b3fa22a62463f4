//! What the routes may read: a view of the store per question, and the archive.

use crate::archiver::read::{self, ArchiveReader, ListFilter};
use crate::data_dir::DataDir;
use crate::http::{Archive, OpenView, Reads};
use crate::runner::progress::Board;
use crate::store::Filter;
use std::sync::Arc;

pub(super) fn reads(dir: &DataDir, view: OpenView, board: Arc<Board>) -> Reads {
    let (finder, lister, outputs, groups) = (reader(dir), reader(dir), reader(dir), reader(dir));
    let last = reader(dir);
    let output_dir = dir.output();
    Reads {
        board,
        view,
        archive: Archive {
            find: Box::new(move |id| Ok(finder.find(id)?.iter().map(|attempt| attempt.to_json()).collect())),
            last: Box::new(move |ids| last.last_outcomes(ids)),
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
