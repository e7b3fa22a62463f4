// A kept worker: a line in, a line out.
const lines = require("node:readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const reply = /^(fail|retry) /.test(line) ? line : `ok ${line.toUpperCase()}`;
  process.stdout.write(reply + "\n");
});
