// The methods that the page can show: those here, those that can be computed, and those that cannot, with the reason.

import { figure, picker } from "./dom.js";

/** A picker over all maps. `first`: options before them. */
export function methodPicker(label, payload, store, key, first = []) {
  const { element, select, fill } = picker(label, (value) => store.set({ [key]: value }));
  const refill = () => {
    const groups = { "": [...first], "in this page": [], "computed when chosen": [], "not available": [] };
    for (const one of payload.maps) {
      if (one.values) groups["in this page"].push([one.key, one.title + scored(payload, one.key)]);
      else if (one.compute) groups["computed when chosen"].push([one.key, one.title + scored(payload, one.key)]);
      else groups["not available"].push([one.key, `${one.title}: ${one.reason}`, { disabled: true, title: one.reason }]);
    }
    fill(groups, store.state[key]);
    const chosen = payload.maps.find((one) => one.key === store.state[key]);
    select.title = chosen?.note ?? "";
  };
  store.watch([key], refill);
  return { element, refill };
}

/** The line of a method in the comparison of the page, where there is one. */
export function faithfulness(payload, key) {
  return payload.faithfulness?.rows.find((one) => one.key === key);
}

function scored(payload, key) {
  const found = faithfulness(payload, key);
  return found ? ` (faithfulness ${figure(found.score, 1e-2)})` : "";
}

/** What a map's numbers mean at a place: " after layer 3", " in layer 3, head 5", " in layer 3, mean of its 12 heads". */
export function placeOf(entry, { layer, head }) {
  if (!entry.heads) return `after layer ${layer}`;
  return entry.mean_of ? `in layer ${layer}, mean of its ${entry.mean_of} heads` : `in layer ${layer}, head ${head}`;
}

export function visibility(payload, layer) {
  const seen = payload.visible[layer];
  return seen && ((query, key) => key >= seen.start[query] && key < seen.stop[query]);
}

/** Choices whose values a link may set. */
export function allowedChoices(payload) {
  const keys = payload.maps.filter((one) => one.values || one.compute).map((one) => one.key);
  return {
    by: keys, compare: ["", "truths", ...keys], units: ["pieces", "words"], specials: ["kept", "dropped", "grouped"],
    scale: ["row", "head", "all"], axis: ["root", "linear"], cells: ["share", "free", "distance", "raw", "effective"],
    show: ["three", ...keys], points: ["pca", "umap", "tsne"], tint: ["side", "token", "position", "norm"],
  };
}
