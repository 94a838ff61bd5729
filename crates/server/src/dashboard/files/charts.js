// Bars over time, on a canvas. The numbers are also in a sentence, for those who do not see the picture.

import { clock, number } from "./format.js";

/**
 * Draws stacked bars: `series` is a list of `{ name, colour, values }`, all of one length; `from` and `to` are the
 * times of the two ends. Colours are names of custom properties of the style sheet.
 */
export function drawBars(canvas, { series, from, to, unit = "" }) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width || !height) return;
  const scale = Math.min(devicePixelRatio || 1, 2);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const count = series[0].values.length;
  const totals = Array.from({ length: count }, (_, at) => series.reduce((sum, { values }) => sum + values[at], 0));
  const top = niceTop(Math.max(...totals, 0));
  const base = height - 18;
  drawFrame(pen, { width, base, top, unit, from, to, line: colour("line"), text: colour("muted") });
  const barWidth = width / count;
  for (let at = 0; at < count; at += 1) {
    let y = base;
    for (const { values, colour: name } of series) {
      const tall = (values[at] / top) * (base - 16);
      if (tall <= 0) continue;
      const shown = Math.max(tall, 1);
      pen.fillStyle = colour(name);
      pen.fillRect(at * barWidth, y - shown, Math.max(1, barWidth - (barWidth > 4 ? 1.5 : 0.5)), shown);
      y -= shown;
    }
  }
  canvas.setAttribute("role", "img");
  const sums = series.map(({ name, values }) => `${name}: ${number(round(values.reduce((a, b) => a + b, 0)))}`);
  canvas.setAttribute("aria-label", `${clock(from)} to ${clock(to)}; ${sums.join(", ")}`);
}

function drawFrame(pen, { width, base, top, unit, from, to, line, text }) {
  pen.strokeStyle = line;
  pen.lineWidth = 1;
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(base - part * (base - 16)) + 0.5;
    pen.beginPath();
    pen.moveTo(0, y);
    pen.lineTo(width, y);
    pen.stroke();
  }
  pen.fillStyle = text;
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "left";
  pen.fillText(`${number(top)}${unit}`, 0, 11);
  pen.fillText(clock(from), 0, base + 14);
  pen.textAlign = "right";
  pen.fillText(clock(to), width, base + 14);
}

const round = (value) => Math.round(value * 10) / 10;

/** The next of 1, 2, 5, 10, 20, 50, ... */
function niceTop(most) {
  if (most <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= most);
}

/** Counts times into `count` equal parts of the span that ends at `to`. */
export function buckets(times, { to, spanMs, count }) {
  const values = new Array(count).fill(0);
  for (const time of times) {
    const at = Math.floor(((time - (to - spanMs)) / spanMs) * count);
    if (at >= 0 && at < count) values[at] += 1;
  }
  return values;
}
