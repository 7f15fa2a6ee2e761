// Unpacks what packing.py packed: one zlib stream of integer codes per layer, one largest value per layer (and head).
// value = code * largest / levels; every value is within largest / levels / 2 of the exact one.

const TYPES = { 8: Int8Array, 16: Int16Array };

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

async function inflate(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** One block of a packed array: all of a layer. `codes` has shape packed.shape without its first axis. */
export class Block {
  constructor(codes, packed, layer) {
    this.codes = codes;
    this.size = packed.shape.at(-1);
    this.cells = packed.shape.at(-2) * this.size;
    this.largest = [packed.largest[layer]].flat();
    this.levels = packed.levels;
  }

  /** The codes of one head (or of the layer, where there are no heads), row by row. */
  head(head) {
    return this.codes.subarray(head * this.cells, (head + 1) * this.cells);
  }

  step(head) {
    return this.largest[head] / this.levels;
  }

  value(head, row, column) {
    return this.codes[head * this.cells + row * this.size + column] * this.step(head);
  }
}

/** A packed array whose layers are unpacked when asked for, each once. */
export class Layers {
  constructor(packed) {
    this.packed = packed;
    this.blocks = new Map();
  }

  get(layer) {
    if (!this.blocks.has(layer)) this.blocks.set(layer, this.#unpack(layer));
    return this.blocks.get(layer);
  }

  async #unpack(layer) {
    const type = TYPES[this.packed.bits];
    return new Block(new type(await inflate(this.packed.blocks[layer])), this.packed, layer);
  }

  get largest() {
    return Math.max(...this.packed.largest.flat());
  }
}
