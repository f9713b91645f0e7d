// Two matrices side by side on one scale: two texts, two layers, two models.

import { combined, filtered } from "./combine.js";
import { choice, el, number, toggle, token } from "./dom.js";
import { dataOf, isLong, rowPeaks, titleOf } from "./head.js";
import { MatrixView } from "./matrix.js";
import { within } from "./state.js";
import { groupTitle, say } from "./words.js";

export async function compare(root, context) {
  const { page, state } = context;
  const sides = ["a", "b"].map((name) => sideOf(name, page, state));
  const heads = chosenHeads(state, sides);
  const mix = state.get("mix");
  const filters = {
    special: Boolean(state.get("special")),
    from: state.get("from"),
    to: state.get("to"),
  };
  root.append(compareControls(context, sides, heads));
  const shown = [];
  for (const side of sides) {
    const { group, layer, head } = side;
    const partial = isLong(group) && !group.layers[layer].heads[head].form;
    const whole = partial
      ? await dataOf(context, side)
      : await combined(context.archive, group, layer, { head, heads, mix });
    shown.push({ side, data: partial ? whole : filtered(whole, group, filters) });
  }
  const peak = Math.max(1e-12, ...shown.flatMap(({ data }) => rowPeaks(data)));
  root.append(el("p", { class: "quiet" }, say("oneScale", { peak: number(peak) })));
  if (mix === "rollout") root.append(el("p", { class: "quiet" }, say("rolloutNote")));
  const pair = el("div", { class: "pair" });
  const readout = el("section", { class: "card details", "aria-live": "polite" }, say("chooseToken"));
  for (const each of shown) pair.append(panel(each, peak, context, readout));
  root.append(pair, readout);
  const panels = shown.map(({ side, data }) => ({ data, caption: captionOf(side, mix) }));
  context.shown = { kind: "compare", title: say("compare"), panels, peak };
}

/** "scene.group.layer.head" in the address; the second side is the next text or the next layer. */
function sideOf(name, page, state) {
  const several = page.scenes.length > 1;
  const first = [state.get("scene"), state.get("group"), state.get("layer"), state.get("head")];
  const next = several ? [1, ...first.slice(1)] : [first[0], first[1], first[2] + 1, first[3]];
  const usual = name === "a" ? first : next;
  const told = state.get(name).split(".").map((part) => Number.parseInt(part, 10));
  const [s, g, l, h] = told.length === 4 && told.every(Number.isInteger) ? told : usual;
  const sceneNumber = within(s, page.scenes.length);
  const scene = page.scenes[sceneNumber];
  const groupNumber = within(g, scene.groups.length);
  const group = scene.groups[groupNumber];
  const layer = within(l, group.layers.length);
  const head = within(h, group.layers[layer].heads.length);
  return { name, scene, sceneNumber, group, groupNumber, layer, head };
}

function chosenHeads(state, sides) {
  const most = Math.max(...sides.map(({ group, layer }) => group.layers[layer].heads.length));
  const all = Array.from({ length: most }, (_, h) => h);
  const told = state.get("heads");
  if (!told) return all;
  const some = told.split(",").map(Number).filter((h) => all.includes(h));
  return some.length ? some : all;
}

function compareControls({ state, page }, sides, heads) {
  const mixes = ["one", "mean", "max", "rollout"].map((name) => [name, say(`mix_${name}`)]);
  const bar = el("div", { class: "bar" });
  bar.append(choice(say("combine"), mixes, state.get("mix"), (mix) => state.set({ mix })));
  if (state.get("mix") !== "one") bar.append(headBoxes(state, sides, heads));
  if (sides.some(({ group }) => group.special)) {
    const hide = (checked) => state.set({ special: Number(!checked) });
    bar.append(toggle(say("hideSpecial"), !state.get("special"), hide));
  }
  if (sides.some(({ group }) => group.segments)) {
    const parts = ["all", "0", "1"].map((name) => [name, say(`seg_${name}`)]);
    bar.append(
      choice(say("fromSentence"), parts, state.get("from"), (from) => state.set({ from })),
      choice(say("toSentence"), parts, state.get("to"), (to) => state.set({ to })),
    );
  }
  const pickers = sides.map((side) => picker(side, page, state));
  return el("div", {}, bar, el("div", { class: "pair" }, pickers));
}

function headBoxes(state, sides, heads) {
  const most = Math.max(...sides.map(({ group, layer }) => group.layers[layer].heads.length));
  const boxes = Array.from({ length: most }, (_, h) =>
    toggle(String(h), heads.includes(h), (checked) => {
      const next = heads.filter((each) => each !== h).concat(checked ? [h] : []);
      state.set({ heads: next.sort((a, b) => a - b).join(",") });
    }),
  );
  return el("fieldset", { class: "boxes" }, el("legend", {}, say("heads")), boxes);
}

function picker(side, page, state) {
  const { name, scene, sceneNumber, group, groupNumber, layer, head } = side;
  const to = (changed) => {
    const next = { s: sceneNumber, g: groupNumber, l: layer, h: head, ...changed };
    state.set({ [name]: [next.s, next.g, next.l, next.h].join(".") });
  };
  const list = (items) => items.map((text, i) => [i, text]);
  const several = new Set(page.scenes.map((each) => each.model)).size > 1;
  const titles = page.scenes.map((each, i) =>
    `${i + 1} · ${each.title}${several ? ` · ${each.model}` : ""}`.slice(0, 70),
  );
  const bar = el("div", { class: "bar" }, el("strong", {}, say(name === "a" ? "sideA" : "sideB")));
  if (page.scenes.length > 1) {
    bar.append(choice(say("which"), list(titles), sceneNumber, (s) => to({ s })));
  }
  if (scene.groups.length > 1) {
    const groups = scene.groups.map(groupTitle);
    bar.append(choice(say("attention"), list(groups), groupNumber, (g) => to({ g })));
  }
  const layers = group.layers.map((_, i) => String(i));
  bar.append(choice(say("layer"), list(layers), layer, (l) => to({ l })));
  if (state.get("mix") === "one") {
    const heads = group.layers[layer].heads.map((_, i) => String(i));
    bar.append(choice(say("head"), list(heads), head, (h) => to({ h })));
  }
  return bar;
}

function captionOf({ group, layer, head, scene }, mix) {
  const place = titleOf(group, layer, head);
  const many = `${groupTitle(group)} · ${say("layerN", { n: layer })} · ${say(`mix_${mix}`)}`;
  return `${scene.title} · ${mix === "one" ? place : many}`;
}

function panel({ side, data }, peak, { room }, readout) {
  const caption = el("h2", { class: "quiet" });
  caption.append(token(side.scene.title, "text"));
  const card = el("section", { class: "card matrixcard" }, caption);
  if (!data.rows.length || !data.columns.length) {
    card.append(el("p", {}, say("nothingLeft")));
    return card;
  }
  const width = room > 960 ? (room - 90) / 2 : room - 40;
  const hover = (cell) => cell && tell(readout, data, cell);
  card.append(new MatrixView(data, { peak, width, hover, choose: hover }).node);
  return card;
}

function tell(readout, data, [t, s]) {
  const i = t * data.columns.length + s;
  const seen = !data.mask || data.mask[i];
  readout.replaceChildren(
    el(
      "p",
      {},
      token(data.rows[t]),
      " → ",
      token(data.columns[s]),
      seen ? ` ${number(data.weights[i])}` : ` · ${say("mayNotLook")}`,
    ),
  );
}
