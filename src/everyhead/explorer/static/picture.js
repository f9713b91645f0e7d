// Attention over the picture: each patch tinted by what one query takes from it.

import { el, number } from "./dom.js";
import { say } from "./words.js";

const SIDE = 320;
const TINT = [[255, 227, 176], [240, 119, 31], [143, 29, 15]];

export class PictureView {
  /** group.picture {source, first, query}, group.grid [rows, columns]; choose(t): a patch. */
  constructor(group, data, choose) {
    this.group = group;
    this.data = data;
    this.canvas = el("canvas", { class: "overpicture", onclick: (event) => this.clicked(event, choose) });
    this.caption = el("p", { class: "quiet" });
    this.image = el("img", { class: "overpicture", alt: "" });
    const both = el("div", { class: "pictures" }, this.image, this.canvas);
    this.node = el("section", { class: "card picturecard" }, both, this.caption);
    this.query = -1;
    this.image.onload = () => this.draw();
    this.image.src = group.picture.source;
  }

  /** The row of this query; −1: of the one that says most. */
  show(t) {
    this.query = t;
    this.draw();
  }

  clicked(event, choose) {
    const [rows, columns] = this.group.grid;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    if (row >= 0 && row < rows && column >= 0 && column < columns) {
      choose(this.group.picture.first + row * columns + column);
    }
  }

  draw() {
    const { naturalWidth: width, naturalHeight: height } = this.image;
    if (!width) return;
    const scale = SIDE / Math.max(width, height);
    const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
    for (const shown of [this.canvas, this.image]) Object.assign(shown, { width: w, height: h });
    const context = this.canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.filter = "grayscale(1)";
    context.drawImage(this.image, 0, 0, w, h);
    context.filter = "none";
    const t = this.query >= 0 ? this.query : this.group.picture.query;
    this.tint(context, t, w, h);
    const name = this.data.rows[t];
    const shown = { name, share: number(this.onPatches(t)) };
    this.caption.textContent = say("overPicture", shown);
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", say("overPicture", shown));
  }

  weightsOf(t) {
    const [rows, columns] = this.group.grid;
    const { first } = this.group.picture;
    const start = t * this.data.columns.length + first;
    return this.data.weights.slice(start, start + rows * columns);
  }

  onPatches(t) {
    return this.weightsOf(t).reduce((sum, weight) => sum + weight, 0);
  }

  tint(context, t, width, height) {
    const [rows, columns] = this.group.grid;
    const weights = this.weightsOf(t);
    const peak = Math.max(1e-12, ...weights);
    const [w, h] = [width / columns, height / rows];
    weights.forEach((weight, i) => {
      const share = weight / peak;
      context.fillStyle = `rgba(${colour(share).join(",")},${0.85 * share})`;
      context.fillRect((i % columns) * w, Math.floor(i / columns) * h, w, h);
    });
    const place = t - this.group.picture.first;
    if (place < 0 || place >= weights.length) return;
    context.strokeStyle = "#1d4ed8";
    context.lineWidth = 3;
    context.strokeRect((place % columns) * w, Math.floor(place / columns) * h, w, h);
  }
}

function colour(share) {
  const x = share * (TINT.length - 1);
  const low = Math.min(TINT.length - 2, Math.floor(x));
  return TINT[low].map((value, i) => Math.round(value + (TINT[low + 1][i] - value) * (x - low)));
}
