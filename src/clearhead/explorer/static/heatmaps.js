// Heat maps of one head: raw, effective and null-space attention side by side, or any one map large; one row in figures.

import { gradient } from "./colour.js";
import { figure, h, picker, tokenText } from "./dom.js";
import { Progress, takeaway } from "./figures.js";
import { Matrix, svgOfMatrices } from "./matrix.js";
import { placeOf, visibility } from "./picker.js";

const THREE = ["raw", "effective", "null"];
const DWELL = 220; // milliseconds that the pointer rests on a row before its intervals are asked for

/** Intervals of the rows that were pointed at: asked for once the pointer rests, kept. */
class Intervals {
  constructor(door, told) {
    this.door = door;
    this.told = told;
    this.known = new Map();
  }

  get({ layer, head }, query) {
    return this.known.get(`${layer}/${head}/${query}`);
  }

  want({ layer, head }, query) {
    clearTimeout(this.waiting);
    if (!this.door.computes || this.get({ layer, head }, query)) return;
    this.waiting = setTimeout(async () => {
      const name = `${layer}/${head}/${query}`;
      this.known.set(name, { busy: true });
      this.told();
      this.known.set(name, await this.door.interval(layer, head, query).catch((error) => ({ error: error.message })));
      this.told();
    }, DWELL);
  }
}

export function matrices(page, store) {
  const { payload, door } = page;
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  const legend = h("div", { class: "legend" });
  const progress = new Progress();
  const intervals = new Intervals(door, () => read(hover));
  let cells = {}; // by key, over the entries of the lens
  let visible = null;
  let hover = null;
  const events = {
    hover: (query, key) => read(query === null ? null : [query, key]),
    select: (query) => store.set({ query: page.lens.entries[query].pieces[0][0] }),
    move: (dq, dk) => {
      const end = page.lens.size - 1;
      const from = hover ?? [selected(), selected()];
      const to = [from[0] + dq, from[1] + dk].map((at) => Math.max(0, Math.min(end, at)));
      if (dq) events.select(to[0]);
      read(to);
    },
  };
  const selected = () => page.lens.entryOf(store.state.query);
  const panels = [...THREE, "single"].map((key) => {
    const matrix = new Matrix(`${key === "single" ? "The chosen map" : page.entry(key).title}: a row per query, a column per key; arrow keys move`, page.lens.entries, events);
    const caption = h("figcaption", {});
    return { key, matrix, caption, figure: h("figure", { "data-view": key }, caption, matrix.element) };
  });
  const shown = () => (store.state.show === "three" ? panels.slice(0, 3) : panels.slice(3));
  const keyOf = (panel) => (panel.key === "single" ? store.state.show : panel.key);

  function bound(of, row) {
    if (store.state.scale === "all") return page.largestOf(keysOf(of));
    if (store.state.scale === "head") return Math.max(...keysOf(of).map((key) => cells[key].largest));
    return row;
  }

  /** The maps that share a scale: raw, effective and null do, so that they can be compared. */
  function keysOf(key) {
    return THREE.includes(key) ? ["raw", "effective"].filter((one) => cells[one]) : [key];
  }

  function draw() {
    const { axis, scale } = store.state;
    const size = page.lens.size;
    const known = {}; // the largest of each row, by the maps that share a scale
    for (const panel of shown()) {
      const key = keyOf(panel);
      const own = cells[key];
      if (!own) continue;
      const entry = page.entry(key);
      panel.caption.replaceChildren(h("strong", {}, entry.title), h("span", { class: "note" }, entry.note));
      panel.matrix.setTokens(page.lens.entries);
      const shared = keysOf(key);
      const rows = scale === "row" ? (known[shared] ??= rowLargest(shared.map((one) => cells[one]), size)) : null;
      const most = rows ? 0 : bound(key);
      panel.matrix.draw(own.values, rows ?? new Float64Array(size).fill(most), axis, visible, store.theme());
    }
    explain();
  }

  function explain() {
    const key = keyOf(shown()[0]);
    const own = cells[key];
    if (!own) return;
    const { axis, scale } = store.state;
    const half = axis === "root" ? 0.25 : 0.5;
    const most = bound(key);
    const ends = scale === "row" ? ["−largest of the row", "0", "largest of the row"]
      : [-1, -half, 0, half, 1].map((t) => (t ? figure(t * most, most / 100) : "0"));
    const bar = h("span", { class: "ramp" });
    bar.style.backgroundImage = gradient(-1, 1, store.theme());
    const marks = h("span", { class: "ticks" }, ends.map((text) => h("span", {}, text)));
    [...marks.children].forEach((mark, i) => (mark.style.left = `${(100 * i) / (ends.length - 1)}%`));
    legend.replaceChildren(
      h("span", { class: "axis" }, bar, marks),
      h("p", {},
        axis === "root" ? "Square-root colours: half as strong is a quarter of the value. " : "Colours in proportion to the value. ",
        visible ? "Blank: the mask hides the key from the query. " : "",
        own.step ? `In this file, values of this head are kept to ±${(own.step / 2).toPrecision(1)}. ` : "",
        door.computes ? "" : "Intervals of single weights: in `clearhead serve` and in notebooks."),
    );
  }

  function interval(query, key) {
    const entry = page.entry(keyOf(shown()[0]));
    if (!door.computes || !entry.heads || !page.lens.plain) return [];
    const found = intervals.get(store.state, query);
    intervals.want(store.state, query);
    if (!found) return [];
    if (found.busy) return [h("span", { class: "value" }, "interval …")];
    if (found.error) return [h("span", { class: "value" }, found.error)];
    const [low, high] = [found.low[key], found.high[key]];
    return [h("span", { class: "value interval" }, "raw weight may be ", h("b", {}, `${figure(low, 1e-4)} to ${figure(high, 1e-4)}`), high - low < 1e-6 ? " (determined)" : " with the same output")];
  }

  function read(cell) {
    hover = cell;
    for (const { matrix } of shown()) matrix.mark(selected(), hover);
    if (!cell) {
      readout.replaceChildren("Point at a cell for its values; click to select its query.");
      return;
    }
    const [query, key] = cell;
    const { entries, size } = page.lens;
    if (query >= size || key >= size) return;
    const parts = ["query ", h("b", {}, query), " ", tokenText(entries[query]), " → key ", h("b", {}, key), " ", tokenText(entries[key])];
    if (visible && !visible(query, key)) parts.push(" hidden by the mask: weight exactly 0");
    else {
      for (const panel of shown()) {
        const own = cells[keyOf(panel)];
        if (own) parts.push(h("span", { class: "value" }, `${panel.key === "single" ? "value" : panel.key} `, h("b", {}, figure(own.at(query * size + key), own.step))));
      }
      parts.push(...interval(query, key));
    }
    readout.replaceChildren(...parts);
  }

  async function load() {
    const started = performance.now();
    const { layer, head, show } = store.state;
    const lens = page.lens;
    const keys = show === "three" ? THREE : [show];
    try {
      const sources = await Promise.all(keys.map((key) => door.source(key, progress.show)));
      const found = await Promise.all(sources.map((source) => source.cells(layer, head)));
      if (store.state.layer !== layer || store.state.head !== head || store.state.show !== show || page.lens !== lens) return;
      progress.done();
      cells = Object.fromEntries(keys.map((key, i) => [key, lens.cells(found[i])]));
      const mask = keys.some((key) => page.entry(key).heads) ? visibility(payload, layer) : null;
      visible = lens.visible(mask);
    } catch (error) {
      progress.fail(error);
      return;
    }
    box.dataset.show = show === "three" ? "all" : "single";
    draw();
    read(hover);
    take.refresh();
    performance.measure("clearhead:head", { start: started });
    page.drawn("head");
  }

  const box = h("div", { class: "maps", "data-show": "all" }, panels.map((one) => one.figure));
  store.watch(["layer", "head", "show"], load);
  store.watch(["query"], () => read(hover));
  store.watch(["theme", "scale", "axis"], draw);
  page.onLens(load);
  const pick = picker("Show", (value) => store.set({ show: value }));
  const refill = () => pick.fill({ "": [["three", "raw, effective, null space"]], "one map, large": payload.maps.filter((one) => one.values || one.compute).map((one) => [one.key, one.title]) }, store.state.show);
  store.watch(["show"], refill);
  const columns = () => {
    const { entries, size } = page.lens;
    const keys = Object.keys(cells);
    const all = Array.from({ length: size * size }, (_, i) => i).filter((i) => !visible || visible((i / size) | 0, i % size));
    const at = (of) => all.map(of);
    return {
      query: at((i) => (i / size) | 0), "query token": at((i) => entries[(i / size) | 0].shown), key: at((i) => i % size), "key token": at((i) => entries[i % size].shown),
      ...Object.fromEntries(keys.map((key) => [page.entry(key).title, at((i) => cells[key].at(i))])),
    };
  };
  const svg = () => {
    const own = getComputedStyle(box.closest(".clearhead"));
    return svgOfMatrices(shown().map((panel) => ({ name: `${page.entry(keyOf(panel)).title}, ${placeOf(page.entry(keyOf(panel)), store.state)}`, matrix: panel.matrix })), own.backgroundColor, own.color, own.fontFamily);
  };
  const take = takeaway("Heat maps", { columns, svg, name: () => `${store.state.show} layer ${store.state.layer} head ${store.state.head}` });
  return h("div", {}, h("div", { class: "controls" }, pick.element), progress.element, box, readout, legend, take.element);
}

function rowLargest(maps, n) {
  return Float64Array.from({ length: n }, (_, query) => {
    let most = 0;
    for (const { values } of maps) for (let i = query * n; i < (query + 1) * n; i++) if (Math.abs(values[i]) > most) most = Math.abs(values[i]);
    return most || 1;
  });
}

// ---------------------------------------------------------------------------------------------- one row in figures

const ROWS = 8;

export function rowTable(page, store) {
  const { payload, door } = page;
  const title = h("h3", {});
  const body = h("tbody", {});
  const note = h("p", { class: "note" });
  let cells = null;
  let all = false;
  const more = h("button", { type: "button", class: "quiet", onclick: () => { all = !all; show(); } });

  async function load() {
    const { layer, head } = store.state;
    const lens = page.lens;
    const sources = THREE.map((key) => door.ready(key));
    const found = await Promise.all(sources.map((source) => source.cells(layer, head)));
    if (store.state.layer !== layer || store.state.head !== head || page.lens !== lens) return;
    cells = found;
    show();
  }

  function show() {
    if (!cells) return;
    const { layer, query } = store.state;
    const { n, entries } = page.lens;
    const mask = visibility(payload, layer);
    const rows = cells.map(({ at }) => page.lens.row((q, key) => at(q * n + key), query));
    const seen = page.lens.visible(mask);
    const row = page.lens.entryOf(query);
    const keys = entries.map((_, key) => key).filter((key) => !seen || row < 0 || seen(row, key));
    keys.sort((a, b) => rows[0][b] - rows[0][a] || a - b);
    const kept = keys.filter((key) => rows[0][key] > 0); // the rest rounds to 0: it has no order
    const listed = all ? keys : kept.slice(0, ROWS);
    const values = keys.flatMap((key) => rows.map((one) => one[key]));
    const span = { low: Math.min(0, ...values), high: Math.max(1e-9, ...values) };
    const step = cells[0].step;
    title.replaceChildren(`What query ${row < 0 ? query : row} `, tokenText(row < 0 ? payload.tokens[query] : entries[row]), ` attends to ${placeOf(page.entry("raw"), store.state)}`);
    body.replaceChildren(
      ...listed.map((key) => h("tr", {}, h("th", { scope: "row" }, h("span", { class: "index" }, key), tokenText(entries[key])), rows.map((one) => bar(one[key], span, step)))),
    );
    const small = keys.length - kept.length;
    note.replaceChildren(
      all ? `All ${keys.length} keys by raw weight. ` : `The ${listed.length} largest raw weights of ${keys.length}. `,
      small ? `${small} are ${step ? `below ${(step / 2).toPrecision(1)}, which this file rounds to 0` : "0"}. ` : "",
      "All bars on one scale.",
    );
    more.hidden = listed.length === keys.length && !all;
    more.replaceChildren(all ? "Show fewer" : `Show all ${keys.length}`);
  }

  store.watch(["layer", "head"], load);
  store.watch(["query"], show);
  page.onLens(load);
  return h(
    "div",
    { class: "row-table" },
    title,
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Weights of the selected query" },
      h("table", { class: "bars" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "key"), ["raw", "effective", "null space"].map((name) => h("th", { scope: "col" }, name)))),
        body)),
    h("p", { class: "under" }, note, more),
  );
}

function bar(value, { low, high }, step) {
  const at = (v) => (100 * (v - low)) / (high - low);
  const fill = h("i", { class: value < 0 ? "negative" : "positive" });
  fill.style.left = `${at(Math.min(0, value))}%`;
  fill.style.width = `${Math.abs(at(value) - at(0))}%`;
  const zero = h("i", { class: "zero" });
  zero.style.left = `${at(0)}%`;
  return h("td", {}, h("span", { class: "bar" }, fill, zero), h("span", { class: "figure" }, figure(value, step)));
}
