// Drains a queue of pg-boss: node pgboss.mjs MODULE URL JOBS TASKS BATCH; prints one line of JSON.
import { createRequire } from "node:module";
const require = createRequire(process.cwd() + "/");
const [name, url, jobs, tasks, batch] = process.argv.slice(2).map((word) => (/^\d+$/.test(word) ? Number(word) : word));
const PgBoss = require(name);
const { Pool } = require("pg");

const boss = new PgBoss({ connectionString: url, max: tasks, supervise: false, schedule: false });
await boss.start();
await boss.createQueue("bench");
const data = { note: "x".repeat(200) };
for (let made = 0; made < jobs; made += 1000) {
  await boss.insert(Array.from({ length: Math.min(1000, jobs - made) }, () => ({ name: "bench", data })));
}
const pool = new Pool({ connectionString: url, max: 1 });
await pool.query("VACUUM ANALYZE");

let done = 0;
const drain = async () => {
  for (;;) {
    const got = await boss.fetch("bench", { batchSize: batch });
    if (!got || got.length === 0) return;
    await boss.complete("bench", got.map((job) => job.id));
    done += got.length;
  }
};
const began = process.hrtime.bigint();
await Promise.all(Array.from({ length: tasks }, drain));
const seconds = Number(process.hrtime.bigint() - began) / 1e9;
const left = await pool.query("SELECT count(*)::int AS left FROM pgboss.job WHERE name = 'bench' AND state <> 'completed'");
console.log(JSON.stringify({ jobs: jobs - left.rows[0].left, seconds }));
process.exit(0);
