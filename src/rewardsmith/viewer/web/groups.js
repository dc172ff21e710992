"use strict";
// A group of rollouts: the prompt, and each answer with its reward, parts, advantage, failures and feedback.
(() => {
const { el, chip, show, signed, plural, meter, heat, tinted } = window.rs;
const cutNote = (item) => (item.cut ? el("p", { class: "soft small" }, `… ${plural(item.cut, "more character")} not shown`) : null);

function marks(one, { low, high }, { trained = false, head = null }) {
  const level = one.failure ? null : heat(one.value, low, high);
  return el("div", { class: "marks" }, head,
    one.failure ? el("span", { class: "score" }, `✕ failed: ${one.failure.kind}`)
      : [el("span", { class: "score", title: "reward" }, show(one.value)), meter((one.value - low) / (high - low || 1), level)],
    one.advantage !== null ? el("span", {}, `advantage ${signed(one.advantage)}`)
      : trained ? el("span", {}, "no advantage") : null,
    one.tokens ? el("span", {}, plural(one.tokens, "token")) : null,
    one.label ? chip(one.label) : null,
    one.stop === "length" ? el("span", { class: "chip bad" }, "cut off at the token limit") : null);
}

const part = (one) => (one.failure
  ? el("span", { class: one.called ? "chip bad" : "chip", title: one.failure.text },
    `${one.name} ${one.called ? "✕" : "–"} ${one.failure.kind}`)
  : chip(one.name, el("b", {}, show(one.value)), one.label ? el("span", {}, one.label) : null));

function aside(title, open, ...children) {
  return el("details", { class: "aside", open: open ? "" : null }, el("summary", {}, title), ...children);
}

// `options`: `trained` where every rollout should have an advantage, `open` to show feedback at once, `name` of a
// rollout, `head` before its reward.
function rollout(one, scale, ink, options = {}) {
  const failed = [one.failure, ...one.parts.map((inner) => inner.called && inner.failure
    && { ...inner.failure, name: inner.name })];
  const details = [...new Map(failed.filter((failure) => failure && failure.text).reverse()
    .map((failure) => [failure.text, failure])).values()].reverse();
  const wrote = one.parts.filter((inner) => inner.feedback);
  if (one.feedback && wrote.every((inner) => inner.feedback.text !== one.feedback.text)) wrote.unshift(one);
  const level = one.failure ? "failed" : `heat${heat(one.value, scale.low, scale.high)}`;
  return el("article", { class: `rollout ${level}`, "aria-label": options.name || "rollout" },
    marks(one, scale, options),
    one.text ? ink.text(one) : el("p", { class: "soft small" }, "(empty)"),
    cutNote(one),
    one.parts.length ? el("div", { class: "parts" }, one.parts.map(part)) : null,
    details.map((failure) => aside(`what failed${failure.name ? ` in ${failure.name}` : ""}`, options.open,
      el("pre", {}, failure.text), failure.attempts > 1 ? el("p", { class: "soft small" }, plural(failure.attempts, "attempt"))
        : null)),
    wrote.map((inner) => aside(inner === one ? "feedback" : `feedback of ${inner.name}`, options.open,
      el("pre", { dir: "auto" }, inner.feedback.text), cutNote(inner.feedback))));
}

function meanReward(group) {
  const values = group.rollouts.map((one) => one.value).filter((value) => value !== null);
  return values.length ? `mean reward ${show(values.reduce((a, b) => a + b, 0) / values.length)}` : "no rewards";
}

// A group under its title: the first `shown` rollouts, and the others folded away.
function column(title, group, scale, { flat = false, shown = 3 } = {}) {
  const ink = tinted(group);
  const all = group.rollouts.map((one) => rollout(one, scale, ink, { trained: flat }));
  const rest = all.slice(shown);
  return el("div", { class: flat ? "column flat" : "column" },
    el("div", { class: "title" }, el("h3", {}, title),
      group.dropped ? el("span", { class: "chip bad" }, `dropped: ${group.dropped}`) : null,
      el("span", { class: "soft small num" }, meanReward(group))),
    ink.key,
    all.slice(0, shown),
    rest.length ? el("details", {}, el("summary", { class: "soft small" }, plural(rest.length, "more rollout")),
      el("div", { class: "more" }, rest)) : null,
    group.more ? el("p", { class: "soft small" }, `and ${plural(group.more, "rollout")} not shown`) : null);
}

const turn = (role, item) => el("div", { class: "turn" }, el("span", { class: "role" }, role),
  el("div", {}, el("pre", { dir: "auto", tabindex: "0" }, item.text), cutNote(item)));
const messages = (all) => el("div", { class: "chat" }, all.map((message) => turn(message.role, message)));

function prompt(one, { info = false } = {}) {
  return el("div", { class: "chat" },
    one.earlier ? el("p", { class: "soft small" }, `${plural(one.earlier, "earlier message")} not shown`) : null,
    one.messages.map((message) => turn(message.role, message)),
    one.answer ? turn("answer", one.answer) : null,
    info && one.info ? aside("what else came with the row", false, el("pre", { dir: "auto" }, one.info.text), cutNote(one.info))
      : null);
}

Object.assign(window.rs, { rollout, column, prompt, messages, meanReward, cutNote });
})();
