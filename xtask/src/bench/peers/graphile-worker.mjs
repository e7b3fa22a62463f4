// Jobs that do nothing, a second, through graphile-worker with its own settings for throughput.
// usage: node graphile-worker.mjs DATABASE_URL COUNT, in a folder below which the package is installed
import { createRequire } from "node:module";
const require = createRequire(process.cwd() + "/");
const { run, runMigrations } = require("graphile-worker");
const pg = require("pg");
const [connectionString, count] = [process.argv[2], Number(process.argv[3])];
await runMigrations({ connectionString });
const client = new pg.Client({ connectionString });
await client.connect();
// In parts: within one statement the plan that was made for an empty table would be kept, and the cost be quadratic.
for (let added = 0; added < count; added += 5000) {
  const part = Math.min(5000, count - added);
  await client.query("SELECT graphile_worker.add_job('noop', '{}'::json) FROM generate_series(1, $1::int)", [part]);
  await client.query("VACUUM ANALYZE");
}
const quiet = { info() {}, debug() {}, error() {}, warn() {}, scope: () => quiet };
let done = 0;
let finish;
const all = new Promise((resolve) => { finish = resolve; });
const begun = process.hrtime.bigint();
const runner = await run({
  logger: quiet,
  taskList: { noop: () => { if (++done === count) finish(); } },
  preset: { worker: { connectionString, concurrentJobs: 24, maxPoolSize: 25, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
});
await all;
await runner.stop();
const seconds = Number(process.hrtime.bigint() - begun) / 1e9;
await client.end();
console.log(count / seconds);
process.exit(0);
