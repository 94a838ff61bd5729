/** The gate's judgement by the script of cases that every client is tested with. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { Fence, type Mark, type MarkRecord, type ResourceKey } from "../src/fence.js";
import { ROOT } from "./support/server.js";

interface Step {
  do: string;
  key: string;
  token: number;
  session: string | null;
  at: number;
  epoch: number;
  revision: number;
  asked: number;
  until: number;
  marks: Record<string, [number, string | null]>;
  answer: [number, string | null] | null;
  verdict: string;
  followed: boolean;
}

interface Case {
  name: string;
  rules: { cache_ttl: number; fail_open: boolean; strict: boolean; remembers: boolean; marks_max: number };
  steps: Step[];
}

function mark([token, session]: [number, string | null]): Mark {
  return { token, session: session ?? undefined };
}

/** A resource of the script: `lobby`, or `lobby#2` for a slot of it. */
function scene(name: string): ResourceKey {
  const [key = "", slot] = name.split("#");
  return { kind: "scene", key, slot: slot === undefined ? undefined : Number(slot) };
}

class Run {
  private fence: Fence;
  private readonly disk: MarkRecord[] = [];

  constructor(private readonly rules: Case["rules"]) {
    this.fence = this.begin();
  }

  private begin(): Fence {
    const { cache_ttl, fail_open, strict, remembers, marks_max } = this.rules;
    return new Fence({ cacheTtlMs: cache_ttl, failOpen: fail_open, strict, remembers, marksMax: marks_max });
  }

  /** Takes a step, and compares what came of it. */
  take(step: Step): void {
    const { fence } = this;
    const key = scene(step.key ?? "");
    const session = step.session ?? undefined;
    switch (step.do) {
      case "snapshot": {
        const isFollowed = fence.snapshotBegins(step.epoch);
        if (isFollowed) {
          for (const [name, given] of Object.entries(step.marks))
            fence.learn(scene(name), mark(given));
          fence.snapshotEnds(step.revision, step.asked);
        }
        return assert.equal(isFollowed, step.followed);
      }
      case "head":
        return assert.equal(fence.headWas(step.epoch, step.revision, step.asked), step.followed);
      case "judge":
        return assert.equal(String(fence.judge(key, step.token, session, step.at)), step.verdict);
      case "ask":
      case "hidden": {
        const hidden = step.do === "hidden";
        const found = hidden || step.answer === null ? undefined : mark(step.answer);
        const answer = { mark: found, epoch: hidden ? undefined : step.epoch, asked: step.at, hidden };
        const verdict = fence.conclude(key, step.token, session, answer, step.at);
        return assert.equal(verdict ? String(verdict) : "not followed", step.verdict);
      }
      case "learn":
        return fence.granted(key, { token: step.token, session });
      case "told":
        return fence.seenUpTo(step.revision);
      case "deleted":
        return fence.deleted(key);
      case "away":
        return fence.storeIsAway(step.until);
      case "denied":
        return fence.storeDenies();
      case "save": {
        const { records, number } = fence.unsaved();
        this.disk.push(...records);
        return fence.savedUpTo(number);
      }
      case "restart":
        this.fence = this.begin();
        return this.disk.forEach((record) => this.fence.restore(record));
      default:
        throw new Error(`no case knows ${step.do}`);
    }
  }
}

const cases = JSON.parse(readFileSync(join(ROOT, "clients/cases/gate.json"), "utf8")) as Case[];

test("there are cases", () => assert.ok(cases.length > 10));

for (const { name, rules, steps } of cases) {
  test(name, () => {
    const run = new Run(rules);
    for (const [at, step] of steps.entries()) {
      try {
        run.take(step);
      } catch (error) {
        throw new Error(`step ${at + 1}, ${JSON.stringify(step)}`, { cause: error });
      }
    }
  });
}
