"use strict";
// Curves, drawn by uPlot: one line for each part or run, smoothed, with a cursor that all charts of a stage share.
(() => {
const { el, svg, show, plural } = window.rs;

// What a person looks at first. A metric belongs to the first word that its prefix, or else its name, starts with.
const ORDER = ["validation", "reward", "watch", "response", "entropy", "kl", "policy", "optimizer", "grad", "loss", "value",
  "critic", "advantage", "group", "data", "tokens", "models", "time", "seconds", "speed", "memory", "fail"];
const LATE = ORDER.indexOf("advantage");
const MAX_LINES = 6;
const DASHES = [[], [7, 4], [2, 4], [9, 3, 2, 3], [12, 5], [4, 2]];
const HEIGHT = 190;
const settings = { smoothing: 0, log: false };
const drawn = new Set();

function rank(prefix) {
  const found = ORDER.findIndex((word) => prefix.startsWith(word));
  return found < 0 ? LATE - 0.5 : found;
}

// ---- which curves share a chart --------------------------------------------------------------------------------------

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

const prefixOf = (name) => (name.includes("/") ? name.split("/")[0] : "general");

function grouped(curves, parts) {
  const groups = new Map();
  // The whole before its parts: it is the first line of their chart.
  for (const curve of [...curves].sort((a, b) => (b.name === "reward/mean") - (a.name === "reward/mean"))) {
    const prefix = prefixOf(curve.name);
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

// A curve of one value, or of the same value throughout, says as much as a number.
const isConstant = (line) => line.lost === 0 && line.y.every((y) => y === line.y[0]);

// ---- data for uPlot --------------------------------------------------------------------------------------------------

function smoothed(ys) {
  // An exponential average without its bias towards the start; validations and other sparse curves stay as they are.
  if (!settings.smoothing || ys.length <= 20) return null;
  let sum = 0, weight = 0;
  return ys.map((y) => {
    if (y === null) return null;
    sum = settings.smoothing * sum + (1 - settings.smoothing) * y;
    weight = settings.smoothing * weight + (1 - settings.smoothing);
    return sum / weight;
  });
}

// One list of steps for all lines. Where a line has no point it is undefined, and drawn through; null is a gap.
function aligned(lines) {
  const steps = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const places = new Map(steps.map((step, i) => [step, i]));
  const spread = (xs, ys) => {
    const all = new Array(steps.length).fill(undefined);
    xs.forEach((x, i) => { all[places.get(x)] = settings.log && !(ys[i] > 0) ? null : ys[i]; });
    return all;
  };
  const raw = lines.map((line) => spread(line.x, line.y));
  const smooth = lines.map((line) => smoothed(line.y)).map((ys, i) => (ys ? spread(lines[i].x, ys) : raw[i].map(() => undefined)));
  return [steps, ...raw, ...smooth];
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

function tickText(value, step) {
  const size = Math.max(Math.abs(value), step);
  if (value === 0) return "0";
  if (size >= 1e5 || size < 1e-4) return value.toExponential(1).replace("e+", "e").replaceAll("-", "−");
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9) + (/^[^1-9]*25/.test(String(step)) ? 1 : 0)));
  return value.toFixed(digits).replace("-", "−");
}

// ---- drawing ---------------------------------------------------------------------------------------------------------

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// A line has the colour of its place, unless it has a look of its own, as what others are compared with has.
const look = (line, i) => (line.look ?? i) % DASHES.length;
const canBeLog = (lines) => lines.some((line) => line.y.some((y) => y > 0));

function series(lines) {
  const few = (line) => line.x.length <= 14 && line.look === undefined;
  const one = (line, i, raw) => {
    const at = look(line, i), stroke = colour(`--s${at}`);
    const covered = raw && smoothed(line.y) !== null;
    return { stroke: covered ? `${stroke}55` : stroke, width: covered ? 1 : 2, dash: lines.length > 1 && !covered ? DASHES[at] : [],
      fill: lines.length === 1 && raw ? `${stroke}16` : undefined,
      points: { show: raw && few(line) ? true : undefined, size: 7, fill: stroke, stroke: colour("--card"), width: 1.5 } };
  };
  return [{}, ...lines.map((line, i) => one(line, i, true)),
    ...lines.map((line, i) => ({ ...one(line, i, false), points: { show: false } }))];
}

function axes() {
  const shared = { stroke: colour("--soft"), font: "11px system-ui, sans-serif", ticks: { show: false } };
  const grid = { stroke: colour("--grid"), width: 1 };
  const whole = (u, splits) => splits.map((t) => (Number.isInteger(t) ? String(t) : ""));
  const values = (u, splits) => splits.map((t) => (t === null ? "" : tickText(t, Math.abs((splits[1] ?? 1) - splits[0]) || 1)));
  const logs = (u, splits) => splits.map((t) => (t !== null && Math.abs(Math.log10(t) % 1) < 1e-9 ? tickText(t, t) : ""));
  return [{ ...shared, grid: { show: false }, size: 24, gap: 4, space: 60, values: whole },
    { ...shared, grid, size: 50, gap: 6, space: 34, values: settings.log ? logs : values }];
}

// Vertical lines at some steps, such as those of alarms.
function drawMarks(u, steps) {
  const { ctx, bbox } = u, ratio = window.devicePixelRatio || 1;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("--bad");
  ctx.lineWidth = 1.5 * ratio;
  for (const step of steps.filter((one) => one >= u.scales.x.min && one <= u.scales.x.max)) {
    const x = u.valToPos(step, "x", true), size = 5 * ratio;
    ctx.setLineDash([5 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(x - size, bbox.top);
    ctx.lineTo(x + size, bbox.top);
    ctx.lineTo(x, bbox.top + 1.6 * size);
    ctx.fill();
  }
  ctx.restore();
}

function options(lines, width, sync, moved, more) {
  const log = settings.log && canBeLog(lines);
  return { width, height: HEIGHT, legend: { show: false }, series: series(lines), axes: axes(), padding: [8, 14, 0, 0],
    scales: { x: { time: false }, y: log ? { distr: 3 } : { range: () => range(lines) } },
    cursor: { y: false, sync: { key: sync, scales: ["x", null] }, drag: { x: true, y: false },
      points: { size: 9, fill: (u, i) => u.series[i].stroke(u, i) } },
    bands: more().band ? [{ series: more().band.map((i) => i + 1), fill: `${colour("--s0")}26` }] : [],
    hooks: { setCursor: [moved], draw: [(u) => drawMarks(u, more().marks || [])] } };
}

function words(name, lines, marks = []) {
  const line = lines[0], values = line.y.filter((y) => y !== null);
  if (!values.length) return `${name}: no finite values`;
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  return `${name}: from ${show(values[0])} at step ${line.x[0]} to ${show(values[values.length - 1])} at step ` +
    `${line.x[line.x.length - 1]}; lowest ${show(low)}, highest ${show(high)}` +
    (lines.length > 1 ? `; ${lines.length} lines: ${lines.map((l) => l.label).join(", ")}` : "") +
    (marks.length ? `; marked: ${marks.length > 1 ? "steps" : "step"} ${marks.slice(0, 20).join(", ")}` : "");
}

const lastOf = (line) => { for (let i = line.y.length - 1; i >= 0; i -= 1) if (line.y[i] !== null) return i; return -1; };

function nearest(xs, step) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const mid = (low + high) >> 1; if (xs[mid] <= step) low = mid; else high = mid; }
  return Math.abs(xs[high] - step) < Math.abs(xs[low] - step) ? high : low;
}

// The figure of some lines: `node`, and `update(lines, more)` for the same lines with more points. `more` has `marks`,
// steps with a vertical line, and `band`, the places of an upper and a lower line between which the chart is filled.
function chart(name, lines, sync, more = {}) {
  const values = lines.map(() => el("b"));
  const heard = el("span", { class: "heard" });
  const readout = el("span", { class: "values" }, heard, lines.map((line, i) => el("span", {},
    lines.length > 1 ? [el("i", { class: `c${look(line, i)} dash${look(line, i)}` }), `${line.label} `] : null, values[i])));
  const lost = lines.reduce((sum, line) => sum + line.lost, 0);
  const plot = el("div", { class: "plot", tabindex: "0", role: "img", "aria-label": words(name, lines, more.marks) });
  const node = el("figure", { class: "chart" }, el("figcaption", {}, el("span", { class: "metric" }, name),
    lost ? el("span", { class: "chip bad" }, `${show(lost)} not finite`) : null, readout), plot);
  const me = { node, name, draw, update, place: null };
  let u = null;

  function draw() {
    const width = plot.clientWidth;
    if (width < 40) return; // a folded chart has no size; it is drawn when it is first seen
    const zoom = u && u.zoomed ? u.scales.x : null;
    if (u) u.destroy();
    u = new uPlot(options(lines, width, sync, moved, () => more), aligned(lines), plot);
    if (zoom) u.setScale("x", { min: zoom.min, max: zoom.max });
  }
  function moved(chart) {
    const i = chart.cursor.idx;
    point(i === null || i === undefined || chart.cursor.left < 0 ? null : chart.data[0][i]);
  }
  function point(step) {
    me.at = step;
    heard.textContent = step === null ? "" : `step ${step} `;
    lines.forEach((line, i) => { values[i].textContent = show(line.y[step === null ? lastOf(line) : nearest(line.x, step)]); });
  }
  function update(next, also = {}) {
    lines = next;
    more = also;
    plot.setAttribute("aria-label", words(name, lines, more.marks));
    point(me.at ?? null);
    if (u) u.setData(aligned(lines));
  }
  point(null);
  plot.addEventListener("keydown", (event) => {
    if (!u || event.ctrlKey || event.altKey || event.metaKey) return;
    const xs = u.data[0], now = u.cursor.idx ?? xs.length;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: xs.length - 1 }[event.key];
    if (event.key === "Escape") u.setCursor({ left: -10, top: -10 });
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    u.setCursor({ left: u.valToPos(xs[Math.min(xs.length - 1, Math.max(0, to))], "x"), top: 10 });
  });
  plot.addEventListener("focus", () => readout.setAttribute("aria-live", "polite"));
  plot.addEventListener("blur", () => { readout.removeAttribute("aria-live"); if (u) u.setCursor({ left: -10, top: -10 }); });
  let width = 0;
  new ResizeObserver(() => { if (plot.clientWidth !== width) { width = plot.clientWidth; draw(); } }).observe(plot);
  drawn.add(me);
  return me;
}

// Redraws what is on the page, after a change of a setting or of the colours.
function redraw() {
  for (const one of drawn) if (one.node.isConnected) one.draw(); else drawn.delete(one);
}
function set(name, value) {
  settings[name] = value;
  redraw();
}
if (window.matchMedia) window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

function spark(curve) {
  if (!curve || curve.y.filter((y) => y !== null).length < 3) return null;
  const [low, high] = range([curve]), first = curve.x[0], span = curve.x[curve.x.length - 1] - first || 1;
  let path = "", open = false;
  curve.y.forEach((y, i) => {
    if (y !== null) path += `${open ? "L" : "M"}${(((curve.x[i] - first) / span) * 300).toFixed(1)} ${(3 + ((high - y) / (high - low)) * 34).toFixed(1)}`;
    open = y !== null;
  });
  const line = svg("path", { class: "line c0", "vector-effect": "non-scaling-stroke", d: path });
  return svg("svg", { viewBox: "0 0 300 40", preserveAspectRatio: "none", "aria-hidden": "true" }, line);
}

// The values that did not change, as a table; `charts` are those of `grouped`.
function constants(lines) {
  if (!lines.length) return null;
  return window.rs.fold(false, "Constant", `${plural(lines.length, "metric")} without a change`,
    window.rs.table(["metric", { name: "value", right: true }], lines.map((line) => [line.name, show(line.y[0])]),
      { label: "Constant metrics" }));
}

// How the curves are drawn: two controls, for all charts of the page.
function controls(longest) {
  const slider = el("input", { type: "range", min: "0", max: "0.95", step: "0.05", value: longest > 60 ? "0.6" : "0" });
  slider.addEventListener("input", () => set("smoothing", Number(slider.value)));
  settings.smoothing = Number(slider.value);
  const log = el("input", { type: "checkbox" });
  log.checked = settings.log;
  log.addEventListener("change", () => set("log", log.checked));
  return [longest > 20 ? el("label", {}, "Smoothing", slider) : null, el("label", {}, log, "log y")];
}

Object.assign(window.rs, { chart, spark, grouped, prefixOf, rank, LATE, isConstant, constants, controls, redraw, nearest });
})();
