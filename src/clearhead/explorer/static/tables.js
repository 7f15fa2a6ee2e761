// The certificate of every head, the proof of the capture, the methods with their papers, and how to cite.

import { figure, h } from "./dom.js";

function cell(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(1) : value.toPrecision(3);
}

export function certificate(payload, store) {
  const { columns, about } = payload.certificate;
  const names = Object.keys(columns);
  const order = columns[names[0]].map((_, i) => i);
  const body = h("tbody", {});
  let sorted = null;
  const show = () =>
    body.replaceChildren(...order.map((i) =>
      h("tr", {
        "data-layer": columns.layer[i], "data-head": columns.head[i], "data-verdict": columns.verdict[i],
        onclick: () => store.set({ layer: columns.layer[i], head: columns.head[i] }),
      }, names.map((name) => h("td", { class: typeof columns[name][i] === "number" ? "number" : "" }, cell(columns[name][i])))),
    ));
  const headers = names.map((name) =>
    h("th", { scope: "col", "aria-sort": "none" },
      h("button", {
        type: "button", class: "quiet", title: about[name] ?? name,
        onclick: () => {
          const sign = sorted?.[0] === name ? -sorted[1] : 1;
          sorted = [name, sign];
          order.sort((a, b) => sign * compare(columns[name][a], columns[name][b]) || a - b);
          names.forEach((other, i) => headers[i].setAttribute("aria-sort", other === name ? (sign > 0 ? "ascending" : "descending") : "none"));
          show();
          mark(store.state);
        },
      }, name)),
  );
  const mark = ({ layer, head }) => {
    for (const row of body.rows) row.setAttribute("aria-selected", Number(row.dataset.layer) === layer && Number(row.dataset.head) === head);
  };
  show();
  store.watch(["layer", "head"], mark);
  return [
    h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "A line for every head" },
      h("table", { class: "certificate" }, h("thead", {}, h("tr", {}, headers)), body)),
    h("details", {}, h("summary", {}, "What the columns mean"),
      h("dl", { class: "meanings" }, names.map((name) => [h("dt", {}, name), h("dd", {}, about[name] ?? "")]))),
  ];
}

function compare(a, b) {
  return typeof a === "number" ? a - b : String(a).localeCompare(String(b));
}

/** The comparison of methods, the most faithful first; a click on one colours the text by it. */
export function comparison(payload, store) {
  const { columns, about, rows, asked, left_out } = payload.faithfulness;
  const there = (key) => payload.maps.some((one) => one.key === key && (one.values || one.compute));
  const named = (row) => (there(row.key)
    ? h("button", { type: "button", class: "quiet", onclick: () => store.set({ by: row.key, compare: "" }) }, row.method)
    : row.method);
  const line = (row) => h("tr", { "data-key": row.key }, columns.map((name) => (name === "method"
    ? h("th", { scope: "row" }, named(row))
    : h("td", { class: typeof row[name] === "number" ? "number" : "" }, row[name] === null ? "" : typeof row[name] === "number" ? figure(row[name], 1e-3) : row[name]))));
  const body = h("tbody", {}, rows.map(line));
  store.watch(["by"], ({ by }) => {
    for (const row of body.rows) row.setAttribute("aria-selected", row.dataset.key === by);
  });
  return [
    h("p", { class: "note" }, asked),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Faithfulness of each method" },
      h("table", { class: "ranking" }, h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col", title: about[name] }, name.replaceAll("_", " "))))), body)),
    left_out.length ? h("p", { class: "note" }, `Left out: ${left_out.join("; ")}`) : "",
    h("details", {}, h("summary", {}, "What the columns mean"),
      h("dl", { class: "meanings" }, columns.map((name) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, about[name])]))),
  ];
}

export function facts(pairs) {
  return h("dl", { class: "pairs" }, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function proof(payload) {
  const { kind, sentence, pairs, layers } = payload.proof;
  const names = Object.keys(layers);
  return [
    h("p", {}, sentence),
    facts([["kind", kind], ...pairs]),
    h("details", {}, h("summary", {}, "Errors by layer"),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Proof by layer" },
        h("table", {},
          h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))),
          h("tbody", {}, layers[names[0]].map((_, i) => h("tr", {}, names.map((name) => h("td", { class: "number" }, layers[name][i] === null ? "" : cell(layers[name][i])))))))))
  ];
}

export function methods(payload) {
  return payload.methods.map((one) =>
    h("div", { class: "method" },
      h("h3", {}, h("code", {}, one.name)),
      h("p", {}, one.summary),
      h("p", { class: "note" }, one.paper, one.options ? ` · options: ${one.options}` : "")),
  );
}

export function citations(payload) {
  return payload.cite.map((one) => h("div", { class: "citation" }, h("p", {}, one.plain), h("pre", { tabindex: 0 }, one.bibtex)));
}
