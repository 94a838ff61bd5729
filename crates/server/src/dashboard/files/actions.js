// What an operator can do. Each action names its consequence before it is confirmed, and needs a key with the right.

import { path, withQuery } from "./api.js";
import { ask, field, tick } from "./dialog.js";
import { h } from "./dom.js";
import { count, span } from "./format.js";

const reasonField = () => field("Reason, for the history", h("input", { name: "reason", maxlength: "200" }));
const nameOf = ({ kind, key }) => `${kind}/${key}`;

export class Actions {
  constructor(api, store) {
    this.api = api;
    this.store = store;
  }

  /** Calls the API about a tenant's thing, and shows the new state soon. */
  async send(method, url, tenant, body) {
    return this.api.call(method, withQuery(url, { tenant }), body);
  }

  /** Takes the lease from its holder. */
  revoke(resource, lease) {
    const { tenant, kind, key } = resource;
    const held = `Its deadline is in ${span(lease.ttl_ms)}.`;
    ask({
      title: `Revoke the lease on ${nameOf(resource)}?`,
      consequences: [
        `${lease.holder} loses ${nameOf(resource)} now, with token ${lease.token}. ${held}`,
        "Nobody can acquire the resource until that deadline, because the old holder may still be at work. The first " +
          "in line gets it then.",
      ],
      fields: [
        reasonField(),
        tick(
          "fenced",
          "The old holder is fenced off",
          "It was switched off, or a gate refuses its token. The " +
            "resource is free at once. If this is not true, two may work on it at the same time.",
        ),
      ],
      confirm: "Revoke",
      isDangerous: true,
      run: async ({ reason, fenced }) => {
        const body = { token: lease.token, fenced: fenced === "yes", reason: reason || undefined };
        const answer = await this.send("POST", path("resources", kind, key, "lease", "revoke"), tenant, body);
        const after = answer.held_back_ms > 0 ? `held back for ${span(answer.held_back_ms)}` : "free at once";
        return `Revoked the lease of ${lease.holder} on ${nameOf(resource)}; ${after}.`;
      },
    });
  }

  /** Frees a resource that is held back. */
  liftHoldBack(resource, leftMs) {
    const { tenant, kind, key } = resource;
    ask({
      title: `Free ${nameOf(resource)} now?`,
      consequences: [
        `It is held back for another ${span(leftMs)}, because its old holder may still be at work.`,
        "If it is freed now and the old holder is not fenced off, two may work on it at the same time.",
      ],
      fields: [reasonField()],
      confirm: "The old holder is fenced off: free it",
      isDangerous: true,
      run: async ({ reason }) => {
        const body = { fenced: true, reason: reason || undefined };
        await this.send("POST", path("resources", kind, key, "lease", "revoke"), tenant, body);
        return `${nameOf(resource)} is no longer held back.`;
      },
    });
  }

  /** Offers a held resource to another holder. */
  handOver(resource, lease, candidates) {
    const { tenant, kind, key } = resource;
    const options = candidates.map((name) => h("option", { value: name }));
    const input = h("input", { name: "to", required: true, list: "next-holders", autocomplete: "off" });
    ask({
      title: `Hand over ${nameOf(resource)}?`,
      consequences: [
        `${lease.holder} is asked to finish and release it. In the same moment the next holder has it, with a new ` +
          "token.",
        "If it does not release it in time, the offer lapses and nothing changes.",
      ],
      fields: [
        field("Next holder", input, "It must have a session, as every runner has."),
        h("datalist", { id: "next-holders" }, ...options),
        field(
          "The offer lapses after (seconds)",
          h("input", {
            name: "seconds",
            type: "number",
            min: "1",
            max: "3600",
            value: "30",
            required: true,
          }),
        ),
      ],
      confirm: "Hand over",
      run: async ({ to, seconds }) => {
        const body = { to, ttl_seconds: Number(seconds) };
        await this.send("POST", path("resources", kind, key, "handover"), tenant, body);
        return `${nameOf(resource)} is offered to ${to}.`;
      },
    });
  }

  /** Calls a hand-over off. */
  callOff(resource, pending) {
    const { tenant, kind, key } = resource;
    ask({
      title: `Call off the hand-over of ${nameOf(resource)}?`,
      consequences: [`The present holder keeps it, and ${pending.holder} gets nothing.`],
      confirm: "Call off",
      run: async () => {
        await this.send("DELETE", path("resources", kind, key, "handover"), tenant);
        return `The hand-over of ${nameOf(resource)} was called off.`;
      },
    });
  }

  /** Places a resource again after failures. */
  clearQuarantine(resource, explanation) {
    const { tenant, kind, key } = resource;
    const why = explanation.last_failure?.reason;
    ask({
      title: `Clear ${nameOf(resource)} from quarantine?`,
      consequences: [
        `${count(explanation.failures, "failure")} of it will be forgotten${why ? `; the last one was: ${why}` : ""}.`,
        "It is placed again at once, on any runner that has room. If its cause is not repaired, it fails there too.",
      ],
      confirm: "Clear",
      run: async () => {
        await this.send("DELETE", path("resources", kind, key, "quarantine"), tenant);
        return `${nameOf(resource)} is out of quarantine.`;
      },
    });
  }

  /** Keeps a resource from being placed. */
  quarantine(resource) {
    const { tenant, kind, key } = resource;
    ask({
      title: `Put ${nameOf(resource)} into quarantine?`,
      consequences: ["It is placed nowhere until it is cleared. Its present holder keeps it."],
      fields: [reasonField()],
      confirm: "Put into quarantine",
      isDangerous: true,
      run: async ({ reason }) => {
        const body = { reason: reason || undefined };
        await this.send("PUT", path("resources", kind, key, "quarantine"), tenant, body);
        return `${nameOf(resource)} is in quarantine.`;
      },
    });
  }

  /** Sets whether a runner gets work. */
  setStatus(runner, status) {
    const { runner_id: id, tenant_id: tenant, held } = runner;
    const words = {
      draining: {
        title: `Drain ${id}?`,
        consequences: [
          `The ${count(held, "resource")} that it holds are handed over to other runners, a few at a time, as far as ` +
            "they have room. It gets nothing new until it is active again.",
        ],
        confirm: "Drain",
        done: `${id} is draining.`,
      },
      active: {
        title: `Make ${id} active?`,
        consequences: ["It can be given work again, and resources may move to it for balance."],
        confirm: "Make active",
        done: `${id} is active.`,
      },
    }[status];
    ask({
      ...words,
      isDangerous: status === "draining",
      run: async () => {
        await this.send("PUT", path("runners", id, "status"), tenant, { status });
        return words.done;
      },
    });
  }

  /** Shifts a part of the work to a deployment group: 100 promotes it, 0 takes the shift back. */
  shift(tenant, group, percent, deployments) {
    const held = deployments.reduce((sum, one) => sum + one.held, 0);
    const others = deployments.map((one) => one.deployment_group ?? "none").filter((name) => name !== group);
    const rest = others.join(", ") || "no other group";
    const options = { type: "number", min: "1", max: "99", step: "1", value: String(percent), required: true };
    const forms = {
      100: {
        title: `Promote ${group}?`,
        first: `All placed resources are handed over to the runners of ${group}. Those of ${rest} end up with nothing.`,
        confirm: "Promote",
      },
      0: {
        title: `Take the shift to ${group} back?`,
        first: `All placed resources are handed over to the runners of ${rest}. Those of ${group} end up with nothing.`,
        confirm: "Take it back",
      },
    };
    const { title, first, confirm } = forms[percent] ?? {
      title: `Shift work to ${group}?`,
      first:
        `That percentage of ${count(held, "resource")} is handed over to the runners of ${group}, the others to ` +
        `those of ${rest}. Which they are depends on their keys alone.`,
      confirm: "Shift",
    };
    ask({
      title,
      consequences: [
        first,
        "Resources move a few at a time, by hand-over. Five failures in the group halt the shift.",
      ],
      fields: forms[percent]
        ? []
        : [field("Percent of the resources", h("input", { name: "percent", ...options }))],
      confirm,
      run: async (values) => {
        const wanted = Number(values.percent ?? percent);
        await this.send("POST", path("deployments", "shift"), tenant, { to: group, percent: wanted });
        return `${group} should now hold ${wanted} % of the resources.`;
      },
    });
  }
}
