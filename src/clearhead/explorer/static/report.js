// The page: one payload (what data.py tells) into one root element. `mount` is the only door: report file, server and
// notebook call it alike.

import { colouredText } from "./text.js";
import { headFacts, matrices, overview, rowTable } from "./attention.js";
import { Layers } from "./codec.js";
import { curves } from "./curves.js";
import { choice, emphasised, h, percent } from "./dom.js";
import { certificate, citations, facts, methods, proof } from "./tables.js";

/** What is selected on the page, and who is told when it changes. */
class Store {
  constructor(limits, root) {
    this.limits = limits;
    this.root = root;
    this.state = { layer: 0, head: 0, query: 0 };
    this.watchers = [];
    this.drawers = [];
    this.system = window.matchMedia("(prefers-color-scheme: dark)");
    this.system.addEventListener("change", () => this.#tell(["theme"]));
  }

  theme() {
    return this.root.dataset.theme ?? (this.system.matches ? "dark" : "light");
  }

  setTheme(theme) {
    if (theme === "auto") delete this.root.dataset.theme;
    else this.root.dataset.theme = theme;
    this.#tell(["theme"]);
  }

  watch(keys, told) {
    this.watchers.push([keys, told]);
  }

  onDrawn(told) {
    this.drawers.push(told);
  }

  drawn(values) {
    for (const told of this.drawers) told(values);
  }

  set(change) {
    const changed = Object.keys(change).filter((key) => this.state[key] !== change[key]);
    Object.assign(this.state, change);
    this.#tell(changed);
  }

  /** Moves by steps, stopping at the ends. */
  move(steps) {
    this.set(Object.fromEntries(Object.entries(steps).map(([key, step]) => [key, Math.max(0, Math.min(this.limits[key], this.state[key] + step))])));
  }

  start() {
    this.#tell(["layer", "head", "query", "theme"]);
  }

  #tell(changed) {
    for (const [keys, told] of this.watchers) if (keys.some((key) => changed.includes(key))) told(this.state);
  }
}

function section(id, title, lead, ...children) {
  return h("section", { "aria-labelledby": id }, h("h2", { id }, title), lead ? h("p", { class: "lead" }, lead) : "", children);
}

function header(payload, store) {
  const theme = choice("Theme", { auto: "auto", light: "light", dark: "dark" }, "auto", (value) => store.setTheme(value));
  return h("header", {},
    h("div", { class: "masthead" }, h("span", { class: "brand" }, "clearhead"), theme),
    h("h1", {}, "What this model's attention can tell, and what it cannot"),
    h("blockquote", { dir: "auto", tabindex: 0 }, payload.text.map((text) => h("p", { dir: "auto" }, text))),
    h("p", { class: "model" }, payload.model.line),
  );
}

function verdicts(payload) {
  return h("section", { class: "verdicts", "aria-label": "Verdicts" },
    payload.notices.map((text) => h("p", { class: "notice", role: "note" }, text)),
    payload.verdicts.map(({ sentence, meaning }) =>
      h("div", { class: "verdict" }, h("p", { class: "sentence" }, emphasised(sentence)), h("p", { class: "note" }, meaning))),
  );
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

function controls(payload, store) {
  const tokens = payload.tokens;
  return h("nav", { class: "selection", "aria-label": "Selected layer, head and token" },
    stepper("layer", "Layer", store.limits.layer + 1, store, (l) => [String(l)]),
    stepper("head", "Head", store.limits.head + 1, store, (k) => [String(k)]),
    stepper("query", "Token", tokens.length, store, (i) => [`${i} `, h("bdi", { dir: "auto" }, tokens[i].shown)]),
  );
}

function attention(page, store) {
  const { payload } = page;
  const heads = h("div", { class: "heads-and-facts" }, overview(payload, store), headFacts(payload, store));
  return section("attention", "Attention: raw, effective, and what has no effect",
    "A head's output is its attention times its values. Whatever part of the attention is orthogonal to the values is multiplied away: it could be anything, and the model would not notice.",
    heads, page.raw ? [matrices(page, store), rowTable(page, store)] : "");
}

function contributions(page, store) {
  const lead = page.payload.contribution?.lead ?? "Contributions are left out of this report; the text shows attention instead.";
  return section("contributions", "Contributions: which input made this token", lead, page.contribution || page.raw ? colouredText(page, store) : "");
}

function depth(payload) {
  const format = (share, exact) => percent(share, exact ? 1 : 0);
  const charts = payload.depth.map((chart) => curves({ ...chart, format }));
  return section("depth", "With depth", "How the attention without effect grows, how a token's identity fades, and from how far away its content comes.", h("div", { class: "charts" }, charts));
}

/** Fills `root` with the page of a payload. Resolves when the first views are drawn. */
export async function mount(root, payload) {
  const layers = payload.overview.share.length;
  const store = new Store({ layer: layers - 1, head: payload.overview.share[0].length - 1, query: payload.tokens.length - 1 }, root);
  Object.assign(store.state, payload.start);
  const page = {
    payload,
    raw: payload.attention.raw && new Layers(payload.attention.raw),
    effective: payload.attention.effective && new Layers(payload.attention.effective),
    contribution: payload.contribution?.values && new Layers(payload.contribution.values),
    stderr: payload.contribution?.stderr && new Layers(payload.contribution.stderr),
  };
  root.classList.add("clearhead");
  root.setAttribute("aria-busy", "true");
  const main = h("main", {}, verdicts(payload));
  root.replaceChildren(header(payload, store), main);
  await shown();
  main.append(
    controls(payload, store),
    attention(page, store),
    contributions(page, store),
    depth(payload),
    section("certificate", "Certificate of every head", "Sort by any column; a click on a line selects its head.", certificate(payload, store)),
    section("proof", "Proof of the capture", null, proof(payload)),
    section("methods", "What was computed", null, methods(payload)),
    section("origin", "Origin", null, facts(payload.origin)),
    section("cite", "How to cite", null, citations(payload)),
  );
  root.append(h("footer", {}, payload.footer));
  await new Promise((resolve) => {
    if (page.raw) store.onDrawn(resolve);
    store.start();
    if (!page.raw) resolve();
  });
  root.setAttribute("aria-busy", "false");
  unpackAhead(page, layers);
}

/** Resolves once the verdicts are painted (or soon, where nothing is: a tab in the background). */
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
      await Promise.all([page.raw, page.effective, page.contribution, page.stderr].map((one) => one?.get(layer)));
      next(layer + 1);
    });
  };
  next(0);
}
