#!/usr/bin/env node
// Pushes COUNT jobs into a Windlass inbox. Node has no flock, so each job is one small write in append mode:
// whole on a local file system, but weaker than a lock (a torn write is noticed, not prevented).
// usage: producer.js INBOX QUEUE COUNT
const fs = require("fs");
const path = require("path");

const [inbox, queue, count] = process.argv.slice(2);
const { O_WRONLY, O_APPEND, O_CREAT, O_NOFOLLOW } = fs.constants;
const file = fs.openSync(path.join(inbox, String(process.geteuid())), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, 0o600);
for (let n = 1; n <= Number(count); n++) {
  // CAN LF in front ends whatever a torn write of somebody else left behind.
  const record = Buffer.from(`\x18\n${queue}\tjs ${n}\n`);
  if (fs.writeSync(file, record) !== record.length) {
    console.error(`the disk is full: job ${n} was not accepted`);
    process.exit(1);
  }
}
