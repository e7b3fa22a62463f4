//! The corpus of payloads through every kind of process, to the byte.

use crate::rig::{Rig, batch, command, kept};
use crate::shared::payloads;
use std::path::Path;
use windlass_core::policy::{Framing, Policy, Reply, Service};

/// Those that can be a line.
pub(crate) fn lines() -> Vec<Vec<u8>> {
    payloads().into_iter().filter(|payload| !payload.contains(&b'\n')).collect()
}

/// The data of each line of JSON in a file.
fn told(file: &Path) -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(file).unwrap();
    let line = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        match line["data"].as_str() {
            Some(text) => text.as_bytes().to_vec(),
            None => windlass::api::base64::decode(line["data64"].as_str().unwrap()).unwrap(),
        }
    };
    text.lines().map(line).collect()
}

fn same(came: &[Vec<u8>], sent: &[Vec<u8>]) {
    assert_eq!(came.len(), sent.len());
    for (came, sent) in came.iter().zip(sent) {
        assert!(came == sent, "{} bytes came, {} were sent: {:?}", came.len(), sent.len(), &sent[..sent.len().min(99)]);
    }
}

fn borrowed(payloads: &[Vec<u8>]) -> Vec<&[u8]> {
    payloads.iter().map(Vec::as_slice).collect()
}

#[test]
fn as_standard_input_and_as_an_argument() {
    let mut rig = Rig::new(1);
    for payload in payloads() {
        let copy = rig.dir.root().join("copy");
        rig.stdout(command(&["sh", "-c", "cat > $0", copy.to_str().unwrap()]).data(&payload));
        same(&[std::fs::read(&copy).unwrap()], std::slice::from_ref(&payload));
        let argument = command(&["printf", "%s|", "{}"]).data(&payload);
        if payload.contains(&0) {
            assert!(rig.error(argument).contains("holds a NUL byte, which no argument can carry"));
        } else if payload.len() > 1 << 17 {
            assert!(rig.error(argument).contains("its arguments are too long"));
        } else {
            same(&[rig.stdout(argument)], &[[&payload[..], b"|"].concat()]);
        }
    }
}

#[test]
fn as_lines_of_a_batch() {
    let mut rig = Rig::new(1);
    let copy = rig.dir.root().join("copy");
    let script = format!("cat > {}", copy.display());
    let by_exit = |framing| batch(&script, |batch| (batch.reply, batch.framing) = (Reply::Exit, framing));
    let (all, raw) = (payloads(), lines());
    assert_eq!(rig.all(&by_exit(Framing::Json), &borrowed(&all)), vec!["ok"; all.len()]);
    same(&told(&copy), &all);
    assert_eq!(rig.all(&by_exit(Framing::Raw), &borrowed(&raw)), vec!["ok"; raw.len()]);
    let joined: Vec<u8> = raw.iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
    same(&[std::fs::read(&copy).unwrap()], &[joined]);
    let broken = rig.all(&by_exit(Framing::Raw), &[b"a\nb"]).remove(0);
    assert!(broken.starts_with("failed_for_good the data holds a newline"), "{broken}");
}

#[test]
fn as_lines_of_a_kept_worker() {
    let mut rig = Rig::new(1);
    let copy = rig.dir.root().join("copy");
    let script = "import sys\nwith open(sys.argv[1], 'wb') as copy:\n    for line in sys.stdin.buffer:\n        \
                  copy.write(line)\n        copy.flush()\n        print('ok', flush=True)\n";
    let copies = |pattern: &str, framing| {
        let mut policy = Policy { pattern: pattern.into(), ..kept("", 1, |worker| worker.framing = framing) };
        if let Service::Worker(worker) = &mut policy.service {
            worker.command = crate::rig::argv(&["python3", "-c", script, copy.to_str().unwrap()]);
        }
        policy
    };
    let (all, raw) = (payloads(), lines());
    assert_eq!(rig.all(&copies("json", Framing::Json), &borrowed(&all)), vec!["ok"; all.len()]);
    same(&told(&copy), &all);
    assert_eq!(rig.all(&copies("raw", Framing::Raw), &borrowed(&raw)), vec!["ok"; raw.len()]);
    let joined: Vec<u8> = raw.iter().flat_map(|line| [&line[..], b"\n"].concat()).collect();
    same(&[std::fs::read(&copy).unwrap()], &[joined]);
    let broken = rig.all(&copies("raw", Framing::Raw), &[b"a\nb"]).remove(0);
    assert!(broken.starts_with("failed_for_good the data holds a newline"), "{broken}");
}
