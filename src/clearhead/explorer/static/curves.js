// Line charts in SVG: one curve per series over the layers, named at its end.

import { h, s, onWidth } from "./dom.js";

const MARGIN = { top: 14, bottom: 40, left: 46 };

function ticks(low, high) {
  const raw = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find((m) => m * power >= raw);
  const first = Math.ceil(low / step - 1e-9) * step;
  return Array.from({ length: Math.floor((high - first) / step + 1e-9) + 1 }, (_, i) => first + i * step);
}

function spread(labels, gap, low, high) {
  const sorted = [...labels].sort((a, b) => a.y - b.y);
  sorted.forEach((label, i) => (label.y = Math.max(label.y, i ? sorted[i - 1].y + gap : low)));
  sorted.reverse().forEach((label, i) => (label.y = Math.min(label.y, i ? sorted[i - 1].y - gap : high)));
}

function draw(chart, width) {
  const labelWidth = Math.min(width * 0.4, 8 + Math.max(...chart.series.map((one) => 7.8 * one.name.length)));
  const height = Math.max(220, Math.min(320, width * 0.55));
  const right = width - labelWidth;
  const layers = chart.series[0].values.length;
  const all = chart.series.flatMap((one) => [...one.values, ...(one.low ?? []), ...(one.high ?? [])]);
  const low = chart.top || chart.from_zero ? 0 : Math.min(...all);
  const marks = ticks(low, chart.top ?? Math.max(...all, low + 1e-6));
  const top = Math.max(marks.at(-1), ...all);
  const bottom = Math.min(marks[0], low);
  const x = (layer) => MARGIN.left + ((right - MARGIN.left) * (layers === 1 ? 0.5 : layer / (layers - 1)));
  const y = (v) => MARGIN.top + (height - MARGIN.top - MARGIN.bottom) * (1 - (v - bottom) / (top - bottom));
  const path = (values) => values.map((v, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.title });
  for (const mark of marks) {
    svg.append(
      s("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(mark), y2: y(mark) }),
      s("text", { class: "tick", x: MARGIN.left - 8, y: y(mark) + 4, "text-anchor": "end" }, chart.format(mark)),
    );
  }
  const every = Math.ceil((layers * 18) / (right - MARGIN.left));
  for (let layer = 0; layer < layers; layer += every) {
    svg.append(s("text", { class: "tick", x: x(layer), y: height - MARGIN.bottom + 18, "text-anchor": "middle" }, layer));
  }
  const middle = (MARGIN.left + right) / 2;
  svg.append(s("text", { class: "tick", x: middle, y: height - 4, "text-anchor": "middle" }, chart.axis));
  const labels = [];
  chart.series.forEach((one, i) => {
    const group = s("g", { class: `series ${chart.ordered ? "ordered" : "distinct"} series-${i}` });
    if (one.low) {
      const back = [...one.low].map((v, j) => `L${x(j).toFixed(1)} ${y(v).toFixed(1)}`).reverse().join("");
      group.append(s("path", { class: "band", d: `${path(one.high)}${back}Z` }));
    }
    group.append(s("path", { class: "line", d: path(one.values) }));
    one.values.forEach((v, j) => {
      const tip = s("title", {}, `${one.name}, layer ${j}: ${chart.format(v, true)}`);
      group.append(s("circle", { cx: x(j), cy: y(v), r: layers > 24 ? 1.5 : 3 }, tip));
    });
    labels.push({ y: y(one.values.at(-1)), name: one.name, group });
    svg.append(group);
  });
  spread(labels, 15, MARGIN.top, height - MARGIN.bottom);
  for (const label of labels) {
    label.group.append(s("text", { class: "name", x: right + 8, y: label.y + 4 }, label.name));
  }
  return svg;
}

/** {title, note, series: [{name, values, low?, high?}], format(value, exact), axis, ordered, top (else that of the data), from_zero} -> figure element. */
export function curves(chart) {
  const plot = h("div", { class: "plot" });
  onWidth(plot, (width) => plot.replaceChildren(draw(chart, width)));
  const caption = h("figcaption", {}, h("h3", {}, chart.title), chart.note ? h("p", { class: "note" }, chart.note) : "");
  return h("figure", { class: "curves" }, caption, plot);
}
