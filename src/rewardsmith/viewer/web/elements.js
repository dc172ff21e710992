"use strict";
// What every page is made of: elements, texts and numbers. Text goes through `el`, which makes text nodes, never markup.
window.rs = {};
(() => {
const SVG = "http://www.w3.org/2000/svg";

// Control characters and marks that turn the direction of writing become visible: a page shows what is there.
const visible = (text) => String(text)
  .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
  .replace(/[\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined) node.setAttribute(name, value);
  for (const child of children.flat(9)) {
    if (child !== null && child !== undefined && child !== false) node.append(child instanceof Node ? child : visible(child));
  }
  return node;
}
const el = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);
const chip = (...children) => el("span", { class: "chip" }, ...children);
const fold = (open, title, note, ...children) => el("details", { class: "fold", open: open ? "" : null },
  el("summary", {}, title, note ? el("span", { class: "soft" }, note) : null), ...children);

function button(label, action, attributes = {}) {
  const made = el("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", action);
  return made;
}

// Puts new children into a node; a fold with a `data-key` stays open or closed.
function refill(node, children) {
  const was = new Map([...node.querySelectorAll("details[data-key]")].map((one) => [one.dataset.key, one.open]));
  node.replaceChildren(...children);
  for (const one of node.querySelectorAll("details[data-key]")) if (was.has(one.dataset.key)) one.open = was.get(one.dataset.key);
}

// ---- numbers -------------------------------------------------------------------------------------------------------

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
const signed = (value) => (value > 0 ? "+" : "") + show(value);
const plural = (count, word) => `${show(count)} ${word}${count === 1 ? "" : "s"}`;
const share = (value) => (value === null || value === undefined ? "–" : `${(value * 100).toFixed(1)}%`.replace("-", "−"));
// A value in the form of its column; texts stay as they are.
const formatted = (value, form) => (typeof value === "string" ? value : form === "share" ? share(value) : show(value));
// Shares differ by points: 20% is 10 points more than 10%, and not 10% more.
const difference = (value, form) => (form === "share" ? `${Math.abs(value * 100).toFixed(1)} points` : show(Math.abs(value)));

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// ---- tables --------------------------------------------------------------------------------------------------------

// Columns are names, or { name, right }; a cell is a text, or elements.
function table(columns, rows, attributes = {}) {
  const all = columns.map((one) => (typeof one === "string" ? { name: one } : one));
  const side = (i) => (all[i].right ? { class: "right" } : {});
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": attributes.label || "table" }, el("table", {},
    el("thead", {}, el("tr", {}, all.map((one, i) => el("th", { ...side(i), scope: "col" }, one.name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", side(i), cell)))))));
}

function meter(part, kind) {
  const bar = el("span", { class: `fill${kind}` });
  bar.style.width = `${Math.max(0, Math.min(1, part)) * 100}%`;
  return el("span", { class: "meter", "aria-hidden": "true" }, bar);
}

// The heat of a reward, from 0, cold, to 6.
const heat = (value, low, high) => Math.max(0, Math.min(6, Math.floor(((value - low) / (high - low || 1)) * 6.999)));

Object.assign(window.rs, { el, svg, chip, fold, button, refill, show, signed, plural, share, formatted, difference, duration, table,
  meter, heat });
})();
