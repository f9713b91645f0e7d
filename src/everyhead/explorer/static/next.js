// What comes next, as it is and as a sampler leaves it; take one, and the text goes on with it.

import { button, el, number, token } from "./dom.js";
import { say } from "./words.js";

export function nextPanel(self) {
  const card = el("section", { class: "card" }, el("h2", {}, say("nextWords")));
  const list = el("div", { "aria-live": "polite" });
  const show = () => fillWords(self, list);
  const knob = (name, label, limits) => {
    const input = el("input", {
      type: "number",
      id: `sampler-${name}`,
      ...limits,
      value: self.sampler[name],
      onchange: () => {
        self.sampler[name] = Number(input.value);
        show();
      },
    });
    return el("label", { class: "choice" }, el("span", {}, label), input);
  };
  card.append(
    el(
      "div",
      { class: "bar" },
      knob("temperature", say("temperature"), { min: 0, max: 10, step: 0.1 }),
      knob("top_k", say("topK"), { min: 0, step: 1 }),
      knob("top_p", say("topP"), { min: 0.01, max: 1, step: 0.01 }),
    ),
    list,
  );
  show();
  return card;
}

async function fillWords(self, list) {
  const mine = (list.turn = (list.turn ?? 0) + 1);
  const question = { ...self.question(), ...self.sampler };
  try {
    const answer = await self.ask("next", question);
    if (list.turn !== mine) return;
    if (!answer.words) list.replaceChildren(el("p", { class: "quiet" }, say("noNext")));
    else list.replaceChildren(wordsTable(self, answer), steps(self, answer));
  } catch (error) {
    const told = el("p", { class: "error" });
    told.textContent = error.message;
    list.replaceChildren(told);
  }
}

/** A model of two halves writes beside its text; a decoder goes on with the text itself. */
export function writesTarget(scene) {
  return scene.groups.some((group) => group.kind === "cross");
}

/** Write this piece: it stands after what was written before it. */
function goOn(self, word) {
  self.watchWriting();
  self.run({ tail: [...self.tail, word.id] });
}

function wordsTable(self, { words, kept, of }) {
  const changed = words.some((word) => word.before !== null);
  const body = words.map((word, i) => {
    const bar = el("i", { class: "share" });
    bar.style.width = `${100 * word.drawn}%`;
    const press = button(say("take"), () => goOn(self, word), { id: `take-${i}` });
    press.append(el("span", { class: "heard" }, token(word.text)));
    return el(
      "tr",
      { class: word.drawn ? null : "cut" },
      el("td", {}, token(word.text)),
      changed ? el("td", { class: "figure" }, number(word.before)) : null,
      el("td", { class: "figure" }, number(word.plain)),
      el("td", { class: "figure" }, number(word.drawn)),
      el("td", { class: "barcell", "aria-hidden": "true" }, bar),
      el("td", {}, press),
    );
  });
  const names = changed ? ["token", "before", "plain", "drawn"] : ["token", "plain", "drawn"];
  const top = names.map((name) => el("th", { scope: "col" }, say(name)));
  const line = el("tr", {}, top);
  const whole = el("table", { class: "ranking words" }, el("thead", {}, line), el("tbody", {}, body));
  return el("div", {}, el("p", { class: "quiet" }, say("keptOf", { n: kept, m: of })), whole);
}

function steps(self, { words, draw }) {
  return el(
    "div",
    { class: "bar" },
    button(say("stepGreedy"), () => goOn(self, words[0]), { id: "step-greedy" }),
    button(say("stepSample"), () => goOn(self, draw), { id: "step-sample" }),
    self.tail.length ? button(say("stepBack"), () => self.back(), { id: "step-back" }) : null,
  );
}
