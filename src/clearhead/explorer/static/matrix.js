// One heat map on a canvas: a query a row, a key a column. Painted from integer codes through a table of colours.
// Where the map has more cells than the canvas has pixels, a pixel shows the cell of largest magnitude in it.

import { pixels } from "./colour.js";
import { escaped } from "./exports.js";
import { h, onWidth } from "./dom.js";

const LABEL_ROOM = 76;
const LABEL_CELL = 12;

export class Matrix {
  /** events: hover(query, key) with null outside, select(query), move(dq, dk) by the arrow keys. */
  constructor(label, tokens, events) {
    this.tokens = tokens;
    this.label = label;
    this.base = h("canvas", { class: "base", "aria-hidden": "true" });
    this.over = h("canvas", {
      class: "over", tabindex: 0, role: "img", "aria-label": label,
      onpointermove: (event) => events.hover(...this.#cell(event)),
      onpointerleave: () => events.hover(null, null),
      onclick: (event) => {
        const [query] = this.#cell(event);
        if (query !== null) events.select(query);
      },
      onkeydown: (event) => {
        const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
        if (!step) return;
        event.preventDefault();
        events.move(...step);
      },
    });
    this.element = h("div", { class: "matrix" }, this.base, this.over);
    onWidth(this.element, (width) => this.#resize(width));
  }

  /** Other entries along both axes (words for pieces ...). */
  setTokens(tokens) {
    if (tokens === this.tokens) return;
    this.tokens = tokens;
    this.last = null;
    if (this.width) this.#resize(this.width);
  }

  #resize(width) {
    this.width = width;
    const n = this.tokens.length;
    this.room = (width - LABEL_ROOM) / n >= LABEL_CELL ? LABEL_ROOM : 0;
    this.side = Math.min(width - this.room, this.room ? n * 34 : Infinity);
    this.ratio = window.devicePixelRatio || 1;
    this.extent = this.room + this.side;
    for (const canvas of [this.base, this.over]) {
      canvas.width = canvas.height = Math.round(this.extent * this.ratio);
      canvas.style.width = canvas.style.height = `${this.extent}px`;
    }
    this.element.style.height = `${this.extent}px`;
    this.base.dataset.room = this.room;
    if (this.last) this.draw(...this.last);
    this.mark(this.query, this.hover);
  }

  #cell(event) {
    const n = this.tokens.length;
    const at = (offset) => Math.floor(((offset - this.room) / this.side) * n);
    const [query, key] = [at(event.offsetY), at(event.offsetX)];
    return query >= 0 && query < n && key >= 0 && key < n ? [query, key] : [null, null];
  }

  /** `values` row by row, each row's full colour at `most[query]`, by "root" or "linear"; visible(query, key) says
   * whether the mask lets a cell be seen (null: all). */
  draw(values, most, axis, visible, theme) {
    this.last = [values, most, axis, visible, theme];
    if (!this.side) return; // drawn when it is first laid out
    if (theme !== this.theme) this.ink = getComputedStyle(this.element).color;
    this.theme = theme;
    const n = this.tokens.length;
    const side = Math.min(n, Math.floor(this.side * this.ratio));
    const image = new ImageData(side, side);
    const out = new Uint32Array(image.data.buffer);
    const table = pixels(theme);
    const pooled = side < n ? new Float32Array(side * side).fill(NaN) : null;
    const place = Int32Array.from({ length: n }, (_, i) => Math.floor((i * side) / n));
    const root = axis === "root";
    for (let query = 0, i = 0; query < n; query++) {
      const scale = 1 / (most[query] || 1);
      for (let key = 0; key < n; key++, i++) {
        if (visible && !visible(query, key)) continue;
        let t = Math.max(-1, Math.min(1, values[i] * scale));
        if (root) t = t < 0 ? -Math.sqrt(-t) : Math.sqrt(t);
        const pixel = place[query] * side + place[key];
        if (pooled) {
          if (Math.abs(t) <= Math.abs(pooled[pixel])) continue;
          pooled[pixel] = t;
        }
        out[pixel] = table[255 + Math.round(255 * t)];
      }
    }
    this.#paint(image, side);
  }

  #paint(image, side) {
    const small = document.createElement("canvas");
    small.width = small.height = side;
    small.getContext("2d").putImageData(image, 0, 0);
    this.small = small;
    const context = this.base.getContext("2d");
    context.clearRect(0, 0, this.base.width, this.base.height);
    context.imageSmoothingEnabled = false;
    const from = Math.round(this.room * this.ratio);
    const to = this.base.width - from;
    context.drawImage(small, from, from, to, to);
    if (this.room) this.#labels(context);
  }

  #labels(context) {
    const style = getComputedStyle(this.element);
    const size = this.side / this.tokens.length;
    context.save();
    context.scale(this.ratio, this.ratio);
    context.font = `11px ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.textBaseline = "middle";
    this.tokens.forEach((token, i) => {
      const text = clipped(context, token.shown, LABEL_ROOM - 10);
      const centre = this.room + (i + 0.5) * size;
      context.textAlign = "right";
      context.fillText(text, this.room - 6, centre);
      context.save();
      context.translate(centre, this.room - 6);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(text, 0, 0);
      context.restore();
    });
    context.restore();
  }

  /** Frames the selected query's row and the cell under the pointer ([query, key], or null). */
  mark(query, hover) {
    this.query = query;
    this.hover = hover;
    if (!this.side || query === undefined) return;
    const context = this.over.getContext("2d");
    const size = this.side / this.tokens.length;
    context.clearRect(0, 0, this.over.width, this.over.height);
    if (query < 0) return;
    context.save();
    context.scale(this.ratio, this.ratio);
    context.strokeStyle = context.fillStyle = this.ink ?? "gray";
    const top = this.room + query * size;
    context.lineWidth = 1;
    context.strokeRect(this.room + 0.5, Math.floor(top) + 0.5, this.side - 1, Math.max(2, Math.round(size) - 1));
    if (hover) {
      context.globalAlpha = 0.55;
      const [y, x] = hover.map((index) => this.room + (index + 0.5) * size);
      context.fillRect(this.room, y - 0.5, this.side, 1);
      context.fillRect(x - 0.5, this.room, 1, this.side);
    }
    context.restore();
  }
}

/** Heat maps side by side as one SVG: [{name, matrix}], each with its labels as text. */
export function svgOfMatrices(maps, paper, ink, font) {
  const gap = 24;
  const top = 26;
  let x = 0;
  const parts = maps.map(({ name, matrix }) => {
    const { room, side, small, tokens } = matrix;
    const size = side / tokens.length;
    const labels = room ? tokens.map((token, i) => {
      const text = escaped(token.shown.length > 12 ? `${token.shown.slice(0, 11)}…` : token.shown);
      const centre = room + (i + 0.5) * size;
      return `<text x="${room - 6}" y="${centre + 4}" text-anchor="end">${text}</text><text transform="translate(${centre + 4} ${room - 6}) rotate(-90)">${text}</text>`;
    }).join("") : "";
    const image = `<image x="${room}" y="${room}" width="${side}" height="${side}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${small.toDataURL()}"/>`;
    const group = `<g transform="translate(${x} 0)"><text y="14" font-size="14" font-weight="600">${escaped(name)}</text><g transform="translate(0 ${top})">${image}${labels}</g></g>`;
    x += room + side + gap;
    return group;
  });
  const height = top + Math.max(...maps.map(({ matrix }) => matrix.extent));
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${x - gap}" height="${height}" viewBox="0 0 ${x - gap} ${height}" font-family="${escaped(font)}" font-size="11" fill="${ink}"><rect width="100%" height="100%" fill="${paper}"/>${parts.join("")}</svg>`;
}

function clipped(context, text, width) {
  if (context.measureText(text.slice(0, 40)).width <= width && text.length <= 40) return text;
  const characters = Array.from(text.slice(0, 40));
  while (characters.length && context.measureText(`${characters.join("")}…`).width > width) characters.pop();
  return `${characters.join("")}…`;
}
