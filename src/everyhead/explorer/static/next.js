// What comes next, as it is and as a sampler leaves it; take one, and the text goes on with it.

import { button, el, number, token } from "./dom.js";
import { say } from "./words.js";

export function nextPanel(self, { scene }) {
  const card = el("section", { class: "card" }, el("h2", {}, say("nextWords")));
  const list = el("div", { "aria-live": "polite" });
  const show = () => fillWords(self, scene, list);
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

async function fillWords(self, scene, list) {
  const mine = (list.turn = (list.turn ?? 0) + 1);
  const writes = writesTarget(scene);
  const question = { ...self.question(), ...self.sampler };
  if (writes) question.target = self.target;
  try {
    const answer = await self.ask("next", question);
    if (list.turn !== mine) return;
    if (!answer.words) list.replaceChildren(el("p", { class: "quiet" }, say("noNext")));
    else list.replaceChildren(table(self, writes, answer), steps(self, writes, answer));
  } catch (error) {
    const told = el("p", { class: "error" });
    told.textContent = error.message;
    list.replaceChildren(told);
  }
}

/** A model of two halves writes beside its text; a decoder goes on with the text itself. */
function writesTarget(scene) {
  return scene.groups.some((group) => group.kind === "cross");
}

function goOn(self, writes, word) {
  const name = writes ? "target" : "text";
  self.run({ [name]: self[name] + word });
}

function table(self, writes, { words, kept, of }) {
  const body = words.map(([word, plain, drawn], i) => {
    const bar = el("i", { class: "share" });
    bar.style.width = `${100 * drawn}%`;
    const press = button(say("take"), () => goOn(self, writes, word), { id: `take-${i}` });
    press.append(el("span", { class: "heard" }, token(word)));
    return el(
      "tr",
      { class: drawn ? null : "cut" },
      el("td", {}, token(word)),
      el("td", { class: "figure" }, number(plain)),
      el("td", { class: "figure" }, number(drawn)),
      el("td", { class: "barcell", "aria-hidden": "true" }, bar),
      el("td", {}, press),
    );
  });
  const top = ["token", "plain", "drawn"].map((name) => el("th", { scope: "col" }, say(name)));
  const whole = el("table", { class: "ranking words" }, el("thead", {}, el("tr", {}, top)), el("tbody", {}, body));
  return el("div", {}, el("p", { class: "quiet" }, say("keptOf", { n: kept, m: of })), whole);
}

function steps(self, writes, { words }) {
  const draw = () => {
    let left = Math.random() * words.reduce((sum, word) => sum + word[2], 0);
    const drawn = words.find((word) => (left -= word[2]) <= 0) ?? words[0];
    goOn(self, writes, drawn[0]);
  };
  return el(
    "div",
    { class: "bar" },
    button(say("stepGreedy"), () => goOn(self, writes, words[0][0]), { id: "step-greedy" }),
    button(say("stepSample"), draw, { id: "step-sample" }),
  );
}
