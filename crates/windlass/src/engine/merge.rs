//! Joins the small pushes of one turn: jobs that share a lane become one chunk, so a flood of single pushes costs
//! a row per thousand jobs and not a row each.

use crate::store::NewJobs;
use crate::store::chunk::{Chunk, ChunkBuilder};
use std::collections::HashMap;
use std::sync::Arc;
use windlass_core::job::{Origin, Priority, QueueName, RunId};
use windlass_core::time::Time;

/// Larger chunks go in as they are: copying them would cost more than it saves. So do those with particulars, which
/// are mostly a job's own.
const SMALL: usize = 64;

type Key = (QueueName, Priority, Option<RunId>, Option<Time>, Origin);

/// Joins what can be joined; the order within a lane is the order of the ids.
pub fn merge(pushed: Vec<NewJobs>) -> Vec<NewJobs> {
    if pushed.len() < 2 {
        return pushed;
    }
    let mut merged = Vec::new();
    let mut small: HashMap<Key, Vec<Arc<Chunk>>> = HashMap::new();
    let mut order: Vec<Key> = Vec::new();
    for new in pushed {
        if new.jobs.len() > SMALL || !new.jobs.is_plain() {
            merged.push(new);
            continue;
        }
        let key = (new.queue, new.priority, new.run, new.not_before, new.jobs.origin());
        let group = small.entry(key.clone()).or_default();
        if group.is_empty() {
            order.push(key);
        }
        group.push(new.jobs);
    }
    for key in order {
        let chunks = small.remove(&key).unwrap_or_default();
        let (queue, priority, run, not_before, origin) = key;
        for jobs in join(origin, chunks) {
            merged.push(NewJobs { queue: queue.clone(), priority, run, not_before, jobs });
        }
    }
    merged
}

fn join(origin: Origin, mut chunks: Vec<Arc<Chunk>>) -> Vec<Arc<Chunk>> {
    if chunks.len() == 1 {
        return chunks;
    }
    chunks.sort_by_key(|chunk| chunk.offset_range());
    // Two requests may have drawn their ids in turns; then their chunks overlap and stay apart.
    if chunks.windows(2).any(|pair| pair[0].offset_range().1 >= pair[1].offset_range().0) {
        return chunks;
    }
    let mut joined = Vec::new();
    let mut builder = ChunkBuilder::new(origin);
    for chunk in &chunks {
        for index in 0..chunk.len() {
            if builder.is_full() {
                joined.push(Arc::new(builder.finish()));
            }
            builder.push(chunk.id(index).offset, chunk.data(index));
        }
    }
    joined.push(Arc::new(builder.finish()));
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single(queue: &str, offset: u64) -> NewJobs {
        let mut builder = ChunkBuilder::new(Origin::from_random(1));
        builder.push(offset, offset.to_string().as_bytes());
        let queue = QueueName::new(queue.as_bytes()).unwrap();
        NewJobs { queue, priority: Priority::NORMAL, run: None, not_before: None, jobs: Arc::new(builder.finish()) }
    }

    #[test]
    fn single_pushes_of_a_lane_become_one_chunk_in_order_of_their_ids() {
        let merged = merge(vec![single("a", 5), single("b", 2), single("a", 3), single("a", 9)]);
        assert_eq!(merged.len(), 2);
        let a = &merged[0].jobs;
        assert_eq!((0..a.len()).map(|i| a.id(i).offset).collect::<Vec<_>>(), [3, 5, 9]);
        assert_eq!(a.data(1), b"5");
    }

    #[test]
    fn two_thousand_single_pushes_are_two_chunks() {
        let merged = merge((0..2000).map(|i| single("a", i)).collect());
        assert_eq!(merged.iter().map(|new| new.jobs.len()).collect::<Vec<_>>(), [1000, 1000]);
    }
}
