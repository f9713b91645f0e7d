// Several heads as one matrix, and a matrix without some of its tokens.
//
//   mean, max over heads        rollout = Ã_l ⋯ Ã_1,  Ã = ½ A + ½ I    (Abnar & Zuidema 2020)

/** The chosen heads of a layer as one; `mix`: one, mean, max or rollout. */
export async function combined(archive, group, layer, { head, heads, mix }) {
  const shape = { rows: group.rows, columns: group.columns };
  if (mix === "one") return { ...(await archive.head(group, layer, head)), ...shape };
  if (mix === "rollout" && group.kind === "self") return rollout(archive, group, layer, heads);
  return over(archive, group, layer, heads, mix === "max");
}

async function over(archive, group, layer, heads, largest) {
  const weights = new Float32Array(group.rows.length * group.columns.length);
  const chosen = heads.filter((h) => h < group.layers[layer].heads.length);
  let mask = null;
  for (const [number, h] of chosen.entries()) {
    const one = await archive.head(group, layer, h);
    mask = number === 0 ? one.mask : either(mask, one.mask);
    for (let i = 0; i < weights.length; i++) {
      const w = one.weights[i];
      if (!largest) weights[i] += w / chosen.length;
      else if (w > weights[i]) weights[i] = w;
    }
  }
  return { weights, mask, rows: group.rows, columns: group.columns };
}

/** A cell may be looked at when one of the heads may. */
function either(a, b) {
  return a && b ? a.map((seen, i) => seen | b[i]) : null;
}

async function rollout(archive, group, layer, heads) {
  const n = group.rows.length;
  let reached = identity(n);
  for (let l = 0; l <= layer; l++) {
    const mean = await over(archive, group, l, heads, false);
    reached = times(withResidual(mean.weights, n), reached, n);
  }
  return { weights: reached, mask: null, rows: group.rows, columns: group.columns };
}

function identity(n) {
  const matrix = new Float32Array(n * n);
  for (let i = 0; i < n; i++) matrix[i * n + i] = 1;
  return matrix;
}

/** ½ A + ½ I, rows summing to 1; a row that sees nothing keeps itself. */
function withResidual(weights, n) {
  const matrix = new Float32Array(n * n);
  for (let t = 0; t < n; t++) {
    let sum = 0;
    for (let s = 0; s < n; s++) sum += weights[t * n + s];
    for (let s = 0; s < n; s++) matrix[t * n + s] = sum ? (0.5 * weights[t * n + s]) / sum : 0;
    matrix[t * n + t] += sum ? 0.5 : 1;
  }
  return matrix;
}

function times(a, b, n) {
  const product = new Float32Array(n * n);
  for (let t = 0; t < n; t++) {
    for (let j = 0; j < n; j++) {
      const share = a[t * n + j];
      if (share === 0) continue;
      for (let s = 0; s < n; s++) product[t * n + s] += share * b[j * n + s];
    }
  }
  return product;
}

/** Rows and columns that the filters leave: special tokens out, from one sentence to the other. */
export function filtered(data, group, { special, from, to }) {
  const keep = (side, wanted) =>
    data[side].map((_, i) => i).filter((i) => {
      if (!special && group.special?.[side]?.[i]) return false;
      return wanted === "all" || !group.segments || String(group.segments[side][i]) === wanted;
    });
  const [rows, columns] = [keep("rows", from), keep("columns", to)];
  const n = data.columns.length;
  const weights = new Float32Array(rows.length * columns.length);
  const mask = data.mask ? new Uint8Array(weights.length) : null;
  rows.forEach((t, a) => {
    let sum = 0;
    columns.forEach((s, b) => {
      const [i, at] = [t * n + s, a * columns.length + b];
      weights[at] = data.weights[i];
      if (mask) mask[at] = data.mask[i];
      sum += data.weights[i];
    });
    // Shares of what is left, where special tokens were taken away.
    if (special || !sum) return;
    for (let b = 0; b < columns.length; b++) weights[a * columns.length + b] /= sum;
  });
  const texts = { rows: rows.map((t) => data.rows[t]), columns: columns.map((s) => data.columns[s]) };
  return { weights, mask, ...texts };
}
