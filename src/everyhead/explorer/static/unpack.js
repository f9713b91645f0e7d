// Heads as they are packed by packing.py and factors.py, made numbers again when they are shown.
//
//   w[t, s] = code[t, s] / levels · peak[t]          or          softmax_s(q[t] · k[s])

const KEPT = 40;

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

export class Archive {
  /** `texts`: a function from a blob's number to its base64 text. */
  constructor(texts) {
    this.texts = texts;
    this.remote = null;
    this.heads = new Map();
    this.masks = new Map();
  }

  async bytes(id) {
    const packed = fromBase64(this.texts(id));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  /** One byte a cell, 1 = may look; null where everything may be looked at. */
  async mask(group, index) {
    const entry = group.masks[index];
    if (!entry) return null;
    if (!this.masks.has(entry)) {
      const bits = await this.bytes(entry.blob);
      const cells = new Uint8Array(group.rows.length * group.columns.length);
      for (let i = 0; i < cells.length; i++) cells[i] = (bits[i >> 3] >> (7 - (i & 7))) & 1;
      this.masks.set(entry, cells);
    }
    return this.masks.get(entry);
  }

  /** {weights: Float32Array (T·S), mask}; the last few heads are kept. */
  async head(group, layer, head) {
    const entry = group.layers[layer].heads[head];
    if (!this.heads.has(entry)) {
      const found = entry.form ? this.unpacked(group, entry) : this.asked(group, layer, head);
      this.heads.set(entry, found);
      found.catch(() => this.heads.delete(entry)); // what failed is asked for again
      if (this.heads.size > KEPT) this.heads.delete(this.heads.keys().next().value);
    }
    return this.heads.get(entry);
  }

  /** A head that the served page leaves to be asked for. */
  async asked(group, layer, head) {
    const found = await this.remote(group, layer, head, 0, 0);
    return { weights: found.weights, mask: found.mask };
  }

  async unpacked(group, entry) {
    const mask = await this.mask(group, entry.mask);
    const [rows, columns] = [group.rows.length, group.columns.length];
    const bytes = await this.bytes(entry.blob);
    if (entry.form === "factors") {
      return { mask, weights: fromFactors(bytes, entry, mask, rows, columns) };
    }
    const peaks = new Float32Array((await this.bytes(entry.peaks)).buffer);
    return { mask, weights: fromCodes(bytes, entry, mask, peaks, columns) };
  }

  /** q, k, v of one head as they were, or null where the page does not hold them. */
  async parts(group, layer, head) {
    const packed = group.layers[layer].heads[head];
    if (!packed.form && this.remote && !packed.parts) {
      packed.parts = (await this.remote(group, layer, head, 0, 0)).parts;
    }
    const entry = packed.parts;
    if (!entry) return null;
    const read = async (part) => {
      if (!part) return null;
      const codes = new Int16Array((await this.bytes(part.blob)).buffer);
      return Float32Array.from(codes, (c) => c * part.step);
    };
    const [q, k, v, bias] = await Promise.all([entry.q, entry.k, entry.v, entry.bias].map(read));
    return { q, k, v, bias, scale: entry.scale, width: entry.width, valueWidth: entry.valueWidth };
  }

  /** Small pictures of all heads of a group: [layer][head] → {width, height, cells}. */
  async thumbs(group) {
    const bytes = await this.bytes(group.thumbs.blob);
    const side = group.thumbs.side;
    const width = Math.min(side, group.columns.length);
    const height = Math.min(side, group.rows.length);
    let at = 0;
    return group.layers.map((layer) =>
      layer.heads.map(() => {
        const cells = bytes.subarray(at, at + width * height);
        at += width * height;
        return { width, height, cells };
      }),
    );
  }
}

function fromCodes(bytes, entry, mask, peaks, columns) {
  const weights = new Float32Array(peaks.length * columns);
  const above = new Uint8Array(columns);
  let at = 0;
  for (let t = 0; t < peaks.length; t++) {
    const scale = peaks[t] / entry.levels;
    for (let s = 0; s < columns; s++) {
      const i = t * columns + s;
      const seen = !mask || mask[i];
      let code = seen ? bytes[at++] : 0;
      if (entry.steps && seen) code = (code + above[s]) & 255;
      above[s] = code;
      weights[i] = code * scale;
    }
  }
  return weights;
}

function fromFactors(bytes, entry, mask, rows, columns) {
  const { width, step, low } = entry;
  const count = (rows + columns) * width;
  const numbers = new Float32Array(count);
  const high = new Int8Array(bytes.buffer, 0, count);
  let bit = 0;
  for (let i = 0; i < count; i++) {
    let rest = 0;
    for (let b = 0; b < low; b++, bit++) {
      rest = (rest << 1) | ((bytes[count + (bit >> 3)] >> (7 - (bit & 7))) & 1);
    }
    numbers[i] = (high[i] * 2 ** low + rest) * step;
  }
  return softmaxRows(numbers, mask, rows, columns, width);
}

function softmaxRows(numbers, mask, rows, columns, width) {
  const weights = new Float32Array(rows * columns);
  const keys = rows * width;
  for (let t = 0; t < rows; t++) {
    let peak = -Infinity;
    for (let s = 0; s < columns; s++) {
      const i = t * columns + s;
      if (mask && !mask[i]) continue;
      let score = 0;
      const [a, b] = [t * width, keys + s * width];
      for (let d = 0; d < width; d++) score += numbers[a + d] * numbers[b + d];
      weights[i] = score;
      if (score > peak) peak = score;
    }
    let sum = 0;
    for (let s = 0, i = t * columns; s < columns; s++, i++) {
      if (mask && !mask[i]) continue;
      weights[i] = Math.exp(weights[i] - peak);
      sum += weights[i];
    }
    for (let s = 0, i = t * columns; s < columns; s++, i++) if (sum) weights[i] /= sum;
  }
  return weights;
}
