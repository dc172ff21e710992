"use strict";
// Can the reward be trusted? What audits found, with the answers that decided it, and what the watch saw during training.
(() => {
const { el, svg, chip, fold, show, plural, isConstant, refill, cutNote } = window.rs;

const TOPICS = { truth: "Right and wrong answers", attack: "Attacks", bias: "Bias", learning: "Worth for learning", cost: "Cost" };
const FOLDED = ["learning", "cost"]; // unless a requirement fails there
const SHARES = ["truth", "attack"]; // all their values are shares: the scale is from 0 to 1
const SIGNS = { at_least: "≥", at_most: "≤", within: "±" }; // which values a limit allows; an alarm has none of these
const ACTIONS = { stop: "an alarm stops the stage", warn: "an alarm is a warning", lower: "an alarm lowers the weight of the reward" };

const verdict = (passed) => (passed === null ? el("span", { class: "verdict soft" }, "no limit")
  : el("span", { class: `verdict ${passed ? "good" : "bad"}` }, passed ? "✓ passed" : "✗ failed"));

// ---- a number with its interval --------------------------------------------------------------------------------------

// The limits of a measure, from left to right: a bias may be off in both directions.
const limits = (one) => (one.limit === null ? [] : one.direction === "within" ? [-one.limit, one.limit] : [one.limit]);
const limitText = (one) => `limit ${Object.hasOwn(SIGNS, one.direction || "") ? `${SIGNS[one.direction]} ` : ""}${show(one.limit)}`;

// The values that a requirement forbids, as stretches of the scale.
function forbidden(one, { low, high }) {
  if (one.limit === null) return [];
  if (one.direction === "at_least") return [[low, one.limit]];
  return one.direction === "within" ? [[low, -one.limit], [one.limit, high]] : [[one.limit, high]];
}

function scaleOf(one) {
  const values = [0, one.value, one.low, one.high, ...limits(one)].filter((value) => value !== null);
  const low = Math.min(...values), high = Math.max(...values), room = 0.06 * (high - low || 1);
  return { low: low < 0 ? low - room : 0, high: high + room };
}

function words(one) {
  const between = one.low === null || one.high === null ? "" : `, 95% interval ${show(one.low)} to ${show(one.high)}`;
  return `${one.value === null ? "not measured" : show(one.value)}${between}${one.limit === null ? "" : `, ${limitText(one)}`}`;
}

// The value as a dot, its interval as a bar, the limits as lines, and what they forbid as a field.
function interval(one, { low, high }) {
  const share = (value) => 100 * Math.max(0, Math.min(1, (value - low) / (high - low)));
  const bar = (from, to, y, height, kind) => svg("rect", { class: kind, x: `${share(from)}%`,
    width: `${Math.max(0.5, share(to) - share(from))}%`, y, height, rx: "2" });
  const upright = (value, kind) => svg("line", { class: kind, x1: `${share(value)}%`, x2: `${share(value)}%`, y1: "1", y2: "19" });
  return svg("svg", { class: "interval", role: "img", "aria-label": words(one) },
    bar(low, high, "9", "2", "track"),
    low < 0 ? upright(0, "zero") : null,
    forbidden(one, { low, high }).map(([from, to]) => bar(from, to, "3", "14", "beyond")),
    limits(one).map((value) => upright(value, "limit")),
    one.low === null || one.high === null ? null : bar(one.low, one.high, "6", "8", "span"),
    one.value === null ? null : svg("circle", { class: one.passed === false ? "dot bad" : "dot", cx: `${share(one.value)}%`,
      cy: "10", r: "4.5" }));
}

const figures = (one) => el("span", { class: "figures num" }, el("b", {}, show(one.value)),
  one.low === null || one.high === null ? null : el("small", {}, `${show(one.low)} to ${show(one.high)}`),
  one.limit === null ? null : el("small", {}, limitText(one)));

// ---- examples --------------------------------------------------------------------------------------------------------

function example(one, address) {
  return el("article", { class: "rollout sample", "aria-label": `${one.probe}, prompt ${one.prompt}` },
    el("div", { class: "marks" },
      one.reward === null ? el("span", { class: "score lost" }, "✕ no score")
        : el("span", { class: "score" }, `reward ${show(one.reward)}`),
      chip(one.probe), one.expected ? el("span", {}, `expected: ${one.expected}`) : null,
      el("span", {}, "prompt ", address ? el("a", { href: address }, one.prompt) : el("code", {}, one.prompt))),
    one.text ? el("pre", { dir: "auto", tabindex: "0" }, one.text) : el("p", { class: "soft small" }, "(empty)"),
    cutNote(one));
}

const examples = (one, address = () => "") => el("div", { class: "samples" }, one.examples.map((inner) =>
  example(inner, address(inner.prompt))));

// ---- audits ----------------------------------------------------------------------------------------------------------

function finding(audit, one, scale) {
  const row = [verdict(one.passed),
    el("span", { class: "what" }, el("b", {}, one.name), el("span", { class: "says" }, one.line),
      el("small", { class: "soft" }, [one.count === null ? "" : `from ${show(one.count)}`,
        one.examples.length ? plural(one.examples.length, "example") : ""].filter(Boolean).join(" · "))),
    interval(one, scale), figures(one)];
  if (!one.examples.length) return el("div", { class: "finding" }, row);
  return el("details", { class: "finding", "data-key": `${audit} ${one.name}` }, el("summary", {}, row), examples(one));
}

function findings(audit) {
  const names = [...new Set([...Object.keys(TOPICS), ...audit.findings.map((one) => one.topic)])];
  return names.map((name) => {
    const some = audit.findings.filter((one) => one.topic === name), failed = some.filter((one) => one.passed === false).length;
    if (!some.length) return null;
    const shared = SHARES.includes(name) ? { low: -0.02, high: 1.02 } : null;
    const made = fold(failed > 0 || !FOLDED.includes(name), Object.hasOwn(TOPICS, name) ? TOPICS[name] : name,
      failed ? `${failed} of ${plural(some.length, "measure")} failed` : plural(some.length, "measure"),
      el("div", { class: "findings" }, some.map((one) => finding(audit.name, one, shared || scaleOf(one)))));
    made.setAttribute("data-key", `${audit.name} topic ${name}`);
    return made;
  });
}

const HEADLINES = {
  passed: (audit) => `✓ passed ${audit.required === 1 ? "its requirement" : `all ${plural(audit.required, "requirement")}`}`,
  failed: (audit) => `✗ ${[audit.failed ? `failed ${audit.failed}` : "", audit.unmeasured.length ? `could not measure ${audit.unmeasured.length}` : ""]
    .filter(Boolean).join(", ")} of ${plural(audit.required, "requirement")}`,
  free: () => "no requirements",
  unknown: () => "? cannot be read completely",
};
const KIND = { passed: "finished", failed: "bad", unknown: "bad" };

function auditCard(audit) {
  const failed = audit.findings.filter((one) => one.passed === false).slice(0, 8).map((one) => one.line);
  const reasons = [...failed, ...audit.unmeasured.map((one) => `${one.name} is required, and was not measured`)];
  return el("article", { class: "card audit", "aria-label": `Audit ${audit.name}` },
    el("div", { class: "title" }, el("h3", {}, `Audit: ${audit.name}`),
      el("span", { class: `chip ${KIND[audit.state] || ""}` }, HEADLINES[audit.state](audit))),
    reasons.length ? el("ul", { class: "reasons" }, reasons.map((one) => el("li", {}, one))) : null,
    findings(audit),
    audit.more ? el("p", { class: "soft small" }, `… ${plural(audit.more, "more measure")} not shown`) : null,
    audit.unread ? el("p", { class: "soft small" }, `${plural(audit.unread, "measure")} could not be read`) : null,
    audit.notes.length ? el("div", { class: "notes soft small" }, el("b", {}, "Notes"),
      el("ul", {}, audit.notes.map((note) => el("li", {}, note)))) : null);
}

// ---- the watch -------------------------------------------------------------------------------------------------------

const watchOf = (data, stage) => data.trust.watches.find((one) => one.name === stage.name) || null;

const rule = (watch) => [watch.every === null ? "" : `every ${plural(watch.every, "step")}`, `against ${watch.reference}`,
  Object.hasOwn(ACTIONS, watch.on_alarm) ? ACTIONS[watch.on_alarm] : watch.on_alarm].filter(Boolean).join("; ");

const count = (watch) => watch.alarms.length + watch.more;
function alarmChip(watch) {
  if (watch.unread) return el("span", { class: "chip bad" }, `? ${plural(watch.unread, "alarm")} cannot be read`);
  return count(watch) ? el("span", { class: "chip bad" }, `✗ ${plural(count(watch), "alarm")}, the first at step ${watch.alarms[0].step}`)
    : el("span", { class: "chip finished" }, "✓ no alarm");
}

const watchLine = (watch) => el("article", { class: "card", "aria-label": `Watch ${watch.name}` },
  el("div", { class: "title" }, el("h3", {}, `Watch: ${watch.name}`), alarmChip(watch), el("span", { class: "soft small" }, rule(watch))),
  watch.alarms.length ? el("p", {}, watch.alarms[0].line) : null);

// The charts of the watch, each with its lines and marks: the reward and the second opinion, then how often they differ.
function watchCharts(stage, watch) {
  const curve = (name) => stage.curves.find((one) => one.name === `watch/${name}`);
  const line = (name, label, more = {}) => (curve(name) ? [{ ...curve(name), label, ...more }] : []);
  const raised = curve("alarm"), alarms = watch ? watch.alarms : [];
  const marks = [...new Set([...alarms.map((one) => one.step), ...(raised ? raised.x.filter((_, i) => raised.y[i] > 0) : [])])]
    .sort((a, b) => a - b);
  const limit = alarms.find((one) => one.measure === "false_discovery" && one.limit !== null), wrong = curve("false_discovery");
  const band = wrong && curve("false_discovery_low") && curve("false_discovery_high") ? [1, 2] : null;
  const main = [["watch/reward", [...line("reward", "reward"), ...line("reference", "reference")]],
    ["watch/false_discovery", [...line("false_discovery", "rewarded, but wrong"), ...line("false_discovery_high", "high", { look: 5 }),
      ...line("false_discovery_low", "low", { look: 5 }),
      ...(limit && wrong ? [{ x: wrong.x, y: wrong.x.map(() => limit.limit), lost: 0, name: "limit", label: "limit", look: 4 }] : [])],
    band]];
  const used = [...main.flatMap(([, lines]) => lines.map((one) => one.name)), "watch/alarm"];
  const others = stage.curves.filter((one) => one.name.startsWith("watch/") && !used.includes(one.name) && !isConstant(one))
    .map((one) => [one.name, [{ ...one, label: one.name.slice(6) }]]);
  return [...main, ...others].filter(([, lines]) => lines.length).map(([name, lines, own]) => [name, lines, { marks, band: own }]);
}

function alarmList(watch, link) {
  if (!watch) return [el("p", { class: "soft small" }, "The alarms are missing: audit.json has no watch of this stage.")];
  const one = (alarm) => {
    const made = fold(false, `Step ${alarm.step}: ${alarm.line}`, words(alarm),
      examples(alarm, link ? (prompt) => link(prompt, alarm.step) : undefined));
    made.setAttribute("data-key", `alarm ${alarm.step} ${alarm.measure}`);
    return made;
  };
  return [el("div", { class: "title" }, alarmChip(watch), el("span", { class: "soft small" }, rule(watch))),
    ...watch.alarms.map(one), ...(watch.more ? [el("p", { class: "soft small" }, `… ${plural(watch.more, "more alarm")} not shown`)] : [])];
}

// The panel of a stage: `node`, and `update(watch)` for the alarms; the charts update themselves.
function watchPanel(charts, watch, link) {
  const list = el("div", { class: "alarms" }, alarmList(watch, link));
  let shown = JSON.stringify(watch);
  const node = fold(true, "Watch", "the reward against a second opinion; dashed vertical lines are alarms",
    el("div", { class: "charts row2" }, charts.slice(0, 2)), list,
    charts.length > 2 ? el("div", { class: "charts row4" }, charts.slice(2)) : null);
  const update = (next) => {
    if (JSON.stringify(next) === shown) return;
    shown = JSON.stringify(next);
    refill(list, alarmList(next, link));
  };
  return { node, update };
}

// ---- the panel of a run ----------------------------------------------------------------------------------------------

const isTroubled = ({ trust: { audits, watches, unread } }) => Boolean(unread)
  || audits.some((one) => ["failed", "unknown"].includes(one.state)) || watches.some((one) => count(one) || one.unread);

// A word for a link to the panel; "" without one.
function trustWord(data) {
  const { audits, watches, unread } = data.trust;
  if (!audits.length && !watches.length && !unread) return "";
  return isTroubled(data) ? "✗ see why" : audits.some((one) => one.state === "passed") ? "✓ audited" : "measured";
}

function trust(data) {
  const { audits, watches, unread } = data.trust;
  if (!trustWord(data)) return null;
  return el("section", { class: "stage", id: "trust", "aria-label": "Can the reward be trusted?" },
    el("div", { class: "title" }, el("h2", {}, "Can the reward be trusted?")),
    unread ? el("p", { class: "error" }, `? ${unread}`) : null,
    audits.map(auditCard), watches.map(watchLine));
}

Object.assign(window.rs, { trust, trustWord, watchOf, watchCharts, watchPanel });
})();
