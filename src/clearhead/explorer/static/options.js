// The options of the method that colours the text: a form where the door can compute. Other options are another map.

import { h } from "./dom.js";
import { Progress } from "./figures.js";

const NO_TARGET = "the likeliest class or token";
const TARGETS = "class:1, next:\" Paris\" or similar:TEXT";

/** One option as [input, read]: `read` gives its text, or null where it is the default. */
function field({ name, standard, choices, allowed }) {
  if (choices.length) {
    const input = h("select", {}, choices.map((value) => h("option", { value, selected: value === standard }, value)));
    return [input, () => (input.value === standard ? null : input.value)];
  }
  const target = name === "target";
  const input = h("input", { type: "text", placeholder: target ? NO_TARGET : standard, title: target ? TARGETS : allowed, maxlength: 4000 });
  return [input, () => input.value.trim() || null];
}

/** The form; hidden where the method has no options or nothing can be computed. */
export function optionsForm(page, store) {
  const { options } = page.payload;
  const progress = new Progress();
  const summary = h("summary", {}, "Options");
  const form = h("form", { class: "panel", onsubmit: (event) => { event.preventDefault(); compute(); } });
  const element = h("details", { class: "options" }, summary, form);
  let fields = [], method = null;

  async function compute() {
    const given = Object.fromEntries(fields.map(([name, read]) => [name, read()]).filter(([, value]) => value !== null));
    const plain = page.payload.maps.find((one) => one.method === method && !one.options_given && one.key !== "raw" && one.key !== "null");
    try {
      const key = Object.keys(given).length ? await page.door.compute(method, given, progress.show) : plain.key;
      progress.done();
      element.open = false;
      store.set({ by: key, compare: store.state.compare === "truths" ? "" : store.state.compare });
    } catch (error) {
      progress.fail(error);
    }
  }

  function show({ by }) {
    const entry = page.entry(by);
    const known = (page.door.computes && entry && by !== "raw" && by !== "null" && options?.[entry.method]) || [];
    element.hidden = !known.length;
    if (element.hidden || entry.method === method) return;
    method = entry.method;
    progress.done();
    fields = [];
    const rows = known.map((one) => {
      const [input, read] = field(one);
      fields.push([one.name, read]);
      return h("label", {}, h("span", {}, one.name.replaceAll("_", " ")), input, one.name === "target" ? h("span", { class: "note" }, TARGETS) : "");
    });
    summary.replaceChildren(`Options of ${entry.title.replace(/ \(.*/, "")}`);
    form.replaceChildren(...rows, h("div", { class: "row" }, h("button", { type: "submit", class: "primary" }, "Compute")), progress.element);
  }

  store.watch(["by"], show);
  return element;
}
