// What the page says, in English and in Chinese.

import { CHINESE } from "./chinese.js";
import { ENGLISH } from "./english.js";

const spoken = { lang: "en" };

export function speak(lang) {
  const wanted = lang || (navigator.language || "en").slice(0, 2);
  spoken.lang = wanted === "zh" ? "zh" : "en";
  document.documentElement.lang = spoken.lang === "zh" ? "zh-CN" : "en";
  return spoken.lang;
}

/** The sentence of that name; {n} and the like are replaced. */
export function say(name, values = {}) {
  const text = (spoken.lang === "zh" ? CHINESE : ENGLISH)[name] ?? ENGLISH[name] ?? name;
  return text.replace(/\{(\w+)\}/g, (whole, key) => (key in values ? String(values[key]) : whole));
}

export function groupTitle(group) {
  const known = say(`group_${group.name}`);
  return known === `group_${group.name}` ? group.name : known;
}

export function statisticName(name) {
  const known = say(`stat_${name}`);
  return known === `stat_${name}` ? name.replaceAll("_", " ") : known;
}

export function headName(name) {
  const known = say(`name_${name}`);
  return known === `name_${name}` ? name : known;
}
