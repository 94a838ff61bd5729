// The server's own metrics, sampled while this page is open.

const EVERY_MS = 2_000;
/** Half an hour. */
const SAMPLES_MAX = 900;

/** Reads OpenMetrics text: name -> list of { labels, value }. */
export function parseMetrics(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+)(?:\{(.*)\})? ([-+0-9.eE]+|NaN|\+Inf)$/.exec(line);
    if (!match) continue;
    const [, name, labels = "", value] = match;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels: parseLabels(labels), value: Number(value) });
  }
  return found;
}

function parseLabels(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
  return labels;
}

/** The sum of a metric over the samples whose labels pass. */
export function sum(metrics, name, passes = () => true) {
  const samples = metrics.get(name) ?? [];
  return samples.filter(({ labels }) => passes(labels)).reduce((total, { value }) => total + value, 0);
}

/** What a command was answered with when it was refused, rather than failed. */
const isRefusal = ({ outcome }) => !["ok", "unknown", "unavailable", "overloaded", "internal"].includes(outcome);

export class Sampler {
  constructor(api) {
    this.api = api;
    this.samples = [];
    this.problem = undefined;
  }

  start() {
    const step = async () => {
      if (!document.hidden) await this.sample();
      setTimeout(step, EVERY_MS);
    };
    step();
  }

  async sample() {
    try {
      const metrics = parseMetrics(await this.api.get("metrics"));
      const at = Date.now();
      const renewals = sum(metrics, "solehold_renewals_total");
      const refusals = new Map();
      for (const { labels, value } of metrics.get("solehold_operations_total") ?? []) {
        if (isRefusal(labels)) refusals.set(labels.outcome, (refusals.get(labels.outcome) ?? 0) + value);
      }
      const refused = [...refusals.values()].reduce((a, b) => a + b, 0);
      this.latest = metrics;
      this.samples.push({ at, renewals, refused, refusals });
      if (this.samples.length > SAMPLES_MAX) this.samples.shift();
      this.problem = undefined;
    } catch (error) {
      this.problem = error;
    }
  }

  /** How much a counter grew in each of `count` parts of the span that ends at `to`. A restart counts from zero. */
  growth(name, { to, spanMs, count }) {
    const values = new Array(count).fill(0);
    for (let at = 1; at < this.samples.length; at += 1) {
      const before = this.samples[at - 1];
      const sample = this.samples[at];
      const part = Math.floor(((sample.at - (to - spanMs)) / spanMs) * count);
      if (part < 0 || part >= count) continue;
      const grown = sample[name] - before[name];
      values[part] += grown >= 0 ? grown : sample[name];
    }
    return values;
  }
}
