//! Reading and writing the small packed values inside the store's blobs: varints, texts, signed times.
//!
//! Every blob begins with a version byte and the checksum of everything behind it. This file owns these and the
//! primitives, and must not know what a blob means.

use super::super::StoreError;
use super::super::chunk::{read_varint, write_varint};
use super::schema::corrupt;
use super::sums::check;

/// What is written: a version byte, a checksum, values. Version 1, of formats 1 and 2, had no checksum.
const VERSION: u8 = 2;
const UNSUMMED: u8 = 1;
const FRONT: usize = 5;

/// Appends values to a blob.
#[derive(Debug, Default)]
pub(in crate::store) struct Writer(pub(in crate::store) Vec<u8>);

impl Writer {
    pub(in crate::store) fn begin() -> Writer {
        Writer(vec![VERSION, 0, 0, 0, 0])
    }

    /// Makes room for so many bytes more.
    pub(in crate::store) fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    /// How long it is so far.
    pub(in crate::store) fn len(&self) -> usize {
        self.0.len()
    }

    /// The blob, with the checksum of what was appended.
    pub(in crate::store) fn finish(mut self) -> Vec<u8> {
        let sum = crc32fast::hash(&self.0[FRONT..]);
        self.0[1..FRONT].copy_from_slice(&sum.to_le_bytes());
        self.0
    }

    pub(in crate::store) fn number(&mut self, value: u64) {
        write_varint(&mut self.0, value);
    }

    /// Zigzag, so that small negative numbers stay small.
    pub(in crate::store) fn signed(&mut self, value: i64) {
        self.number((value << 1 ^ value >> 63) as u64);
    }

    pub(in crate::store) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(in crate::store) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// Takes values from a blob; anything missing or wrong is damage.
#[derive(Debug)]
pub(in crate::store) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(in crate::store) fn open(bytes: &'a [u8], what: &'static str) -> Result<Reader<'a>, StoreError> {
        match bytes {
            [VERSION, a, b, c, d, values @ ..] => {
                check(u32::from_le_bytes([*a, *b, *c, *d]), crc32fast::hash(values), || what.into())?;
                Ok(Reader { bytes, at: FRONT, what })
            }
            [UNSUMMED, ..] => Ok(Reader { bytes, at: 1, what }),
            [] => Err(corrupt(format!("{what} is empty"))),
            [VERSION, ..] => Err(corrupt(format!("{what} is cut short"))),
            [found, ..] => Err(corrupt(format!("{what} has version {found}, expected {VERSION}"))),
        }
    }

    pub(in crate::store) fn number(&mut self) -> Result<u64, StoreError> {
        read_varint(self.bytes, &mut self.at).map_err(|_| corrupt(format!("{} is cut short", self.what)))
    }

    pub(in crate::store) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, StoreError> {
        let value = self.number()?;
        T::try_from(value).map_err(|_| corrupt(format!("{} holds {value}, which is out of range", self.what)))
    }

    pub(in crate::store) fn signed(&mut self) -> Result<i64, StoreError> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(in crate::store) fn text(&mut self) -> Result<String, StoreError> {
        let text = std::str::from_utf8(self.bytes()?).map(str::to_owned);
        text.map_err(|_| corrupt(format!("{} holds a text that is not UTF-8", self.what)))
    }

    pub(in crate::store) fn bytes(&mut self) -> Result<&'a [u8], StoreError> {
        let length = self.small::<usize>()?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| corrupt(format!("{} is cut short", self.what)))?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    pub(in crate::store) fn is_done(&self) -> bool {
        self.at >= self.bytes.len()
    }
}
