// Pictures and numbers to take away: SVG, PNG and CSV, made in the page.

const SVG = "http://www.w3.org/2000/svg";
const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "font-weight", "text-anchor"];

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Columns as [name, values] pairs, from those or from {name: values}. */
export function pairsOf(columns) {
  return Array.isArray(columns) ? columns : Object.entries(columns);
}

/** Columns as CSV; a text that a spreadsheet would take for a formula gets a ' before it. */
export function csvOf(columns) {
  const cell = (value) => {
    let text = String(value ?? "");
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const pairs = pairsOf(columns);
  const lines = Array.from({ length: pairs[0]?.[1].length ?? 0 }, (_, row) => pairs.map(([, values]) => cell(values[row])).join(","));
  return [pairs.map(([name]) => cell(name)).join(","), ...lines, ""].join("\r\n");
}

/** An SVG element that is drawn in the page, as a file of its own: styles written into it, the paper behind it. */
export function svgOf(drawn) {
  const copy = drawn.cloneNode(true);
  const [from, to] = [drawn, copy].map((one) => [one, ...one.querySelectorAll("*")]);
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of KEPT) to[i].setAttribute(name, style.getPropertyValue(name));
    to[i].removeAttribute("class");
  });
  copy.setAttribute("xmlns", SVG);
  const paper = document.createElementNS(SVG, "rect");
  const root = drawn.closest(".clearhead") ?? document.body;
  for (const [name, value] of Object.entries({ width: "100%", height: "100%", fill: getComputedStyle(root).backgroundColor })) paper.setAttribute(name, value);
  copy.prepend(paper);
  return legible(new XMLSerializer().serializeToString(copy));
}

/** Without the characters that XML does not know. */
function legible(text) {
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "");
}

/** Words on colours, as the strip of tokens shows them: an SVG of rectangles and texts where the buttons stand. */
export function svgOfButtons(box, buttons) {
  const frame = box.getBoundingClientRect();
  const style = getComputedStyle(box);
  const parts = [`<rect width="100%" height="100%" fill="${getComputedStyle(box.closest(".clearhead")).backgroundColor}"/>`];
  for (const button of buttons) {
    const own = getComputedStyle(button);
    const rects = [...button.getClientRects()];
    rects.forEach((rect) => {
      const [x, y] = [rect.left - frame.left + box.scrollLeft, rect.top - frame.top + box.scrollTop];
      parts.push(`<rect x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${rect.width.toFixed(1)}" height="${rect.height.toFixed(1)}" rx="4" fill="${own.backgroundColor}"/>`);
    });
    const first = rects[0];
    if (!first) continue;
    const [x, y] = [first.left - frame.left + box.scrollLeft + first.width / 2, first.top - frame.top + box.scrollTop + first.height / 2];
    parts.push(`<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" fill="${own.color}" font-size="${parseFloat(own.fontSize)}" text-anchor="middle" dominant-baseline="central">${escaped(button.textContent.slice(0, 200))}</text>`);
  }
  const [width, height] = [Math.ceil(frame.width), Math.ceil(Math.max(frame.height, box.scrollHeight))];
  return `<svg xmlns="${SVG}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${escaped(style.fontFamily)}">${parts.join("")}</svg>`;
}

/** Text for inside an XML file: its signs escaped, characters that XML does not know left out. */
export function escaped(text) {
  return legible(text).replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);
}

export function saveCsv(name, columns) {
  save(`${name}.csv`, new Blob(["\ufeff", csvOf(columns)], { type: "text/csv" }));
}

export function saveSvg(name, text) {
  save(`${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
}

/** The same picture as pixels, two for one. */
export async function savePng(name, text) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * image.naturalWidth;
  canvas.height = 2 * image.naturalHeight;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  save(`${name}.png`, await new Promise((done) => canvas.toBlob(done, "image/png")));
}
