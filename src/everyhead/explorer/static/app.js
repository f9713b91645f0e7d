// The page: reads what it holds, listens to the address, draws the view that is asked for.

import { compare } from "./compare.js";
import { choice, el, token } from "./dom.js";
import { save } from "./exports.js";
import { head } from "./head.js";
import { live, makeLive } from "./live.js";
import { overview } from "./overview.js";
import { overviewShown } from "./shown.js";
import { effectOf } from "./statistics.js";
import { State, within } from "./state.js";
import { Archive } from "./unpack.js";
import { walk } from "./walk.js";
import { say, speak } from "./words.js";

const VIEWS = { overview, head, compare, walk, live };

export async function start() {
  const page = JSON.parse(document.getElementById("page").textContent);
  const later = new Map(); // what a served page was sent after its first scenes
  const blobs = (id) => later.get(id) ?? document.getElementById(`blob-${id}`).textContent;
  const app = { page, later, archive: new Archive(blobs), drawing: Promise.resolve() };
  app.state = new State(page.state ?? {}, () => draw(app));
  app.live = page.served ? makeLive(app) : null;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(app));
  let width = innerWidth;
  window.addEventListener("resize", () => {
    if (Math.abs(innerWidth - width) < 40) return;
    width = innerWidth;
    draw(app);
  });
  if (!("DecompressionStream" in window)) {
    document.getElementById("app").textContent = say("old");
    return;
  }
  await draw(app);
}

/** One drawing after the other; only the last one asked for is done. */
export function draw(app) {
  app.wanted = (app.wanted ?? 0) + 1;
  const mine = app.wanted;
  app.drawing = app.drawing.then(() => (mine === app.wanted ? redraw(app) : null));
  return app.drawing;
}

async function redraw(app) {
  const { page, state } = app;
  speak(state.get("lang"));
  if (state.get("theme")) document.documentElement.dataset.theme = state.get("theme");
  else delete document.documentElement.dataset.theme;
  const scene = page.scenes[within(state.get("scene"), page.scenes.length)];
  const view = viewOf(app, scene);
  const root = el("main", { id: "main" });
  const context = { ...app, scene, app, room: Math.min(innerWidth - 32, 1500), shown: null };
  context.effectOf = ({ group, layer, head: h }) => effectOf(group, layer, h);
  const top = header(app, scene, view, context);
  await VIEWS[view](root, context);
  const focused = document.activeElement?.id;
  const cursor = document.activeElement?.selectionStart;
  const places = document.getElementById("app");
  places.replaceChildren(top, root, footer());
  document.body.dataset.ready = `${view}-${app.wanted}`;
  if (focused) refocus(document.getElementById(focused), cursor);
  context.after?.();
}

/** The same field keeps the cursor where it was. */
function refocus(field, cursor) {
  field?.focus();
  if (field && typeof cursor === "number" && field.setSelectionRange) {
    field.setSelectionRange(cursor, cursor);
  }
}

function viewOf({ state, page }, scene) {
  const view = state.get("view");
  if (!(view in VIEWS)) return "overview";
  if (view === "live" && !page.served) return "overview";
  return view === "walk" && !scene.walk ? "overview" : view;
}

function header(app, scene, view, context) {
  const { page, state } = app;
  const names = ["overview", "head", "compare"];
  if (scene.walk) names.push("walk");
  if (page.served) names.push("live");
  const links = names.map((name) =>
    el(
      "a",
      {
        href: "#",
        id: `to-${name}`,
        "aria-current": name === view ? "page" : null,
        onclick: (event) => {
          event.preventDefault();
          state.set({ view: name }, { push: true });
        },
      },
      say(name),
    ),
  );
  const options = el("div", { class: "options" });
  if (page.scenes.length > 1 && view !== "compare") {
    const texts = page.scenes.map((each, i) => [i, `${i + 1} · ${each.title}`.slice(0, 60)]);
    const to = (value) => state.set({ scene: Number(value), row: -1, column: -1 });
    options.append(choice(say("text"), texts, state.get("scene"), to));
  }
  const themes = ["", "light", "dark"].map((name) => [name, say(`theme_${name}`)]);
  options.append(
    choice(say("language"), [["en", "English"], ["zh", "中文"]], speak(state.get("lang")), (lang) =>
      state.set({ lang }),
    ),
    choice(say("theme"), themes, state.get("theme"), (theme) => state.set({ theme })),
    exportsOf(context),
  );
  return el(
    "header",
    {},
    el("div", { class: "brandline" }, el("p", { class: "brand" }, "everyhead"), modelOf(scene)),
    titleOfScene(scene),
    el("div", { class: "nav" }, el("nav", { "aria-label": say("views") }, links), options),
    ...scene.notes.map((note) => el("p", { class: "note" }, note)),
  );
}

function modelOf(scene) {
  const node = el("p", { class: "quiet model" });
  node.textContent = scene.model;
  return node;
}

/** The input itself is the page's heading; what the model made of it follows. */
function titleOfScene(scene) {
  const heading = el("h1", {}, scene.texts.map((text) => token(text, "text")));
  if (!scene.output?.text) return heading;
  const made = el("p", { class: "made" }, "→ ", token(scene.output.text, "text"));
  return el("div", { class: "titles" }, heading, made);
}

function exportsOf(context) {
  const kinds = [["", "…"], ["png", say("savePng")], ["svg", say("saveSvg")], ["json", say("saveJson")]];
  return choice(say("export"), kinds, "", async (kind) => {
    const shown = context.shown ?? (await overviewShown(context));
    if (kind) await save(shown, kind);
  });
}

function footer() {
  return el("footer", {}, el("p", { class: "quiet" }, say("precise", { n: 255 })));
}
