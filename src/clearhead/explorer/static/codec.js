// Unpacks what packing.py packed: one zlib stream of integer codes per layer, one largest value per layer (and head).
// value = code * largest / levels; every value is within largest / levels / 2 of the exact one.

const TYPES = { 8: Int8Array, 16: Int16Array };

export function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

async function inflate(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** A packed array whose layers are unpacked when asked for, each once. `text` gives the base64 of what stands in
 * packed.blocks (the text itself, or where it is). */
export class Layers {
  constructor(packed, text = (block) => block) {
    this.packed = packed;
    this.text = text;
    this.blocks = new Map();
    this.rows = packed.shape.at(-2);
    this.columns = packed.shape.at(-1);
  }

  /** The integer codes of a layer, all heads. */
  layer(layer) {
    if (!this.blocks.has(layer)) this.blocks.set(layer, this.#unpack(layer));
    return this.blocks.get(layer);
  }

  async #unpack(layer) {
    const type = TYPES[this.packed.bits];
    return new type(await inflate(await this.text(this.packed.blocks[layer])));
  }

  /** {codes, step, largest} of one head (of the layer, where there are no heads). */
  async head(layer, head) {
    const codes = await this.layer(layer);
    const cells = this.rows * this.columns;
    const largest = [this.packed.largest[layer]].flat()[head];
    return { codes: codes.subarray(head * cells, (head + 1) * cells), step: largest / this.packed.levels, largest };
  }

  get largest() {
    return Math.max(...this.packed.largest.flat());
  }
}
