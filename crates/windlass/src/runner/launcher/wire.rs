//! The talk between a server and its launchers: records in batches over one SEQPACKET socket.
//!
//! This file owns packets and the bytes of records (little endian; both ends are one binary, so there is no
//! version). A record that does not fit in a packet travels in a memory file whose descriptor is passed; a record may
//! also bring descriptors of its own. It must not know what a record is for.

use crate::without::memory_file;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The most bytes of one packet.
pub(crate) const PACKET_MAX: usize = 128 << 10;

/// A packet of this one byte says that the records are in the memory file that comes with it.
const IN_A_FILE: u8 = 0xff;

/// The most descriptors that travel with one packet.
const PASSED_MAX: usize = 4;

#[derive(Debug)]
struct Packet {
    bytes: Vec<u8>,
    /// The record's file first, if it is in one, then what the record brings.
    passed: Vec<OwnedFd>,
}

/// Records on their way out, packed as they come.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    packets: VecDeque<Packet>,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds one record behind the others.
    pub(crate) fn push(&mut self, record: &[u8]) -> rustix::io::Result<()> {
        let size = record.len() + 4;
        if size > PACKET_MAX {
            return self.push_with(record, Vec::new());
        }
        match self.packets.back_mut() {
            Some(last) if last.passed.is_empty() && last.bytes.len() + size <= PACKET_MAX => {
                append(&mut last.bytes, record);
            }
            _ => {
                let mut bytes = Vec::with_capacity(size);
                append(&mut bytes, record);
                self.packets.push_back(Packet { bytes, passed: Vec::new() });
            }
        }
        Ok(())
    }

    /// Adds one record that brings descriptors, in a packet of its own.
    pub(crate) fn push_with(&mut self, record: &[u8], given: Vec<OwnedFd>) -> rustix::io::Result<()> {
        let (mut bytes, mut passed) = (Vec::new(), Vec::with_capacity(given.len() + 1));
        if record.len() + 4 > PACKET_MAX {
            let file = memory_file("windlass-record")?;
            file.write_all_at(record, 0).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            bytes.push(IN_A_FILE);
            passed.push(file.into());
        } else {
            append(&mut bytes, record);
        }
        passed.extend(given);
        assert!(passed.len() <= PASSED_MAX, "a packet has room for its descriptors");
        self.packets.push_back(Packet { bytes, passed });
        Ok(())
    }

    /// Sends what the socket takes; false where it is full and `flags` say not to wait.
    pub(crate) fn flush(&mut self, socket: impl AsFd, flags: SendFlags) -> rustix::io::Result<bool> {
        while let Some(packet) = self.packets.front() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
            let mut passed = SendAncillaryBuffer::new(&mut space);
            let fds: Vec<_> = packet.passed.iter().map(AsFd::as_fd).collect();
            if !fds.is_empty() {
                assert!(passed.push(SendAncillaryMessage::ScmRights(&fds)), "there is space for the descriptors");
            }
            let bytes = [IoSlice::new(&packet.bytes)];
            match rustix::net::sendmsg(&socket, &bytes, &mut passed, flags | SendFlags::NOSIGNAL) {
                Ok(_) => drop(self.packets.pop_front()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

fn append(packet: &mut Vec<u8>, record: &[u8]) {
    packet.extend_from_slice(&(record.len() as u32).to_le_bytes());
    packet.extend_from_slice(record);
}

/// What one look at the socket gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// `Inbox::records` has them.
    Records,
    Nothing,
    /// The other end is gone.
    Closed,
}

/// The packet that was read last.
#[derive(Debug)]
pub(crate) struct Inbox {
    buffer: Vec<u8>,
    filled: usize,
    /// A record that came in a file of its own.
    large: Option<Vec<u8>>,
    /// Descriptors that the one record of the packet brought.
    passed: Vec<OwnedFd>,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox { buffer: vec![0; PACKET_MAX], filled: 0, large: None, passed: Vec::new() }
    }
}

impl Inbox {
    /// Reads one packet; a broken connection is as closed as an ended one.
    pub(crate) fn receive(&mut self, socket: impl AsFd, flags: RecvFlags) -> rustix::io::Result<Received> {
        (self.filled, self.large) = (0, None);
        self.passed.clear();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
        let mut passed = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let got = loop {
            match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut self.buffer)], &mut passed, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Received::Closed),
                other => break other?.bytes,
            }
        };
        if got == 0 {
            return Ok(Received::Closed);
        }
        for message in passed.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.passed.extend(fds);
            }
        }
        if self.buffer[..got] != [IN_A_FILE] {
            self.filled = got;
        } else if self.passed.is_empty() {
            // The kernel drops a descriptor that finds no room here, and with it a record is lost.
            return Err(Errno::MFILE);
        } else {
            let file = self.passed.remove(0);
            self.large = Some(read_whole(&File::from(file))?);
        }
        Ok(Received::Records)
    }

    /// The descriptors that came with the packet; they belong to its one record.
    pub(crate) fn take_passed(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.passed)
    }

    /// The records of the packet, in order. A packet is whole or not there, so a bad length ends the walk.
    pub(crate) fn records(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.buffer[..self.filled];
        let packed = std::iter::from_fn(move || {
            let (length, behind) = rest.split_first_chunk::<4>()?;
            let (record, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            rest = behind;
            Some(record)
        });
        self.large.as_deref().into_iter().chain(packed)
    }
}

fn read_whole(file: &File) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; rustix::fs::fstat(file)?.st_size as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    Ok(bytes)
}

/// Lays a record.
#[derive(Debug, Default)]
pub(crate) struct Layer(pub(crate) Vec<u8>);

impl Layer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Bytes with their length in front.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }
}

/// Reads a record front to back; `None` is the end of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taker<'a>(pub(crate) &'a [u8]);

impl<'a> Taker<'a> {
    pub(crate) fn u8(&mut self) -> Option<u8> {
        let (value, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*value)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*value))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*value))
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn records_of_every_size_arrive_in_order() {
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let sizes = [0, 1, 3, 60_000, 70_000, PACKET_MAX - 4, PACKET_MAX - 3, 1 << 20, 5, 6];
        let records: Vec<Vec<u8>> = sizes.iter().map(|size| vec![*size as u8; *size]).collect();
        let mut outbox = Outbox::default();
        records.iter().for_each(|record| outbox.push(record).unwrap());
        let mut inbox = Inbox::default();
        let mut heard: Vec<Vec<u8>> = Vec::new();
        // The socket holds less than all of it, so the two take turns.
        while heard.len() < records.len() {
            outbox.flush(&near, SendFlags::DONTWAIT).unwrap();
            assert_eq!(inbox.receive(&far, RecvFlags::DONTWAIT).unwrap(), Received::Records);
            heard.extend(inbox.records().map(<[u8]>::to_vec));
        }
        assert!(heard == records && outbox.is_empty());
        assert_eq!(inbox.receive(&far, RecvFlags::DONTWAIT).unwrap(), Received::Nothing);
        drop(near);
        assert_eq!(inbox.receive(&far, RecvFlags::empty()).unwrap(), Received::Closed);
    }

    #[test]
    fn a_record_brings_its_descriptors_however_large_it_is() {
        use std::io::{Read, Write};
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::default());
        for size in [3, PACKET_MAX + 1] {
            let (mut read, write) = std::io::pipe().unwrap();
            outbox.push(b"before").unwrap();
            outbox.push_with(&vec![7; size], vec![write.into()]).unwrap();
            outbox.push(b"after").unwrap();
            assert!(outbox.flush(&near, SendFlags::empty()).unwrap());
            for (record, passed) in [(&b"before"[..], 0), (&vec![7; size], 1), (b"after", 0)] {
                assert_eq!(inbox.receive(&far, RecvFlags::empty()).unwrap(), Received::Records);
                assert!(inbox.records().eq([record]));
                let fds = inbox.take_passed();
                assert_eq!(fds.len(), passed);
                fds.into_iter().for_each(|fd| File::from(fd).write_all(b"it works").unwrap());
            }
            let mut heard = String::new();
            read.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, "it works");
        }
    }
}
