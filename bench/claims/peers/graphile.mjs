// Drains a queue of graphile-worker: node graphile.mjs MODULE URL JOBS CONCURRENCY BATCH; prints one line of JSON.
import { createRequire } from "node:module";
const require = createRequire(process.cwd() + "/");
const [name, url, jobs, concurrency, batch] = process.argv.slice(2).map((word) => (/^\d+$/.test(word) ? Number(word) : word));
const { run, runMigrations, Logger } = require(name);
const { Pool } = require("pg");

const pool = new Pool({ connectionString: url, max: concurrency + 4 });
const logger = new Logger(() => () => {});
await runMigrations({ pgPool: pool, logger });
const payload = JSON.stringify({ note: "x".repeat(200) });
await pool.query("SELECT count(graphile_worker.add_job('bench', $1::json)) FROM generate_series(1, $2::int)", [payload, jobs]);
await pool.query("VACUUM ANALYZE");

let seen = 0;
let finished;
const all = new Promise((resolve) => (finished = resolve));
const bench = () => {
  if (++seen === jobs) finished();
};
const options = { pgPool: pool, concurrency, logger, noHandleSignals: true, pollInterval: 100, taskList: { bench } };
const batching = { localQueue: { size: Math.max(batch, concurrency + 1) }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
const preset = name === "graphile-worker" ? {} : { preset: { worker: batching } };
const began = process.hrtime.bigint();
const runner = await run({ ...options, ...preset });
await all;
await runner.stop();
const seconds = Number(process.hrtime.bigint() - began) / 1e9;
const check = new Pool({ connectionString: url });
const left = await check.query("SELECT count(*)::int AS left FROM graphile_worker.jobs");
console.log(JSON.stringify({ jobs: jobs - left.rows[0].left, seconds }));
process.exit(0);
