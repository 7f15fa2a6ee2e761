// All heads at once: a row per layer, a column per head, coloured by one figure or as small pictures; one head in words.

import { bytesOf } from "./codec.js";
import { colour, css, gradient, inkOn, pixels, squareRoot } from "./colour.js";
import { h, percent, stateChoice } from "./dom.js";
import { takeaway } from "./figures.js";
import { escaped } from "./exports.js";

const FIGURES = {
  share: "null-space share", free: "free dimensions", distance: "distance from raw", raw: "raw, small", effective: "effective, small",
};

/** What a cell shows: {strength 0..1, text} by the chosen figure. */
function readings(payload) {
  const { share, distance, rank, keys, nullity_row_sum: free } = payload.overview;
  return {
    share: (l, k) => ({ of: share[l][k], text: Math.round(100 * share[l][k]) }),
    free: (l, k) => ({ of: free[l][k] / keys[l][k], text: free[l][k] }),
    distance: (l, k) => (distance[l][k] === null ? { of: 0, text: "–" } : { of: Math.min(1, distance[l][k]), text: distance[l][k].toFixed(2) }),
    rank,
  };
}

const ENDS = {
  share: ["0 %", "100 % of the squared norm has no effect"],
  free: ["0: the weights are determined", "as many free dimensions as keys"],
  distance: ["0: as raw", "1 − correlation of effective with raw weights"],
};

export function overview(payload, store) {
  const { share, verdict, rank, keys, distance, nullity_row_sum: free } = payload.overview;
  const heads = share[0].length;
  const read = readings(payload);
  const cells = share.map((row, layer) =>
    row.map((_, head) =>
      h("button", {
        type: "button", role: "gridcell", tabindex: -1, "aria-selected": "false",
        "aria-label":
          `layer ${layer} head ${head}: ${verdict[layer][head]}, rank ${rank[layer][head]} of ${keys[layer][head]} keys, ` +
          `null-space share ${percent(share[layer][head], 1)}`,
        onclick: () => store.set({ layer, head }),
      }),
    ),
  );
  const legend = h("div", { class: "legend" });
  const grid = h(
    "div",
    {
      class: "heads", role: "grid", "aria-label": "All heads: a row per layer, a column per head",
      onkeydown: (event) => {
        const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (!step) return;
        event.preventDefault();
        store.move({ layer: step[0], head: step[1] });
        cells[store.state.layer][store.state.head].focus();
      },
    },
    h("div", { role: "row", class: "head-row" }, h("span", { role: "columnheader", class: "corner" }, "head"),
      Array.from({ length: heads }, (_, head) => h("span", { role: "columnheader" }, head))),
    cells.map((row, layer) => h("div", { role: "row", class: "head-row" }, h("span", { role: "rowheader" }, layer), row)),
  );
  grid.style.setProperty("--heads", heads);
  const paint = () => {
    const theme = store.theme();
    const by = store.state.cells;
    const small = by === "raw" || by === "effective";
    grid.classList.toggle("small-maps", small);
    cells.forEach((row, layer) =>
      row.forEach((cell, head) => {
        cell.dataset.verdict = verdict[layer][head];
        if (small) {
          cell.style.backgroundColor = cell.style.color = "";
          cell.replaceChildren(thumb(payload.thumbs, by, layer * heads + head, theme));
          return;
        }
        const { of, text } = read[by](layer, head);
        const rgb = colour(of, theme, true);
        cell.style.backgroundColor = css(rgb);
        cell.style.color = inkOn(rgb);
        cell.replaceChildren(h("span", {}, text));
      }),
    );
    const bar = h("span", { class: "ramp" });
    bar.style.backgroundImage = small ? gradient(-1, 1, theme) : gradient(0, 1, theme, true);
    const ends = ENDS[by] ?? ["−largest of the row", "largest of the row (the strongest cell of each block, square-root colours)"];
    legend.replaceChildren(
      h("span", { class: "scale" }, ends[0], bar, ends[1]),
      ...(small ? [] : ["identifiable", "uncertain"].map((name) => h("span", {}, h("i", { class: "mark", "data-verdict": name }), name))),
    );
  };
  let marked = null;
  const mark = ({ layer, head }) => {
    for (const [cell, here] of [[marked, false], [cells[layer][head], true]]) {
      cell?.setAttribute("aria-selected", here);
      if (cell) cell.tabIndex = here ? 0 : -1;
    }
    marked = cells[layer][head];
  };
  store.watch(["layer", "head"], mark);
  store.watch(["theme", "cells"], paint);
  const flat = (table) => table.flat();
  const columns = () => ({
    layer: flat(share.map((row, l) => row.map(() => l))), head: flat(share.map((row) => row.map((_, k) => k))),
    verdict: flat(verdict), "null-space share": flat(share), "free dimensions": flat(free), "distance from raw": flat(distance),
    rank: flat(rank), keys: flat(keys),
  });
  const take = takeaway("Overview of the heads", { columns, svg: () => svgOfGrid(cells, payload, store), name: () => `heads ${store.state.cells}` });
  return h("div", { class: "overview" }, stateChoice(store, "cells", "Cells show", FIGURES), grid, legend, take.element);
}

function thumb(thumbs, name, index, theme) {
  const { side } = thumbs;
  thumbs.codes ??= {};
  thumbs.codes[name] ??= new Int8Array(bytesOf(thumbs[name]).buffer);
  const codes = thumbs.codes[name].subarray(index * side * side, (index + 1) * side * side);
  const canvas = h("canvas", { width: side, height: side, class: "thumb", "aria-hidden": "true" });
  const image = new ImageData(side, side);
  const out = new Uint32Array(image.data.buffer);
  const table = pixels(theme);
  codes.forEach((code, i) => (out[i] = table[255 + Math.round(255 * squareRoot(code / 127))]));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function svgOfGrid(cells, payload, store) {
  const [wide, tall] = store.state.cells === "raw" || store.state.cells === "effective" ? [52, 52] : [44, 30];
  const own = getComputedStyle(cells[0][0].closest(".clearhead"));
  const parts = cells.flatMap((row, l) => row.map((cell, k) => {
    const [x, y] = [60 + k * wide, 24 + l * tall];
    const canvas = cell.querySelector("canvas");
    if (canvas) return `<image x="${x}" y="${y}" width="${wide - 3}" height="${tall - 3}" style="image-rendering:pixelated" href="${canvas.toDataURL()}"/>`;
    return `<rect x="${x}" y="${y}" width="${wide - 3}" height="${tall - 3}" rx="4" fill="${cell.style.backgroundColor}"/>` +
      `<text x="${x + wide / 2 - 1}" y="${y + tall / 2 + 3}" text-anchor="middle" fill="${cell.style.color}">${escaped(cell.textContent)}</text>`;
  }));
  const names = [...cells.map((_, l) => `<text x="4" y="${24 + l * tall + tall / 2 + 3}">layer ${l}</text>`),
    ...cells[0].map((_, k) => `<text x="${60 + k * wide + wide / 2}" y="16" text-anchor="middle">${k}</text>`)];
  const size = [64 + cells[0].length * wide, 28 + cells.length * tall];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${size[0]}" height="${size[1]}" viewBox="0 0 ${size.join(" ")}" font-size="12" font-family="${escaped(own.fontFamily)}" fill="${own.color}"><rect width="100%" height="100%" fill="${own.backgroundColor}"/>${names.join("")}${parts.join("")}</svg>`;
}

/** The selected head in words. */
export function headFacts(payload, store) {
  const box = h("div", { class: "facts", "aria-live": "polite" });
  const { share, distance, verdict, rank, keys, nullity, nullity_row_sum: nullityRowSum, d_v: width } = payload.overview;
  store.watch(["layer", "head"], ({ layer: l, head: k }) => {
    const rows = [
      ["verdict", verdict[l][k]],
      ["keys", keys[l][k]],
      ["value width", width[l][k]],
      ["rank of the values", rank[l][k]],
      ["null space", `${nullity[l][k]} dimensions`],
      ["keeping row sums", `${nullityRowSum[l][k]} dimensions`],
      ["null-space share", percent(share[l][k], 1)],
      ["distance from raw", distance[l][k] === null ? "not defined" : distance[l][k].toFixed(3)],
    ];
    box.replaceChildren(
      h("h3", {}, `Layer ${l}, head ${k}`),
      h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    );
  });
  return box;
}
