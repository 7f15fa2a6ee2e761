// What is chosen on the page, who is told when it changes, and the link (hash) that reopens it.

export const CHOICES = {
  by: "contribution", compare: "", units: "pieces", specials: "kept", scale: "row", axis: "root", cells: "share",
  show: "three", points: "pca", tint: "side",
};
const NUMBERS = ["layer", "head", "query"];

export class Store {
  constructor(limits, root) {
    this.limits = limits;
    this.root = root;
    this.state = { layer: 0, head: 0, query: 0, ...CHOICES };
    this.watchers = [];
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

  set(change) {
    const changed = Object.keys(change).filter((key) => this.state[key] !== change[key]);
    if (!changed.length) return;
    Object.assign(this.state, change);
    this.#tell(changed);
  }

  /** Moves by steps, stopping at the ends. */
  move(steps) {
    this.set(Object.fromEntries(Object.entries(steps).map(([key, step]) => [key, Math.max(0, Math.min(this.limits[key], this.state[key] + step))])));
  }

  start() {
    this.#tell([...Object.keys(this.state), "theme"]);
  }

  #tell(changed) {
    for (const [keys, told] of this.watchers) if (keys.some((key) => changed.includes(key))) told(this.state, changed);
  }

  /** The state as the text of a link, what is as at first left out. */
  toHash() {
    const told = Object.entries(this.state).filter(([key, value]) => NUMBERS.includes(key) || value !== CHOICES[key]);
    return new URLSearchParams(told).toString();
  }

  /** Takes over what a link says, as far as it can be: anything else in it is ignored. */
  fromHash(text, allowed) {
    const change = {};
    for (const [key, value] of new URLSearchParams(text)) {
      if (NUMBERS.includes(key) && /^\d+$/.test(value)) change[key] = Math.min(Number(value), this.limits[key]);
      else if (allowed[key]?.includes(value)) change[key] = value;
    }
    Object.assign(this.state, change);
    return change;
  }

  /** Keeps the address of the page in step with the state. `more` gives what else belongs to the link. */
  keepHash(more = () => "") {
    let waiting = null;
    this.watch(Object.keys(this.state), () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => history.replaceState(null, "", `#${[more(), this.toHash()].filter(Boolean).join("&")}`), 150);
    });
  }
}
