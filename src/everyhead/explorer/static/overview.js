// Every head of every layer as a small matrix, in the colour of a statistic.

import { choice, el, heard, number } from "./dom.js";
import { hidden, inkOf, inkRamp, picture, ramp } from "./colour.js";
import { nameOf, rangeOf, statisticsOf, valueOf } from "./statistics.js";
import { groupTitle, headName, say, statisticName } from "./words.js";

export async function overview(root, context) {
  const { scene, state } = context;
  const known = statisticsOf(scene.groups);
  const stat = known.includes(state.get("stat")) ? state.get("stat") : "matrix";
  const options = [["matrix", say("weights")], ...known.map((name) => [name, statisticName(name)])];
  root.append(
    el(
      "div",
      { class: "bar" },
      choice(say("colourBy"), options, stat, (value) => state.set({ stat: value })),
      legend(scene.groups, stat),
    ),
  );
  const grids = el("div", { class: "grids" });
  root.append(grids);
  for (const [g, group] of scene.groups.entries()) {
    grids.append(await grid(group, g, stat, context));
  }
}

function legend(groups, stat) {
  const masked = el("span", { class: "key" }, swatch(`rgb(${hidden()})`), say("mayNotLook"));
  if (stat === "matrix") {
    const colours = ramp();
    const stops = [0, 64, 128, 192, 255].map((i) => `rgb(${colours[i].map(Math.round)})`);
    const strip = el("span", { class: "strip" });
    strip.style.background = `linear-gradient(90deg, ${stops})`;
    return el("div", { class: "legend" }, "0", strip, say("headsLargest"), masked);
  }
  const [low, high] = rangeOf(groups, stat);
  const strip = el("span", { class: "strip" });
  strip.style.background = `linear-gradient(90deg, ${[0, 0.5, 1].map(inkOf)})`;
  return el("div", { class: "legend" }, number(low, 2), strip, number(high, 2), masked);
}

function swatch(colour) {
  const box = el("i", { class: "swatch" });
  box.style.background = colour;
  return box;
}

async function grid(group, g, stat, context) {
  const { archive, scene } = context;
  const thumbs = await archive.thumbs(group);
  const range = stat === "matrix" ? null : rangeOf(scene.groups, stat);
  const heads = Math.max(...group.layers.map((layer) => layer.heads.length));
  const table = el("table", { class: "grid" });
  const caption = el("caption", {}, groupTitle(group));
  const top = el("tr", {}, el("td"));
  for (let h = 0; h < heads; h++) top.append(el("th", { scope: "col" }, String(h)));
  table.append(caption, el("thead", {}, top));
  const body = el("tbody");
  for (const [l, layer] of group.layers.entries()) {
    const row = el("tr", {}, el("th", { scope: "row" }, say("layerN", { n: l })));
    for (let h = 0; h < layer.heads.length; h++) {
      const value = stat === "matrix" ? null : valueOf(group, stat, l, h);
      const share = value === null ? null : (value - range[0]) / (range[1] - range[0]);
      row.append(el("td", {}, tile({ group, g, l, h, thumb: thumbs[l][h], value, share, stat }, context)));
    }
    body.append(row);
  }
  table.append(body);
  table.addEventListener("keydown", (event) => stepInGrid(event, table));
  const first = table.querySelector("a");
  if (first) first.tabIndex = 0;
  return el("section", { class: "card scroll" }, table);
}

/** One head; in the page's own link, so that a new tab, the keyboard and a reader find it. */
function tile({ group, g, l, h, thumb, value, share, stat }, { state }) {
  const colours = share === null ? ramp() : inkRamp(share);
  const canvas = picture(
    thumb.width,
    thumb.height,
    (i) => (thumb.cells[i] === 255 ? -1 : thumb.cells[i]),
    colours,
  );
  canvas.setAttribute("aria-hidden", "true");
  const size = Math.max(thumb.width, thumb.height);
  canvas.style.aspectRatio = `${thumb.width} / ${thumb.height}`;
  canvas.style.width = `${(100 * thumb.width) / size}%`;
  const name = nameOf(group, l, h);
  const told = [say("headN", { l, h }), name ? headName(name) : ""];
  if (stat !== "matrix") told.push(`${statisticName(stat)} ${number(value, 2)}`);
  const under = stat === "matrix" ? (name ? headName(name) : "") : number(value, 2);
  return el(
    "a",
    {
      class: "tile",
      href: "#",
      tabindex: -1,
      onclick: (event) => {
        event.preventDefault();
        state.set({ view: "head", group: g, layer: l, head: h, row: -1, column: -1 }, { push: true });
      },
    },
    el("span", { class: "frame" }, canvas),
    heard(told.filter(Boolean).join(", ")),
    under || stat !== "matrix" || group.names
      ? el("span", { class: "under", "aria-hidden": "true" }, under)
      : null,
  );
}

/** Arrow keys go from head to head; the grid is one stop of the Tab key. */
function stepInGrid(event, table) {
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const move = moves[event.key];
  const cell = event.target.closest("td");
  if (!move || !cell) return;
  event.preventDefault();
  const rows = [...table.tBodies[0].rows];
  const at = rows.indexOf(cell.parentElement) + move[0];
  const next = rows[at]?.cells[cell.cellIndex + move[1]]?.querySelector("a");
  if (!next) return;
  table.querySelectorAll("a").forEach((link) => (link.tabIndex = -1));
  next.tabIndex = 0;
  next.focus();
}
