// The frame around every picture: its table, and how to take it away.

import { pairsOf, saveCsv, savePng, saveSvg } from "./exports.js";
import { h } from "./dom.js";

const MOST_ROWS = 300;

function cell(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return String(value ?? "");
  return value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(2) : value.toPrecision(4);
}

function fillTable(box, label, columns) {
  const pairs = pairsOf(columns);
  const length = pairs[0]?.[1].length ?? 0;
  const rows = Array.from({ length: Math.min(length, MOST_ROWS) }, (_, i) =>
    h("tr", {}, pairs.map(([, values]) => h("td", { class: typeof values[i] === "number" ? "number" : "" }, h("bdi", { dir: "auto" }, cell(values[i]))))));
  box.replaceChildren(
    h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": `${label}, as a table` },
      h("table", {},
        h("thead", {}, h("tr", {}, pairs.map(([name, values]) => h("th", { scope: "col", class: typeof values[0] === "number" ? "number" : "" }, name)))),
        h("tbody", {}, rows))),
    length > MOST_ROWS ? h("p", { class: "note" }, `The first ${MOST_ROWS} of ${length} lines; the CSV holds them all.`) : "",
  );
}

/** Buttons under a picture: its table, SVG, PNG, CSV. `columns()` and `svg()` give what is shown now (or a promise). */
export function takeaway(label, { columns, svg, name = () => label }) {
  const box = h("div", { class: "as-table" });
  box.hidden = true;
  const file = () => `clearhead ${name()}`.replace(/[^\w-]+/g, "-").replace(/-+$/, "").toLowerCase();
  const toggle = h("button", {
    type: "button", class: "quiet", "aria-expanded": "false",
    onclick: async () => {
      box.hidden = !box.hidden;
      toggle.setAttribute("aria-expanded", String(!box.hidden));
      if (!box.hidden) await refresh();
    },
  }, "Table");
  const refresh = async () => {
    if (!box.hidden) fillTable(box, `${label} (${name()})`, await columns());
  };
  const button = (text, act) => h("button", { type: "button", class: "quiet", "aria-label": `${label}: save as ${text}`, onclick: act }, text);
  const element = h("div", { class: "takeaway" },
    h("div", { class: "take" }, toggle,
      svg ? [button("SVG", async () => saveSvg(file(), await svg())), button("PNG", async () => savePng(file(), await svg()))] : "",
      button("CSV", async () => saveCsv(file(), await columns()))),
    box);
  return { element, refresh };
}

/** Work that goes on elsewhere: what it is, how long it has taken, a button to end it; or why it failed. */
export class Progress {
  constructor() {
    this.element = h("div", { class: "progress", role: "status" });
    this.element.hidden = true;
  }

  /** What a door calls while it works: {step, seconds, cancel}. */
  show = ({ step, seconds, cancel }) => {
    this.element.hidden = false;
    this.element.classList.remove("failed");
    this.element.replaceChildren(
      h("span", { class: "spinner", "aria-hidden": "true" }),
      h("span", {}, step, seconds >= 1 ? ` · ${Math.floor(seconds)} s` : ""),
      cancel ? h("button", { type: "button", class: "quiet", onclick: cancel }, "Cancel") : "",
    );
  };

  fail(error) {
    this.element.hidden = false;
    this.element.classList.add("failed");
    this.element.replaceChildren(h("span", { role: "alert" }, error.message));
  }

  done() {
    this.element.hidden = true;
    this.element.replaceChildren();
  }
}
