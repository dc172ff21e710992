"use strict";
// Draws the report from the JSON beside it. Every text goes through `el`, which makes text nodes and never markup.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

// ---- elements, texts and numbers -----------------------------------------------------------------------------------

// Control characters and marks that turn the direction of writing become visible: a report shows what is there.
const visible = (text) => String(text)
  .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
  .replace(/[\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) if (value !== null) node.setAttribute(name, value);
  for (const child of children.flat(9)) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : visible(child));
  }
  return node;
}
const el = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);
const chip = (...children) => el("span", { class: "chip" }, ...children);
const plural = (count, word) => `${show(count)} ${word}${count === 1 ? "" : "s"}`;

function show(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  let text;
  if (size !== 0 && (size >= 1e7 || size < 1e-3)) text = value.toExponential(2).replace("e+", "e");
  else if (size >= 1000) text = Math.round(value).toLocaleString("en");
  else if (Number.isInteger(value)) text = String(value);
  else text = size >= 100 ? value.toFixed(1) : size >= 10 ? value.toFixed(2) : value.toFixed(3);
  return text.replaceAll("-", "−");
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// ---- curves --------------------------------------------------------------------------------------------------------

// What a person looks at first. A metric belongs to the first word that its prefix, or else its name, starts with.
const ORDER = ["validation", "reward", "response", "entropy", "kl", "policy", "optimizer", "grad", "loss", "value",
  "critic", "advantage", "group", "data", "tokens", "models", "time", "seconds", "speed", "memory", "fail"];
const LATE = ORDER.indexOf("advantage");
const MAX_LINES = 6;
let smoothing = 0;
const drawn = [];

function rank(prefix) {
  const found = ORDER.findIndex((word) => prefix.startsWith(word));
  return found < 0 ? LATE - 0.5 : found;
}

// The same quantity of several parts shares a chart: `reward/mean` and `reward/judge`, where the judge is a part of the
// reward, or `failures/judge/timeout` and `failures/rule/timeout`. So do the times of a step, such as `time/write`.
function chartOf(name, parts) {
  const words = name.split("/"), part = words.slice(1).join("/");
  if (words[0] === "reward" && parts.includes(part)) return { chart: "reward/mean", label: part };
  if (words[0] === "validation" && words[1] === "reward" && parts.includes(words.slice(2).join("/"))) {
    return { chart: "validation/reward", label: words.slice(2).join("/") };
  }
  if (words[0] === "validation" && words[1] === "sources") return { chart: `validation/${words[3]}`, label: words[2] };
  const shared = { time: "time/step", memory: "memory/step" }[words[0]];
  if (shared && words.length === 2) return { chart: shared, label: part };
  if (words.length > 2) {
    return { chart: `${words[0]}/${words[words.length - 1]}`, label: words.slice(1, -1).join("/") };
  }
  return { chart: name, label: words[words.length - 1] };
}

function grouped(curves, parts) {
  const groups = new Map();
  // The whole before its parts: it is the first line of their chart.
  for (const curve of [...curves].sort((a, b) => (b.name === "reward/mean") - (a.name === "reward/mean"))) {
    const prefix = curve.name.includes("/") ? curve.name.split("/")[0] : "general";
    if (!groups.has(prefix)) groups.set(prefix, new Map());
    const charts = groups.get(prefix);
    const { chart, label } = chartOf(curve.name, parts);
    let key = chart;
    for (let i = 2; charts.has(key) && charts.get(key).length >= MAX_LINES; i += 1) key = `${chart} (${i})`;
    if (!charts.has(key)) charts.set(key, []);
    charts.get(key).push({ ...curve, label });
  }
  const mean = (key) => (/\/(mean|reward)(@\d+)?$/.test(key) ? 0 : 1);
  return [...groups].sort((a, b) => rank(a[0]) - rank(b[0]))
    .map(([prefix, charts]) => [prefix, [...charts].sort((a, b) => mean(a[0]) - mean(b[0]))
      .map(([key, lines]) => [lines.length > 1 ? key : lines[0].name, lines])]);
}

function smoothed(ys) {
  // An exponential average without its bias towards the start; validations and other sparse curves stay as they are.
  if (!smoothing || ys.length <= 20) return ys;
  let sum = 0, weight = 0;
  return ys.map((y) => {
    if (y === null) return null;
    sum = smoothing * sum + (1 - smoothing) * y;
    weight = smoothing * weight + (1 - smoothing);
    return sum / weight;
  });
}

function ticks(low, high, count, whole) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const all = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-6 && all.length < 20; t += step) {
    all.push(Math.abs(t) < step * 1e-6 ? 0 : t);
  }
  return { all, step };
}

function tickText(value, step) {
  const size = Math.max(Math.abs(value), step);
  if (value === 0) return "0";
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e").replaceAll("-", "−");
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9) + (/^[^1-9]*25/.test(String(step)) ? 1 : 0)));
  return value.toFixed(digits).replace("-", "−");
}

function range(lines) {
  const values = lines.flatMap((line) => line.y.filter((y) => y !== null));
  if (!values.length) return [0, 1];
  let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  // From zero where that costs little room: a curve should not look steeper than it is.
  if (low >= 0 && low < 0.45 * high) low = 0;
  if (low === 0 && high > 0.7 && high <= 1) return [0, 1];
  if (low === high) return [low - (Math.abs(low) || 1) * 0.5, high + (Math.abs(high) || 1) * 0.5];
  const room = (high - low) * 0.07;
  return [low === 0 ? 0 : low - room, high + room];
}

function pathOf(xs, ys, px, py) {
  let path = "", open = false;
  ys.forEach((y, i) => {
    if (y !== null) path += `${open ? "L" : "M"}${px(xs[i]).toFixed(1)} ${py(y).toFixed(1)}`;
    open = y !== null;
  });
  return path;
}

// A line has the colour of its place, unless it has a look of its own, as what others are compared with has.
const look = (line, i) => line.look ?? i;
const lastOf = (line) => { for (let i = line.y.length - 1; i >= 0; i -= 1) if (line.y[i] !== null) return i; return -1; };

function nearest(xs, step) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const mid = (low + high) >> 1; if (xs[mid] <= step) low = mid; else high = mid; }
  return Math.abs(xs[high] - step) < Math.abs(xs[low] - step) ? high : low;
}

function words(name, lines) {
  const line = lines[0], values = line.y.filter((y) => y !== null);
  if (!values.length) return `${name}: no finite values`;
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  return `${name}: from ${show(values[0])} at step ${line.x[0]} to ${show(values[values.length - 1])} at step ` +
    `${line.x[line.x.length - 1]}; lowest ${show(low)}, highest ${show(high)}` +
    (lines.length > 1 ? `; ${lines.length} lines: ${lines.map((l) => l.label).join(", ")}` : "");
}

// Returns the drawing of some lines at a size, and the scale that leads from steps and values to pixels.
function drawing(lines, width, height) {
  const [low, high] = range(lines), left = 46, right = 8, top = 8, floor = height - 22;
  const first = Math.min(...lines.map((l) => l.x[0])), end = Math.max(...lines.map((l) => l.x[l.x.length - 1]));
  const px = (x) => left + ((x - first) / (end - first || 1)) * (width - left - right);
  const py = (y) => top + ((high - y) / (high - low)) * (floor - top);
  const ys = ticks(low, high, 4, false), xs = ticks(first, end, Math.max(2, width / 80), true);
  const shapes = ys.all.flatMap((t) => [
    svg("line", { class: "grid", x1: left, x2: width - right, y1: py(t), y2: py(t) }),
    svg("text", { x: left - 8, y: py(t) + 4, "text-anchor": "end" }, tickText(t, ys.step))]);
  for (const t of xs.all) shapes.push(svg("text", { x: px(t), y: height - 5, "text-anchor": "middle" }, String(t)));
  shapes.push(svg("line", { class: "axis", x1: left, x2: width - right, y1: floor, y2: floor }));
  lines.forEach((line, i) => {
    const smooth = smoothed(line.y), path = pathOf(line.x, smooth, px, py);
    if (lines.length === 1 && !line.y.includes(null)) {
      shapes.push(svg("path", { class: "area c0", d: `${path}L${px(end)} ${floor}L${px(first)} ${floor}Z` }));
    }
    if (smooth !== line.y) shapes.push(svg("path", { class: `line raw c${look(line, i)}`, d: pathOf(line.x, line.y, px, py) }));
    const dash = lines.length > 1 ? ` dash${look(line, i)}` : "";
    shapes.push(svg("path", { class: `line c${look(line, i)}${dash}`, d: path }));
    // Few points are marked, and so is one between two gaps, which a line cannot show.
    const alone = (k) => (line.y[k - 1] ?? null) === null && (line.y[k + 1] ?? null) === null;
    line.x.forEach((x, k) => {
      if (line.y[k] === null || ((line.x.length > 14 || line.look) && !alone(k))) return;
      shapes.push(svg("circle", { class: `c${look(line, i)}`, r: 3.5, cx: px(x), cy: py(line.y[k]) }));
    });
  });
  return { shapes, scale: { px, py, first, end, left, top, floor, height, width: width - left - right } };
}

// Returns what shows one step in a drawing: a line down to the step, and a dot on each curve.
function cross(lines, at, scale) {
  const x = scale.px(at), y = scale.height - 5;
  const labels = ["at-back", "at"].map((kind) => svg("text", { class: kind, x, y, "text-anchor": "middle" }, String(at)));
  const dots = lines.map((line, i) => [look(line, i), line.x[nearest(line.x, at)], line.y[nearest(line.x, at)]])
    .filter(([, , value]) => value !== null)
    .map(([i, step, value]) => svg("circle", { class: `c${i}`, r: 4.5, cx: scale.px(step), cy: scale.py(value) }));
  return [svg("line", { class: "cross", x1: x, x2: x, y1: scale.top, y2: scale.floor }), ...labels, ...dots];
}

// Lets the pointer and the arrow keys choose a step; all charts of a stage show the same one.
function listen(plot, xs, peers, me) {
  const tell = (step) => peers.forEach((peer) => peer.point(step));
  plot.addEventListener("pointermove", (event) => {
    const { scale } = me;
    if (!scale) return;
    const inside = (event.clientX - plot.getBoundingClientRect().left - scale.left) / scale.width;
    const wanted = scale.first + Math.min(1, Math.max(0, inside)) * (scale.end - scale.first);
    tell(xs[nearest(xs, wanted)]);
  });
  plot.addEventListener("pointerleave", () => tell(null));
  plot.addEventListener("blur", () => tell(null));
  plot.addEventListener("keydown", (event) => {
    const now = me.at === null ? xs.length - 1 : nearest(xs, me.at);
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: xs.length - 1 }[event.key];
    if (event.key === "Escape") tell(null);
    if (to === undefined) return;
    event.preventDefault();
    tell(xs[Math.min(xs.length - 1, Math.max(0, to))]);
  });
}

function chart(name, lines, peers) {
  const values = lines.map(() => el("b"));
  const heard = el("span", { class: "heard" });
  const legend = lines.map((line, i) => el("span", {},
    lines.length > 1 ? [el("i", { class: `c${look(line, i)} dash${look(line, i)}` }), `${line.label} `] : null, values[i]));
  const readout = el("span", { class: "values" }, heard, legend);
  const lost = lines.reduce((sum, line) => sum + line.lost, 0);
  const plot = el("div", { class: "plot", tabindex: "0", role: "img", "aria-label": words(name, lines) });
  const figure = el("figure", { class: lines.length > 1 ? "chart" : "chart single" },
    el("figcaption", {}, el("span", { class: "metric" }, name),
      lost ? el("span", { class: "chip bad" }, `${show(lost)} not finite`) : null, readout));
  const longest = lines.reduce((a, b) => (b.x.length > a.x.length ? b : a));
  const me = { draw, point, at: null, scale: null };
  let marks = null;

  function draw() {
    const width = plot.clientWidth, height = plot.clientHeight;
    if (width < 40) return;
    const { shapes, scale } = drawing(lines, width, height);
    marks = svg("g", { "pointer-events": "none" });
    me.scale = scale;
    plot.replaceChildren(svg("svg", { width, height, "aria-hidden": "true" }, shapes, marks));
    point(me.at);
  }

  function point(step) {
    me.at = step;
    heard.textContent = step === null ? "" : `step ${step} `;
    lines.forEach((line, i) => { values[i].textContent = show(line.y[step === null ? lastOf(line) : nearest(line.x, step)]); });
    if (!me.scale) return;
    const inside = step !== null && step >= me.scale.first && step <= me.scale.end;
    marks.replaceChildren(...(inside ? cross(lines, step, me.scale) : []));
  }

  point(null);
  if (longest.x.length === 1) return figure; // one value is no curve
  figure.append(plot);
  plot.addEventListener("focus", () => readout.setAttribute("aria-live", "polite"));
  plot.addEventListener("blur", () => readout.removeAttribute("aria-live"));
  listen(plot, longest.x, peers, me);
  peers.push(me);
  drawn.push(me);
  // A folded chart has no size; it is drawn when it is first seen.
  new ResizeObserver(draw).observe(plot);
  return figure;
}

function spark(curve) {
  if (!curve || curve.y.filter((y) => y !== null).length < 3) return null;
  const [low, high] = range([curve]), first = curve.x[0], span = curve.x[curve.x.length - 1] - first || 1;
  const px = (x) => ((x - first) / span) * 300, py = (y) => 3 + ((high - y) / (high - low)) * 34;
  const line = svg("path", { class: "line c0", "vector-effect": "non-scaling-stroke", d: pathOf(curve.x, curve.y, px, py) });
  return svg("svg", { viewBox: "0 0 300 40", preserveAspectRatio: "none", "aria-hidden": "true" }, line);
}

window.report = { data, el, chip, show, plural, duration, grouped, chart, spark, rank, LATE,
  smooth(value) { smoothing = value; drawn.forEach((one) => one.draw()); } };
})();
