// The equations, one after the other, with the numbers of the chosen head and word in them.

import { scoreOf } from "./breakdown.js";
import { button, choice, el, number, token } from "./dom.js";
import { place } from "./head.js";
import { within } from "./state.js";
import { groupTitle, say } from "./words.js";

export async function walk(root, context) {
  const { scene, state, archive } = context;
  const where = place(scene, state);
  const { group, layer, head: h } = where;
  const unpacked = await archive.head(group, layer, h);
  const parts = await archive.parts(group, layer, h);
  const t = chosenRow(state, group);
  const given = { scene, group, layer, h, t, parts, ...unpacked, n: group.columns.length };
  const steps = stepsOf(given);
  const at = within(state.get("step"), steps.length);
  root.append(el("p", { class: "note" }, say("w_intro")), pickers(context, where, t));
  const to = (step) => state.set({ step });
  const [title, make] = steps[at];
  const card = el("section", { class: "card walkcard", "aria-live": "polite" });
  card.append(
    el("p", { class: "quiet" }, say("w_step", { n: at + 1, m: steps.length })),
    el("h2", {}, say(title)),
    ...[make(given)].flat(),
  );
  const dots = el(
    "ol",
    { class: "dots" },
    steps.map(([name], i) => {
      const current = i === at ? "step" : null;
      const press = button(String(i + 1), () => to(i), { "aria-current": current, id: `step-${i}` });
      press.append(el("span", { class: "heard" }, ` ${say(name)}`));
      return el("li", {}, press);
    }),
  );
  const back = button(say("w_back"), () => to(at - 1), { id: "walk-back", disabled: at === 0 });
  const last = at === steps.length - 1;
  const on = button(say("w_on"), () => to(at + 1), { id: "walk-on", class: "strong", disabled: last });
  root.append(card, el("div", { class: "bar" }, back, on, dots));
  const data = { ...unpacked, rows: group.rows, columns: group.columns };
  context.shown = { title: say("walk"), data, peak: 1 };
}

function chosenRow(state, group) {
  const row = state.get("row");
  return row >= 0 && row < group.rows.length ? row : Math.min(2, group.rows.length - 1);
}

function pickers({ scene, state }, { g, group, layer, head: h }, t) {
  const list = (items) => items.map((text, i) => [i, text]);
  const bar = el("div", { class: "bar" });
  const set = (name) => (value) => state.set({ [name]: Number(value) });
  if (scene.groups.length > 1) {
    bar.append(choice(say("attention"), list(scene.groups.map(groupTitle)), g, set("group")));
  }
  const numbers = (many) => list(many.map((_, i) => String(i)));
  bar.append(
    choice(say("layer"), numbers(group.layers), layer, set("layer")),
    choice(say("head"), numbers(group.layers[layer].heads), h, set("head")),
    choice(say("w_word"), group.rows.map((text, i) => [i, `${i} · ${text}`]), t, set("row")),
  );
  return bar;
}

function stepsOf({ parts, scene, group }) {
  const states = scene.walk?.states[stackOf(group)];
  const all = [
    ["w_tokens", enters, states],
    ["w_qkv", three, parts],
    ["w_scores", scores, parts],
    ["w_mask", masked, true],
    ["w_softmax", shares, true],
    ["w_values", mixed, parts?.v],
    ["w_heads", joined, true],
    ["w_residual", residual, states],
    ["w_layers", layersOf, states],
    ["w_logits", result, true],
  ];
  return all.filter((step) => step[2]).map(([name, make]) => [name, make]);
}

/** Whose states the rows of a group are. */
function stackOf(group) {
  return group.name === "cross" ? "decoder" : group.name;
}

function statesOf({ scene, group }) {
  return scene.walk.states[stackOf(group)];
}

function word({ group, t }) {
  return el("strong", {}, token(group.rows[t]));
}

/** A vector's first numbers, and how many follow. */
function vector(values, width) {
  const shown = [...values].slice(0, 4).map((x) => number(x, 2));
  return el("code", { class: "vector" }, `[ ${shown.join("  ")}${width > 4 ? "  …" : ""} ]`);
}

function line(name, values, width) {
  return el("p", { class: "vectorline" }, el("span", {}, name), vector(values, width));
}

function enters(given) {
  const { layer, t, scene } = given;
  const [, ...first] = statesOf(given)[layer][t];
  const text = say("w_tokens_text", { width: scene.walk.width, layer });
  return [el("p", {}, text), el("p", { class: "vectorline" }, word(given), vector(first, scene.walk.width))];
}

/** Keys of the row that may be looked at, strongest first. */
function strongest({ weights, mask, t, n }) {
  const keys = Array.from({ length: n }, (_, s) => s).filter((s) => !mask || mask[t * n + s]);
  return keys.sort((a, b) => weights[t * n + b] - weights[t * n + a]);
}

function three(given) {
  const { parts, t, group } = given;
  const best = strongest(given)[0] ?? 0;
  const part = (x, i, width) => x.slice(i * width, i * width + 4);
  const key = el("strong", {}, token(group.columns[best]));
  return [
    el("p", {}, say("w_qkv_text", { width: parts.width })),
    el("p", {}, word(given), " · ", say("w_q")),
    line("q", part(parts.q, t, parts.width), parts.width),
    el("p", {}, key, " · ", say("w_k")),
    line("k", part(parts.k, best, parts.width), parts.width),
    el("p", {}, say("w_v")),
    line("v", part(parts.v, best, parts.valueWidth), parts.valueWidth),
  ];
}

function rowsTable({ group }, keys, columns) {
  const top = [say("token"), ...columns.map((column) => column.name)];
  const body = keys.map((s) => {
    const cells = columns.map((column) => el("td", { class: "figure" }, column.text(s)));
    const bar = el("i", { class: "share" });
    bar.style.width = `${100 * columns.at(-1).size(s)}%`;
    return el("tr", {}, el("td", {}, token(group.columns[s])), cells, el("td", { class: "barcell" }, bar));
  });
  const heads = top.map((text) => el("th", { scope: "col" }, text));
  return el("table", { class: "ranking" }, el("thead", {}, el("tr", {}, heads, el("td"))), el("tbody", {}, body));
}

function scores(given) {
  const { parts, t, n } = given;
  const keys = strongest(given).slice(0, 8);
  const found = new Map(keys.map((s) => [s, scoreOf(parts, t, s, n)]));
  const values = [...found.values()].map((each) => each.score);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const text = say("w_scores_text", { scale: number(parts.scale, 4) });
  return [
    el("p", {}, text, parts.bias ? say("w_bias_text") : ""),
    rowsTable(given, keys, [
      { name: "q·k", text: (s) => number(found.get(s).dot, 2) },
      {
        name: say("w_score"),
        text: (s) => number(found.get(s).score, 2),
        size: (s) => (found.get(s).score - low) / (high - low || 1),
      },
    ]),
  ];
}

function masked({ mask, t, n, group }) {
  const out = Array.from({ length: n }, (_, s) => s).filter((s) => mask && !mask[t * n + s]);
  if (!out.length) return el("p", {}, say("w_mask_none"));
  const some = out.slice(0, 30).map((s) => el("span", { class: "pill cutword" }, token(group.columns[s])));
  return [el("p", {}, say("w_mask_some", { n: out.length, m: n })), el("div", { class: "pills" }, some)];
}

function shares(given) {
  const { weights, t, n } = given;
  const value = (s) => weights[t * n + s];
  const columns = [{ name: say("w_share"), text: (s) => number(value(s)), size: value }];
  return [el("p", {}, say("w_softmax_text")), rowsTable(given, strongest(given).slice(0, 8), columns)];
}

function mixed({ parts, weights, t, n }) {
  const out = [];
  for (let d = 0; d < Math.min(4, parts.valueWidth); d++) {
    let sum = 0;
    for (let s = 0; s < n; s++) sum += weights[t * n + s] * parts.v[s * parts.valueWidth + d];
    out.push(sum);
  }
  return [el("p", {}, say("w_values_text")), line("Σ w·v", out, parts.valueWidth)];
}

function joined({ group, layer, scene, parts }) {
  const n = group.layers[layer].heads.length;
  const width = scene.walk?.width ?? n * (parts?.valueWidth ?? 0);
  return el("p", {}, say("w_heads_text", { n, width }));
}

function residual(given) {
  const { layer, t, scene } = given;
  const states = statesOf(given);
  const row = (name, index) => {
    const [length, ...first] = states[index][t];
    const told = el("span", { class: "quiet" }, `${say("w_length")} ${number(length, 2)}`);
    return el("p", { class: "vectorline" }, el("span", {}, say(name)), vector(first, scene.walk.width), told);
  };
  const text = el("p", {}, say("w_residual_text"));
  const after = states.length > layer + 1 ? row("w_after", layer + 1) : null;
  return [text, row("w_before", layer), after].filter(Boolean);
}

function layersOf(given) {
  const lengths = statesOf(given).map((rows) => rows[given.t][0]);
  const peak = Math.max(...lengths);
  const body = lengths.map((length, i) => {
    const bar = el("i", { class: "share" });
    bar.style.width = `${(100 * length) / peak}%`;
    const name = i === 0 ? say("w_before") : say("layerN", { n: i - 1 });
    const cells = [el("th", { scope: "row" }, name), el("td", { class: "figure" }, number(length, 2))];
    return el("tr", {}, cells, el("td", { class: "barcell" }, bar));
  });
  return [el("p", {}, say("w_layers_text")), el("table", { class: "ranking" }, el("tbody", {}, body))];
}

function result({ scene }) {
  const end = el("p", { class: "quiet" }, say("w_heatNote"));
  if (scene.output?.next) {
    const items = scene.output.next.map(([text, p]) =>
      el("li", {}, el("strong", {}, token(text)), ` ${number(p)}`),
    );
    return [el("p", {}, say("w_logits_text")), el("ul", {}, items), end];
  }
  if (scene.output?.text) {
    return [el("p", {}, say("w_logits_made")), el("p", {}, token(scene.output.text, "text")), end];
  }
  return [el("p", {}, say("w_logits_encoder")), end];
}
