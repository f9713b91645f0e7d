// Attention that is more than a softmax over all, drawn as what it is: a band with its global
// tokens, the buckets of each round, a segment's memory; or the sentence that it is implied.

import { dark, named } from "./colour.js";
import { choice, el } from "./dom.js";
import { say } from "./words.js";

/** What is known of the layer, for this head: {kind, …, start, rows and columns: buckets by round}. */
export async function drawingOf({ archive }, group, layer, h, window) {
  const drawing = group.layers[layer].drawing;
  if (!drawing) return null;
  const start = window ? [window.row, window.column] : [0, 0];
  const found = { ...drawing, start, behind: group.columns.length - group.rows.length };
  if (drawing.kind !== "hashing") return found;
  if (window) return { ...found, ...window.buckets };
  const entry = group.layers[layer].heads[h].buckets;
  const flat = new Uint16Array((await archive.bytes(entry.blob)).buffer);
  const n = flat.length / drawing.rounds;
  const columns = Array.from({ length: drawing.rounds }, (_, r) => [...flat.subarray(r * n, (r + 1) * n)]);
  return { ...found, columns, rows: columns.map((round) => round.slice(found.behind)) };
}

/** What it is, in words; where tokens are hashed, which round is shown. */
export function drawingBar(drawing, { state }) {
  const bar = el("div", { class: "bar drawn" }, el("span", {}, sentence(drawing)));
  if (drawing.kind === "hashing" && drawing.rounds > 1) {
    const rounds = drawing.columns.map((_, r) => [r, String(r)]);
    bar.append(choice(say("round"), rounds, roundOf(drawing, state), (r) => state.set({ round: Number(r) })));
  }
  return bar;
}

function sentence(drawing) {
  if (drawing.kind === "features") {
    return say(drawing.function === "relu" ? "drawn_relu" : "drawn_features", { n: drawing.features });
  }
  if (drawing.kind === "memory") {
    const parts = [say("drawn_reach", { n: drawing.reach })];
    if (drawing.segments.length > 1) parts.push(say("drawn_memory"));
    return parts.join(" ");
  }
  if (drawing.kind === "hashing") {
    return say("drawn_hashing", { r: drawing.rounds, b: drawing.buckets, c: drawing.chunk });
  }
  const name = drawing.step > 1 ? "drawn_dilated" : "drawn_band";
  const parts = [say(name, { a: drawing.left, b: drawing.right, step: drawing.step })];
  if (drawing.far.length) parts.push(say("drawn_far", { n: drawing.far.length }));
  return parts.join(" ");
}

export function roundOf(drawing, state) {
  return Math.min(drawing.rounds - 1, Math.max(0, state.get("round")));
}

/** Where a query and a key were hashed to, and in which rounds they met. */
export function met(drawing, t, s) {
  if (drawing?.kind !== "hashing") return "";
  const query = drawing.rows.map((round) => round[t]);
  if (s < 0) return say("hashedRow", { q: query.join(", ") });
  const key = drawing.columns.map((round) => round[s]);
  const rounds = query.flatMap((bucket, r) => (bucket === key[r] ? [r] : []));
  const where = rounds.length ? say("metIn", { r: rounds.join(", ") }) : say("metNowhere");
  return `${say("hashedCell", { q: query.join(", "), k: key.join(", ") })} ${where}`;
}

/** Over the cells: the band's edges, global tokens, memory. `at`: {left, top, zoom, m, n}. */
export function drawOver(pen, drawing, at) {
  pen.save();
  pen.lineWidth = 1.5;
  pen.strokeStyle = named("--warm");
  if (drawing.kind === "band") drawBand(pen, drawing, at);
  else if (drawing.kind === "memory") drawMemory(pen, drawing, at);
  pen.restore();
}

function drawBand(pen, drawing, { left, top, zoom, m, n }) {
  const [row, column] = drawing.start;
  const first = row + drawing.behind - column;
  pen.beginPath();
  for (const edge of [-drawing.left, drawing.right + 1]) {
    for (let t = 0; t < m; t++) {
      const x = left + (first + edge + t) * zoom;
      if (t === 0) pen.moveTo(x, top);
      pen.lineTo(x, top + t * zoom);
      pen.lineTo(x, top + (t + 1) * zoom);
    }
  }
  pen.stroke();
  pen.fillStyle = named("--warm");
  pen.globalAlpha = 0.18;
  for (const token of drawing.far) {
    const [t, s] = [token - drawing.behind - row, token - column];
    if (s >= 0 && s < n) pen.fillRect(left + s * zoom, top, zoom, m * zoom);
    if (drawing.sees && t >= 0 && t < m) pen.fillRect(left, top + t * zoom, n * zoom, zoom);
  }
}

function drawMemory(pen, drawing, { left, top, zoom, m }) {
  const [row, column] = drawing.start;
  const ends = [...drawing.segments.slice(1), Infinity];
  drawing.segments.forEach((start, i) => {
    const [from, to] = [Math.max(0, start - row), Math.min(m, ends[i] - row)];
    if (to <= 0 || from >= m) return;
    const [y, height] = [top + from * zoom, (to - from) * zoom];
    const far = Math.max(0, start - drawing.reach);
    pen.fillStyle = named("--warm");
    pen.globalAlpha = 0.14;
    pen.fillRect(left + (far - column) * zoom, y, (start - far) * zoom, height);
    pen.globalAlpha = 1;
    if (start > 0) {
      pen.beginPath();
      pen.moveTo(left + (start - column) * zoom, y);
      pen.lineTo(left + (start - column) * zoom, y + height);
      pen.stroke();
    }
  });
}

export const STRIP = 7;

/** Beside the cells: a strip of colours, one a bucket, of each query and each key. */
export function drawBuckets(pen, drawing, round, edge, at, size) {
  if (drawing?.kind !== "hashing") return;
  const { left, top, zoom } = at;
  drawing.rows[round].forEach((bucket, t) => {
    const y = top + t * zoom;
    if (y + zoom <= edge.top || y >= size.height - edge.bottom) return;
    const from = Math.max(y, edge.top);
    pen.fillStyle = bucketColour(bucket);
    pen.fillRect(edge.left - STRIP, from, STRIP - 2, y + zoom - from);
  });
  drawing.columns[round].forEach((bucket, s) => {
    const x = left + s * zoom;
    if (x + zoom <= edge.left || x >= size.width - edge.right) return;
    const from = Math.max(x, edge.left);
    pen.fillStyle = bucketColour(bucket);
    pen.fillRect(from, edge.top - STRIP, x + zoom - from, STRIP - 2);
  });
}

/** Neighbouring numbers far apart on the wheel. */
function bucketColour(bucket) {
  return `hsl(${(bucket * 137.508) % 360} 65% ${dark() ? 62 : 44}%)`;
}
