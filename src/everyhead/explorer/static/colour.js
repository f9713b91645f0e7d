// Colours: one even ramp for weights, one for statistics, in light and in dark.

const LIGHT = ["#ffffff", "#ddf3e7", "#a9e1bf", "#63ceae", "#3496a9", "#3a5f9d", "#37295a", "#1f1530"];
const DARK = ["#12161d", "#1d2b45", "#28497a", "#2f6f9e", "#3a97a9", "#63ceae", "#b4ecc9", "#fbfffc"];
const COLD = [[43, 84, 150], [110, 153, 214]];
const WARM = [[200, 60, 22], [255, 150, 84]];

export function dark() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** 256 colours as [r, g, b], from no weight to all of it. */
export function ramp() {
  const stops = (dark() ? DARK : LIGHT).map(rgb);
  const colours = [];
  for (let i = 0; i < 256; i++) {
    const x = (i / 255) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(x));
    colours.push(blend(stops[low], stops[low + 1], x - low));
  }
  return colours;
}

/** 256 colours from paper to the ink that a statistic's share 0 … 1 has. */
export function inkRamp(share) {
  const paper = rgb(dark() ? DARK[0] : LIGHT[0]);
  const ink = blend(COLD[Number(dark())], WARM[Number(dark())], share);
  return Array.from({ length: 256 }, (_, i) => blend(paper, ink, i / 255));
}

export function inkOf(share) {
  return `rgb(${blend(COLD[Number(dark())], WARM[Number(dark())], share).map(Math.round)})`;
}

/** What may not be looked at: a grey that no weight has. */
export function hidden() {
  return dark() ? [52, 56, 64] : [226, 229, 234];
}

export function hatch() {
  return dark() ? "#4b515d" : "#b9bfca";
}

export function named(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function rgb(hex) {
  return [1, 3, 5].map((i) => Number.parseInt(hex.slice(i, i + 2), 16));
}

function blend(a, b, x) {
  return a.map((value, i) => value + (b[i] - value) * x);
}

/** One pixel a cell. `shade(i)` gives 0 … 255, or −1 where nothing may be looked at. */
export function picture(width, height, shade, colours) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const none = hidden();
  for (let i = 0; i < width * height; i++) {
    const level = shade(i);
    const [r, g, b] = level < 0 ? none : colours[level];
    image.data.set([r, g, b, 255], i * 4);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
