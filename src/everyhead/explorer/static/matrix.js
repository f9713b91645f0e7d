// One matrix on a canvas: zoom, pan, a cell that the mouse or the arrow keys choose.

import { STRIP, drawBuckets, drawOver } from "./drawing.js";
import { hatch, named, picture, ramp } from "./colour.js";
import { announce, button, el, number } from "./dom.js";
import { say } from "./words.js";

const LARGEST = 42;
const LABEL = 110;

/** Room beside and above the cells for the longest labels. */
function edges(rows, columns) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `13px ${named("--font")}`;
  const longest = (texts) =>
    Math.min(LABEL, texts.reduce((most, text) => Math.max(most, pen.measureText(text.slice(0, 60)).width), 12));
  return { left: longest(rows) + 10, top: longest(columns) + 10, right: 8, bottom: 8 };
}

export class MatrixView {
  /** data: {weights, mask, rows, columns}; peak: the weight with the darkest colour. */
  constructor(data, { peak, width, choose, hover, round = 0 }) {
    this.data = data;
    this.round = round;
    this.edge = edges(data.rows, data.columns);
    this.strip = data.drawing?.kind === "hashing" ? STRIP : 0;
    this.edge.left += this.strip;
    this.edge.top += this.strip;
    this.peak = peak || 1;
    this.choose = choose;
    this.hover = hover;
    this.cursor = null;
    this.pinned = null;
    const [m, n] = [data.rows.length, data.columns.length];
    const room = width - this.edge.left - this.edge.right;
    this.fitted = Math.min(LARGEST, room / n, Math.max(520 / m, 1));
    this.zoom = this.fitted;
    this.width = Math.ceil(Math.min(width, this.edge.left + this.edge.right + this.fitted * n));
    this.height = Math.ceil(this.edge.top + this.edge.bottom + this.fitted * m);
    this.x = this.y = 0;
    this.image = this.drawCells();
    this.node = this.makeNode();
    this.draw();
  }

  drawCells() {
    const { weights, mask, rows, columns } = this.data;
    const shade = (i) => {
      if (mask && !mask[i]) return -1;
      return Math.min(255, Math.round((255 * weights[i]) / this.peak));
    };
    return picture(columns.length, rows.length, shade, ramp());
  }

  makeNode() {
    const canvas = (this.canvas = el("canvas", {
      tabindex: 0,
      role: "application",
      "aria-label": say("matrixHelp"),
      class: "matrix",
      onkeydown: (event) => this.key(event),
      onwheel: (event) => this.wheel(event),
      onpointerdown: (event) => this.down(event),
      onpointermove: (event) => this.move(event),
      onpointerleave: () => this.leave(),
    }));
    const scale = Math.min(3, Math.max(1, devicePixelRatio || 1));
    canvas.width = this.width * scale;
    canvas.height = this.height * scale;
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${this.height}px`;
    this.context = canvas.getContext("2d");
    this.scale = scale;
    const tools = el(
      "div",
      { class: "tools" },
      button("+", () => this.zoomBy(1.5), { "aria-label": say("zoomIn") }),
      button("−", () => this.zoomBy(1 / 1.5), { "aria-label": say("zoomOut") }),
      button(say("fit"), () => this.fit()),
      el("span", { class: "quiet" }, say("matrixHint")),
    );
    return el("div", { class: "matrixbox" }, tools, canvas);
  }

  draw() {
    const { context: pen, data, zoom } = this;
    const [m, n] = [data.rows.length, data.columns.length];
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.save();
    pen.beginPath();
    pen.rect(this.edge.left, this.edge.top, this.width - this.edge.left - this.edge.right, this.height - this.edge.top - this.edge.bottom);
    pen.clip();
    pen.imageSmoothingEnabled = false;
    const [left, top] = [this.edge.left - this.x, this.edge.top - this.y];
    pen.drawImage(this.image, left, top, n * zoom, m * zoom);
    if (data.mask) this.drawHidden(pen, left, top);
    if (zoom >= 10) this.drawLattice(pen, left, top);
    const at = { left, top, zoom, m, n };
    if (data.drawing) drawOver(pen, data.drawing, at);
    for (const [cell, strong] of [[this.pinned, true], [this.cursor, false]]) {
      if (!cell) continue;
      pen.strokeStyle = named(strong ? "--warm" : "--ink");
      pen.lineWidth = 2;
      const size = Math.max(zoom, 3);
      pen.strokeRect(left + cell[1] * zoom, top + cell[0] * zoom, size, size);
    }
    pen.restore();
    drawBuckets(pen, data.drawing, this.round, this.edge, at, this);
    this.labels(pen, left, top);
  }

  drawLattice(pen, left, top) {
    const [m, n] = [this.data.rows.length, this.data.columns.length];
    pen.strokeStyle = named("--card");
    pen.lineWidth = 1;
    pen.beginPath();
    for (let t = 0; t <= m; t++) {
      pen.moveTo(left, top + t * this.zoom);
      pen.lineTo(left + n * this.zoom, top + t * this.zoom);
    }
    for (let s = 0; s <= n; s++) {
      pen.moveTo(left + s * this.zoom, top);
      pen.lineTo(left + s * this.zoom, top + m * this.zoom);
    }
    pen.stroke();
  }

  /** Hatching over what may not be looked at, where cells are large enough to carry it. */
  drawHidden(pen, left, top) {
    const { zoom, data } = this;
    if (zoom < 6) return;
    pen.strokeStyle = hatch();
    pen.lineWidth = 1;
    pen.beginPath();
    const n = data.columns.length;
    data.mask.forEach((seen, i) => {
      if (seen) return;
      const [x, y] = [left + (i % n) * zoom, top + Math.floor(i / n) * zoom];
      pen.moveTo(x, y + zoom);
      pen.lineTo(x + zoom, y);
    });
    pen.stroke();
  }

  /** Token labels beside and above, as many as find room. */
  labels(pen, left, top) {
    const { zoom, data } = this;
    const size = Math.max(9, Math.min(13, zoom * 0.75));
    const every = Math.max(1, Math.ceil((size + 3) / zoom));
    pen.font = `${size}px ${named("--font")}`;
    pen.textBaseline = "middle";
    const cell = this.cursor || this.pinned;
    const shown = (i, marked) => i % every === 0 ? !(marked >= 0 && Math.abs(i - marked) < every) : false;
    const write = (i, text, place, marked) => {
      const is = i === marked;
      if (!is && !shown(i, marked ?? -9)) return;
      pen.fillStyle = named(is ? "--warm" : "--ink");
      place(shortened(pen, text, LABEL));
    };
    data.rows.forEach((text, t) => {
      const y = top + (t + 0.5) * zoom;
      if (y < this.edge.top || y > this.height - this.edge.bottom) return;
      pen.textAlign = "right";
      write(t, text, (label) => pen.fillText(label, this.edge.left - this.strip - 6, y), cell?.[0]);
    });
    data.columns.forEach((text, s) => {
      const x = left + (s + 0.5) * zoom;
      if (x < this.edge.left || x > this.width - this.edge.right) return;
      pen.save();
      pen.translate(x, this.edge.top - this.strip - 6);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      write(s, text, (label) => pen.fillText(label, 0, 0), cell?.[1]);
      pen.restore();
    });
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const s = Math.floor((event.clientX - box.left - this.edge.left + this.x) / this.zoom);
    const t = Math.floor((event.clientY - box.top - this.edge.top + this.y) / this.zoom);
    const inside = t >= 0 && s >= 0 && t < this.data.rows.length && s < this.data.columns.length;
    const beside = event.clientX - box.left < this.edge.left || event.clientY - box.top < this.edge.top;
    return inside && !beside ? [t, s] : null;
  }

  down(event) {
    this.canvas.focus();
    this.drag = { x: event.clientX + this.x, y: event.clientY + this.y, far: false };
    this.canvas.setPointerCapture(event.pointerId);
    const end = () => {
      const cell = this.at(event);
      if (this.drag && !this.drag.far && cell) this.pin(cell);
      this.drag = null;
    };
    this.canvas.addEventListener("pointerup", end, { once: true });
  }

  move(event) {
    if (this.drag) {
      const [x, y] = [this.drag.x - event.clientX, this.drag.y - event.clientY];
      if (Math.abs(x - this.x) + Math.abs(y - this.y) > 3 || this.drag.far) {
        this.drag.far = true;
        this.panTo(x, y);
      }
      return;
    }
    this.point(this.at(event));
  }

  leave() {
    if (!this.drag) this.point(null);
  }

  point(cell) {
    if (String(cell) === String(this.cursor)) return;
    this.cursor = cell;
    this.draw();
    this.hover?.(cell);
  }

  pin(cell) {
    this.pinned = cell;
    this.draw();
    this.choose?.(cell);
  }

  key(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const move = moves[event.key];
    const cell = this.cursor || this.pinned || [0, 0];
    if (move) {
      const next = [cell[0] + move[0], cell[1] + move[1]];
      if (next[0] < 0 || next[1] < 0) return event.preventDefault();
      if (next[0] < this.data.rows.length && next[1] < this.data.columns.length) {
        this.reveal(next);
        this.point(next);
        announce(this.spoken(next));
      }
    } else if (event.key === "Enter" || event.key === " ") this.pin(cell);
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.5);
    else if (event.key === "-") this.zoomBy(1 / 1.5);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  spoken([t, s]) {
    const { rows, columns, weights, mask } = this.data;
    const i = t * columns.length + s;
    const value = mask && !mask[i] ? say("mayNotLook") : number(weights[i]);
    return `${rows[t]} → ${columns[s]}: ${value}`;
  }

  wheel(event) {
    if (!(event.ctrlKey || event.metaKey || event.shiftKey)) return;
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    const turn = event.deltaY || event.deltaX;
    this.zoomBy(turn < 0 ? 1.2 : 1 / 1.2, event.clientX - box.left - this.edge.left, event.clientY - box.top - this.edge.top);
  }

  zoomBy(factor, x = 0, y = 0) {
    const zoom = Math.max(this.fitted, Math.min(60, this.zoom * factor));
    const ratio = zoom / this.zoom;
    this.zoom = zoom;
    this.panTo((this.x + x) * ratio - x, (this.y + y) * ratio - y);
  }

  panTo(x, y) {
    const roomX = this.width - this.edge.left - this.edge.right;
    const roomY = this.height - this.edge.top - this.edge.bottom;
    this.x = Math.max(0, Math.min(x, this.data.columns.length * this.zoom - roomX));
    this.y = Math.max(0, Math.min(y, this.data.rows.length * this.zoom - roomY));
    this.draw();
  }

  reveal([t, s]) {
    const roomX = this.width - this.edge.left - this.edge.right;
    const roomY = this.height - this.edge.top - this.edge.bottom;
    const within = (at, offset, room) => Math.min(Math.max(offset, (at + 1) * this.zoom - room), at * this.zoom);
    this.panTo(within(s, this.x, roomX), within(t, this.y, roomY));
  }

  fit() {
    this.zoom = this.fitted;
    this.panTo(0, 0);
  }
}

export function shortened(pen, text, room) {
  const shown = text.replace(/\s/gu, "␣").slice(0, 200) || "∅";
  if (pen.measureText(shown).width <= room) return shown;
  const letters = [...shown];
  let [low, high] = [0, letters.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    const short = `${letters.slice(0, middle).join("")}…`;
    if (pen.measureText(short).width <= room) low = middle;
    else high = middle - 1;
  }
  return `${letters.slice(0, low).join("")}…`;
}
