/** The renewer, the trust window, the clock and the lease sets, by themselves, on virtual time. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { Backoff, checkedBackoff } from "../src/backoff.js";
import { BootClock } from "../src/clock.js";
import { History, OlderHistory } from "../src/history.js";
import { Holdings } from "../src/holdings.js";
import { CLOCK_ERROR_MS } from "../src/limits.js";
import { type Action, FLIGHTS_MAX, Policy, Renewer } from "../src/renewer.js";
import { deadline, margin } from "../src/trust.js";

const TTL = 30_000;
/** What is taken off a ttl of 30 s by a store without slack. */
const OFF = 600 + CLOCK_ERROR_MS;

/** Numbers that a seed repeats (mulberry32). */
function chance(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

function renewer(policy = Policy.DEADLINE, seed = 1): Renewer {
  return new Renewer(policy, TTL, { sent: 100_000, ttlLeftMs: TTL, slackMs: 0 }, chance(seed));
}

function sent(action: Action): Extract<Action, { do: "send" }> {
  assert.ok(action.do === "send", action.do);
  return action;
}

function stopped(action: Action): Extract<Action, { do: "stop" }> {
  assert.ok(action.do === "stop", action.do);
  return action;
}

function waits(action: Action): number {
  assert.ok(action.do === "wait", action.do);
  return action.until;
}

describe("trust", () => {
  test("the margin is as the rule says", () => {
    assert.deepEqual(
      [margin(30_000, 0), margin(1_000, 0), margin(30_000, 500), margin(1_000, undefined)],
      [600, 100, 1_100, 500],
    );
    assert.equal(deadline(100_000, TTL, TTL, 0), 100_000 + TTL - OFF);
    for (const ttl of [1_000, 2_000, 5_000, 30_000, 86_400_000]) {
      for (const slack of [0, 500, undefined]) {
        assert.ok(margin(ttl, slack) <= ttl / 2 && margin(ttl, slack) >= 100);
      }
    }
  });

  test("a deadline is never later than the store's, by a clock that drifts", () => {
    const random = chance(4);
    for (let round = 0; round < 5_000; round++) {
      const ttl = 1_000 + random() * 3_600_000;
      const drift = 0.99 + random() * 0.02;
      const asked = random() * 1e9;
      // The store's deadline, on a local clock that runs at `drift` of the store's and is late by its resolution.
      const stores = asked + (random() * 2_000 + ttl) * drift - CLOCK_ERROR_MS;
      assert.ok(deadline(asked, ttl, ttl, 0) <= stores);
    }
  });
});

describe("the clock", () => {
  /** Readings that a test sets. */
  function readings(hasUptime: boolean): {
    at: { monotonic: number; uptime: number; wall: number };
    clock: BootClock;
  } {
    const now = { monotonic: 5_000, uptime: 90_000, wall: 1e12 };
    const uptime = (): number | undefined => (hasUptime ? Math.floor(now.uptime / 10) * 10 : undefined);
    const clock = new BootClock({ monotonic: () => now.monotonic, uptime, wall: () => Math.floor(now.wall) });
    return { at: now, clock };
  }

  test("counts sleep by the uptime, and not what is done to the wall clock", () => {
    const { at, clock } = readings(true);
    const pass = (ms: number): void => {
      at.monotonic += ms;
      at.uptime += ms;
      at.wall += ms;
    };
    const began = clock.now();
    let last = began;
    for (let step = 0; step < 1_000; step++) {
      pass(0.7);
      const now = clock.now();
      assert.ok(now >= last, "it never goes back");
      last = now;
    }
    assert.ok(Math.abs(last - began - 700) <= CLOCK_ERROR_MS);
    at.uptime += 3_600_000; // the machine slept
    assert.ok(Math.abs(clock.now() - last - 3_600_000) <= CLOCK_ERROR_MS);
    const woken = clock.now();
    at.wall += 7_200_000; // an operator set the clock
    assert.equal(clock.now(), woken);
  });

  test("a pause between two readings is counted once", () => {
    const now = { monotonic: 5_000, uptime: 90_000 };
    let paused = 0;
    const uptime = (): number => {
      const read = now.uptime;
      now.monotonic += paused;
      now.uptime += paused;
      paused = 0;
      return read;
    };
    const clock = new BootClock({ monotonic: () => now.monotonic, uptime, wall: () => 0 });
    const began = clock.now();
    paused = 4_000;
    assert.equal(clock.now() - began, 4_000);
    assert.equal(clock.now() - began, 4_000);
  });

  test("without the uptime, a jump of the wall clock forward counts as time that has passed", () => {
    const { at, clock } = readings(false);
    const began = clock.now();
    for (let step = 0; step < 10_000; step++) {
      at.monotonic += 0.1;
      at.wall += 0.1;
      clock.now();
    }
    assert.ok(
      clock.now() - began < 1_000 + 2,
      "readings that differ by less than a millisecond do not add up",
    );
    const before = clock.now();
    at.wall -= 3_600_000; // set back
    assert.equal(clock.now(), before);
    at.wall += 60_000; // and a sleep after that
    assert.ok(clock.now() - before >= 60_000 - 1);
  });

  test("is the boot time of this machine", () => {
    const clock = new BootClock();
    const began = clock.now();
    const until = performance.now() + 30;
    while (performance.now() < until) clock.now();
    assert.ok(clock.now() - began >= 29);
  });
});

describe("renewing", () => {
  test("heartbeats are sent at a third of the ttl or a little before", () => {
    const starts = new Set<number>();
    for (let seed = 0; seed < 200; seed++) {
      const until = waits(renewer(Policy.DEADLINE, seed).poll(100_000));
      assert.ok(until >= 108_000 && until <= 110_000, String(until));
      starts.add(until);
    }
    assert.ok(starts.size > 150, "they spread");
  });

  test("an answer moves the deadline from before its request", () => {
    const machine = renewer();
    assert.equal(machine.deadline, 130_000 - OFF);
    const first = sent(machine.poll(110_000));
    assert.deepEqual(
      [first.timeoutMs, first.beside],
      [machine.deadline - 110_000, 0],
      "all of the time left",
    );
    assert.equal(waits(machine.poll(111_000)), 110_000 + TTL / 9, "until another one is sent beside it");
    machine.answered(115_000, { sent: 110_000, ttlLeftMs: TTL, slackMs: 0 });
    assert.equal(machine.deadline, 140_000 - OFF);
  });

  test("news are followed by a heartbeat at once", () => {
    const machine = renewer();
    const granted = { ttlLeftMs: TTL, slackMs: 0 };
    machine.news(101_000);
    sent(machine.poll(101_000));
    machine.news(101_100);
    machine.answered(101_200, { sent: 101_000, ...granted });
    sent(machine.poll(101_200)); // the first may have been answered before it happened
    machine.answered(101_300, { sent: 101_200, ...granted });
    assert.ok(waits(machine.poll(101_300)) >= 109_200, "and then at their time again");
  });

  test("a deadline never moves earlier", () => {
    const machine = renewer();
    machine.answered(101_000, { sent: 100_500, ttlLeftMs: 3_000, slackMs: undefined });
    assert.equal(machine.deadline, 130_000 - OFF);
  });

  test("failures are tried again until the deadline and not after", () => {
    const machine = renewer();
    let now = 100_000;
    let sends = 0;
    let action = machine.poll(now);
    for (; action.do !== "stop"; action = machine.poll(now)) {
      if (action.do === "send") {
        sends += 1;
        machine.failed(action.flight, now, "no route");
      } else {
        now = action.until;
      }
    }
    assert.equal(now, 130_000 - OFF);
    assert.equal(action.lost.why, "deadline");
    assert.match(action.lost.message, /no route/);
    assert.ok(sends >= 8 && sends <= 40, String(sends));
  });

  test("lost is for good", () => {
    const machine = renewer();
    sent(machine.poll(110_000));
    // The answer was there in time for the store, but the work had to stop before it was read.
    machine.answered(129_500, { sent: 110_000, ttlLeftMs: TTL, slackMs: 0 });
    assert.ok(!machine.isLive(129_500));
    stopped(machine.poll(129_600));
    assert.ok(!renewer().isLive(NaN), "a clock that returns no number ends trust");
  });

  test("immediate stops at the first failure", () => {
    const machine = renewer(Policy.IMMEDIATE);
    const { flight } = sent(machine.poll(110_000));
    assert.equal(waits(machine.poll(119_000)), 130_000 - OFF, "nothing is sent beside it");
    machine.failed(flight, 110_200, "no route");
    assert.equal(stopped(machine.poll(110_200)).lost.why, "failed");
  });

  test("grace continues while the authority is away", () => {
    const machine = renewer(Policy.grace(300_000));
    machine.failed(sent(machine.poll(110_000)).flight, 110_200, "no route");
    assert.ok(machine.isLive(429_300));
    machine.answered(429_300, { sent: 429_200, ttlLeftMs: TTL, slackMs: 0 });
    assert.equal(machine.endsAt, 429_200 + TTL - OFF + 300_000, "heard again, it starts anew");
    assert.ok(!machine.isLive(machine.endsAt));
  });

  test("another heartbeat is sent beside one without an answer", () => {
    const machine = renewer();
    const sends: number[] = [];
    let now = 110_000;
    for (let action = machine.poll(now); action.do !== "stop"; action = machine.poll(now)) {
      if (action.do === "send") sends.push(action.beside);
      else now = action.until;
    }
    assert.deepEqual(sends, [...sends.keys()]);
    assert.ok(sends.length >= 3 && sends.length <= FLIGHTS_MAX, String(sends));
    const other = renewer();
    const first = sent(other.poll(110_000));
    sent(other.poll(115_000));
    other.answered(116_000, { sent: 115_000, ttlLeftMs: TTL, slackMs: 0 });
    assert.ok(!other.failed(first.flight, 116_100, "no answer"), "a later one was answered");
  });

  test("slowness alone costs no session", () => {
    const random = chance(7);
    for (let round = 0; round < 500; round++) {
      const ttl = 1_000 + random() * 119_000;
      // Connecting, a handshake and the request may each take a tenth of the ttl.
      const delay = random() * ttl * 0.3;
      const slackMs = random() < 0.5 ? 0 : Math.min(500, ttl / 20);
      const policies = [Policy.IMMEDIATE, Policy.DEADLINE, Policy.grace(ttl)];
      const policy = policies[Math.floor(random() * 3)] as Policy;
      const machine = new Renewer(policy, ttl, { sent: 0, ttlLeftMs: ttl, slackMs }, chance(round));
      const answers: { arrives: number; began: number; until: number }[] = [];
      let beats = 0;
      for (let now = 0; now < 20 * ttl;) {
        for (let next = answers[0]; next && next.arrives <= now; next = answers[0]) {
          answers.shift();
          assert.ok(next.arrives <= next.until, "it is not given up");
          machine.answered(now, { sent: next.began, ttlLeftMs: ttl, slackMs });
        }
        const action = machine.poll(now);
        assert.notEqual(action.do, "stop", `round ${round}: ttl ${ttl}, delay ${delay}, ${policy.name}`);
        if (action.do === "send") {
          beats += 1;
          answers.push({ arrives: now + delay, began: now, until: now + action.timeoutMs });
        } else if (action.do === "wait") {
          now = Math.min(action.until, answers[0]?.arrives ?? Infinity);
        }
      }
      assert.ok(beats < 20 * 16, "and not by a flood of heartbeats");
    }
  });

  test("a refusal stops every policy at once", () => {
    for (const policy of [Policy.IMMEDIATE, Policy.DEADLINE, Policy.grace(300_000)]) {
      const machine = renewer(policy);
      machine.poll(110_000);
      machine.refused("no_session: the session is over", "no_session");
      const { lost } = stopped(machine.poll(110_000));
      assert.deepEqual([lost.why, lost.code], ["refused", "no_session"]);
    }
  });
});

describe("lease sets", () => {
  const A = { leaseId: "a", token: 10 };
  const B = { leaseId: "b", token: 12 };
  const at = (epoch: number, revision: number): { epoch: number; revision: number } => ({ epoch, revision });

  test("a set says nothing about a newer grant", () => {
    const holdings = new Holdings();
    assert.ok(holdings.granted(A, at(1, 10)));
    assert.deepEqual(holdings.take(at(1, 8), []), [], "older than the grant");
    assert.deepEqual(holdings.take(at(1, 10), [A]), []);
    assert.ok(holdings.granted(B, at(1, 12)));
    assert.deepEqual(holdings.take(at(1, 13), [B]), [A]);
    assert.deepEqual(holdings.take(at(1, 14), [B]), [], "told once");
  });

  test("an older set is not applied over a newer one", () => {
    const holdings = new Holdings();
    holdings.granted(A, at(1, 10));
    holdings.take(at(1, 20), [A]);
    assert.deepEqual(holdings.take(at(1, 15), []), []);
  });

  test("a grant that arrives after its end is not held", () => {
    const holdings = new Holdings();
    holdings.take(at(1, 20), []);
    assert.ok(!holdings.granted(A, at(1, 10)));
    assert.ok(holdings.granted({ leaseId: "b", token: 21 }, at(1, 21)));
  });

  test("what was released is not missed", () => {
    const holdings = new Holdings();
    holdings.granted(A, at(1, 10));
    holdings.letGo(A);
    assert.deepEqual(holdings.take(at(1, 11), []), []);
  });

  test("a later epoch comes after any revision of an earlier one", () => {
    const holdings = new Holdings();
    holdings.granted(A, at(1, 900));
    assert.deepEqual(holdings.take(at(2, 5), []), [A]);
    assert.ok(holdings.granted(B, at(2, 12)));
    assert.ok(!holdings.granted(A, at(1, 901)));
  });

  test("a lease under another token is another grant", () => {
    const holdings = new Holdings();
    holdings.granted(A, at(1, 10));
    assert.deepEqual(holdings.take(at(2, 11), [{ leaseId: "a", token: 2 ** 32 }]), [A]);
  });
});

test("an older history is never followed", () => {
  const history = new History();
  assert.deepEqual([history.follow(undefined), history.follow(3), history.follow(undefined)], [0, 3, 3]);
  assert.throws(() => history.follow(2), OlderHistory);
  assert.equal(history.follow(4), 4);
  history.keep("a");
  history.keep(undefined);
  assert.equal(history.sealedCursor, "a");
});

test("delays double to the cap with jitter", () => {
  const series = new Backoff({ firstMs: 100, capMs: 1_000 }, chance(1));
  for (const whole of [100, 200, 400, 800, 1_000, 1_000]) {
    const delay = series.delay();
    assert.ok(delay >= whole / 2 && delay <= whole, `${whole}: ${delay}`);
  }
  assert.equal(series.delay(5_000), 5_000);
  series.reset();
  assert.ok(series.delay() <= 100);
  for (const [firstMs, capMs] of [
    [0, 1],
    [2, 1],
    [NaN, 1],
    [1, Infinity],
  ] as const) {
    assert.throws(() => checkedBackoff({ firstMs, capMs }), RangeError);
  }
});
