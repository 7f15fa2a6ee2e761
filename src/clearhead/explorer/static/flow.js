// The flow picture: what one token's row is made of, layer by layer, as bands that grow and shrink.

import { h, s, onWidth } from "./dom.js";

const NAMED = 7;
const MARGIN = { top: 10, bottom: 40, left: 46 };

/** Bands [{name, entry|null, values[layer]}] of shares that sum to 1 in each layer: the token itself first, the largest
 * others, and the rest as one. */
export function bands(rows, entries, own) {
  const shares = rows.map((row) => {
    const total = row.reduce((sum, value) => sum + Math.abs(value), 0);
    return Array.from(row, (value) => (total > 0 ? Math.abs(value) / total : 0));
  });
  const reach = entries.map((_, i) => Math.max(...shares.map((row) => row[i])));
  const named = reach.map((_, i) => i).filter((i) => i !== own).sort((a, b) => reach[b] - reach[a] || a - b).slice(0, NAMED - (own < 0 ? 0 : 1));
  const order = own < 0 ? named : [own, ...named];
  const found = order.map((i) => ({ entry: i, name: `${i} ${entries[i].shown}`, values: shares.map((row) => row[i]) }));
  const rest = shares.map((row, layer) => Math.max(0, 1 - found.reduce((sum, one) => sum + one.values[layer], 0)));
  if (entries.length > order.length) found.push({ entry: null, name: `the other ${entries.length - order.length}`, values: rest });
  return found;
}

function draw(found, width, axis, format) {
  const labels = Math.min(width * 0.35, 150);
  const height = Math.max(260, Math.min(360, width * 0.5));
  const layers = found[0].values.length;
  const right = width - labels;
  const x = (layer) => MARGIN.left + (layers === 1 ? 0 : ((right - MARGIN.left) * layer) / (layers - 1));
  const y = (share) => MARGIN.top + (height - MARGIN.top - MARGIN.bottom) * (1 - share);
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "What the token is made of, layer by layer" });
  const below = Array(layers).fill(0);
  const names = [];
  found.forEach((one, i) => {
    const from = [...below];
    const to = one.values.map((value, layer) => (below[layer] += value));
    const points = layers === 1 ? [[MARGIN.left, 0], [right, 0]] : from.map((_, layer) => [x(layer), layer]);
    const edge = (list, values) => list.map(([px, layer], at) => curve(px, y(values[layer]), list[at - 1] && [list[at - 1][0], y(values[list[at - 1][1]])])).join("");
    const back = [...points].reverse();
    const d = `M${points[0][0]} ${y(to[points[0][1]])}${edge(points, to).replace(/^[^C]*/, "")}L${back[0][0]} ${y(from[back[0][1]])}${edge(back, from).replace(/^[^C]*/, "")}Z`;
    const kind = one.entry === null ? "rest" : i === 0 && one.own ? "own" : `band-${i}`;
    const tip = s("title", {}, `${one.name}: ${one.values.map((value, layer) => `layer ${layer} ${format(value)}`).join(", ")}`);
    svg.append(s("path", { class: `stream ${kind}`, d }, tip));
    names.push({ name: one.name, middle: y((from.at(-1) + to.at(-1)) / 2), size: to.at(-1) - from.at(-1), kind });
  });
  for (const share of [0, 0.5, 1]) svg.append(s("text", { class: "tick", x: MARGIN.left - 8, y: y(share) + 4, "text-anchor": "end" }, format(share, 0)));
  const every = Math.ceil((layers * 18) / Math.max(1, right - MARGIN.left));
  for (let layer = 0; layer < layers; layer += every) svg.append(s("text", { class: "tick", x: x(layer), y: height - MARGIN.bottom + 18, "text-anchor": "middle" }, layer));
  svg.append(s("text", { class: "tick", x: (MARGIN.left + right) / 2, y: height - 4, "text-anchor": "middle" }, axis));
  let last = height;
  for (const one of names) {
    const at = Math.min(one.middle + 4, last - 14);
    last = at;
    if (at < 6) break;
    svg.append(s("text", { class: "name", x: right + 8, y: at }, one.name.length > 16 ? `${one.name.slice(0, 15)}…` : one.name));
  }
  return svg;
}

function curve(x, y, from) {
  if (!from) return `M${x} ${y}`;
  const middle = (from[0] + x) / 2;
  return `C${middle.toFixed(1)} ${from[1].toFixed(1)} ${middle.toFixed(1)} ${y.toFixed(1)} ${x.toFixed(1)} ${y.toFixed(1)}`;
}

/** A box that draws itself whenever it is told bands or changes its width. */
export function flowPicture(axis, format) {
  const plot = h("div", { class: "plot flow" });
  let found = null;
  let width = 0;
  const paint = () => found && width && plot.replaceChildren(draw(found, width, axis(), format));
  onWidth(plot, (now) => {
    width = now;
    paint();
  });
  return { element: plot, show: (bandsNow) => { found = bandsNow; paint(); } };
}
