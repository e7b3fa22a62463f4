//! Lots of other servers at the door: what is taken, what is known, what is refused; and moves that cannot be meant.

use super::rig::{Rig, job_id};
use crate::api;
use crate::lot::{self, Manner};
use crate::store::chunk::ChunkBuilder;
use serde_json::json;
use windlass_core::job::{Origin, Priority, QueueName};

const NUMBER: &str = "l-000000000000000000000000000000ff";

/// A lot with jobs of this server and of another one, by their offsets.
fn lot(manner: Manner, own: &[u64], others: &[u64]) -> Vec<u8> {
    let mut bytes = lot::begin(manner, 0);
    let queue = QueueName::new(b"mail").unwrap();
    for (origin, offsets) in [(job_id(0).origin, own), (Origin::from_random(99), others)] {
        let mut builder = ChunkBuilder::new(origin);
        offsets.iter().for_each(|offset| builder.push(*offset, b"x"));
        if !builder.is_empty() {
            lot::add(&mut bytes, &queue, Priority::NORMAL, None, builder.finish().as_bytes());
        }
    }
    lot::end(&mut bytes);
    bytes
}

#[test]
fn a_lot_is_taken_but_for_what_is_here_already() {
    let rig = Rig::new();
    // The first one is in the store, the second in the archive, the others are new.
    let bytes = lot(Manner::Move, &[7, 77_777], &[1, 2]);
    let (status, answer) = rig.post(&format!("/api/v1/lots/{NUMBER}"), lot::MEDIA, &bytes);
    assert_eq!((status, &answer["taken"], &answer["known"]), (200, &json!(true), &json!(2)), "{answer}");
    assert_eq!(rig.kept.lock().unwrap().parcels, [2]);
}

#[test]
fn what_is_no_lot_is_refused_and_nothing_is_stored() {
    let rig = Rig::new();
    let path = format!("/api/v1/lots/{NUMBER}");
    let whole = lot(Manner::Forward, &[], &[1]);
    for (path, media, bytes, status) in [
        ("/api/v1/lots/l-12", lot::MEDIA, &whole[..], 422),
        (path.as_str(), "application/json", &whole[..], 415),
        (path.as_str(), lot::MEDIA, &whole[..whole.len() - 1], 422),
        (path.as_str(), lot::MEDIA, &[9, 0, 0][..], 505),
        (path.as_str(), lot::MEDIA, &[][..], 422),
    ] {
        assert_eq!(rig.post(path, media, bytes).0, status, "{path} {media}");
    }
    // An id that a later push here would get must not be another's.
    let (status, answer) = rig.post(&path, lot::MEDIA, &lot(Manner::Move, &[800_000], &[]));
    assert_eq!((status, &answer["taken"]), (200, &json!(false)), "{answer}");
    assert!(rig.kept.lock().unwrap().parcels.is_empty());
    assert_eq!(rig.get(&path).0, 404, "nobody knows it");
}

#[test]
fn a_move_that_cannot_be_meant_is_refused() {
    let rig = Rig::new();
    for body in [
        json!({"to": "http://there"}),
        json!({"to": "http://there", "queues": ["a"], "selector": "queue:a"}),
        json!({"to": "there", "queues": ["a"]}),
        json!({"to": "http://there/?x", "queues": ["a"]}),
        json!({"to": "http://there", "queues": ["-a"]}),
        json!({"to": "http://there", "selector": "nonsense:1"}),
        json!({"to": "http://there", "queues": ["a"], "token_file": "/no/such/file"}),
    ] {
        let (status, answer) = rig.post("/api/v1/moves", api::JSON, body.to_string().as_bytes());
        assert_eq!(status, 422, "{body} {answer}");
    }
    let named = json!({"to": "http://there", "ids": [job_id(1).to_string()]}).to_string();
    assert_eq!(rig.post("/api/v1/moves", api::JSON, named.as_bytes()).0, 200);
}
