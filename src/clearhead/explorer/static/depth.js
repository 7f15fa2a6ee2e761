// One token through the layers: its own share, how spread and how far its row is, which input it is nearest to, and
// what it is made of as a flow picture.

import { curves } from "./curves.js";
import { h, percent, tokenText, whenNear } from "./dom.js";
import { svgOf } from "./exports.js";
import { Progress, takeaway } from "./figures.js";
import { bands, flowPicture } from "./flow.js";
import { placeOf } from "./picker.js";

/** {own, entropy, distance} of the rows of an entry, by layer: shares of magnitudes; entropy in bits; distance in
 * entries, the mean over the shares. */
export function figuresOf(rows, own) {
  const told = { own: [], entropy: [], distance: [] };
  for (const row of rows) {
    const total = row.reduce((sum, value) => sum + Math.abs(value), 0);
    const shares = Array.from(row, (value) => (total > 0 ? Math.abs(value) / total : 0));
    told.own.push(own < 0 ? 0 : shares[own]);
    told.entropy.push(shares.reduce((sum, p) => (p > 0 ? sum - p * Math.log2(p) : sum), 0));
    told.distance.push(own < 0 ? 0 : shares.reduce((sum, p, i) => sum + p * Math.abs(i - own), 0));
  }
  return told;
}

function nearest(page, query) {
  const found = page.payload.nearest;
  if (!found) return "";
  const tokens = page.payload.tokens;
  return h("div", { class: "nearest" },
    h("h3", {}, "Nearest input token"),
    h("p", { class: "note" }, "The token whose input vector is nearest, by cosine, to this token's state at each depth (0: before the first layer)."),
    h("ol", { class: "steps" }, found.map((row, depth) =>
      h("li", { class: row[query] === query ? "kept" : "lost" }, h("span", { class: "index" }, depth), tokenText(tokens[row[query]]), row[query] === query ? "" : h("span", { class: "index" }, ` at ${row[query]}`)))));
}

export function tokenDepth(page, store) {
  const title = h("h3", {});
  const note = h("p", { class: "note" });
  const progress = new Progress();
  const charts = h("div", { class: "charts three" });
  const near = h("div", {});
  const flow = flowPicture(() => (page.entry(store.state.by)?.heads ? "in layer" : "after layer"), (share, digits = 1) => percent(share, digits));
  let columns = {};

  async function show() {
    const { by, query, head } = store.state;
    const lens = page.lens;
    let rows;
    try {
      rows = await lens.rows(await page.door.source(by, progress.show), query, head);
    } catch (error) {
      progress.fail(error);
      return;
    }
    if (store.state.by !== by || store.state.query !== query || store.state.head !== head || page.lens !== lens) return;
    progress.done();
    const entry = page.entry(by);
    const own = lens.entryOf(query);
    const signed = rows.some((row) => row.some((value) => value < 0));
    const told = figuresOf(rows, own);
    const axis = entry.heads ? "in layer" : "after layer";
    title.replaceChildren(entry.title, " of ", tokenText(own < 0 ? page.payload.tokens[query] : lens.entries[own]), entry.heads ? ` in ${placeOf(entry, { layer: "", head }).replace(/^in layer , /, "")} of each layer` : " after each layer");
    note.replaceChildren(
      signed ? "This map has negative values: shares are of magnitudes. " : "",
      "Own share: what comes from the token itself. Entropy: how many tokens it is spread over (in bits: 3 bits are like 8 equal tokens). Distance: how far away its sources are, in tokens.");
    charts.replaceChildren(
      curves({ title: "Own share", axis, from_zero: true, series: [{ name: "own", values: told.own }], format: (v, exact) => percent(v, exact ? 1 : 0) }),
      curves({ title: "Entropy (bits)", axis, from_zero: true, series: [{ name: "entropy", values: told.entropy }], format: (v, exact) => v.toFixed(exact ? 2 : 1) }),
      curves({ title: "Distance (tokens)", axis, from_zero: true, series: [{ name: "distance", values: told.distance }], format: (v, exact) => v.toFixed(exact ? 2 : 1) }),
    );
    const found = bands(rows, lens.entries, own);
    if (own >= 0) found[0].own = true;
    flow.show(found);
    near.replaceChildren(nearest(page, query));
    columns = {
      layer: rows.map((_, layer) => layer), "own share": told.own, "entropy (bits)": told.entropy, "distance (tokens)": told.distance,
      ...Object.fromEntries(found.map((one) => [one.name, one.values])),
    };
    take.refresh();
    page.drawn("depth");
  }

  const take = takeaway("Token through the layers", {
    columns: () => columns, svg: () => svgOf(flow.element.querySelector("svg")), name: () => `flow ${store.state.by} token ${store.state.query}`,
  });
  const element = h("div", { class: "token-depth" }, title, progress.element, note,
    h("div", { class: "flow-and-near" }, h("figure", {}, flow.element), near), charts, take.element);
  let soon = null;
  const later = whenNear(element, () => {
    clearTimeout(soon);
    soon = setTimeout(show, 60); // after the views above have been painted
  });
  store.watch(["by", "query", "head"], later);
  page.onLens(later);
  return element;
}
