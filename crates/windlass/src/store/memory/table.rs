//! A sorted map that can go back: to the last commit, and past commits that no disk has seen.
//!
//! Every write notes the value it replaced, so a commit costs nothing and going back costs what was written. All
//! that is not yet at a full commit stays noted. It must not know what it holds.

use std::collections::BTreeMap;

/// One table of the model store.
#[derive(Clone, Debug)]
pub(super) struct Table<K, V> {
    rows: BTreeMap<K, V>,
    /// What was there before each write since the last full commit, oldest first.
    undo: Vec<(K, Option<V>)>,
    /// The length of `undo` at each commit since the last full one.
    commits: Vec<usize>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Table<K, V> {
        Table { rows: BTreeMap::new(), undo: Vec::new(), commits: Vec::new() }
    }
}

impl<K: Ord + Clone, V: Clone> Table<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.rows.get(key)
    }

    pub(super) fn rows(&self) -> &BTreeMap<K, V> {
        &self.rows
    }

    /// Writes a row, or removes it.
    pub(super) fn put(&mut self, key: K, value: Option<V>) {
        let before = match value {
            Some(value) => self.rows.insert(key.clone(), value),
            None => self.rows.remove(&key),
        };
        self.undo.push((key, before));
    }

    /// The rows as the last commit left them.
    pub(super) fn committed(&self) -> BTreeMap<&K, &V> {
        let mut rows: BTreeMap<&K, &V> = self.rows.iter().collect();
        for (key, before) in self.undo[self.turn_start()..].iter().rev() {
            match before {
                Some(value) => rows.insert(key, value),
                None => rows.remove(key),
            };
        }
        rows
    }

    /// One row as the last commit left it.
    pub(super) fn committed_row(&self, key: &K) -> Option<&V> {
        let changed = self.undo[self.turn_start()..].iter().find(|(changed, _)| changed == key);
        changed.map_or_else(|| self.rows.get(key), |(_, before)| before.as_ref())
    }

    pub(super) fn commit(&mut self, full: bool) {
        if full {
            self.undo.clear();
            self.commits.clear();
        } else {
            self.commits.push(self.undo.len());
        }
    }

    /// Drops what was written since the last commit.
    pub(super) fn rollback(&mut self) {
        self.go_back(self.turn_start());
    }

    /// Keeps the first `kept` commits since the last full one and drops the rest.
    pub(super) fn power_cut(&mut self, kept: usize) {
        self.commits.truncate(kept);
        self.go_back(self.turn_start());
        // What survived a power cut is on disk and survives the next one.
        self.commit(true);
    }

    /// How many commits a power cut could take.
    pub(super) fn at_risk(&self) -> usize {
        self.commits.len()
    }

    fn turn_start(&self) -> usize {
        self.commits.last().copied().unwrap_or(0)
    }

    fn go_back(&mut self, length: usize) {
        for (key, before) in self.undo.drain(length..).rev() {
            match before {
                Some(value) => self.rows.insert(key, value),
                None => self.rows.remove(&key),
            };
        }
    }
}
