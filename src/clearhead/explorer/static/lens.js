// How the tokens are shown: as pieces or as words, with the special tokens of the template kept, dropped or grouped.
// Numbers follow: sums over keys, means over queries (as Map.by_word in Python); dropped tokens are left out, and the
// rest is not scaled up.

export class Lens {
  constructor(payload, units, specials) {
    const pieces = payload.tokens.map((token, i) => ({ ...token, pieces: [[i, 1]] }));
    const all = units === "words" ? payload.words : pieces;
    const added = all.filter(({ origin }) => origin === "template");
    this.n = payload.tokens.length;
    this.plain = units === "pieces" && (specials === "kept" || !added.length);
    this.words = units === "words";
    this.dropped = specials === "dropped" ? added.flatMap((one) => one.pieces.map(([i]) => i)) : [];
    this.entries = specials === "kept" ? all : all.filter(({ origin }) => origin !== "template");
    if (!this.entries.length) this.entries = all;
    if (specials === "grouped" && added.length) {
      const shown = added.length === 1 ? added[0].shown : `special (${added.length})`;
      const group = { shown, origin: "template", space: true, breaks: false, pieces: added.flatMap((one) => one.pieces) };
      this.entries = [...this.entries, { ...group, about: added.map((one) => one.shown).join(" ") }];
    }
    this.places = Array.from({ length: this.n }, () => []);
    this.entries.forEach((one, entry) => one.pieces.forEach(([piece, weight]) => this.places[piece].push([entry, weight])));
    this.size = this.entries.length;
  }

  /** The entry that holds a token; -1 where it is dropped. */
  entryOf(token) {
    return this.places[token][0]?.[0] ?? -1;
  }

  /** [[token, weight]] whose rows make the row of an entry, the weights summing to 1; of the token itself for -1. */
  #mean(entry, token) {
    if (entry < 0) return [[token, 1]];
    const { pieces } = this.entries[entry];
    const total = pieces.reduce((sum, [, weight]) => sum + weight, 0);
    return pieces.map(([piece, weight]) => [piece, weight / total]);
  }

  /** The row of a token's entry: value(query, key) over tokens -> Float64Array over entries. */
  row(value, token) {
    const out = new Float64Array(this.size);
    for (const [query, share] of this.#mean(this.entryOf(token), token)) {
      for (let key = 0; key < this.n; key++) for (const [entry, weight] of this.places[key]) out[entry] += share * weight * value(query, key);
    }
    return out;
  }

  /** The same for each layer at once, from a source. */
  async rows(source, token, head) {
    const mean = this.#mean(this.entryOf(token), token);
    const found = await Promise.all(mean.map(([query]) => source.rows(query, head)));
    return Array.from({ length: source.layers }, (_, layer) => {
      const out = new Float64Array(this.size);
      mean.forEach(([, share], i) => found[i][layer].forEach((value, key) => {
        for (const [entry, weight] of this.places[key]) out[entry] += share * weight * value;
      }));
      return out;
    });
  }

  /** What of a token's row falls on dropped tokens. */
  lost(value, token) {
    return this.#mean(this.entryOf(token), token).reduce((sum, [query, share]) => sum + share * this.dropped.reduce((part, key) => part + value(query, key), 0), 0);
  }

  /** A whole head over entries. */
  cells(cells) {
    if (this.plain) return cells;
    const { n, size } = this;
    const out = new Float64Array(size * size);
    for (let row = 0; row < size; row++) {
      for (const [query, share] of this.#mean(row)) {
        for (let key = 0; key < n; key++) {
          const value = share * cells.at(query * n + key);
          for (const [entry, weight] of this.places[key]) out[row * size + entry] += weight * value;
        }
      }
    }
    return { values: out, at: (i) => out[i], step: cells.step, largest: out.reduce((most, value) => Math.max(most, Math.abs(value)), 0) };
  }

  /** Whether an entry may see another, from the mask over tokens (null: all). */
  visible(mask) {
    if (!mask || this.plain) return mask;
    const seen = new Uint8Array(this.size ** 2);
    this.entries.forEach((one, row) => one.pieces.forEach(([query]) => {
      for (let key = 0; key < this.n; key++) if (mask(query, key)) for (const [entry] of this.places[key]) seen[row * this.size + entry] = 1;
    }));
    return (query, key) => seen[query * this.size + key] === 1;
  }
}
