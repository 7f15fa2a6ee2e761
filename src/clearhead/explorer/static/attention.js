// Raw, effective and null-space attention of one head: the overview of all heads, three heat maps, one row in figures.

import { colour, css, gradient, inkOn, squareRoot } from "./colour.js";
import { choice, figure, h, percent, tokenText } from "./dom.js";
import { Matrix } from "./matrix.js";

export const VIEWS = {
  raw: ["Raw attention", "the weights of the softmax"],
  effective: ["Effective attention", "the part that reaches the head's output"],
  null: ["Null-space part", "raw − effective: no effect on the output"],
};

/** The values of one head by view: {raw(i), effective(i), null(i), step, largest} for cell i = query * n + key.
 * Where the payload holds only the mean over heads, that of the layer. */
export async function headValues(page, layer, chosen) {
  const head = page.payload.attention.mean_of ? 0 : chosen;
  const [raw, effective] = await Promise.all([page.raw.get(layer), page.effective.get(layer)]);
  const [a, b] = [raw.head(head), effective.head(head)];
  const step = raw.step(head); // the same for both: where they are equal, their difference is 0
  return { raw: (i) => a[i] * step, effective: (i) => b[i] * step, null: (i) => (a[i] - b[i]) * step, step, largest: raw.largest[head] };
}

/** "layer 3, head 5", or what the maps show in place of a head. */
export function placeOf(payload, layer, head) {
  const { mean_of: heads } = payload.attention;
  return heads ? `layer ${layer}, mean of its ${heads} heads` : `layer ${layer}, head ${head}`;
}

export function visibility(payload, layer) {
  const seen = payload.attention.visible[layer];
  return seen && ((query, key) => key >= seen.start[query] && key < seen.stop[query]);
}

// ---------------------------------------------------------------------------------------------- overview of all heads

export function overview(payload, store) {
  const { share, verdict, rank, keys } = payload.overview;
  const heads = share[0].length;
  let shown = "share";
  const cells = share.map((row, layer) =>
    row.map((_, head) =>
      h("button", {
        type: "button", role: "gridcell", tabindex: -1,
        "aria-label":
          `layer ${layer} head ${head}: ${verdict[layer][head]}, rank ${rank[layer][head]} of ${keys[layer][head]} keys, ` +
          `null-space share ${percent(share[layer][head], 1)}`,
        onclick: () => store.set({ layer, head }),
      }),
    ),
  );
  const legend = h("div", { class: "legend" });
  const grid = h(
    "div",
    {
      class: "heads", role: "grid", "aria-label": "All heads: a row per layer, a column per head",
      onkeydown: (event) => {
        const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (!step) return;
        event.preventDefault();
        store.move({ layer: step[0], head: step[1] });
        cells[store.state.layer][store.state.head].focus();
      },
    },
    h("div", { role: "row", class: "head-row" }, h("span", { role: "columnheader", class: "corner" }, "head"),
      Array.from({ length: heads }, (_, head) => h("span", { role: "columnheader" }, head))),
    cells.map((row, layer) => h("div", { role: "row", class: "head-row" }, h("span", { role: "rowheader" }, layer), row)),
  );
  grid.style.setProperty("--heads", heads);
  const paint = () => {
    const theme = store.theme();
    cells.forEach((row, layer) =>
      row.forEach((cell, head) => {
        const of = { share: share[layer][head], rank: 1 - rank[layer][head] / keys[layer][head] }[shown];
        const rgb = colour(of, theme, true);
        cell.style.backgroundColor = css(rgb);
        cell.style.color = inkOn(rgb);
        cell.replaceChildren(h("span", {}, shown === "share" ? Math.round(100 * of) : rank[layer][head]));
        cell.dataset.verdict = verdict[layer][head];
      }),
    );
    const ends = shown === "share" ? ["0 %", "100 % of the squared norm has no effect"] : ["rank = number of keys", "rank 0"];
    const bar = h("span", { class: "ramp" });
    bar.style.backgroundImage = gradient(0, 1, theme, true);
    legend.replaceChildren(
      h("span", { class: "scale" }, ends[0], bar, ends[1]),
      h("span", {}, h("i", { class: "mark", "data-verdict": "identifiable" }), "identifiable"),
      h("span", {}, h("i", { class: "mark", "data-verdict": "uncertain" }), "uncertain"),
    );
  };
  const mark = ({ layer, head }) =>
    cells.forEach((row, l) =>
      row.forEach((cell, k) => {
        const here = l === layer && k === head;
        cell.setAttribute("aria-selected", here);
        cell.tabIndex = here ? 0 : -1;
      }),
    );
  store.watch(["layer", "head"], mark);
  store.watch(["theme"], paint);
  const by = choice("Cells show", { share: "null-space share (%)", rank: "rank" }, shown, (value) => {
    shown = value;
    paint();
  });
  return h("div", { class: "overview" }, by, grid, legend);
}

/** The selected head in words. */
export function headFacts(payload, store) {
  const box = h("div", { class: "facts", "aria-live": "polite" });
  const { share, verdict, rank, keys, nullity, nullity_row_sum: nullityRowSum, d_v: width } = payload.overview;
  store.watch(["layer", "head"], ({ layer: l, head: k }) => {
    const free = nullityRowSum[l][k];
    const rows = [
      ["verdict", verdict[l][k]],
      ["keys", keys[l][k]],
      ["value width", width[l][k]],
      ["rank of the values", rank[l][k]],
      ["null space", `${nullity[l][k]} dimensions`],
      ["keeping row sums", `${free} dimensions`],
      ["null-space share", percent(share[l][k], 1)],
    ];
    box.replaceChildren(
      h("h3", {}, `Layer ${l}, head ${k}`),
      h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    );
  });
  return box;
}

// ---------------------------------------------------------------------------------------------- the three heat maps

export function matrices(page, store) {
  const { payload } = page;
  const tokens = payload.tokens;
  const settings = { scale: "head", show: "all", axis: "root" };
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  const legend = h("div", { class: "legend" });
  let head = null;
  let hover = null;
  const events = {
    hover: (query, key) => read(query === null ? null : [query, key]),
    select: (query) => store.set({ query }),
    move: (dq, dk) => {
      if (dq) store.move({ query: dq });
      const key = Math.max(0, Math.min(tokens.length - 1, (hover ?? [0, store.state.query])[1] + dk));
      read([store.state.query, key]);
    },
  };
  const maps = Object.entries(VIEWS).map(([view, [name, meaning]]) => {
    const matrix = new Matrix(`${name}: a row per query, a column per key; arrow keys move`, tokens, events);
    const caption = h("figcaption", {}, h("strong", {}, name), h("span", { class: "note" }, meaning));
    return { view, matrix, figure: h("figure", { "data-view": view }, caption, matrix.element) };
  });

  function bound() {
    if (settings.scale === "all") return page.raw.largest;
    return head.largest;
  }

  function draw() {
    if (!head) return;
    const visible = visibility(payload, store.state.layer);
    const n = tokens.length;
    const rows = settings.scale === "row" ? rowLargest(head, n) : null;
    const most = bound();
    const axis = settings.axis === "root" ? squareRoot : (t) => t;
    for (const { view, matrix } of maps) {
      const value = head[view];
      matrix.draw(rows ? (i) => axis(value(i) / rows[(i / n) | 0]) : (i) => axis(value(i) / most), visible, store.theme());
    }
    explain(most, visible);
  }

  function explain(most, visible) {
    const half = settings.axis === "root" ? 0.25 : 0.5;
    const ends = settings.scale === "row"
      ? ["−largest of the row", "0", "largest of the row"]
      : [-1, -half, 0, half, 1].map((t) => (t ? figure(t * most, most / 100) : "0"));
    const bar = h("span", { class: "ramp" });
    bar.style.backgroundImage = gradient(-1, 1, store.theme());
    const marks = h("span", { class: "ticks" }, ends.map((text) => h("span", {}, text)));
    [...marks.children].forEach((mark, i) => (mark.style.left = `${(100 * i) / (ends.length - 1)}%`));
        legend.replaceChildren(
      h("span", { class: "axis" }, bar, marks),
      h("p", {},
        settings.axis === "root" ? "Square-root colours: half as strong is a quarter of the weight. " : "Colours in proportion to the weight. ",
        "Raw attention is never negative. ",
        visible ? "Blank: the mask hides the key from the query. " : "",
        `In this file, values of this head are kept to ±${(head.step / 2).toPrecision(1)}.`),
    );
  }

  function read(cell) {
    hover = cell;
    for (const { matrix } of maps) matrix.mark(store.state.query, hover);
    if (!head) return;
    if (!hover) {
      readout.replaceChildren("Point at a cell for its values; click to select its query.");
      return;
    }
    const [query, key] = hover;
    const i = query * tokens.length + key;
    const visible = visibility(payload, store.state.layer);
    const parts = ["query ", h("b", {}, query), " ", tokenText(tokens[query]), " → key ", h("b", {}, key), " ", tokenText(tokens[key])];
    if (visible && !visible(query, key)) parts.push(" hidden by the mask: weight exactly 0");
    else for (const view of Object.keys(VIEWS)) parts.push(h("span", { class: "value" }, `${view} `, h("b", {}, figure(head[view](i), head.step))));
    readout.replaceChildren(...parts);
  }

  store.watch(["layer", "head"], async ({ layer, head: index }) => {
    const started = performance.now();
    const values = await headValues(page, layer, index);
    if (store.state.layer !== layer || store.state.head !== index) return;
    head = values;
    draw();
    read(hover);
    performance.measure("clearhead:head", { start: started });
    store.drawn(head);
  });
  store.watch(["query"], () => read(hover));
  store.watch(["theme"], draw);
  const box = h("div", { class: "maps", "data-show": settings.show }, maps.map((one) => one.figure));
  const controls = h(
    "div",
    { class: "controls" },
    choice("Show", { all: "side by side", raw: "raw", effective: "effective", null: "null space" }, settings.show, (value) => {
      box.dataset.show = settings.show = value;
    }),
    choice("Colour scale", { row: "each row", head: "this head", all: "all heads" }, settings.scale, (value) => {
      settings.scale = value;
      draw();
    }),
    choice("Colour as", { root: "√ weight", linear: "weight" }, settings.axis, (value) => {
      settings.axis = value;
      draw();
    }),
  );
  return h("div", {}, controls, box, readout, legend);
}

function rowLargest(head, n) {
  return Float64Array.from({ length: n }, (_, query) => {
    let most = 0;
    for (let i = query * n; i < (query + 1) * n; i++) most = Math.max(most, Math.abs(head.raw(i)), Math.abs(head.effective(i)));
    return most || 1;
  });
}

// ---------------------------------------------------------------------------------------------- one row in figures

const ROWS = 8;

export function rowTable(page, store) {
  const tokens = page.payload.tokens;
  const title = h("h3", {});
  const body = h("tbody", {});
  const note = h("p", { class: "note" });
  let head = null;
  let all = false;
  const more = h("button", { type: "button", class: "quiet", onclick: () => { all = !all; show(); } });

  function show() {
    if (!head) return;
    const { layer, head: index, query } = store.state;
    const n = tokens.length;
    const visible = visibility(page.payload, layer);
    const keys = tokens.map((_, key) => key).filter((key) => !visible || visible(query, key));
    keys.sort((a, b) => head.raw(query * n + b) - head.raw(query * n + a) || a - b);
    const kept = keys.filter((key) => head.raw(query * n + key) > 0); // the rest rounds to 0: it has no order
    const listed = all ? keys : kept.slice(0, ROWS);
    const values = keys.flatMap((key) => Object.keys(VIEWS).map((view) => head[view](query * n + key)));
    const span = { low: Math.min(0, ...values), high: Math.max(1e-9, ...values) };
    title.replaceChildren(`What query ${query} `, tokenText(tokens[query]), ` attends to in ${placeOf(page.payload, layer, index)}`);
    body.replaceChildren(
      ...listed.map((key) =>
        h("tr", {}, h("th", { scope: "row" }, h("span", { class: "index" }, key), tokenText(tokens[key])),
          Object.keys(VIEWS).map((view) => bar(head[view](query * n + key), span, head.step))),
      ),
    );
    const small = keys.length - kept.length;
    note.replaceChildren(
      all ? `All ${keys.length} keys by raw weight. ` : `The ${listed.length} largest raw weights of ${keys.length}. `,
      small ? `${small} are below ${(head.step / 2).toPrecision(1)}, which this file rounds to 0. ` : "",
      "All bars on one scale.",
    );
    more.hidden = listed.length === keys.length && !all;
    more.replaceChildren(all ? "Show fewer" : `Show all ${keys.length}`);
  }

  store.onDrawn((values) => { head = values; show(); });
  store.watch(["query"], show);
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
