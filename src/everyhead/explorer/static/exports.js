// What is shown, as a file: an SVG with its tokens as text, a PNG of it, or its numbers.

import { named, picture, ramp } from "./colour.js";
import { svg } from "./dom.js";

const CELL = 16;

/** One or two matrices side by side as an SVG element, tokens as text. */
export function figure(shown) {
  if (shown.blocks) return gridFigure(shown);
  const panels = shown.panels ?? [{ ...shown, caption: "" }];
  const edge = { left: 150, top: 140 };
  let [x, height] = [0, 0];
  const drawn = [];
  for (const panel of panels) {
    const { rows, columns } = panel.data;
    const cell = Math.min(CELL, 2400 / Math.max(rows.length, columns.length));
    const [wide, high] = [columns.length * cell, rows.length * cell];
    drawn.push(matrixGroup(panel, cell, x + edge.left, edge.top, shown.peak));
    x += edge.left + wide + 24;
    height = Math.max(height, edge.top + high + 24);
  }
  const title = label(shown.title, 12, 24, { "font-size": 16, "font-weight": 600 });
  const paper = svg("rect", { width: x, height, fill: named("--card") });
  return svg(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", width: x, height, viewBox: `0 0 ${x} ${height}` },
    paper,
    title,
    drawn,
  );
}

/** The overview: one row a layer, one column a head. */
function gridFigure({ title, blocks }) {
  const [side, gap, left] = [64, 8, 190];
  let [y, wide] = [44, 400];
  const drawn = [label(title, 12, 24, { "font-size": 16, "font-weight": 600 })];
  for (const block of blocks) {
    drawn.push(label(block.title, 12, y + 14, { "font-size": 13, "font-weight": 600 }));
    y += 28;
    block.thumbs.forEach((heads, l) => {
      drawn.push(label(block.layers[l], 12, y + side / 2 + 4, { "font-size": 11 }));
      heads.forEach((thumb, h) => drawn.push(thumbImage(thumb, left + h * (side + gap), y, side)));
      wide = Math.max(wide, left + heads.length * (side + gap) + 8);
      y += side + gap;
    });
    y += 16;
  }
  const box = { width: wide, height: y, viewBox: `0 0 ${wide} ${y}` };
  const paper = svg("rect", { width: wide, height: y, fill: named("--card") });
  return svg("svg", { xmlns: "http://www.w3.org/2000/svg", ...box }, paper, drawn);
}

function thumbImage({ width, height, cells }, x, y, side) {
  const canvas = picture(width, height, (i) => (cells[i] === 255 ? -1 : cells[i]), ramp());
  const unit = side / Math.max(width, height);
  return svg("image", {
    x: x + (side - unit * width) / 2,
    y: y + (side - unit * height) / 2,
    width: unit * width,
    height: unit * height,
    href: canvas.toDataURL("image/png"),
    preserveAspectRatio: "none",
    "image-rendering": "pixelated",
  });
}

function matrixGroup({ data, caption }, cell, left, top, peak) {
  const { weights, mask, rows, columns } = data;
  const n = columns.length;
  const shade = (i) => (mask && !mask[i] ? -1 : Math.min(255, Math.round((255 * weights[i]) / peak)));
  const canvas = picture(n, rows.length, shade, ramp());
  const image = svg("image", {
    x: left,
    y: top,
    width: n * cell,
    height: rows.length * cell,
    href: canvas.toDataURL("image/png"),
    preserveAspectRatio: "none",
    "image-rendering": "pixelated",
  });
  const every = Math.max(1, Math.ceil(12 / cell));
  const group = svg("g", {}, image);
  if (caption) group.append(label(caption, left, 46, { "font-size": 13 }));
  rows.forEach((text, t) => {
    if (t % every) return;
    const y = top + (t + 0.5) * cell + 4;
    group.append(label(text, left - 6, y, { "text-anchor": "end", "font-size": 11 }));
  });
  columns.forEach((text, s) => {
    if (s % every) return;
    const [x, y] = [left + (s + 0.5) * cell + 4, top - 6];
    group.append(label(text, x, y, { transform: `rotate(-90 ${x} ${y})`, "font-size": 11 }));
  });
  return group;
}

function label(text, x, y, more) {
  const node = svg("text", { x, y, fill: named("--ink"), "font-family": "sans-serif", ...more });
  node.textContent = legal([...text].length > 24 ? `${[...text].slice(0, 23).join("")}…` : text);
  return node;
}

/** XML knows no control characters and no half of a pair: they become the replacement sign. */
function legal(text) {
  const whole = text.toWellFormed ? text.toWellFormed() : text;
  // eslint-disable-next-line no-control-regex
  return whole.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
}

export function svgText(shown) {
  return new XMLSerializer().serializeToString(figure(shown));
}

export async function pngBlob(shown) {
  const text = svgText(shown);
  const drawn = figure(shown);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const [width, height] = ["width", "height"].map((name) => Number(drawn.getAttribute(name)));
  const scale = Math.min(2, 8000 / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(height * scale);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

export async function jsonText(shown) {
  const given = typeof shown.panels === "function" ? await shown.panels() : shown.panels;
  const panels = (given ?? [shown]).map(({ data, caption }) => ({
    title: caption ?? "",
    queries: data.rows,
    keys: data.columns,
    weights: data.rows.map((_, t) =>
      data.columns.map((__, s) => {
        const i = t * data.columns.length + s;
        return data.mask && !data.mask[i] ? null : Number(data.weights[i].toPrecision(6));
      }),
    ),
  }));
  return JSON.stringify({ title: shown.title, panels });
}

export async function save(shown, kind) {
  const makers = {
    png: () => pngBlob(shown),
    svg: () => new Blob([svgText(shown)], { type: "image/svg+xml" }),
    json: async () => new Blob([await jsonText(shown)], { type: "application/json" }),
  };
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await makers[kind]());
  link.download = `everyhead.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
