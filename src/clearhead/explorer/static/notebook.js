// The door of a notebook (anywidget): the page in a shadow root, so that no style passes either way; the kernel computes.
// The selected layer, head and token are traits of the widget, both ways.

import { failed, mount } from "./page.js";
import { RemoteDoor } from "./sources.js";

const SELECTED = { layer: "layer", head: "head", query: "token" };

/** The kernel as a machine: one message out, one back, told apart by a number. */
function machineOf(model) {
  const waiting = new Map();
  let count = 0;
  model.on("msg:custom", (told, buffers) => {
    const asked = waiting.get(told.answer);
    if (!asked) return;
    waiting.delete(told.answer);
    if (told.error) asked.reject(new Error(told.error));
    else asked.resolve({ told: told.told, buffers });
  });
  const ask = (message) => new Promise((resolve, reject) => {
    waiting.set(++count, { resolve, reject });
    model.send({ ...message, number: count });
  });
  return {
    job: async (asked, progress = () => {}) => {
      const begun = performance.now();
      const what = asked.method ?? asked.task;
      const tick = () => progress({ step: `the kernel computes ${what}`, seconds: (performance.now() - begun) / 1000 });
      tick();
      const clock = setInterval(tick, 1000);
      return ask(asked).then(({ told }) => told).finally(() => clearInterval(clock));
    },
    bytes: async (question) => {
      const { buffers: [view] } = await ask({ task: "numbers", ...question });
      return view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
    },
  };
}

export function render({ model, el }) {
  const shadow = el.attachShadow({ mode: "open" });
  const style = document.createElement("style");
  style.textContent = model.get("_style");
  const root = document.createElement("div");
  root.className = "clearhead in-notebook";
  if (model.get("theme") !== "auto") root.dataset.theme = model.get("theme");
  shadow.append(style, root);
  show(model, root).catch((error) => {
    failed(root, error);
    throw error;
  });
}

async function show(model, root) {
  const payload = structuredClone(model.get("_payload"));
  for (const [key, trait] of Object.entries(SELECTED)) payload.start[key] = model.get(trait);
  const store = await mount(root, payload, new RemoteDoor(machineOf(model), false));
  store.watch(Object.keys(SELECTED), (state) => {
    for (const [key, trait] of Object.entries(SELECTED)) model.set(trait, state[key]);
    model.save_changes();
  });
  for (const [key, trait] of Object.entries(SELECTED)) model.on(`change:${trait}`, () => store.set({ [key]: model.get(trait) }));
}
