// Chromium, driven over its debugging pipe: messages of the DevTools protocol, each ended by a zero byte.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** How long a condition may take on a busy machine. */
export const PATIENCE_MS = 120_000;

const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-dev-shm-usage",
  "--hide-scrollbars",
  "--lang=en-US",
  "--remote-debugging-pipe",
  "about:blank",
];

export class Browser {
  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), "solehold-chromium-"));
    const program = process.env.CHROMIUM ?? "chromium";
    const stdio = ["ignore", "ignore", "ignore", "pipe", "pipe"];
    this.process = spawn(program, [`--user-data-dir=${this.folder}`, ...FLAGS], { stdio });
    this.process.on("error", (error) => this.end(new Error(`${program} does not start: ${error.message}`)));
    this.process.on("exit", (code) => this.end(new Error(`${program} ended with ${code}`)));
    this.calls = new Map();
    this.listeners = new Set();
    this.last = 0;
    let text = "";
    this.process.stdio[4].setEncoding("utf8").on("data", (piece) => {
      text += piece;
      const messages = text.split("\0");
      text = messages.pop();
      for (const message of messages) this.take(JSON.parse(message));
    });
  }

  end(error) {
    for (const { reject } of this.calls.values()) reject(error);
    this.calls.clear();
    this.ended = error;
  }

  take(message) {
    const call = this.calls.get(message.id);
    if (call) {
      this.calls.delete(message.id);
      if (message.error) call.reject(new Error(`${call.method}: ${message.error.message}`));
      else call.resolve(message.result);
      return;
    }
    for (const listener of [...this.listeners]) listener(message);
  }

  send(method, params = {}, sessionId) {
    if (this.ended) return Promise.reject(this.ended);
    const id = (this.last += 1);
    return new Promise((resolve, reject) => {
      this.calls.set(id, { method, resolve, reject });
      this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
  }

  /** A page in a profile of its own, so that it shares no storage with others. */
  async page() {
    const { browserContextId } = await this.send("Target.createBrowserContext");
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank", browserContextId });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId, targetId);
    await page.begin();
    return page;
  }

  async close() {
    if (!this.ended) {
      const ended = new Promise((resolve) => this.process.once("exit", resolve));
      // It ends its own processes; asking is better than killing, which leaves them for a moment.
      this.send("Browser.close").catch(() => {});
      const timer = setTimeout(() => this.process.kill("SIGKILL"), 10_000);
      await ended;
      clearTimeout(timer);
    }
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
  }
}

const KEYS = {
  Enter: { code: "Enter", windowsVirtualKeyCode: 13, text: "\r" },
  Tab: { code: "Tab", windowsVirtualKeyCode: 9 },
  Escape: { code: "Escape", windowsVirtualKeyCode: 27 },
  ArrowDown: { code: "ArrowDown", windowsVirtualKeyCode: 40 },
  ArrowRight: { code: "ArrowRight", windowsVirtualKeyCode: 39 },
  " ": { code: "Space", windowsVirtualKeyCode: 32, text: " " },
  "/": { code: "Slash", windowsVirtualKeyCode: 191, text: "/" },
};

export class Page {
  constructor(browser, sessionId, targetId) {
    Object.assign(this, { browser, sessionId, targetId });
    /** What went wrong in the page: exceptions, and what its Content-Security-Policy has refused. */
    this.faults = [];
    /** Requests to any other host than the server. */
    this.foreign = [];
  }

  send(method, params) {
    return this.browser.send(method, params, this.sessionId);
  }

  async begin() {
    this.browser.listeners.add((message) => {
      if (message.sessionId !== this.sessionId) return;
      const { method, params } = message;
      if (method === "Runtime.exceptionThrown") this.faults.push(params.exceptionDetails.exception?.description);
      const isOurs = (entry) => entry.source === "security" || entry.source === "violation";
      if (method === "Log.entryAdded" && isOurs(params.entry)) this.faults.push(params.entry.text);
      if (method === "Network.requestWillBeSent") this.requested(params.request.url);
    });
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await this.send(`${domain}.enable`);
    // Only a page in front draws frames.
    await this.send("Page.bringToFront");
    await this.send("Emulation.setFocusEmulationEnabled", { enabled: true });
    await this.size(1400, 900);
  }

  requested(url) {
    const isOurs = url.startsWith("http://127.0.0.1:") || url.startsWith("data:") || url === "about:blank";
    if (!isOurs) this.foreign.push(url);
  }

  async open(url) {
    await this.send("Page.navigate", { url });
  }

  size(width, height) {
    const isPhone = width < 500;
    return this.send("Emulation.setDeviceMetricsOverride", {
      width,
      height,
      deviceScaleFactor: 1,
      mobile: isPhone,
    });
  }

  /** Light or dark. */
  scheme(value) {
    return this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value }] });
  }

  /** The value of an expression in the page; promises are awaited. */
  async evaluate(expression) {
    const options = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", options);
    if (exceptionDetails)
      throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  }

  /** Waits until an expression is true in the page, and returns its value. */
  async waitFor(expression, patienceMs = PATIENCE_MS) {
    const until = Date.now() + patienceMs;
    for (;;) {
      // While a page is being opened there is nothing to ask.
      const value = await this.evaluate(`(() => { ${returned(expression)} })()`).catch((error) => {
        if (Date.now() > until) throw error;
      });
      if (value) return value;
      if (Date.now() > until) throw new Error(`not within ${patienceMs} ms: ${expression}\n${await this.text()}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  text() {
    return this.evaluate("document.body.innerText").catch(() => "(no text)");
  }

  /** Presses a key, as a user does. */
  async press(key, modifiers = 0) {
    const { text, ...rest } = KEYS[key];
    await this.send("Input.dispatchKeyEvent", {
      type: text ? "keyDown" : "rawKeyDown",
      key,
      text,
      modifiers,
      ...rest,
    });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", key, modifiers, ...rest });
  }

  type(text) {
    return this.send("Input.insertText", { text });
  }

  /** Clicks the middle of the first element that matches, and whose text contains `text`. */
  async click(selector, text = "") {
    const find = `[...document.querySelectorAll(${JSON.stringify(selector)})]
      .find((one) => one.checkVisibility() && one.textContent.includes(${JSON.stringify(text)}))`;
    await this.waitFor(find + " !== undefined");
    const point = await this.evaluate(`(() => {
      const element = ${find};
      element.scrollIntoView({ block: "center" });
      const { x, y, width, height } = element.getBoundingClientRect();
      return { x: x + width / 2, y: y + height / 2 };
    })()`);
    for (const type of ["mousePressed", "mouseReleased"]) {
      await this.send("Input.dispatchMouseEvent", { type, ...point, button: "left", clickCount: 1 });
    }
  }

  async screenshot() {
    const { data } = await this.send("Page.captureScreenshot", { format: "png" });
    return Buffer.from(data, "base64");
  }

  close() {
    return this.browser.send("Target.closeTarget", { targetId: this.targetId });
  }
}

const returned = (expression) => (expression.includes("return ") ? expression : `return ${expression}`);
