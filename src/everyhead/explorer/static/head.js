// One head: lines from token to token, the matrix, and the arithmetic of one weight.

import { breakdown } from "./breakdown.js";
import { drawingBar, drawingOf, met, roundOf } from "./drawing.js";
import { button, choice, el, number, token } from "./dom.js";
import { LinesView } from "./lines.js";
import { MatrixView } from "./matrix.js";
import { PictureView } from "./picture.js";
import { within } from "./state.js";
import { nameOf, statisticsOf, valueOf } from "./statistics.js";
import { groupTitle, headName, say, statisticName } from "./words.js";

const LONG = 1500;

export async function head(root, context) {
  const { scene, state, archive } = context;
  const where = place(scene, state);
  const { group, layer, head: h } = where;
  root.append(controls(context, where));
  context.at = where;
  const data = await dataOf(context, where);
  data.drawing = await drawingOf(context, group, layer, h, data.window);
  if (data.window) root.append(windowControls(context, group, data.window));
  if (data.drawing) root.append(drawingBar(data.drawing, context));
  const facts = el("div", { class: "card facts" });
  const details = el("section", { class: "card details", "aria-live": "polite" });
  const show = state.get("show");
  const lines = show === "matrix" ? null : linesOf(data, state, (side, i) => tell(side, i));
  const peak = Math.max(1e-12, ...rowPeaks(data));
  const matrix = show === "lines" ? null : matrixOf(data, peak, context, cellShown);

  const over = group.picture && !data.window ? new PictureView(group, data, chooseRow) : null;

  function chooseRow(t) {
    state.set({ row: t, column: -1 }, { quiet: true });
    tell("row", t);
  }
  function tell(side, i) {
    if (side === "row") over?.show(i >= 0 ? i : state.get("row"));
    if (side === "row") showRow(details, data, i >= 0 ? i : state.get("row"));
    else if (i >= 0) showColumn(details, data, i);
  }
  async function cellShown(cell, kept) {
    if (!cell) return tell("row", state.get("row"));
    over?.show(cell[0]);
    showRow(details, data, cell[0], cell[1]);
    if (!kept || data.window) return;
    const mine = (details.turn = (details.turn ?? 0) + 1);
    const parts = await archive.parts(group, layer, h);
    if (details.turn !== mine) return;
    details.append(breakdown(data, cell, parts, context));
    await context.live?.effect(details, { group, layer, head: h, cell });
  }
  facts.append(...factsOf(group, layer, h));
  const views = el("div", { class: `views ${show}` });
  if (lines) views.append(el("section", { class: "card scroll linebox" }, lines.node));
  if (matrix) views.append(el("section", { class: "card matrixcard" }, matrix.node));
  root.append(facts, ...(over ? [over.node] : []), views, details);
  const [row, column] = [state.get("row"), state.get("column")];
  if (column >= 0 && row >= 0 && row < data.rows.length && column < data.columns.length) {
    if (matrix) matrix.pin([row, column]);
    else await cellShown([row, column], true);
  } else tell("row", row);
  context.shown = { kind: "head", data, title: titleOf(group, layer, h), where, peak };
}

/** Too long to be sent whole: shown in windows. */
export function isLong(group) {
  return Math.max(group.rows.length, group.columns.length) > LONG;
}

/** All of a head; of a long text in the served page a window. */
export async function dataOf({ archive, state }, { group, layer, head: h }) {
  if (!isLong(group) || group.layers[layer].heads[h].form) {
    const unpacked = await archive.head(group, layer, h);
    return { ...unpacked, rows: group.rows, columns: group.columns };
  }
  const found = await archive.remote(group, layer, h, state.get("top"), state.get("left"));
  const cut = (texts, start, size) => texts.slice(start, start + size).map((text) => text);
  return {
    weights: found.weights,
    mask: found.mask,
    rows: cut(group.rows, found.row, found.size[0]),
    columns: cut(group.columns, found.column, found.size[1]),
    window: found,
    all: group.columns,
  };
}

/** Where the window stands, and steps to the next one. */
function windowControls({ state }, group, window) {
  const field = (name, label, start, count) => {
    const input = el("input", {
      type: "number",
      min: 0,
      max: count - 1,
      value: start,
      id: `window-${name}`,
      onchange: () => state.set({ [name]: Number(input.value), row: -1, column: -1 }),
    });
    return el("label", { class: "choice" }, el("span", {}, label), input);
  };
  const [m, n] = [group.rows.length, group.columns.length];
  const along = (by) => {
    const top = Math.max(0, Math.min(m - 1, window.row + by));
    state.set({ top, left: Math.max(0, Math.min(n - 1, window.column + by)), row: -1, column: -1 });
  };
  return el(
    "div",
    { class: "bar" },
    el("span", { class: "quiet" }, say("windowOf", { m, n, a: window.size[0], b: window.size[1] })),
    field("top", say("fromRow"), window.row, m),
    field("left", say("fromColumn"), window.column, n),
    button(say("earlier"), () => along(-window.size[0])),
    button(say("later"), () => along(window.size[0])),
  );
}

export function titleOf(group, layer, h) {
  return `${groupTitle(group)} · ${say("headN", { l: layer, h })}`;
}

export function place(scene, state) {
  const g = within(state.get("group"), scene.groups.length);
  const group = scene.groups[g];
  const layer = within(state.get("layer"), group.layers.length);
  const head = within(state.get("head"), group.layers[layer].heads.length);
  return { g, group, layer, head };
}

function controls({ scene, state }, { g, group, layer, head: h }) {
  const to = (changes) => state.set({ row: -1, column: -1, ...changes });
  const heads = group.layers[layer].heads.length;
  const step = (by) => {
    const all = group.layers.length * heads;
    const next = (layer * heads + h + by + all) % all;
    state.set({ layer: Math.floor(next / heads), head: next % heads });
  };
  const bar = el("div", { class: "bar" });
  if (scene.groups.length > 1) {
    const names = scene.groups.map((each, i) => [i, groupTitle(each)]);
    bar.append(choice(say("attention"), names, g, (value) => to({ group: Number(value) })));
  }
  const layers = group.layers.map((_, i) => [i, String(i)]);
  const numbers = Array.from({ length: heads }, (_, i) => [i, String(i)]);
  bar.append(
    choice(say("layer"), layers, layer, (value) => state.set({ layer: Number(value) })),
    choice(say("head"), numbers, h, (value) => state.set({ head: Number(value) })),
    button("←", () => step(-1), { "aria-label": say("previousHead") }),
    button("→", () => step(1), { "aria-label": say("nextHead") }),
    choice(
      say("show"),
      ["both", "lines", "matrix"].map((name) => [name, say(`show_${name}`)]),
      state.get("show"),
      (value) => state.set({ show: value }),
    ),
  );
  return bar;
}

function factsOf(group, layer, h) {
  const name = nameOf(group, layer, h);
  const title = el("strong", {}, say("headN", { l: layer, h }), name ? ` · ${headName(name)}` : "");
  const list = el("dl", {});
  for (const stat of statisticsOf([group])) {
    const value = valueOf(group, stat, layer, h);
    if (value === null) continue;
    const shown = number(value, stat === "effect" ? 4 : 2);
    list.append(el("div", {}, el("dt", {}, statisticName(stat)), el("dd", {}, shown)));
  }
  return [title, list];
}

function linesOf(data, state, hover) {
  return new LinesView(data, {
    row: state.get("row"),
    choose: (t) => state.set({ row: t, column: -1 }, { quiet: true }),
    hover,
  });
}

function matrixOf(data, peak, { state, room }, cellShown) {
  const both = state.get("show") === "both" && room > 900;
  return new MatrixView(data, {
    peak,
    round: data.drawing?.kind === "hashing" ? roundOf(data.drawing, state) : 0,
    width: both ? room - 560 : room - 40,
    choose: (cell) => {
      state.set({ row: cell[0], column: cell[1] }, { quiet: true });
      cellShown(cell, true);
    },
    hover: (cell) => {
      const kept = [state.get("row"), state.get("column")];
      if (cell) cellShown(cell, false);
      else if (kept[1] >= 0) cellShown(kept, true);
      else cellShown(null);
    },
  });
}

export function rowPeaks({ weights, rows, columns }) {
  return rows.map((_, t) => {
    let peak = 0;
    for (let s = 0, i = t * columns.length; s < columns.length; s++, i++) {
      if (weights[i] > peak) peak = weights[i];
    }
    return peak;
  });
}

/** The strongest keys of one query, as a table that can be read aloud. */
function showRow(details, data, t, marked = -1) {
  if (t < 0 || t >= data.rows.length) {
    details.replaceChildren(el("p", { class: "quiet" }, say("chooseToken")));
    return;
  }
  if (data.window) return showWindowRow(details, data, t, marked);
  const n = data.columns.length;
  const cells = data.columns.map((_, s) => [s, data.weights[t * n + s], !data.mask || data.mask[t * n + s]]);
  const seen = cells.filter((cell) => cell[2]).sort((a, b) => b[1] - a[1]);
  const title = el("h2", {}, token(data.rows[t]), ` ${say("reads")}`);
  const hiddenCount = cells.length - seen.length;
  details.replaceChildren(title, ranking(data.columns, seen, marked));
  const notes = [];
  if (seen.length > 8) notes.push(say("andMore", { n: seen.length - 8 }));
  if (hiddenCount) notes.push(say("hiddenN", { n: hiddenCount }));
  if (!seen.length) notes.push(say("nothingVisible"));
  if (data.drawing?.kind === "hashing") notes.push(met(data.drawing, t, marked));
  if (notes.length) details.append(el("p", { class: "quiet" }, notes.join(" · ")));
}

/** Of a long text: the strongest keys anywhere, not in the window alone. */
function showWindowRow(details, data, t, marked) {
  const title = el("h2", {}, token(data.rows[t]), ` (${data.window.row + t}) ${say("reads")}`);
  details.replaceChildren(title, ranking(data.all, data.window.tops[t], -1));
  const place = met(data.drawing, t, marked);
  if (place) details.append(el("p", { class: "quiet" }, place));
}

function showColumn(details, data, s) {
  const n = data.columns.length;
  const cells = data.rows.map((_, t) => [t, data.weights[t * n + s], !data.mask || data.mask[t * n + s]]);
  const seen = cells.filter((cell) => cell[2]).sort((a, b) => b[1] - a[1]);
  const title = el("h2", {}, token(data.columns[s]), ` ${say("isReadBy")}`);
  details.replaceChildren(title, ranking(data.rows, seen, -1));
}

function ranking(texts, cells, marked) {
  const body = el("tbody");
  const shown = cells.slice(0, 8);
  const extra = cells.find((cell) => cell[0] === marked);
  if (extra && !shown.includes(extra)) shown.push(extra);
  for (const [i, value] of shown) {
    const bar = el("i", { class: "share" });
    bar.style.width = `${100 * value}%`;
    const row = el(
      "tr",
      { class: i === marked ? "marked" : null },
      el("td", { class: "place" }, String(i)),
      el("td", {}, token(texts[i])),
      el("td", { class: "figure" }, number(value)),
      el("td", { class: "barcell", "aria-hidden": "true" }, bar),
    );
    body.append(row);
  }
  const top = ["position", "token", "weight"].map((name) => el("th", { scope: "col" }, say(name)));
  return el("table", { class: "ranking" }, el("thead", {}, el("tr", {}, top, el("td"))), body);
}
