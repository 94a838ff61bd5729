// What pages share: asking the server again and again while a page is open, and saying when that fails.

import { wordsOf } from "./api.js";
import { h, setText } from "./dom.js";

/**
 * Calls `load()` now and every `everyMs` while the page is open and can be seen. A failure is shown in `element`; the
 * page keeps what it showed before. `words(error)` says it in other words than usual.
 */
export class Poll {
  constructor(everyMs, load, words = wordsOf) {
    Object.assign(this, { everyMs, load, words });
    this.element = h("p", { class: "problem", role: "alert", hidden: true });
    this.isOpen = true;
    this.isRunning = false;
    this.now();
  }

  /** Asks at once, or once more if it is asking now. */
  async now() {
    if (!this.isOpen) return;
    if (this.isRunning) {
      this.isAskedAgain = true;
      return;
    }
    clearTimeout(this.timer);
    this.isRunning = true;
    try {
      await this.load();
      this.element.hidden = true;
    } catch (error) {
      setText(this.element, this.words(error));
      this.element.hidden = false;
    }
    this.isRunning = false;
    if (this.isAskedAgain) {
      this.isAskedAgain = false;
      this.now();
    } else {
      this.timer = setTimeout(() => (document.hidden ? this.later() : this.now()), this.everyMs);
    }
  }

  /** A tab in the background asks nothing, and everything when it is looked at again. */
  later() {
    document.addEventListener("visibilitychange", () => this.now(), { once: true });
  }

  close() {
    this.isOpen = false;
    clearTimeout(this.timer);
  }
}
