// The overview, for saving: every head of every group as it is drawn there, named by place.

import { isLong } from "./head.js";
import { groupTitle, say } from "./words.js";

const MOST_CELLS = 2_000_000;

export async function overviewShown({ scene, archive }) {
  const blocks = [];
  for (const group of scene.groups) {
    const thumbs = await archive.thumbs(group);
    blocks.push({ title: groupTitle(group), thumbs, layers: group.layers.map((layer) => layer.name) });
  }
  const panels = () => headPanels(scene, archive);
  return { title: scene.title, blocks, panels, peak: 1 };
}

/** The heads' numbers, as many as a file should hold. */
async function headPanels(scene, archive) {
  const panels = [];
  let cells = 0;
  for (const group of scene.groups.filter((each) => !isLong(each) || each.masks.length)) {
    for (const [l, layer] of group.layers.entries()) {
      for (let h = 0; h < layer.heads.length; h++) {
        cells += group.rows.length * group.columns.length;
        if (cells > MOST_CELLS) return panels;
        const head = await archive.head(group, l, h);
        const data = { ...head, rows: group.rows, columns: group.columns };
        panels.push({ data, caption: `${layer.name} ${say("head")} ${h}` });
      }
    }
  }
  return panels;
}
