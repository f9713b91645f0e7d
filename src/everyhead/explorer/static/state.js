// What is shown stands in the address after '#', so that a link leads back to it.

const FIRST = {
  view: "overview",
  scene: 0,
  group: 0,
  layer: 0,
  head: 0,
  row: -1,
  column: -1,
  top: 0,
  left: 0,
  stat: "matrix",
  lang: "",
  theme: "",
  show: "both",
  round: 0,
  // compare: each side is scene.group.layer.head, or heads joined by + under a way to combine them
  a: "",
  b: "",
  mix: "one",
  heads: "",
  special: 1,
  from: "all",
  to: "all",
  step: 0,
};

export class State {
  /** `first`: what this page shows before anything is chosen. */
  constructor(first, onchange) {
    this.first = { ...FIRST, ...first };
    this.values = { ...this.first };
    this.onchange = onchange;
    this.read();
    window.addEventListener("hashchange", () => {
      if (this.read()) this.onchange();
    });
    window.addEventListener("popstate", () => {
      if (this.read()) this.onchange();
    });
  }

  get(name) {
    return this.values[name];
  }

  /** Change several values at once and draw anew; `quiet` only writes them down. */
  set(changes, { quiet = false, push = false } = {}) {
    Object.assign(this.values, changes);
    const hash = this.text();
    try {
      if (push) history.pushState(null, "", hash);
      else history.replaceState(null, "", hash);
    } catch {
      // A framed page has no address of its own.
    }
    if (!quiet) this.onchange();
  }

  text() {
    const told = new URLSearchParams();
    for (const [name, value] of Object.entries(this.values)) {
      if (String(value) !== String(this.first[name])) told.set(name, value);
    }
    return `#${told}`;
  }

  /** Take the address as it is now; true when something differs. */
  read() {
    const told = new URLSearchParams(location.hash.slice(1));
    const next = { ...this.first };
    for (const [name, first] of Object.entries(this.first)) {
      if (!told.has(name)) continue;
      const value = told.get(name);
      const whole = Number.parseInt(value, 10);
      if (typeof first !== "number") next[name] = value.slice(0, 4000);
      else if (Number.isInteger(whole)) next[name] = whole;
    }
    const changed = JSON.stringify(next) !== JSON.stringify(this.values);
    this.values = next;
    return changed;
  }
}

/** A number from the address, kept within what there is. */
export function within(value, count) {
  return Math.max(0, Math.min(count - 1, value));
}
