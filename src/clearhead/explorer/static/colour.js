// Colours that are even to the eye: straight lines in OKLab, from a neutral zero to blue (positive), to orange
// (negative), or to violet (a share without effect). Blue and orange stay apart for every kind of colour blindness.
// Both arms end at the same lightness, so equal weights of either sign look equally strong.

const RAMPS = {
  light: { zero: [0.968, 0.003, 260], positive: [0.4, 0.15, 262], negative: [0.4, 0.12, 45], share: [0.4, 0.14, 320] },
  dark: { zero: [0.235, 0.012, 260], positive: [0.84, 0.11, 240], negative: [0.84, 0.12, 65], share: [0.84, 0.11, 320] },
};

function oklab([lightness, chroma, hue]) {
  const angle = (hue * Math.PI) / 180;
  return [lightness, chroma * Math.cos(angle), chroma * Math.sin(angle)];
}

function srgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((x) => {
    const y = x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055;
    return Math.round(255 * Math.min(1, Math.max(0, y)));
  });
}

/** [red, green, blue] of t in -1..1 (for `share` in 0..1) in a theme. */
export function colour(t, theme, share = false) {
  const ramp = RAMPS[theme];
  const zero = oklab(ramp.zero);
  const end = oklab(share ? ramp.share : t < 0 ? ramp.negative : ramp.positive);
  const part = Math.min(1, Math.abs(t));
  return srgb(zero.map((z, i) => z + part * (end[i] - z)));
}

export function css(rgb) {
  return `rgb(${rgb.join(" ")})`;
}

/** Black or white, whichever reads better on a colour (larger contrast ratio). */
export function inkOn(rgb) {
  const [r, g, b] = rgb.map((x) => (x <= 10 ? x / 3294 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

const tables = {};

/** 511 colours as little-endian pixels, entry 255 + round(255 t) for t in -1..1: what the heat maps are painted with. */
export function pixels(theme) {
  tables[theme] ??= Uint32Array.from({ length: 511 }, (_, i) => {
    const [r, g, b] = colour((i - 255) / 255, theme);
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
  return tables[theme];
}

/** The colour axis on which the eye sees small weights too: the square root, its sign kept. */
export function squareRoot(t) {
  return t < 0 ? -Math.sqrt(-t) : Math.sqrt(t);
}

/** How strong a value is to be shown, -1..1, of a largest one. */
export function strength(value, most, axis) {
  if (!(most > 0)) return 0;
  const t = Math.max(-1, Math.min(1, value / most));
  return axis === "root" ? squareRoot(t) : t;
}

/** A CSS gradient of the ramp from t = from to t = to. */
export function gradient(from, to, theme, share = false) {
  const stops = Array.from({ length: 17 }, (_, i) => css(colour(from + ((to - from) * i) / 16, theme, share)));
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}
