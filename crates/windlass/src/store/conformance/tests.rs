//! The model store passes the suite, and a store that lies is found out.

use super::*;
use crate::store::memory::Memory;

/// The model store on the bench.
#[derive(Debug, Default)]
pub(crate) struct MemoryBench {
    seed: u64,
}

impl Bench for MemoryBench {
    type Store = Memory;

    fn fresh(&mut self) -> Memory {
        self.seed += 1;
        Memory::new(self.seed)
    }

    fn crash(&mut self, mut store: Memory) -> Memory {
        store.crash();
        store
    }

    fn view<'a>(&'a self, store: &'a Memory) -> Box<dyn StoreView + 'a> {
        Box::new(store.clone())
    }
}

#[test]
fn the_model_store_passes() {
    run(&mut MemoryBench::default());
}
