// The equation of one weight with its numbers in it.
//
//   w[t, s] = exp(score[t, s]) / Σ_j exp(score[t, j]),   score[t, s] = scale · Σ_d q[t, d] k[s, d] + bias

import { el, number, svg, token } from "./dom.js";
import { say } from "./words.js";

export function breakdown(data, [t, s], parts, context) {
  const n = data.columns.length;
  const i = t * n + s;
  if (data.mask && !data.mask[i]) {
    return el("p", {}, token(data.rows[t]), ` ${say("mayNotLookAt")} `, token(data.columns[s]), say("fullStop"));
  }
  if (!parts || !parts.q) return el("p", { class: "quiet" }, say(context.at.group.layers[context.at.layer].drawing?.other ? "otherEquation" : "noParts"));
  const { products, dot, score } = scoreOf(parts, t, s, n);
  const total = sumOf(data, parts, t, n, score);
  const lines = [
    [say("dot"), `q · k = Σ qᵢkᵢ = ${number(dot)}`],
    [say("scaled"), `${number(dot)} × ${number(parts.scale, 4)} = ${number(dot * parts.scale)}`],
  ];
  if (parts.bias) lines.push([say("biasAdded"), `+ ${number(parts.bias[i])} = ${number(score)}`]);
  lines.push([
    "softmax",
    `exp(${number(score)} − ${number(total.peak)}) / Σ exp(… − ${number(total.peak)}) = ` +
      `${number(Math.exp(score - total.peak))} / ${number(total.sum)} = ` +
      number(Math.exp(score - total.peak) / total.sum),
  ]);
  const list = el("dl", { class: "equation" });
  for (const [name, text] of lines) list.append(el("div", {}, el("dt", {}, name), el("dd", {}, text)));
  const title = el("h3", {}, say("why"), " ", token(data.rows[t]), " → ", token(data.columns[s]));
  const whole = el("div", { class: "breakdown" }, title, bars(products, parts.scale), list);
  const local = localEffect(data, parts, t, s, n);
  if (local !== null) {
    whole.append(el("p", {}, say("withoutKey", { share: number(100 * local, 1) })));
  }
  const effect = context.effectOf(context.at);
  if (effect) whole.append(el("p", {}, effect));
  whole.append(el("p", { class: "quiet" }, say("notExplanation")));
  return whole;
}

export function scoreOf(parts, t, s, n) {
  const { q, k, width, scale, bias } = parts;
  const products = [];
  let dot = 0;
  for (let d = 0; d < width; d++) {
    const product = q[t * width + d] * k[s * width + d];
    products.push([q[t * width + d], k[s * width + d], product]);
    dot += product;
  }
  return { products, dot, score: dot * scale + (bias ? bias[t * n + s] : 0) };
}

/** The largest score of the row and Σ exp(score − largest) over what may be looked at. */
function sumOf(data, parts, t, n, score) {
  const scores = [];
  for (let j = 0; j < n; j++) {
    if (!data.mask || data.mask[t * n + j]) scores.push(scoreOf(parts, t, j, n).score);
  }
  const peak = Math.max(score, ...scores);
  return { peak, sum: scores.reduce((sum, x) => sum + Math.exp(x - peak), 0) };
}

/** How far the head's output moves when this key is hidden: ‖o − o₋ₛ‖ / ‖o‖. */
function localEffect(data, parts, t, s, n) {
  const { v, valueWidth: width } = parts;
  const w = data.weights[t * n + s];
  if (!v || w >= 1) return null;
  let [moved, whole] = [0, 0];
  for (let d = 0; d < width; d++) {
    let out = 0;
    for (let j = 0; j < n; j++) out += data.weights[t * n + j] * v[j * width + d];
    moved += ((w / (1 - w)) * (v[s * width + d] - out)) ** 2;
    whole += out ** 2;
  }
  return whole > 0 ? Math.sqrt(moved / whole) : null;
}

/** One bar a dimension: the product q_d k_d, above or below the line. */
function bars(products) {
  const [step, half] = [Math.max(4, Math.min(14, 720 / products.length)), 46];
  const peak = Math.max(1e-12, ...products.map((each) => Math.abs(each[2])));
  const width = step * products.length;
  const shapes = products.map(([q, k, product], d) => {
    const size = (Math.abs(product) / peak) * half;
    const text = `q[${d}] ${number(q)} × k[${d}] ${number(k)} = ${number(product)}`;
    const shape = svg("rect", {
      x: d * step,
      y: product > 0 ? half - size : half,
      width: step - 1,
      height: Math.max(size, 0.5),
      class: product > 0 ? "plus" : "minus",
    });
    shape.append(svg("title", {}, text));
    return shape;
  });
  const line = svg("line", { x1: 0, x2: width, y1: half, y2: half, class: "axis" });
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${2 * half}`, class: "bars", role: "img" }, shapes, line);
  drawn.style.maxWidth = `${width}px`;
  const strongest = products.map((each, d) => [d, each[2]]).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const told = strongest.slice(0, 3).map(([d, x]) => `${d}: ${number(x)}`);
  drawn.prepend(svg("title", {}, `${say("dimensions")} ${told.join(", ")}`));
  return el("figure", { class: "dims" }, drawn, el("figcaption", { class: "quiet" }, say("perDimension")));
}
