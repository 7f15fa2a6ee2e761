// The few helpers that every view uses. Text reaches the page through text nodes and setAttribute only: never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** An HTML element: h("p", {class: "note"}, "text", child, ...). */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An SVG element. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** "**bold** text" as nodes. */
export function emphasised(text) {
  return text.split("**").map((part, i) => (i % 2 ? h("strong", {}, part) : part));
}

/** One choice out of few, as a group of radio buttons drawn as one control. `set` on the element chooses silently. */
export function choice(label, options, chosen, change) {
  const name = `clearhead-${label.replace(/\W+/g, "-")}-${Math.random().toString(36).slice(2, 8)}`;
  const group = h(
    "fieldset",
    { class: "choice" },
    h("legend", {}, label),
    h(
      "div",
      { class: "choices" },
      Object.entries(options).map(([value, text]) =>
        h(
          "label",
          {},
          h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => change(value) }),
          h("span", {}, text),
        ),
      ),
    ),
  );
  group.set = (value) => {
    for (const input of group.querySelectorAll("input")) input.checked = input.value === value;
  };
  return group;
}

/** A choice that is part of the state, both ways. */
export function stateChoice(store, key, label, options) {
  const element = choice(label, options, store.state[key], (value) => store.set({ [key]: value }));
  store.watch([key], (state) => element.set(state[key]));
  return element;
}

/** One choice out of many: [[value, text, {disabled, title}]] or {group: [...]}. Returns {element, select}. */
export function picker(label, change) {
  const id = `clearhead-${label.replace(/\W+/g, "-")}-${Math.random().toString(36).slice(2, 8)}`;
  const select = h("select", { id, onchange: () => change(select.value) });
  const fill = (options, chosen) => {
    const option = ([value, text, more]) => h("option", { value, selected: value === chosen, ...more }, text);
    select.replaceChildren(...Object.entries(options).filter(([, list]) => list.length).map(([group, list]) =>
      (group ? h("optgroup", { label: group }, list.map(option)) : list.map(option))).flat());
    select.value = chosen;
  };
  return { element: h("div", { class: "picker" }, h("label", { for: id }, label), select), select, fill };
}

/** A token as it is shown in running text: isolated from the direction of its neighbours, whatever it holds. */
export function tokenText(token) {
  return h("bdi", { class: token.origin === "template" ? "chip special" : "chip", dir: "auto" }, token.shown);
}

export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)} %`.replace("-", "\u2212");
}

/** A value with as many decimals as its rounding step allows, at most 5. */
export function figure(value, step) {
  const decimals = Math.min(5, Math.max(2, Math.floor(-Math.log10(step || 1e-5))));
  const text = value.toFixed(decimals);
  return (Number(text) === 0 ? (0).toFixed(decimals) : text).replace("-", "\u2212");
}

/** Calls back with the width of an element, now and whenever it changes. */
export function onWidth(element, callback) {
  let last = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width && width !== last) callback((last = width));
  }).observe(element);
}

/** A function that draws a view, at once where it is near the window and otherwise when it comes near; what is asked
 * while it is away is drawn once. */
export function whenNear(element, draw) {
  let near = false;
  let wanted = false;
  new IntersectionObserver(([entry]) => {
    near = entry.isIntersecting;
    if (near && wanted) ask();
  }, { rootMargin: "500px" }).observe(element);
  const ask = () => {
    wanted = !near;
    if (near) draw();
  };
  return ask;
}
