// Where the numbers of a map come from: packed in the file, or asked for, head by head and row by row.

import { Layers } from "./codec.js";

/** The numbers of one head: `values` row by row (cell i = query * n + key), each within step / 2 of the exact one. */
function cellsOf(values, step, largest, codes = null) {
  return { values, step, largest, codes, at: (i) => values[i] };
}

function unpacked({ codes, step, largest }) {
  const values = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) values[i] = codes[i] * step;
  return cellsOf(values, step, largest, codes);
}

/** What `make(name)` gives, the latest few kept. */
class Latest {
  constructor(most) {
    this.most = most;
    this.known = new Map();
  }

  get(name, make) {
    if (!this.known.has(name)) {
      if (this.known.size >= this.most) this.known.delete(this.known.keys().next().value);
      const made = make();
      this.known.set(name, made);
      made.catch(() => this.known.delete(name));
    }
    return this.known.get(name);
  }
}

/** A map that lies in the file. */
class PackedSource {
  constructor(entry, text) {
    this.entry = entry;
    this.values = new Layers(entry.values, text);
    this.errors = entry.stderr && new Layers(entry.stderr, text);
    this.layers = entry.values.shape[0];
    this.n = this.values.columns;
    this.largest = this.values.largest;
    this.latest = new Latest(4);
  }

  #head(head) {
    return this.entry.heads && !this.entry.mean_of ? head : 0;
  }

  async cells(layer, head) {
    const own = this.#head(head);
    return this.latest.get(`${layer}/${own}`, async () => unpacked(await this.values.head(layer, own)));
  }

  async error(layer, head) {
    return this.errors && unpacked(await this.errors.head(layer, this.#head(head)));
  }

  /** [layer] -> the row of one query, all keys. */
  async rows(query, head) {
    const layers = Array.from({ length: this.layers }, (_, layer) => this.values.head(layer, this.#head(head)));
    return (await Promise.all(layers)).map(({ codes, step }) => Float64Array.from(codes.subarray(query * this.n, (query + 1) * this.n), (code) => code * step));
  }

  /** Gets a layer ready, so that showing it only paints. */
  async ahead(layer) {
    await Promise.all([this.values.layer(layer), this.errors?.layer(layer)]);
  }
}

/** A map whose numbers are asked for; `bytes(question)` answers with 32-bit floats. Answers are kept. */
class RemoteSource {
  constructor(entry, bytes) {
    this.entry = entry;
    this.bytes = bytes;
    this.layers = entry.values.shape[0];
    this.n = entry.values.shape.at(-1);
    this.largest = Math.max(...entry.values.largest.flat());
    this.latest = new Latest(60);
  }

  #ask(question) {
    const ask = () => this.bytes({ map: this.entry.id ?? this.entry.key, ...question });
    return this.latest.get(JSON.stringify(question), async () => new Float32Array(await ask()));
  }

  async cells(layer, head, part = "value") {
    const own = this.entry.heads ? head : 0;
    const values = await this.#ask({ part, layer, head: own });
    return cellsOf(values, 0, part === "value" ? [this.entry.values.largest[layer]].flat()[own] : 0);
  }

  async error(layer, head) {
    return this.entry.stderr ? this.cells(layer, head, "stderr") : null;
  }

  async rows(query, head) {
    const values = await this.#ask({ part: "value", query, head: this.entry.heads ? head : 0 });
    return Array.from({ length: this.layers }, (_, layer) => values.subarray(layer * this.n, (layer + 1) * this.n));
  }

  async ahead() {}
}

/** One map minus another (raw − effective: the null-space part). */
class DifferenceSource {
  constructor(entry, one, other) {
    Object.assign(this, { entry, one, other, layers: one.layers, n: one.n, largest: one.largest, latest: new Latest(4) });
  }

  cells(layer, head) {
    return this.latest.get(`${layer}/${head}`, () => this.#difference(layer, head));
  }

  async #difference(layer, head) {
    const [a, b] = await Promise.all([this.one.cells(layer, head), this.other.cells(layer, head)]);
    const { step, largest } = a; // the same for both: where they are equal, their difference is 0
    const [one, other, scale] = a.codes ? [a.codes, b.codes, step] : [a.values, b.values, 1];
    const values = new Float32Array(one.length);
    for (let i = 0; i < one.length; i++) values[i] = (one[i] - other[i]) * scale;
    return cellsOf(values, step, largest);
  }

  async error() {
    return null;
  }

  async rows(query, head) {
    const [a, b] = await Promise.all([this.one.rows(query, head), this.other.rows(query, head)]);
    return a.map((row, layer) => row.map((value, key) => value - b[layer][key]));
  }

  async ahead() {}
}

/** What every door can do; `make(entry)` gives the source of a map that has values. */
class Door {
  open(payload) {
    this.payload = payload;
    this.sources = new Map();
    const { points } = payload;
    this.at = points && new Layers(points.at, (block) => this.text(block));
    this.norms = points && new Layers(points.norms, (block) => this.text(block));
  }

  entry(key) {
    return this.payload.maps.find((one) => one.key === key);
  }

  /** The source of a map that is there; null where it must be computed first or is not to be had. */
  ready(key) {
    const entry = this.entry(key);
    if (!entry?.values) return null;
    if (!this.sources.has(key)) {
      const parts = entry.values.of?.map((part) => this.ready(part));
      this.sources.set(key, parts ? new DifferenceSource(entry, ...parts) : this.make(entry));
    }
    return this.sources.get(key);
  }

  async source(key) {
    const source = this.ready(key);
    if (!source) throw new Error(`${this.entry(key)?.title ?? key} is ${this.entry(key)?.reason ?? "not known here"}.`);
    return source;
  }

  /** The joint query-key map of a head by PCA, as the payload has it. */
  async points(layer, head) {
    const n = this.payload.tokens.length;
    const [{ codes, step }, norms] = await Promise.all([this.at.head(layer, head), this.norms.head(layer, head)]);
    const { scale, agreement, kept } = this.payload.points;
    return {
      x: Float64Array.from({ length: 2 * n }, (_, i) => codes[2 * i] * step),
      y: Float64Array.from({ length: 2 * n }, (_, i) => codes[2 * i + 1] * step),
      norms: Float64Array.from(norms.codes, (code) => code * norms.step),
      scale: scale[layer][head], agreement: agreement[layer][head], kept: kept[layer][head],
    };
  }
}

/** The door of a file: everything lies in the page, in elements that may still be on their way. */
export class FileDoor extends Door {
  computes = false;
  linked = location.protocol !== "about:"; // inside a frame of a notebook the page has no address of its own

  make(entry) {
    return new PackedSource(entry, (block) => this.text(block));
  }

  async text(id) {
    let element = document.getElementById(id);
    while (!element?.nextElementSibling && document.readyState === "loading") {
      await new Promise((again) => setTimeout(again, 4));
      element = document.getElementById(id);
    }
    return element.textContent;
  }
}

/** A door with a machine behind it. `machine` = {job(task, progress) -> result, bytes(question) -> ArrayBuffer}. */
export class RemoteDoor extends Door {
  computes = true;

  constructor(machine, linked) {
    super();
    this.machine = machine;
    this.linked = linked;
  }

  make(entry) {
    return new RemoteSource(entry, (question) => this.machine.bytes(question));
  }

  async text(block) {
    return block;
  }

  async source(key, progress) {
    const entry = this.entry(key);
    if (entry && !entry.values && entry.compute) {
      const told = await this.machine.job({ task: "map", method: entry.method }, progress);
      Object.assign(entry, told, { key });
    }
    return super.source(key);
  }

  /** A method with other options than its own: a further map; its key. */
  async compute(method, options, progress) {
    const told = await this.machine.job({ task: "map", method, options }, progress);
    const given = Object.entries(options).map(([name, value]) => `${name} ${value}`).join(", ");
    const entry = { ...told, key: told.id, title: `${told.title} (${given})`, options_given: true };
    if (!this.entry(entry.key)) this.payload.maps.push(entry);
    return entry.key;
  }

  interval(layer, head, query) {
    return this.machine.job({ task: "interval", layer, head, query });
  }

  async points(layer, head, kind, progress) {
    if (kind === "pca") return super.points(layer, head);
    const { at, norms, ...told } = await this.machine.job({ task: "points", layer, head, kind }, progress);
    return { ...told, norms: norms.flat(), x: at.flat().map(([x]) => x), y: at.flat().map(([, y]) => y) };
  }
}


