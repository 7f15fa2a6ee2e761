// The text with its tokens coloured by what the selected token takes from each of them: by one method, by two side by
// side, or by the three truths (raw attention, effective attention, contribution).

import { colour, css, gradient, inkOn, strength } from "./colour.js";
import { figure, h, percent, tokenText } from "./dom.js";
import { svgOfButtons } from "./exports.js";
import { Progress, takeaway } from "./figures.js";
import { optionsForm } from "./options.js";
import { faithfulness, methodPicker, placeOf, visibility } from "./picker.js";

const TOP = 6;

/** A value of a map in words: a share in per cent, else with the decimals that its rounding allows. */
export function spoken(entry, value, step) {
  return entry.share ? percent(value, 1) : figure(value, step);
}

/** One strip of tokens, coloured by one map. */
class Strip {
  constructor(page, store) {
    Object.assign(this, { page, store });
    this.title = h("h3", {});
    this.legend = h("div", { class: "legend" });
    this.list = h("ol", { class: "top" });
    this.progress = new Progress();
    this.box = h("div", { class: "strip", role: "group", "aria-label": "Tokens of the text; left and right move the token, up and down the layer", onkeydown: (event) => this.#key(event) });
    this.take = takeaway("Text", {
      columns: () => this.#columns(),
      svg: () => svgOfButtons(this.box, this.buttons),
      name: () => `text ${this.key} layer ${store.state.layer} token ${store.state.query}`,
    });
    this.element = h("div", { class: "reading" }, this.title, this.progress.element, this.box, this.legend, this.list, this.take.element);
  }

  #key(event) {
    const { entries } = this.page.lens;
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    const layers = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step && !layers) return;
    event.preventDefault();
    if (layers) return this.store.move({ layer: layers });
    const from = this.page.lens.entryOf(this.store.state.query);
    const to = Math.max(0, Math.min(entries.length - 1, (from < 0 ? 0 : from) + step));
    this.store.set({ query: entries[to].pieces[0][0] });
    this.buttons[to].focus();
  }

  #build() {
    const { entries } = this.page.lens;
    this.lens = this.page.lens;
    this.buttons = entries.map((one, i) =>
      h("button", {
        type: "button", tabindex: -1, class: one.origin === "template" ? "tok special" : "tok", title: one.about,
        "aria-label": `token ${i}: ${one.shown}`,
        onclick: () => this.store.set({ query: one.pieces[0][0] }),
      }, h("bdi", { dir: "auto" }, one.shown)));
    this.box.replaceChildren(...this.buttons.flatMap((button, i) => [entries[i].space ? " " : "", entries[i].breaks ? h("br") : "", button]));
  }

  async show(key) {
    const { page, store } = this;
    this.key = key;
    const asked = { ...store.state };
    const lens = page.lens;
    const started = performance.now();
    const stale = () => this.key !== key || page.lens !== lens || ["layer", "head", "query"].some((name) => store.state[name] !== asked[name]);
    if (this.lens !== lens) this.#build();
    let cells, error;
    try {
      const source = await page.door.source(key, this.progress.show);
      [cells, error] = await Promise.all([source.cells(asked.layer, asked.head), source.error(asked.layer, asked.head)]);
    } catch (failure) {
      if (!stale()) this.#blank(failure);
      return;
    }
    if (stale()) return;
    this.progress.done();
    page.told(key);
    const at = (of) => (query, k) => of.at(query * lens.n + k);
    this.cells = cells;
    this.values = lens.row(at(cells), asked.query);
    this.errors = error && lens.row(at(error), asked.query);
    this.lost = lens.lost(at(cells), asked.query);
    this.paint();
    performance.measure("clearhead:text", { start: started });
    page.drawn("text");
  }

  #blank(failure) {
    this.progress.fail(failure);
    this.values = null;
    this.title.replaceChildren(this.page.entry(this.key)?.title ?? this.key);
    this.legend.replaceChildren();
    this.list.replaceChildren();
    for (const button of this.buttons) button.style.backgroundColor = button.style.color = "";
  }

  paint() {
    if (!this.values || this.lens !== this.page.lens) return;
    const { values, cells, store, lens } = this;
    const entry = this.page.entry(this.key);
    const { layer, query, scale, axis } = store.state;
    const theme = store.theme();
    const own = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const most = { row: own, head: lens.plain ? cells.largest : own, all: this.page.largestOf([this.key]) }[scale];
    const mask = lens.visible(entry.heads ? visibility(this.page.payload, layer) : null);
    const row = lens.entryOf(query);
    this.buttons.forEach((button, i) => {
      const rgb = colour(strength(values[i], most, axis), theme);
      button.style.backgroundColor = css(rgb);
      button.style.color = inkOn(rgb);
      button.classList.toggle("hidden-key", Boolean(mask && row >= 0 && !mask(row, i)));
      button.setAttribute("aria-pressed", i === row);
      button.tabIndex = i === Math.max(0, row) ? 0 : -1;
    });
    const token = tokenText(row < 0 ? this.page.payload.tokens[query] : lens.entries[row]);
    this.title.replaceChildren(entry.title, h("span", { class: "where" }, entry.share ? " of the text to " : " of ", token, ` ${placeOf(entry, store.state)}`));
    this.#explain(entry, most, theme, scale);
    this.#rank(entry);
    this.take.refresh();
  }

  #explain(entry, most, theme, scale) {
    const low = this.values.some((value) => value < 0) ? -1 : 0;
    const bar = h("span", { class: "ramp" });
    bar.style.backgroundImage = gradient(low, 1, theme);
    const words = { row: "this token's largest", head: this.lens.plain ? "the largest of all tokens here" : "this token's largest", all: "the largest of all layers" }[scale];
    const step = most / 100;
    this.legend.replaceChildren(
      h("span", { class: "scale" }, low ? spoken(entry, low * most, step) : "0", bar, spoken(entry, most, step)),
      h("span", {}, `strongest colour: ${words}${this.store.state.axis === "root" ? ", square-root scale" : ""}`),
      this.#faithfulness(),
      this.lens.dropped.length ? h("span", {}, `dropped special tokens hold ${spoken(entry, this.lost, step)}`) : "",
    );
  }

  #faithfulness() {
    const found = faithfulness(this.page.payload, this.key);
    return found ? h("span", {}, `faithfulness ${figure(found.score, 1e-2)}, random orders ${figure(this.page.payload.faithfulness.random, 1e-2)}`) : "";
  }

  #rank(entry) {
    const { values, errors, lens } = this;
    const order = Array.from(values, (_, i) => i).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b);
    this.list.replaceChildren(...order.slice(0, TOP).map((i) => {
      const error = errors ? h("span", { class: "note" }, ` ± ${spoken(entry, errors[i], 1e-3)}`) : "";
      return h("li", {}, h("span", { class: "index" }, i), tokenText(lens.entries[i]), h("b", {}, spoken(entry, values[i], this.cells.step)), error);
    }));
  }

  #columns() {
    const { entries } = this.page.lens;
    const columns = { position: entries.map((_, i) => i), token: entries.map((one) => one.shown), [`${this.page.entry(this.key).title} (${this.page.entry(this.key).unit})`]: Array.from(this.values ?? []) };
    return this.errors ? { ...columns, "standard error": Array.from(this.errors) } : columns;
  }
}

export function colouredText(page, store) {
  const strips = [0, 1, 2].map(() => new Strip(page, store));
  const box = h("div", { class: "readings" }, strips.map((one) => one.element));
  const truths = ["raw", "effective", "contribution"];
  const keys = () => {
    const { by, compare } = store.state;
    if (compare === "truths") return truths.filter((key) => page.entry(key)); // contributions may be left out
    return compare && compare !== by ? [by, compare] : [by];
  };
  const show = () => {
    const shown = keys();
    box.dataset.count = shown.length;
    strips.forEach((strip, i) => {
      strip.element.hidden = i >= shown.length;
      if (i < shown.length) strip.show(shown[i]);
    });
  };
  store.watch(["layer", "head", "query", "by", "compare"], show);
  store.watch(["theme", "scale", "axis"], () => strips.forEach((strip) => strip.element.hidden || strip.paint()));
  page.onLens(show);
  const by = methodPicker("Colour by", page.payload, store, "by");
  const and = methodPicker("Beside it", page.payload, store, "compare", [["", "nothing"], ["truths", "the three truths"]]);
  store.watch(["compare"], ({ compare }) => (by.element.hidden = compare === "truths"));
  page.onTold(() => [by, and].forEach((one) => one.refill()));
  return h("div", {}, h("div", { class: "controls" }, by.element, and.element, optionsForm(page, store)), box);
}
