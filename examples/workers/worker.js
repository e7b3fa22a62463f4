// A kept worker: a line in, a line out. Bytes as latin1, since data need not be text, and lines end with \n alone.
process.stdin.setEncoding("latin1");
let pending = "";
process.stdin.on("data", (chunk) => {
  const lines = (pending + chunk).split("\n");
  pending = lines.pop();
  for (const line of lines) {
    const capitals = () => line.replace(/[a-z]+/g, (letters) => letters.toUpperCase());
    const reply = /^(fail|retry) /.test(line) ? line : `ok ${capitals()}`;
    process.stdout.write(reply + "\n", "latin1");
  }
});
