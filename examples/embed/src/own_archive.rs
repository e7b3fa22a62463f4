//! What became of the numbers: a file with a line for each that succeeded, and one that ends each turn.
//!
//! An archive holds a turn once, however often it is handed over, and says that it holds it only when that is on disk;
//! then the store may forget it. What a crash kept from it the store still has.

use crate::Outcome;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;
use windlass::store::Settlement;
use windlass_core::judge::Verdict;

#[derive(Debug)]
pub(crate) struct Archive {
    file: File,
    turn: u64,
    pub(crate) numbers: Vec<u64>,
}

impl Archive {
    pub(crate) fn open(path: &Path) -> Outcome<Archive> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let (mut turn, mut numbers, mut turns, mut whole) = (0, Vec::new(), Vec::new(), 0);
        let mut at = 0;
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            at += line.len();
            match line.trim_end().split_once("turn ") {
                None => turns.push(line.trim_end().parse()?),
                Some((_, number)) => {
                    (turn, whole) = (number.parse()?, at);
                    numbers.append(&mut turns);
                }
            }
        }
        // A turn without its last line was confirmed to nobody.
        file.set_len(whole as u64)?;
        file.seek(std::io::SeekFrom::End(0))?;
        Ok(Archive { file, turn, numbers })
    }

    /// Takes a turn, and comes back when it is on disk.
    pub(crate) fn take<'a>(&mut self, turn: u64, ended: impl IntoIterator<Item = &'a Settlement>) -> Outcome<()> {
        if turn <= self.turn {
            return Ok(());
        }
        let mut lines = String::new();
        for settlement in ended.into_iter().filter(|ended| matches!(ended.verdict, Verdict::Succeed { .. })) {
            for index in settlement.held.range() {
                let number = std::str::from_utf8(settlement.held.jobs.data(index))?.parse()?;
                lines.push_str(&format!("{number}\n"));
                self.numbers.push(number);
            }
        }
        lines.push_str(&format!("turn {turn}\n"));
        self.file.write_all(lines.as_bytes())?;
        self.file.sync_data()?;
        self.turn = turn;
        Ok(())
    }
}
