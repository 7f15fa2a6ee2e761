// The joint map of a head's queries and keys: close means attended to. PCA at once; UMAP and t-SNE where a machine
// stands behind the page.

import { colour, css } from "./colour.js";
import { h, onWidth, percent, s, stateChoice, tokenText, whenNear } from "./dom.js";
import { svgOf } from "./exports.js";
import { Progress, takeaway } from "./figures.js";

const NAMES = { pca: "PCA", umap: "UMAP", tsne: "t-SNE" };
const PAD = 26;
const KINDS = 8; // tokens that get a colour of their own

/** What colours the points: a class or a fill per point, and the words of the legend. */
function tints(page, found, tint, theme) {
  const { tokens } = page.payload;
  const n = tokens.length;
  if (tint === "position") return { fill: (i) => css(colour(0.15 + (0.85 * (i % n)) / Math.max(1, n - 1), theme)), words: "from the first token (pale) to the last (strong)" };
  if (tint === "norm") {
    const most = Math.max(...found.norms);
    return { fill: (i) => css(colour(0.1 + 0.9 * (found.norms[i] / most), theme, true)), words: `by norm, up to ${most.toFixed(1)} (strong)` };
  }
  if (tint === "token") {
    const count = new Map();
    tokens.forEach(({ shown }) => count.set(shown, (count.get(shown) ?? 0) + 1));
    const common = [...count].filter(([, times]) => times > 1).sort((a, b) => b[1] - a[1]).slice(0, KINDS).map(([shown]) => shown);
    const words = common.length ? ["the most frequent: ", common.map((shown, i) => [h("i", { class: `dot kind-${i}` }), h("bdi", { dir: "auto" }, `${shown.slice(0, 20)} `)])] : "no token stands here twice";
    return { kind: (i) => (common.includes(tokens[i % n].shown) ? `kind-${common.indexOf(tokens[i % n].shown)}` : "other"), words };
  }
  return { kind: (i) => (i < n ? "query" : "key"), words: [h("i", { class: "dot query" }), "queries ", h("i", { class: "dot key" }), "keys"] };
}

export function queryKeyMap(page, store) {
  const { payload, door } = page;
  const n = payload.tokens.length;
  const plot = h("div", { class: "plot scatter" });
  const legend = h("div", { class: "legend" });
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  const progress = new Progress();
  let found = null;
  let width = 0;
  let circles = [];

  function draw() {
    if (!found || !width) return;
    const size = Math.min(width, 1000);
    const [low, high] = ["x", "y"].map((axis) => [Math.min(...found[axis]), Math.max(...found[axis])]).reduce(([lows, highs], [a, b]) => [[...lows, a], [...highs, b]], [[], []]);
    const height = Math.round(size * 0.6);
    const scale = Math.min((size - 2 * PAD) / (high[0] - low[0] || 1), (height - 2 * PAD) / (high[1] - low[1] || 1));
    const middle = [0, 1].map((axis) => (low[axis] + high[axis]) / 2);
    const x = (i) => size / 2 + scale * (found.x[i] - middle[0]);
    const y = (i) => height / 2 - scale * (found.y[i] - middle[1]);
    const { kind, fill, words } = tints(page, found, store.state.tint, store.theme());
    const svg = s("svg", { width: size, height, viewBox: `0 0 ${size} ${height}`, role: "img", "aria-label": "Queries and keys of the head on one map" });
    const radius = n > 200 ? 2.6 : n > 60 ? 3.6 : 5;
    circles = Array.from({ length: 2 * n }, (_, i) => {
      const side = i < n ? "query" : "key";
      const where = i < n ? s("circle", { cx: x(i), cy: y(i), r: radius }) : s("path", { d: diamond(x(i), y(i), radius * 1.25) });
      where.setAttribute("class", `point ${side} ${kind?.(i) ?? "filled"}`);
      if (fill) where.style.fill = fill(i);
      where.append(s("title", {}, `${side} ${i % n} ${payload.tokens[i % n].shown}`));
      where.addEventListener("click", () => store.set({ query: i % n }));
      where.addEventListener("pointerenter", () => say(i));
      return where;
    });
    svg.append(...circles);
    plot.replaceChildren(svg);
    mark.layer = s("g", { class: "marks" });
    svg.append(mark.layer);
    place = (i) => [x(i), y(i), radius];
    mark();
    legend.replaceChildren(
      h("span", {}, words),
      store.state.tint === "side" ? "" : h("span", {}, "○ query  ◇ key"),
      h("span", {}, found.kept === null || found.kept === undefined ? `${NAMES[store.state.points]}: distances between far points mean little` : `two axes hold ${percent(found.kept)} of the variance`),
      h("span", {}, `agreement of distance with attention logits: r = ${found.agreement.toFixed(2)} (queries × ${found.scale.toPrecision(3)}, keys ÷ the same)`),
    );
    say(null);
  }

  let place = null;
  function mark() {
    if (!place) return;
    const { query } = store.state;
    mark.layer.replaceChildren(...[query, query + n].map((i) => {
      const [cx, cy, r] = place(i);
      return s("g", {}, s("circle", { class: "ring", cx, cy, r: r + 4 }), s("text", { class: "name", x: cx + r + 7, y: cy + 4 }, `${i < n ? "query" : "key"} ${payload.tokens[query].shown.slice(0, 18)}`));
    }));
  }

  function say(i) {
    if (i === null) readout.replaceChildren("Point at a mark for its token; click to select it.");
    else readout.replaceChildren(i < n ? "query " : "key ", h("b", {}, i % n), " ", tokenText(payload.tokens[i % n]), h("span", { class: "value" }, "norm ", h("b", {}, found.norms[i].toFixed(2))));
  }

  async function load() {
    const { layer, head, points } = store.state;
    let now;
    try {
      now = await door.points(layer, head, points, progress.show);
    } catch (error) {
      progress.fail(error);
      return;
    }
    if (store.state.layer !== layer || store.state.head !== head || store.state.points !== points) return;
    progress.done();
    found = now;
    draw();
    take.refresh();
    page.drawn("points");
  }

  let soon = null;
  const later = whenNear(plot, () => {
    clearTimeout(soon);
    soon = setTimeout(load, 60); // after the views above have been painted
  });
  store.watch(["layer", "head", "points"], later);
  store.watch(["theme", "tint"], draw);
  store.watch(["query"], mark);
  onWidth(plot, (now) => {
    width = now;
    draw();
  });
  const columns = () => {
    const all = Array.from({ length: 2 * n }, (_, i) => i);
    return found ? { side: all.map((i) => (i < n ? "query" : "key")), position: all.map((i) => i % n), token: all.map((i) => payload.tokens[i % n].shown), x: Array.from(found.x), y: Array.from(found.y), norm: Array.from(found.norms) } : {};
  };
  const take = takeaway("Query-key map", { columns, svg: () => svgOf(plot.querySelector("svg")), name: () => `query key ${store.state.points} layer ${store.state.layer} head ${store.state.head}` });
  const kinds = door.computes ? NAMES : { pca: "PCA" };
  return h("div", { class: "query-key" },
    h("div", { class: "controls" },
      door.computes ? stateChoice(store, "points", "Map by", kinds) : "",
      stateChoice(store, "tint", "Colour points by", { side: "query or key", token: "token", position: "position", norm: "norm" })),
    progress.element, plot, readout, legend, take.element);
}

function diamond(x, y, r) {
  return `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z`;
}
