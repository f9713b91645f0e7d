// The overview as panels, for saving: every head of the first group that fits on a picture.

import { titleOf } from "./head.js";

const MOST = 24;

export async function overviewShown({ scene, archive }) {
  const panels = [];
  const group = scene.groups[0];
  for (const [l, layer] of group.layers.entries()) {
    for (let h = 0; h < layer.heads.length && panels.length < MOST; h++) {
      const head = await archive.head(group, l, h);
      const data = { ...head, rows: group.rows, columns: group.columns };
      panels.push({ data, caption: titleOf(group, l, h) });
    }
  }
  return { title: scene.title, panels, peak: 1 };
}
