// The door of `clearhead serve`: a form for a text, jobs with progress and cancel, numbers on demand.

import { h, picker } from "./dom.js";
import { Progress } from "./figures.js";
import { failed, masthead, mount } from "./page.js";
import { RemoteDoor } from "./sources.js";

const EXAMPLE = "The cat sat on the mat because it was warm.";

async function ask(path, options) {
  const answer = await fetch(path, options);
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

function post(path, body) {
  return ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }).then((answer) => answer.json());
}

/** Follows a job to its end by server-sent events; resolves with what it found. */
function follow(job, progress = () => {}) {
  const cancel = () => ask(`/api/jobs/${job.id}`, { method: "DELETE" });
  return new Promise((resolve, reject) => {
    const finish = (told) => {
      if (told.state === "done") ask(`/api/jobs/${told.id}/result`).then((answer) => answer.json()).then(resolve, reject);
      else reject(new Error(told.error ?? "Cancelled."));
    };
    if (["done", "failed", "cancelled"].includes(job.state)) return finish(job);
    progress({ ...job, cancel });
    const events = new EventSource(`/api/jobs/${job.id}/events`);
    events.onmessage = ({ data }) => {
      const told = JSON.parse(data);
      if (["waiting", "running"].includes(told.state)) return progress({ ...told, cancel });
      events.close();
      finish(told);
    };
    events.onerror = () => {
      events.close();
      reject(new Error("The server does not answer any more."));
    };
  });
}

/** The server as the machine of one analysis. */
function machineOf(analysis) {
  const base = `/api/analyses/${analysis}`;
  return {
    job: async ({ task, ...asked }, progress) => follow(await post(`${base}/${task}s`.replace("pointss", "points"), asked), progress),
    bytes: async ({ map, ...question }) => (await ask(`${base}/maps/${encodeURIComponent(map)}?${new URLSearchParams(question)}`)).arrayBuffer(),
  };
}

const root = document.getElementById("clearhead");

async function start() {
  const { models } = await (await ask("/api/models")).json();
  const linked = new URLSearchParams(location.hash.slice(1));
  const text = h("textarea", { "aria-label": "Text", spellcheck: "false", maxlength: 20000, placeholder: "A text to look into" });
  text.value = linked.get("text") ?? EXAMPLE;
  const model = picker("Model", () => {});
  model.fill({ "": models.map((name) => [name, name]) }, models.includes(linked.get("model")) ? linked.get("model") : models[0]);
  const button = h("button", { type: "submit", class: "primary" }, "Analyse");
  const progress = new Progress();
  const form = h("form", { class: "ask", onsubmit: (event) => { event.preventDefault(); analyse(null); } },
    text, h("div", { class: "row" }, button, models.length > 1 ? model.element : h("span", { class: "model" }, models[0])), progress.element);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });

  async function analyse(hash) {
    button.disabled = true;
    const asked = { model: model.select.value, text: text.value };
    try {
      const { analysis, job } = await post("/api/analyses", asked);
      const payload = await follow(job, progress.show);
      progress.done();
      const link = () => new URLSearchParams(asked).toString();
      await mount(root, payload, new RemoteDoor(machineOf(analysis), true), { above: form, link, hash: hash ?? "" });
    } catch (error) {
      progress.fail(error);
    } finally {
      button.disabled = false;
    }
  }

  root.replaceChildren(masthead(null), h("main", {}, h("h1", {}, "What can this model's attention tell, and what not?"), form));
  root.setAttribute("aria-busy", "false");
  if (linked.get("text")) await analyse(location.hash.slice(1));
  else text.focus();
}

try {
  await start();
} catch (error) {
  failed(root, error);
  throw error;
}
