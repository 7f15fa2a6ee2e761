// The text with its tokens coloured by what the selected token takes from each of them.

import { colour, css, gradient, inkOn } from "./colour.js";
import { choice, figure, h, percent, tokenText } from "./dom.js";
import { headValues, placeOf, visibility, VIEWS } from "./attention.js";

function tokenButtons(tokens, store) {
  return tokens.map((token, i) =>
    h("button", {
      type: "button", tabindex: -1, class: token.origin === "template" ? "tok special" : "tok", title: token.about,
      "aria-label": `token ${i}: ${token.shown}`,
      onclick: () => store.set({ query: i }),
    }, h("bdi", { dir: "auto" }, token.shown)),
  );
}

/** What the selected token takes from every token by the chosen quantity: {value(key), error(key)|null, step, hidden}. */
async function sources(page, by, { layer, head, query }) {
  const n = page.payload.tokens.length;
  if (by === "contribution") {
    const [block, error] = await Promise.all([page.contribution.get(layer), page.stderr?.get(layer)]);
    return {
      value: (key) => block.value(0, query, key), step: block.step(0),
      error: error ? (key) => error.value(0, query, key) : null,
    };
  }
  const values = await headValues(page, layer, head);
  return { value: (key) => values[by](query * n + key), step: values.step, error: null };
}

export function colouredText(page, store) {
  const { payload } = page;
  const tokens = payload.tokens;
  const buttons = tokenButtons(tokens, store);
  const title = h("h3", {});
  const legend = h("div", { class: "legend" });
  const list = h("ol", { class: "top" });
  const available = {};
  if (page.contribution) available.contribution = "contribution";
  if (page.raw) for (const view of Object.keys(VIEWS)) available[view] = { raw: "raw attention", effective: "effective", null: "null space" }[view];
  let by = Object.keys(available)[0];

  async function show() {
    const { layer, head, query } = store.state;
    const started = performance.now();
    const chosen = by;
    const from = await sources(page, chosen, store.state);
    if (store.state.layer !== layer || store.state.head !== head || store.state.query !== query || by !== chosen) return;
    const theme = store.theme();
    const seen = chosen !== "contribution" && visibility(payload, layer);
    const values = tokens.map((_, key) => from.value(key));
    const most = Math.max(...values.map(Math.abs), 1e-12);
    buttons.forEach((button, key) => {
      const rgb = colour(values[key] / most, theme);
      button.style.backgroundColor = css(rgb);
      button.style.color = inkOn(rgb);
      button.classList.toggle("hidden-key", Boolean(seen && !seen(query, key)));
      button.setAttribute("aria-pressed", key === query);
      button.tabIndex = key === query ? 0 : -1;
    });
    const where = chosen === "contribution" ? `after layer ${layer}` : `in ${placeOf(payload, layer, head)}`;
    title.replaceChildren(chosen === "contribution" ? "What made token " : "Where token ", `${query} `, tokenText(tokens[query]),
      chosen === "contribution" ? ` ${where}` : ` looks ${where}`);
    explain(theme, values, most, chosen);
    const order = values.map((_, key) => key).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b);
    list.replaceChildren(...order.slice(0, 6).map((key) => {
      const number = chosen === "contribution" ? percent(values[key], 1) : figure(values[key], from.step);
      const error = from.error ? h("span", { class: "note" }, ` ± ${percent(from.error(key), 1)}`) : "";
      return h("li", {}, h("span", { class: "index" }, key), tokenText(tokens[key]), h("b", {}, number), error);
    }));
    performance.measure("clearhead:text", { start: started });
  }

  function explain(theme, values, most, chosen) {
    const low = Math.min(...values) < 0 ? -1 : 0;
    const bar = h("span", { class: "ramp" });
    bar.style.backgroundImage = gradient(low, 1, theme);
    const text = (v) => (chosen === "contribution" ? percent(v, 1) : v.toFixed(3).replace("-", "−"));
    legend.replaceChildren(h("span", { class: "scale" }, text(low * most), bar, text(most)), h("span", {}, "strongest colour: this token's largest; framed: the token itself"));
  }

  store.watch(["layer", "head", "query", "theme"], show);
  const strip = h("div", {
    class: "strip", role: "group", "aria-label": "Tokens of the text; arrow keys move",
    onkeydown: (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -tokens.length, End: tokens.length }[event.key];
      if (!step) return;
      event.preventDefault();
      store.move({ query: step });
      buttons[store.state.query].focus();
    },
  }, buttons.map((button, i) => [tokens[i].space ? " " : "", tokens[i].breaks ? h("br") : "", button]));
  const pick = choice("Colour by", available, by, (value) => { by = value; show(); });
  return h("div", {}, h("div", { class: "controls" }, pick), title, strip, legend, list);
}
