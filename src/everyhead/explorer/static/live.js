// The served page: type and it is computed anew; hide tokens, switch heads off, step, draw.

import { button, el, namedToken, number, toggle, token } from "./dom.js";
import { head } from "./head.js";
import { nextPanel, writesTarget } from "./next.js";
import { within } from "./state.js";
import { fromBase64 } from "./unpack.js";
import { groupTitle, say } from "./words.js";

const PAUSE = 700;

export function makeLive(app) {
  const first = app.page.scenes[within(app.state.get("scene"), app.page.scenes.length)];
  const self = {
    text: first.texts[0],
    second: first.texts[1] && !first.groups.some((g) => g.grid) ? first.texts[1] : "",
    target: "",
    tail: [],
    off: [],
    hidden: [],
    sampler: { temperature: 1, top_k: 0, top_p: 1 },
    before: null,
    error: "",
  };
  self.ask = (name, question) => ask(name, question);
  self.question = (changes = {}) => questionOf(app, self, changes);
  self.run = (changes = {}) => run(app, self, changes);
  self.watchWriting = () => {
    const crossing = current(app).groups.findIndex((group) => group.kind === "cross");
    if (crossing >= 0) app.state.set({ group: crossing, row: -1, column: -1 }, { quiet: true });
  };
  self.later = () => {
    clearTimeout(self.timer);
    self.timer = setTimeout(() => self.run(), PAUSE);
  };
  self.effect = (details, at) => measured(app, self, details, at);
  self.back = () => back(app, self);
  app.archive.remote = (group, layer, h, row, column) => remote(app, group, layer, h, row, column);
  return self;
}

async function ask(name, question) {
  const sent = { method: "POST", headers: { "Content-Type": "application/json" } };
  let reply;
  try {
    reply = await fetch(`/api/${name}`, { ...sent, body: JSON.stringify(question) });
  } catch {
    throw new Error(say("unreachable"));
  }
  const text = await reply.text();
  if (reply.headers.get("content-type")?.startsWith("application/json")) {
    const value = JSON.parse(text);
    if (reply.ok) return value;
    throw new Error(value.error);
  }
  throw new Error(text);
}

function questionOf(app, self, changes) {
  const scene = current(app);
  const places = scene.groups.filter(readsInput).flatMap((g) => g.layers.map((layer) => layer.name));
  const { text, second, target, off, hidden, tail } = { ...self, ...changes };
  const question = { text, off, hidden, places, tail };
  if (second) question.second = second;
  if (target) question.target = target;
  return question;
}

/** Attentions whose keys are the pieces of the input text. */
function readsInput(group, _, groups) {
  return group.columns.length === inputOf(groups).length && (group.kind === "cross" || group === groups[0]);
}

function inputOf(groups) {
  return groups[0].columns;
}

function current(app) {
  return app.page.scenes[within(app.state.get("scene"), app.page.scenes.length)];
}

/** One piece less; where it stood in the input itself, it cannot stay hidden. */
function back(app, self) {
  const { groups } = current(app);
  const left = inputOf(groups).length - (writesTarget({ groups }) ? 0 : 1);
  self.run({ tail: self.tail.slice(0, -1), hidden: self.hidden.filter((i) => i < left) });
}

async function run(app, self, changes) {
  clearTimeout(self.timer);
  Object.assign(self, changes);
  const mine = (self.turn = (self.turn ?? 0) + 1);
  document.body.classList.add("busy");
  try {
    const answer = await self.ask("scene", self.question());
    if (mine !== self.turn) return;
    take(app, answer);
    self.before = answer.before ?? null;
    self.error = "";
  } catch (error) {
    if (mine !== self.turn) return;
    self.error = error.message;
  }
  document.body.classList.remove("busy");
  app.state.set({});
}

/** Put the new scene in the place of the one that is shown; its blobs get numbers of their own. */
function take(app, answer) {
  const base = (app.nextBlob = (app.nextBlob ?? 1e6) + 1e4);
  answer.blobs.forEach((text, i) => app.later.set(base + i, text));
  const renumber = (value) => {
    if (Array.isArray(value)) value.forEach(renumber);
    else if (value && typeof value === "object") {
      for (const name of ["blob", "peaks"]) {
        if (typeof value[name] === "number") value[name] += base;
      }
      Object.values(value).forEach(renumber);
    }
  };
  for (const group of answer.scene.groups) {
    group.masks.forEach(renumber);
    group.layers.forEach(renumber);
    renumber(group.thumbs);
  }
  app.page.scenes[within(app.state.get("scene"), app.page.scenes.length)] = answer.scene;
}

async function remote(app, group, layer, h, row, column) {
  const scene = app.page.scenes.find((each) => each.groups.includes(group));
  const found = await ask("head", {
    scene: scene.id,
    group: scene.groups.indexOf(group),
    layer,
    head: h,
    row: Math.max(0, row),
    column: Math.max(0, column),
  });
  found.weights = new Float32Array(fromBase64(found.weights).buffer);
  found.mask = fromBase64(found.mask);
  if (found.mask.every((seen) => seen)) found.mask = null;
  if (found.parts) {
    const base = (app.nextBlob = (app.nextBlob ?? 1e6) + 1e4);
    found.blobs.forEach((text, i) => app.later.set(base + i, text));
    for (const part of ["q", "k", "v", "bias"]) if (found.parts[part]) found.parts[part].blob += base;
  }
  return found;
}

/** The half of the model whose rows are the group's queries. */
function halfOf(group) {
  return group.name === "cross" ? "decoder" : group.name;
}

/** Beside a weight: what hiding its key, and switching its head off, does to the model. */
async function measured(app, self, details, { group, layer, head: h, cell }) {
  const note = el("p", { class: "quiet", role: "status" }, say("measuring"));
  details.append(note);
  const place = group.layers[layer].name;
  const moved = async (changes) => {
    const answer = await self.ask("scene", { ...self.question(), ...changes, effect: true });
    return answer.before?.moved[halfOf(group)]?.[cell[0]];
  };
  try {
    const key = await moved({ off: [], hidden: [cell[1]], places: [place] });
    const off = await moved({ off: [{ place, head: h }], hidden: [] });
    if (key === undefined || off === undefined) note.remove();
    else note.textContent = say("effectOfKey", { value: number(key, 4), other: number(off, 4) });
  } catch (error) {
    note.textContent = error.message;
  }
}

export async function live(root, context) {
  const { live: self, scene } = context;
  const left = el("section", { class: "card" }, fields(self, scene), switches(self, scene));
  const right = el("div", {}, changesPanel(self, scene), nextPanel(self));
  root.append(el("div", { class: "livegrid" }, left, right));
  const below = el("div", {});
  await head(below, context);
  root.append(below);
}

function fields(self, scene) {
  const area = (id, label, name, rows) => {
    const box = el("textarea", {
      id,
      rows,
      oninput: () => {
        self[name] = box.value;
        if (name !== "target") self.hidden = [];
        self.tail = [];
        self.later();
      },
    });
    box.value = self[name];
    return el("label", { class: "field" }, el("span", {}, label), box);
  };
  const error = el("p", { class: "error", role: "alert" });
  error.textContent = self.error;
  const undo = () => self.run({ off: [], hidden: [], tail: [] });
  return el(
    "form",
    {
      onsubmit: (event) => {
        event.preventDefault();
        self.run();
      },
    },
    area("live-text", say("input"), "text", 2),
    self.second ? area("live-second", say("secondInput"), "second", 1) : null,
    writesTarget(scene) ? area("live-target", say("targetInput"), "target", 1) : null,
    el(
      "div",
      { class: "bar" },
      el("button", { type: "submit", class: "strong", id: "live-run" }, say("run")),
      button(say("original"), undo, { id: "live-undo" }),
      el("span", { class: "quiet working" }, say("running")),
    ),
    error,
  );
}

function switches(self, scene) {
  const input = inputOf(scene.groups);
  const shown = input.slice(0, 200);
  const tokens = shown.map((text, i) =>
    el(
      "button",
      {
        type: "button",
        class: "pill",
        id: `hide-${i}`,
        "aria-pressed": String(self.hidden.includes(i)),
        onclick: () => self.run({ hidden: flipped(self.hidden, i) }),
      },
      namedToken(text, say("blankToken")),
    ),
  );
  const grids = scene.groups.map((group) => headSwitches(self, group));
  return el(
    "div",
    {},
    el("h2", {}, say("hideTokens")),
    el("div", { class: "pills" }, tokens),
    el("h2", {}, say("headsOff")),
    grids,
  );
}

function flipped(list, value) {
  return list.includes(value) ? list.filter((each) => each !== value) : [...list, value];
}

function headSwitches(self, group) {
  const rows = group.layers.map((layer) =>
    el(
      "div",
      { class: "switchrow" },
      layer.heads.map((_, h) => {
        const is = self.off.some((off) => off.place === layer.name && off.head === h);
        const flip = () => {
          const rest = self.off.filter((off) => off.place !== layer.name || off.head !== h);
          self.run({ off: is ? rest : [...rest, { place: layer.name, head: h }] });
        };
        return el("button", {
          type: "button",
          class: "switch",
          id: `off-${layer.name}-${h}`,
          "aria-pressed": String(is),
          "aria-label": say("headOff", { h, place: layer.name }),
          onclick: flip,
        });
      }),
    ),
  );
  return el("details", { open: true }, el("summary", {}, groupTitle(group)), rows);
}

function changesPanel(self, scene) {
  const card = el("section", { class: "card" }, el("h2", {}, say("whatChanges")));
  if (!self.before) {
    card.append(el("p", { class: "quiet" }, say("nothingChanged")));
    return card;
  }
  const { output, moved } = self.before;
  for (const [name, made] of [["before", output], ["after", scene.output]]) {
    if (made?.text === undefined) continue;
    card.append(el("p", { class: `made-${name}` }, el("span", { class: "quiet" }, `${say(name)}: `), token(made.text, "text")));
  }
  const half = Object.keys(moved).at(-1); // the last one is nearest to what is made
  if (half) card.append(el("p", { class: "quiet" }, say("moved")), movedTable(scene, moved[half], half));
  return card;
}

function movedTable(scene, moved, half) {
  const rows = scene.groups.find((group) => halfOf(group) === half)?.rows ?? [];
  const peak = Math.max(1e-12, ...moved);
  const order = moved.map((value, i) => [value, i]).sort((a, b) => b[0] - a[0]).slice(0, 12);
  const body = order.map(([value, i]) => {
    const bar = el("i", { class: "share" });
    bar.style.width = `${(100 * value) / peak}%`;
    return el(
      "tr",
      {},
      el("td", {}, token(rows[i] ?? String(i))),
      el("td", { class: "figure" }, number(value, 4)),
      el("td", { class: "barcell", "aria-hidden": "true" }, bar),
    );
  });
  const top = ["token", "moved"].map((name) => el("th", { scope: "col", class: "heard" }, say(name)));
  return el("table", { class: "ranking" }, el("thead", {}, el("tr", {}, top)), el("tbody", {}, body));
}
