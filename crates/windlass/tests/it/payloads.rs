//! The corpus of payloads through the whole program: pushed, stored, and given to what a queue or a directory of
//! handlers runs.

use crate::rig::Rig;
use crate::shared::payloads;
use std::os::unix::fs::PermissionsExt;
use windlass::client::{Client, PushOptions};

#[test]
fn every_payload_arrives_byte_for_byte_at_a_queue_a_handler_file_and_a_module() {
    let rig = Rig::new();
    let (handlers, came) = (rig.path("handlers"), rig.path("came"));
    std::fs::create_dir(&handlers).unwrap();
    std::fs::create_dir(&came).unwrap();
    let program = handlers.join("program");
    std::fs::write(&program, format!("#!/bin/sh\ncat > {}/$WINDLASS_JOB_ID\n", came.display())).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    // A module writes no file: what it emits, a command does, as far as there is room for the name as well.
    let module = "return function(job)\nwindlass.emit('named', job.id .. '\\n' .. job.data:sub(1, 1000000))\nend\n";
    std::fs::write(handlers.join("module.lua"), module).unwrap();
    let script = format!("read -r id; cat > {}/$id", came.display());
    let server = rig.serve(&format!(
        "handlers = {handlers:?}\n[queue.named]\nrun = [\"sh\", \"-c\", {script:?}]\n\
         [queue.queue]\nrun = [\"sh\", \"-c\", \"cat > {}/$WINDLASS_JOB_ID\"]\n",
        came.display()
    ));
    let client = Client::open(&rig.dir()).unwrap();
    let mut sent = Vec::new();
    for payload in payloads() {
        for queue in ["queue", "program", "module"] {
            let id = client.push(queue, &payload, PushOptions::default()).unwrap().id;
            let most = if queue == "module" { payload.len().min(1_000_000) } else { payload.len() };
            sent.push((id.to_string(), payload[..most].to_vec()));
        }
    }
    rig.drained();
    for (name, payload) in sent {
        let came = std::fs::read(came.join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(came == payload, "{name}: {} bytes came, {} were sent", came.len(), payload.len());
    }
    server.stop();
}
