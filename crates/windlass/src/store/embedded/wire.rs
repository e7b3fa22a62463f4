//! Reading and writing the small packed values inside the store's blobs: varints, texts, signed times.
//!
//! Every blob begins with a version byte, which its owner checks. This file owns only the primitives.

use super::super::StoreError;
use super::super::chunk::{read_varint, write_varint};
use super::schema::corrupt;

/// Appends values to a blob.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn versioned(version: u8) -> Writer {
        Writer(vec![version])
    }

    pub(super) fn number(&mut self, value: u64) {
        write_varint(&mut self.0, value);
    }

    /// Zigzag, so that small negative numbers stay small.
    pub(super) fn signed(&mut self, value: i64) {
        self.number((value << 1 ^ value >> 63) as u64);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// Takes values from a blob; anything missing or wrong is damage.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn versioned(bytes: &'a [u8], version: u8, what: &'static str) -> Result<Reader<'a>, StoreError> {
        match bytes.first() {
            Some(found) if *found == version => Ok(Reader { bytes, at: 1, what }),
            Some(found) => Err(corrupt(format!("{what} has version {found}, expected {version}"))),
            None => Err(corrupt(format!("{what} is empty"))),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64, StoreError> {
        read_varint(self.bytes, &mut self.at).map_err(|_| corrupt(format!("{} is cut short", self.what)))
    }

    pub(super) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, StoreError> {
        let value = self.number()?;
        T::try_from(value).map_err(|_| corrupt(format!("{} holds {value}, which is out of range", self.what)))
    }

    pub(super) fn signed(&mut self) -> Result<i64, StoreError> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(super) fn text(&mut self) -> Result<String, StoreError> {
        let length = self.small::<usize>()?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| corrupt(format!("{} is cut short", self.what)))?;
        let text = std::str::from_utf8(&self.bytes[self.at..end]);
        self.at = end;
        text.map(str::to_owned).map_err(|_| corrupt(format!("{} holds a text that is not UTF-8", self.what)))
    }

    pub(super) fn is_done(&self) -> bool {
        self.at >= self.bytes.len()
    }
}
