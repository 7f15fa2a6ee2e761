// The page: one payload (what data.py tells) and one door (where large numbers come from) into one root element.
// Report file, server and notebook call `mount` alike.

import { curves } from "./curves.js";
import { choice, emphasised, h, percent, stateChoice } from "./dom.js";
import { svgOf } from "./exports.js";
import { takeaway } from "./figures.js";
import { tokenDepth } from "./depth.js";
import { matrices, rowTable } from "./heatmaps.js";
import { Lens } from "./lens.js";
import { headFacts, overview } from "./overview.js";
import { allowedChoices } from "./picker.js";
import { queryKeyMap } from "./querykey.js";
import { Store } from "./store.js";
import { certificate, citations, comparison, facts, methods, proof } from "./tables.js";
import { colouredText } from "./text.js";

/** What all views share: the payload, the door, the lens, and who waits for what. */
class Page {
  constructor(payload, door, store) {
    Object.assign(this, { payload, door, store, lensWatchers: [], toldWatchers: [], waiting: new Map(), lenses: new Map() });
    this.lens = this.#lens();
    store.watch(["units", "specials"], () => {
      this.lens = this.#lens();
      for (const told of this.lensWatchers) told();
    });
  }

  #lens() {
    const { units, specials } = this.store.state;
    const name = `${units}/${specials}`;
    if (!this.lenses.has(name)) this.lenses.set(name, new Lens(this.payload, units, specials));
    return this.lenses.get(name);
  }

  entry(key) {
    return this.door.entry(key);
  }

  /** The largest magnitude of some maps, over all layers and heads. */
  largestOf(keys) {
    return Math.max(...keys.map((key) => this.door.ready(key)?.largest ?? 0)) || 1;
  }

  onLens(told) {
    this.lensWatchers.push(told);
  }

  /** Called when a map may have come to be there. */
  onTold(told) {
    this.toldWatchers.push(told);
  }

  told(key) {
    this.known ??= new Set();
    if (this.known.has(key)) return;
    this.known.add(key);
    for (const told of this.toldWatchers) told();
  }

  drawn(view) {
    this.waiting.get(view)?.();
    this.waiting.delete(view);
  }

  /** Resolves when a view has been drawn once. */
  whenDrawn(view) {
    return new Promise((resolve) => this.waiting.set(view, resolve));
  }
}

function section(id, title, lead, ...children) {
  return h("section", { "aria-labelledby": id }, h("h2", { id }, title), lead ? h("p", { class: "lead" }, lead) : "", children);
}

/** The line at the top: whose page it is, and the theme. `more`: what a door adds. */
export function masthead(store, more = "") {
  const theme = choice("Theme", { auto: "auto", light: "light", dark: "dark" }, store?.root.dataset.theme ?? "auto", (value) => store.setTheme(value));
  return h("header", { class: "masthead" }, h("span", { class: "brand" }, "clearhead"), more, store ? theme : "");
}

function lead(payload) {
  const [first] = payload.verdicts;
  return h("div", { class: "lead-verdict" },
    h("h1", {}, emphasised(first.sentence)),
    h("p", { class: "note meaning" }, first.meaning),
    h("p", { class: "model" }, payload.model.line),
    payload.notices.map((text) => h("p", { class: "notice", role: "note" }, text)));
}

function verdicts(payload) {
  return section("verdicts", "What else can be said", null,
    h("div", { class: "verdicts" }, payload.verdicts.slice(1).map(({ sentence, meaning }) =>
      h("div", { class: "verdict" }, h("p", { class: "sentence" }, emphasised(sentence)), h("p", { class: "note" }, meaning)))));
}

function stepper(name, label, count, store, text) {
  const slider = h("input", { type: "range", min: 0, max: count - 1, step: 1, "aria-label": label, oninput: () => store.set({ [name]: Number(slider.value) }) });
  const output = h("output", {});
  store.watch([name], (state) => {
    slider.value = state[name];
    output.replaceChildren(...text(state[name]));
    slider.setAttribute("aria-valuetext", output.textContent);
  });
  const button = (step, sign) => h("button", { type: "button", "aria-label": `${label} ${step < 0 ? "back" : "forward"}`, onclick: () => store.move({ [name]: step }) }, sign);
  return h("div", { class: "stepper", "data-name": name }, h("span", { class: "name" }, label), button(-1, "‹"), slider, button(1, "›"), output);
}

function display(store) {
  return h("details", { class: "display" },
    h("summary", {}, "Display"),
    h("div", { class: "panel" },
      stateChoice(store, "units", "Text as", { pieces: "pieces", words: "words" }),
      stateChoice(store, "specials", "Special tokens", { kept: "kept", dropped: "dropped", grouped: "grouped" }),
      stateChoice(store, "scale", "Colour scale", { row: "each row", head: "this head", all: "all layers" }),
      stateChoice(store, "axis", "Colour as", { root: "√ value", linear: "value" })));
}

function controls(payload, store, linked) {
  const tokens = payload.tokens;
  const copied = h("span", { class: "visually-hidden", role: "status" });
  const link = h("button", {
    type: "button", class: "quiet copy",
    onclick: async () => {
      await navigator.clipboard.writeText(location.href);
      copied.textContent = "Link copied";
      link.textContent = "Copied";
      setTimeout(() => (link.textContent = "Copy link"), 1500);
    },
  }, "Copy link");
  return h("nav", { class: "selection", "aria-label": "Selected layer, head and token" },
    stepper("layer", "Layer", store.limits.layer + 1, store, (l) => [String(l)]),
    stepper("head", "Head", store.limits.head + 1, store, (k) => [String(k)]),
    stepper("query", "Token", tokens.length, store, (i) => [`${i} `, h("bdi", { dir: "auto" }, tokens[i].shown)]),
    h("div", { class: "tools" }, display(store), linked && navigator.clipboard ? [link, copied] : ""),
  );
}

function chart(told) {
  const element = curves({ ...told, format: (share, exact) => percent(share, exact ? 1 : 0) });
  const columns = () => [["layer", told.series[0].values.map((_, i) => i)], ...told.series.map((one) => [one.name, one.values])];
  element.append(takeaway(told.title, { columns, svg: () => svgOf(element.querySelector("svg")) }).element);
  return element;
}

/** Fills `root` with the page of a payload. Resolves when the first views are drawn; gives the store. */
export async function mount(root, payload, door, { above = "", link = () => "", hash = null } = {}) {
  const layers = payload.overview.share.length;
  const store = new Store({ layer: layers - 1, head: payload.overview.share[0].length - 1, query: payload.tokens.length - 1 }, root);
  door.open(payload);
  const there = (key) => payload.maps.find((one) => one.key === key)?.values;
  Object.assign(store.state, payload.start, { by: ["contribution", "raw"].find(there) ?? payload.maps.find((one) => one.values)?.key ?? "raw" });
  const linked = hash ?? (door.linked ? location.hash.slice(1) : "");
  store.fromHash(linked, allowedChoices(payload));
  const page = new Page(payload, door, store);
  const maps = Boolean(there("raw"));
  const text = maps || there("contribution");
  root.classList.add("clearhead");
  root.setAttribute("aria-busy", "true");
  const main = h("main", {}, above, lead(payload));
  root.replaceChildren(masthead(store), main);
  const first = text ? section("text", "Click a token: where does it come from?", null, colouredText(page, store)) : "";
  main.append(controls(payload, store, door.linked), first);
  const drawn = text ? page.whenDrawn("text") : null;
  const begin = performance.now();
  await shown();
  main.append(
    payload.faithfulness ? section("faithfulness", "Which method predicts the model?",
      "Tokens are taken out of the text in the order of each method. Where the method is right about what matters, the answer changes soon; taken out from the other end, late. The score is the area between: 0 says nothing, and random orders stand beside.",
      comparison(payload, store)) : "",
    verdicts(payload),
    section("attention", "Attention: raw, effective, and what has no effect",
      "A head's output is its attention times its values. Whatever part of the attention is orthogonal to the values is multiplied away: it could be anything, and the model would not notice.",
      h("div", { class: "heads-and-facts" }, overview(payload, store), headFacts(payload, store)),
      maps ? [matrices(page, store), rowTable(page, store)] : ""),
    section("depth", "With depth", "One token through the layers; then all of them: how attention without effect grows, how identity fades, and from how far away content comes.",
      text ? tokenDepth(page, store) : "",
      h("div", { class: "charts" }, payload.depth.map(chart))),
    payload.points ? section("points", "Queries and keys on one map",
      "A query attends to the keys that lie near it. Keys were moved and both sides scaled in ways that leave every attention weight as it is, so that distance tells attention as well as two dimensions can.",
      queryKeyMap(page, store)) : "",
    section("certificate", "Certificate of every head", "Sort by any column; a click on a line selects its head.", certificate(payload, store)),
    section("proof", "Proof of the capture", null, proof(payload)),
    section("methods", "What was computed", null, methods(payload)),
    section("origin", "Origin", null, facts(payload.origin)),
    section("cite", "How to cite", null, citations(payload)),
  );
  root.append(h("footer", {}, payload.footer));
  const heads = maps ? page.whenDrawn("head") : null;
  store.start();
  await Promise.all([drawn, heads]);
  root.setAttribute("aria-busy", "false");
  performance.measure("clearhead:mount", { start: begin });
  if (door.linked) {
    store.keepHash(link);
    if (hash === null) window.addEventListener("hashchange", () => store.set(linkedState(store, payload)));
  }
  unpackAhead(page, layers);
  return store;
}

/** What a link that was typed over this page asks for. */
function linkedState(store, payload) {
  const before = { ...store.state };
  const change = store.fromHash(location.hash.slice(1), allowedChoices(payload));
  Object.assign(store.state, before);
  return change;
}

/** Says in the page that it could not be drawn. */
export function failed(root, error) {
  const box = h("p", { role: "alert", class: "notice" }, `This page could not be drawn: ${error}. It needs a browser of 2024 or later.`);
  root.prepend(box);
}

/** Resolves once what is there is painted (or soon, where nothing is: a tab in the background). */
function shown() {
  return new Promise((resolve) => {
    requestAnimationFrame(() => setTimeout(resolve));
    setTimeout(resolve, 200);
  });
}

/** Unpacks the other layers while nothing else is to be done, so that a switch of layer only paints. */
function unpackAhead(page, layers) {
  const idle = window.requestIdleCallback ?? ((task) => setTimeout(task, 50));
  const next = (layer) => {
    if (layer === layers) return;
    idle(async () => {
      await Promise.all(page.payload.maps.map(({ key, values }) => values && page.door.ready(key).ahead(layer)));
      next(layer + 1);
    });
  };
  next(0);
}
