// How the map looks: a square, the head of a block, a flash.

import { stateOf } from "./store.js";

const FLASH_MS = 2_400;
/** More flashes than this at once are drawn without lines between the old and the new place. */
const LINES_MAX = 150;
const FONT = "12px system-ui, sans-serif";

const COLOURS = [
  "held",
  "moving",
  "held-back",
  "free",
  "takeover",
  "hand-over",
  "grant",
  "text",
  "muted",
  "focus",
];

/** The colours of the style sheet, as they are now. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** The square of a resource. */
export function drawResource(pen, colour, resource, { x, y, size, isDim }) {
  const state = stateOf(resource);
  const inner = size > 6 ? size - 2 : size - 1;
  pen.globalAlpha = isDim ? 0.12 : 1;
  pen.fillStyle = colour[state];
  pen.fillRect(x, y, inner, inner);
  // A second sign beside the colour, where there is room for it.
  if (size >= 7 && state === "held-back") pen.clearRect(x + inner / 4, y + inner / 4, inner / 2, inner / 2);
  else if (size >= 7 && state === "moving") pen.clearRect(x + inner / 2, y, inner / 2, inner / 2);
  pen.globalAlpha = 1;
}

/** A place that a runner has for one more resource. */
export function drawEmpty(pen, colour, { x, y, size }) {
  const inner = size > 6 ? size - 2 : size - 1;
  pen.globalAlpha = 0.35;
  pen.strokeStyle = colour.free;
  pen.lineWidth = 1;
  pen.strokeRect(x + 0.5, y + 0.5, inner - 1, inner - 1);
  pen.globalAlpha = 1;
}

/** All the places of a runner that are empty. */
export function drawRoom(pen, map, block) {
  pen.setTransform(map.scale, 0, 0, map.scale, 0, 0);
  const room = map.roomOf(block);
  for (let at = 0; at < room; at += 1) {
    if (!block.squares[at]) drawEmpty(pen, map.colour, { ...map.position({ block, at }), size: map.size });
  }
}

/** The names of the holders, with what each holds and may hold. */
export function drawHeads(pen, { ordered = [], runners, colour }) {
  pen.textBaseline = "alphabetic";
  for (const block of ordered) {
    const runner = runners?.get(block.name);
    const note = runner ? `${block.count} / ${runner.capacity}` : String(block.count);
    const status = runner && runner.status !== "active" ? ` · ${runner.status}` : "";
    pen.font = FONT;
    pen.textAlign = "right";
    pen.fillStyle = colour.muted;
    pen.fillText(note, block.x + block.width - 2, block.y + 13);
    const room = block.width - pen.measureText(note).width - 12;
    pen.textAlign = "left";
    pen.font = `600 ${FONT}`;
    pen.fillStyle = block.name ? colour.text : colour.muted;
    pen.fillText(fitText(pen, `${block.name || "Held by nobody"}${status}`, room), block.x, block.y + 13);
  }
}

/** What changed hands a moment ago, and where it came from. Forgets those that are over. */
export function drawFlashes(pen, map, now) {
  const { flashes, size, colour } = map;
  const isCalm = map.calm.matches;
  const hasLines = flashes.size <= LINES_MAX && !isCalm;
  for (const [id, { kind, from, since }] of flashes) {
    const left = 1 - (now - since) / FLASH_MS;
    const place = map.places.get(id);
    if (left <= 0 || !place) {
      flashes.delete(id);
      continue;
    }
    const { x, y } = map.position(place);
    const reach = isCalm ? 2 : 2 + 6 * left;
    pen.globalAlpha = isCalm ? 1 : Math.min(1, left * 1.5);
    pen.strokeStyle = colour[kind];
    pen.fillStyle = colour[kind];
    pen.lineWidth = 2;
    pen.strokeRect(x - reach, y - reach, size + 2 * reach - 2, size + 2 * reach - 2);
    pen.fillRect(x, y, size - 1, size - 1);
    if (hasLines && from && kind !== "grant" && map.blocks.get(from.block.name) === from.block) {
      const start = map.position(from);
      pen.globalAlpha = left * 0.6;
      pen.beginPath();
      pen.moveTo(start.x + size / 2, start.y + size / 2);
      pen.lineTo(x + size / 2, y + size / 2);
      pen.stroke();
    }
  }
  pen.globalAlpha = 1;
}

/** A text, cut so that it is no wider than `room`. */
function fitText(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let cut = text;
  while (cut.length > 1 && pen.measureText(`${cut}…`).width > room) cut = cut.slice(0, -1);
  return `${cut}…`;
}
