// Jobs that do nothing, a second, through pg-boss: fetched and completed a thousand at a time by four loops, which is more
// than its own workers do.
// usage: node pg-boss.mjs DATABASE_URL COUNT, in a folder below which the package is installed
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
const require = createRequire(process.cwd() + "/");
const module = await import(pathToFileURL(require.resolve("pg-boss")));
const PgBoss = module.PgBoss ?? module.default;
const [connectionString, count] = [process.argv[2], Number(process.argv[3])];
const boss = new PgBoss({ connectionString, supervise: false, schedule: false });
boss.on("error", () => {});
await boss.start();
await boss.createQueue("noop");
for (let made = 0; made < count; made += 1000) {
  await boss.insert(Array.from({ length: Math.min(1000, count - made) }, () => ({ name: "noop", data: {} })));
}
const begun = process.hrtime.bigint();
await Promise.all(Array.from({ length: 4 }, async () => {
  for (;;) {
    const jobs = await boss.fetch("noop", { batchSize: 1000 });
    if (!jobs || jobs.length === 0) return;
    await boss.complete("noop", jobs.map((job) => job.id));
  }
}));
console.log(count / (Number(process.hrtime.bigint() - begun) / 1e9));
process.exit(0);
