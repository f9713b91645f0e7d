// What is said of a head, and the head's name where it has one.

import { number } from "./dom.js";
import { say } from "./words.js";

/** What switching the head off does, as a sentence; null where nobody measured it. */
export function effectOf(group, layer, head) {
  const value = valueOf(group, "effect", layer, head);
  return value === null ? null : say("headEffect", { value: number(value, 4) });
}

export function statisticsOf(groups) {
  const found = new Set();
  for (const group of groups) Object.keys(group.numbers || {}).forEach((name) => found.add(name));
  return [...found];
}

export function valueOf(group, name, layer, head) {
  return group.numbers?.[name]?.[layer]?.[head] ?? null;
}

export function nameOf(group, layer, head) {
  return group.names?.[layer]?.[head] ?? null;
}

/** Smallest and largest value of a statistic over groups; shares go from 0 to 1. */
export function rangeOf(groups, name) {
  const values = groups
    .flatMap((group) => group.numbers?.[name] ?? [])
    .flat()
    .filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return values.length ? [low, high > low ? high : low + 1] : [0, 1];
}
