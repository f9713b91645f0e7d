// Token to token: queries on the left, keys on the right, a line for what each query takes.

import { el, namedToken, number, svg } from "./dom.js";
import { say } from "./words.js";

const LINE = 24;
const BUCKETS = 10;
const MOST_LINES = 1500;
const MANY = 120;

export class LinesView {
  /** data: {weights, mask, rows, columns}; choose(t) is told the query that was clicked. */
  constructor(data, { row, choose, hover }) {
    this.data = data;
    this.chosen = row >= 0 && row < data.rows.length ? row : -1;
    this.choose = choose;
    this.hover = hover;
    this.side = "row";
    this.at = this.chosen;
    this.node = this.make();
    this.draw();
  }

  make() {
    const { rows, columns } = this.data;
    const height = LINE * Math.max(rows.length, columns.length);
    this.left = rows.map((text, i) => this.item(text, i, "row"));
    this.right = columns.map((text, i) => this.item(text, i, "column"));
    this.paths = svg("svg", { width: 180, height, "aria-hidden": "true", class: "wires" });
    const list = (items, label, side) => el("ul", { class: `tokens ${side}`, "aria-label": label }, items);
    const shown = el(
      "div",
      { class: "lines" },
      list(this.left, say("queries"), "queries"),
      this.paths,
      list(this.right, say("keys"), "keys"),
    );
    shown.addEventListener("mouseleave", () => this.show("row", this.chosen));
    return shown;
  }

  item(text, i, side) {
    const value = el("span", { class: "value" });
    const press = el(
      "button",
      {
        type: "button",
        onmouseenter: () => this.show(side, i),
        onfocus: () => this.show(side, i),
        onclick: () => this.press(side, i),
      },
      namedToken(text, say("blankToken")),
    );
    const node = el("li", {}, side === "row" ? [value, press] : [press, value]);
    node.value_ = value;
    return node;
  }

  press(side, i) {
    if (side !== "row") return this.show(side, i);
    this.chosen = this.chosen === i ? -1 : i;
    this.choose?.(this.chosen);
    this.show("row", this.chosen === -1 ? -1 : i);
  }

  show(side, i) {
    if (this.side === side && this.at === i) return;
    this.side = side;
    this.at = i;
    this.draw();
    this.hover?.(side, i);
  }

  draw() {
    const { weights, mask, rows, columns } = this.data;
    const wires = this.wires();
    const alone = this.at >= 0;
    const peak = alone ? Math.max(1e-12, ...wires.map((wire) => wire[2])) : 1;
    const buckets = Array.from({ length: BUCKETS }, () => []);
    for (const [t, s, w] of wires) {
      const shade = Math.min(BUCKETS - 1, Math.floor((w / peak) * BUCKETS));
      const [y1, y2] = [(t + 0.5) * LINE, (s + 0.5) * LINE];
      buckets[shade].push(`M0 ${y1}C80 ${y1} 100 ${y2} 180 ${y2}`);
    }
    this.paths.replaceChildren(
      ...buckets.map((parts, i) =>
        svg("path", { d: parts.join(""), "stroke-opacity": ((i + 1) / BUCKETS).toFixed(2) }),
      ),
    );
    this.left.forEach((node, t) => this.mark(node, "row", t));
    this.right.forEach((node, s) => this.mark(node, "column", s));
    this.numbers(weights, mask, rows.length, columns.length);
  }

  /** [t, s, w] of the lines to draw: of the chosen token all, otherwise the strongest. */
  wires() {
    const { weights, mask, rows, columns } = this.data;
    const [m, n] = [rows.length, columns.length];
    const found = [];
    const take = (t, s, least) => {
      const i = t * n + s;
      if ((!mask || mask[i]) && weights[i] > least) found.push([t, s, weights[i]]);
    };
    if (this.at >= 0 && this.side === "row") {
      for (let s = 0; s < n; s++) take(this.at, s, 0.002);
    } else if (this.at >= 0) {
      for (let t = 0; t < m; t++) take(t, this.at, 0.002);
    } else if (Math.max(m, n) <= MANY) {
      // What stands out: above the even share, which would draw everything everywhere.
      const least = Math.max(0.02, 1.5 / n);
      for (let t = 0; t < m; t++) for (let s = 0; s < n; s++) take(t, s, least);
      found.sort((a, b) => b[2] - a[2]);
    }
    return found.slice(0, MOST_LINES);
  }

  mark(node, side, i) {
    node.classList.toggle("on", this.side === side && this.at === i);
    node.classList.toggle("chosen", side === "row" && this.chosen === i);
  }

  /** Beside each token of the other side its weight, as a number and as a shade. */
  numbers(weights, mask, m, n) {
    const tell = (node, i) => {
      const seen = !mask || mask[i];
      node.value_.textContent = seen ? number(weights[i]) : say("hiddenShort");
      node.classList.toggle("masked", !seen);
      node.style.setProperty("--share", seen ? weights[i] : 0);
    };
    const clear = (node) => {
      node.value_.textContent = "";
      node.classList.remove("masked");
      node.style.setProperty("--share", 0);
    };
    this.left.forEach((node, t) => {
      if (this.side === "column" && this.at >= 0) tell(node, t * n + this.at);
      else clear(node);
    });
    this.right.forEach((node, s) => {
      if (this.side === "row" && this.at >= 0) tell(node, this.at * n + s);
      else clear(node);
    });
  }
}
