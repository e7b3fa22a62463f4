//! Servers that mean ill or know no better: resets, silence, and words that a batch must not take for an answer.

use crate::in_time::in_time;
use crate::rig::{Rig, policy};
use crate::servers::{Handler, fine};
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use windlass::runner::{Flight, Runner};
use windlass_core::policy::{Framing, Policy};

/// As many connections as one host is given.
const PLACES: usize = 256;

/// Closed like this, the other side gets a reset.
fn to_be_reset(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as libc::socklen_t;
    let value = (&raw const linger).cast();
    // SAFETY: the value is a `linger`, and its size is given.
    let set = unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size) };
    assert_eq!(set, 0);
}

#[test]
fn a_reset_at_any_point_costs_its_job_alone() {
    let server = Handler::new(|asked, _, stream| {
        to_be_reset(stream);
        match &asked.body[..] {
            b"at once" => false,
            b"in the head" => stream.write_all(b"HTTP/1.1 200 OK\r\nConte").is_err(),
            b"in the body" => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc").is_err(),
            _ => fine(stream, "here"),
        }
    });
    let mut rig = Rig::new();
    for data in ["at once", "in the head", "in the body"] {
        let outcome = rig.one(&policy(server.address, "/", |_| ()), data.as_bytes());
        assert!(outcome.starts_with("failed the answer broke off"), "{data}: {outcome}");
        assert_eq!(rig.one(&policy(server.address, "/", |_| ()), b"fine"), "succeeded here");
    }
    // A call with several is made again in halves.
    let server = Handler::new(|asked, _, stream| {
        to_be_reset(stream);
        !asked.body.split(|byte| *byte == b'\n').any(|line| line == b"bad") && fine(stream, "")
    });
    let many = policy(server.address, "/", |url| (url.size, url.framing) = (10, Framing::Raw));
    let outcomes = rig.all(&many, &[b"a", b"bad", b"c", b"d"]);
    assert!(outcomes[1].starts_with("failed the answer broke off"), "{outcomes:?}");
    assert_eq!([&outcomes[0], &outcomes[2], &outcomes[3]], ["succeeded"; 3]);
}

#[test]
fn a_call_with_many_that_is_never_answered_charges_the_one_at_fault() {
    let server = Handler::new(|asked, _, stream| {
        // The connection stays open until the caller has had enough.
        asked.body.windows(4).any(|part| part == b"hang") || fine(stream, "")
    });
    let mut rig = Rig::new();
    in_time(&["succeeded", "timed_out", "succeeded", "succeeded"], |limit| {
        let many = policy(server.address, "/", |url| url.size = 10);
        rig.all(&Policy { time_limit: Some(limit), ..many }, &[b"a", b"hang", b"c", b"d"])
    });
}

#[test]
fn what_a_status_says_of_all_is_said_of_all_and_once() {
    for (head, expected) in [
        ("302 Found\r\nLocation: http://127.0.0.1:1/", "failed_for_good HTTP 302: redirects are not followed"),
        ("429 Later\r\nRetry-After: 7", "snoozed 7s"),
    ] {
        let server =
            Handler::new(move |_, _, stream| write!(stream, "HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n").is_ok());
        let mut rig = Rig::new();
        let outcomes = rig.all(&policy(server.address, "/", |url| url.size = 10), &[b"a", b"b", b"c"]);
        assert_eq!(outcomes, [expected; 3]);
        assert_eq!(server.asked().len(), 1);
    }
}

/// Every job but those named `fine` is never answered.
fn silent() -> Handler {
    Handler::new(|asked, _, stream| asked.body != b"fine" || fine(stream, ""))
}

#[test]
fn a_host_has_so_many_connections_at_once_and_no_more() {
    let (server, mut rig) = (silent(), Rig::new());
    let wide = Policy { slots: 1000, ..policy(server.address, "/", |_| ()) };
    rig.start(&wide, &vec![&b"hang"[..]; PLACES + 50], 1000);
    for more in 0..3 {
        while server.connections() < PLACES + more {
            std::thread::yield_now();
        }
        rig.runner.cancel(Flight(1), more as u16);
        assert_eq!(rig.outcomes(1)[0].word(), "cancelled");
        assert!(server.connections() <= PLACES + more + 1, "{}", server.connections());
    }
}

#[test]
fn a_call_that_waits_for_its_host_is_not_late_for_that() {
    let (server, mut rig) = (silent(), Rig::new());
    let mut data = vec![&b"hang"[..]; PLACES];
    data.push(b"fine");
    let mut expected = ["timed_out"; PLACES + 1];
    // It began when a place was free.
    expected[PLACES] = "succeeded";
    in_time(&expected, |limit| {
        let wide = policy(server.address, "/", |_| ());
        rig.all(&Policy { slots: 1000, time_limit: Some(limit), ..wide }, &data)
    });
}
