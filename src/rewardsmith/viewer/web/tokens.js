"use strict";
// Colours the text of rollouts by the rewards of their tokens: red with a line below for less than nothing, blue with a
// line above for more. Where a reward stands at the end of a step, the text of the step has its line.
(() => {
const { el } = window.rs;
const LEVELS = 6;
const signed = (value) => (value > 0 ? "+" : "") + String(value).replaceAll("-", "−");

// Returns the class of a reward: its sign, and its share of the largest one in steps; none near zero.
function tint(value, scale) {
  const level = scale ? Math.min(LEVELS, Math.round((Math.abs(value) / scale) * LEVELS)) : 0;
  return level ? `${value < 0 ? "down" : "up"} l${level}` : "";
}

// Returns what is to be drawn: for each token its text, its class and its title.
function pieces(one, values, scale) {
  const letters = [...one.text], all = [];
  let place = 0;
  values.forEach((value, i) => all.push({ text: letters.slice(place, place += one.rewards.sizes[i]).join(""), value, at: i + 1 }));
  for (let i = all.length - 1, end = null; i >= 0; i -= 1) {
    const piece = all[i];
    if (piece.value !== null) end = piece;
    piece.tint = end ? `${tint(end.value, scale)}${end === piece ? "" : " step"}` : "";
    piece.title = `token ${piece.at}: ${piece.value !== null ? signed(piece.value)
      : end ? `in the step of token ${end.at}, ${signed(end.value)}` : "no reward"}`;
  }
  return { all, rest: letters.slice(place).join("") };
}

// A token without ink shows its colour on a sign that is no part of the text.
function sign({ text, value, tint }) {
  if (value === null || !tint) return null;
  return text === "" ? "◦" : /^\s*\n\s*$/.test(text) ? "↵" : null;
}

function paint(pre, one, part, scale, pointed) {
  const { all, rest } = pieces(one, part.values, scale);
  const spans = all.map((piece) => el("span",
    { class: `tok ${piece.tint}`, title: piece.title, "data-sign": sign(piece) }, piece.text));
  let at = -1;
  const point = (i) => {
    if (spans[at]) spans[at].classList.remove("at");
    at = i;
    if (spans[at]) spans[at].classList.add("at");
    pointed.textContent = spans[at] ? all[at].title : "";
  };
  const moves = { ArrowLeft: () => at - 1, ArrowRight: () => at + 1, Home: () => 0, End: () => spans.length - 1,
    Escape: () => -1 };
  pre.onpointerover = (event) => point(spans.indexOf(event.target));
  pre.onpointerleave = () => point(-1);
  pre.onblur = () => point(-1);
  pre.onkeydown = (event) => {
    if (!Object.hasOwn(moves, event.key) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const to = moves[event.key]();
    point(event.key === "Escape" ? -1 : Math.max(0, Math.min(spans.length - 1, to)));
    if (spans[at]) spans[at].scrollIntoView({ block: "nearest" });
  };
  pre.replaceChildren(...spans, ...(rest ? [el("span", {}, rest)] : []));
}

// A page may have a hundred thousand tokens: a text is coloured when it comes into sight.
const waiting = new Map();
const sight = new IntersectionObserver((entries) => entries.filter((one) => one.isIntersecting).forEach((one) => wake(one.target)),
  { rootMargin: "400px" });
function wake(pre) {
  sight.unobserve(pre);
  const work = waiting.get(pre);
  waiting.delete(pre);
  if (work) work();
}
window.addEventListener("beforeprint", () => [...waiting.keys()].forEach(wake));

// Returns the text of a rollout, a line below it with the sum, and how to show another part in it.
function coloured(one) {
  const pre = el("pre", { dir: "auto", tabindex: "0", class: "inked" });
  const pointed = el("span", { class: "pointed", "aria-live": "polite" }), sum = el("span");
  const show = (name, scale) => {
    const part = one.rewards.parts.find((other) => other.name === name);
    pre.replaceChildren(el("span", {}, one.text));
    sum.replaceChildren(...(part ? [el("span", {}, `sum of ${name} `), el("b", {}, signed(part.sum))] : []));
    pointed.textContent = "";
    if (!part) return;
    waiting.set(pre, () => paint(pre, one, part, scale, pointed));
    sight.observe(pre);
  };
  return { show, nodes: [pre, el("p", { class: "sum soft small num" }, sum, pointed)] };
}

function legend(name, scale) {
  if (!scale) return el("span", {}, `${name}: every reward is 0`);
  const shares = Array.from({ length: 2 * LEVELS + 1 }, (_, i) => i / LEVELS - 1);
  const about = `Colours of ${name}, from ${signed(-scale)}, red with a line below, to ${signed(scale)}, blue with a line above`;
  return el("span", { class: "legend", role: "img", "aria-label": about }, signed(-scale),
    el("span", { class: "swatches" }, shares.map((share) => el("span", { class: `tok ${tint(share, 1)}` }))), signed(scale));
}

// Returns how to write the texts of a group, and the key to their colours: null where nothing is coloured.
function tinted(group) {
  const plain = (one) => el("pre", { dir: "auto", tabindex: "0" }, one.text);
  if (!group.scales.length) return { key: null, text: plain };
  const shown = [], place = el("span"), several = group.scales.length > 1;
  const buttons = group.scales.map(([name]) => el("button", { type: "button" }, name));
  let chosen = 0;
  const choose = (i) => {
    chosen = i;
    buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(k === i)));
    place.replaceChildren(legend(...group.scales[i]));
    shown.forEach((one) => one.show(...group.scales[i]));
  };
  buttons.forEach((button, i) => button.addEventListener("click", () => choose(i)));
  choose(0);
  const text = (one) => {
    if (!one.rewards) return plain(one);
    const made = coloured(one);
    made.show(...group.scales[chosen]);
    shown.push(made);
    return made.nodes;
  };
  const names = several ? el("span", { class: "chooser", role: "group", "aria-label": "Rewards of tokens" }, buttons)
    : el("b", {}, group.scales[0][0]);
  return { key: el("div", { class: "key small soft num" }, "tokens by", names, place), text };
}

Object.assign(window.rs, { tinted });
})();
