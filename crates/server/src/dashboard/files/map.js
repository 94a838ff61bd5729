// The ownership map: a block for each holder, a square for each resource, coloured by its state.
//
// A resource keeps its square while it stays with its holder, so that only what changes moves. The squares are drawn
// once into a picture; a change draws one square of it again, and a frame copies the picture and draws what flashes.

import { colours, drawEmpty, drawFlashes, drawHeads, drawResource, drawRoom } from "./paint.js";
import { idOf } from "./store.js";

const SIZES = [18, 15, 12, 10, 8, 7, 6, 5, 4];
const GAP = 14;
const HEAD = 20;
const COLUMN_MIN = 190;
/** What a runner may hold beyond what it holds is shown up to this number. */
const ROOM_SHOWN_MAX = 256;
/** The height that squares are made small for; a map that needs more becomes longer. */
const HEIGHT_AIMED = 560;

export class OwnershipMap {
  constructor(store, { onPick, onHover }) {
    this.store = store;
    this.onHover = onHover;
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.className = "map";
    this.picture = document.createElement("canvas");
    this.flashes = new Map();
    /** Where what nobody holds now was before. */
    this.origins = new Map();
    this.frames = [];
    this.matches = undefined;
    this.canvas.addEventListener("pointermove", (event) => this.hover(this.at(event.offsetX, event.offsetY)));
    this.canvas.addEventListener("pointerleave", () => this.hover(undefined));
    this.canvas.addEventListener("blur", () => this.hover(undefined));
    this.canvas.addEventListener("click", (event) => {
      const resource = this.at(event.offsetX, event.offsetY);
      if (resource) onPick(resource);
    });
    this.canvas.addEventListener("keydown", (event) => this.pressed(event, onPick));
    this.observer = new ResizeObserver(() => this.resize());
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => this.drawAll();
    this.scheme.addEventListener("change", this.recolour);
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.rebuild();
  }

  start() {
    this.observer.observe(this.canvas.parentElement);
  }

  close() {
    this.observer.disconnect();
    this.scheme.removeEventListener("change", this.recolour);
    cancelAnimationFrame(this.frame);
  }

  /** Sorts all resources into blocks. */
  rebuild() {
    this.blocks = new Map();
    this.places = new Map();
    this.flashes.clear();
    this.origins.clear();
    const byKey = (a, b) => (a.kind === b.kind ? compare(a.key, b.key) : compare(a.kind, b.kind));
    for (const resource of [...this.store.visible()].sort(byKey)) this.put(resource);
    this.layOut();
  }

  /** The block of a holder; "" is for what nobody holds. */
  block(name) {
    let block = this.blocks.get(name);
    if (!block) {
      block = { name, squares: [], holes: [], count: 0, x: 0, y: 0, rows: 0, columns: 1 };
      this.blocks.set(name, block);
    }
    return block;
  }

  put(resource) {
    const block = this.block(resource.holder ?? "");
    const at = block.holes.pop() ?? block.squares.length;
    block.squares[at] = resource;
    block.count += 1;
    const place = { block, at, resource };
    this.places.set(resource.id, place);
    return place;
  }

  take(place) {
    const { block, at, resource } = place;
    block.squares[at] = undefined;
    block.holes.push(at);
    block.count -= 1;
    this.places.delete(resource.id);
  }

  /** Follows a change of the store. */
  follow(change) {
    if (change.isReset) return this.rebuild();
    const news = new Map();
    for (const { event, isNews } of change.events) {
      if (isNews && event.event_type === "lease_acquired") news.set(idOf(event), event);
    }
    let isMoved = false;
    for (const resource of change.resources.values())
      isMoved = this.followOne(resource, news.get(resource.id)) || isMoved;
    if (isMoved && !this.fits()) this.layOut();
    this.draw();
  }

  followOne(resource, event) {
    const before = this.places.get(resource.id);
    const isThere = this.store.resources.has(resource.id) && this.store.isVisible(resource);
    const holder = resource.holder ?? "";
    if (before && isThere && before.block.name === holder) {
      this.drawSquare(before);
      if (event) this.flash(resource.id, event.previous?.kind ?? "grant", undefined);
      return false;
    }
    const here = before && { block: before.block, at: before.at };
    const from = this.origins.get(resource.id) ?? here;
    this.origins.delete(resource.id);
    if (here && holder === "") this.origins.set(resource.id, here);
    if (before) {
      this.take(before);
      this.drawSquare(before);
    }
    if (!isThere) return true;
    const place = this.put(resource);
    this.drawSquare(place);
    if (event) this.flash(resource.id, event.previous?.kind ?? "grant", from);
    return true;
  }

  flash(id, kind, from) {
    this.flashes.delete(id);
    this.flashes.set(id, { kind, from, since: performance.now() });
  }

  /** Whether every block still has the rows that it was laid out with, and is neither new nor left behind. */
  fits() {
    for (const block of this.blocks.values()) {
      if (this.rowsOf(block) > block.rows || (block.count === 0 && !this.isShown(block))) return false;
    }
    return true;
  }

  rowsOf(block) {
    const squares = Math.max(1, block.squares.length, this.roomOf(block));
    return Math.ceil(squares / block.columns);
  }

  /** How many resources a runner may hold, if that can be shown. */
  roomOf(block) {
    const capacity = this.runners?.get(block.name)?.capacity ?? 0;
    return capacity <= ROOM_SHOWN_MAX ? capacity : 0;
  }

  /** A block without resources is shown for a runner that is registered. */
  isShown(block) {
    return block.count > 0 || this.runners?.has(block.name);
  }

  /** The runners: those that hold nothing have a block too. */
  setRunners(runners) {
    const before = this.runners;
    this.runners = new Map(runners.map((runner) => [runner.runner_id, runner]));
    let isNew = false;
    for (const runner of runners) {
      if (!this.blocks.has(runner.runner_id)) {
        this.block(runner.runner_id);
        isNew = true;
      }
    }
    if (isNew || before?.size !== this.runners.size || !this.fits()) this.layOut();
    else this.draw();
  }

  resize() {
    const width = Math.floor(this.canvas.parentElement.clientWidth);
    if (width !== this.width) {
      this.width = width;
      this.layOut();
    }
  }

  /** Places the blocks in columns, with the largest squares that fit. */
  layOut() {
    if (!this.width) return;
    for (const [name, block] of this.blocks) if (!this.isShown(block)) this.blocks.delete(name);
    // Holes at the end of a block need no room.
    for (const block of this.blocks.values()) {
      while (block.squares.length > 0 && block.squares.at(-1) === undefined) block.squares.pop();
      block.holes = block.holes.filter((at) => at < block.squares.length);
    }
    // What nobody holds comes last.
    const blocks = [...this.blocks.values()].sort(
      (a, b) => (a.name === "") - (b.name === "") || compare(a.name, b.name),
    );
    const across = Math.max(1, Math.min(blocks.length, Math.floor((this.width + GAP) / (COLUMN_MIN + GAP))));
    const columnWidth = (this.width - GAP * (across - 1)) / across;
    for (const size of SIZES) {
      this.size = size;
      this.height = this.fillRows(blocks, across, columnWidth);
      if (this.height <= HEIGHT_AIMED) break;
    }
    this.ordered = blocks;
    const scale = Math.min(devicePixelRatio || 1, 2);
    for (const canvas of [this.canvas, this.picture]) {
      canvas.width = Math.round(this.width * scale);
      canvas.height = Math.round(this.height * scale);
    }
    this.scale = scale;
    this.canvas.style.height = `${this.height}px`;
    this.drawAll();
  }

  /** Places the blocks in rows; what nobody holds has a row of its own. Returns the height of all. */
  fillRows(blocks, across, columnWidth) {
    let y = 0;
    let tallest = 0;
    let column = 0;
    for (const block of blocks) {
      const isWide = block.name === "";
      if (column === across || (isWide && column > 0)) {
        y += tallest;
        tallest = 0;
        column = 0;
      }
      block.x = column * (columnWidth + GAP);
      block.y = y;
      block.width = isWide ? this.width : columnWidth;
      block.columns = Math.max(1, Math.floor(block.width / this.size));
      block.rows = this.rowsOf(block);
      tallest = Math.max(tallest, HEAD + block.rows * this.size + GAP);
      column = isWide ? across : column + 1;
    }
    return Math.max(60, y + tallest);
  }

  position({ block, at }) {
    const x = block.x + (at % block.columns) * this.size;
    const y = block.y + HEAD + Math.floor(at / block.columns) * this.size;
    return { x, y };
  }

  /** The resource at a point. */
  at(x, y) {
    for (const block of this.blocks.values()) {
      const column = Math.floor((x - block.x) / this.size);
      const row = Math.floor((y - block.y - HEAD) / this.size);
      if (column >= 0 && column < block.columns && row >= 0 && row < block.rows) {
        return block.squares[row * block.columns + column];
      }
    }
    return undefined;
  }

  hover(resource) {
    if (resource === this.hovered) return;
    this.hovered = resource;
    const place = resource && this.places.get(resource.id);
    this.onHover(resource, place && this.position(place), this.size);
    this.draw();
  }

  /** Arrow keys walk over the squares, Enter opens the resource. */
  pressed(event, onPick) {
    if (event.key === "Enter" && this.hovered) return onPick(this.hovered);
    const columns = this.places.get(this.hovered?.id)?.block.columns ?? 1;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (step === undefined) return undefined;
    event.preventDefault();
    this.hover(this.neighbour(step));
    return undefined;
  }

  neighbour(step) {
    const place = this.hovered && this.places.get(this.hovered.id);
    const filled = (this.ordered ?? []).filter((block) => block.count > 0);
    if (!place) return filled[0]?.squares.find(Boolean);
    let { block, at } = place;
    for (;;) {
      at += step;
      while (at >= 0 && at < block.squares.length && !block.squares[at]) at += Math.sign(step);
      if (at >= 0 && at < block.squares.length) return block.squares[at];
      const next = filled[filled.indexOf(block) + Math.sign(step)];
      if (!next) return this.hovered;
      block = next;
      at = step > 0 ? -1 : next.squares.length;
      step = Math.sign(step);
    }
  }

  /** Shows only these resources at full strength; undefined: all. */
  setMatches(matches) {
    this.matches = matches;
    this.drawAll();
  }

  drawAll() {
    if (!this.width) return;
    this.colour = colours();
    const pen = this.picture.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.picture.width, this.picture.height);
    for (const block of this.ordered ?? []) drawRoom(pen, this, block);
    for (const place of this.places.values()) this.drawSquare(place);
    this.draw();
  }

  /** Draws one square of the picture, or clears it if nothing is there. */
  drawSquare(place) {
    if (!this.colour) return;
    const pen = this.picture.getContext("2d");
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    const { x, y } = this.position(place);
    const { size } = this;
    pen.clearRect(x, y, size, size);
    const resource = place.block.squares[place.at];
    if (!resource) {
      if (place.at < this.roomOf(place.block)) drawEmpty(pen, this.colour, { x, y, size });
      return;
    }
    const isDim = this.matches !== undefined && !this.matches.has(resource.id);
    drawResource(pen, this.colour, resource, { x, y, size, isDim });
  }

  /** Draws at the next frame, and as long as something flashes. */
  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      const began = performance.now();
      this.drawFrame(began);
      this.frames.push(performance.now() - began);
      if (this.frames.length > 240) this.frames.shift();
      if (this.flashes.size > 0) this.draw();
    });
  }

  drawFrame(now) {
    if (!this.width || !this.colour) return;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.drawImage(this.picture, 0, 0);
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    drawHeads(pen, this);
    drawFlashes(pen, this, now);
    const place = this.hovered && this.places.get(this.hovered.id);
    if (place) {
      const { x, y } = this.position(place);
      pen.strokeStyle = this.colour.focus;
      pen.lineWidth = 2;
      pen.strokeRect(x - 1.5, y - 1.5, this.size + 1, this.size + 1);
    }
  }
}

const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
