"use strict";
// What a run came to: facts, results, evaluations, replays, usage of models, failures, the curves of each stage, the recipe.
(() => {
const { el, chip, fold, table, show, plural, duration, formatted, difference, meter, chart, spark, grouped, rank, LATE, isConstant,
  constants, watchCharts, watchPanel } = window.rs;

const STATE = { finished: "✓ finished", running: "… running", stopped: "■ stopped early", failed: "✗ ended by an error",
  unknown: "? no summary" };
const stateChip = (state) => el("span", { class: `chip ${Object.hasOwn(STATE, state) ? state : "unknown"}`,
  title: state === "unknown" ? "killed, or still running" : null }, STATE[state] || state);

// ---- the head of a page ----------------------------------------------------------------------------------------------

function facts(data) {
  if (!data.facts.length) return null;
  const shown = (name, value) => (name === "started" ? value.replace("T", " ").replace(/\+00:00$/, " UTC") : value);
  return el("dl", { class: "facts" }, data.facts.map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, shown(name, value)))));
}

function top(data, ...brand) {
  const about = [duration(data.seconds), data.stages.length ? plural(data.stages.length, "stage") : ""];
  return el("header", { class: "top" },
    el("div", { class: "brand" }, brand, stateChip(data.state)),
    el("h1", {}, data.title),
    el("p", { class: "soft" }, about.filter(Boolean).join(" · ")),
    facts(data),
    data.error ? el("div", { class: "error", role: "alert" }, el("b", {}, "The run ended by an error"), el("pre", {}, data.error))
      : null);
}

// A stage may have been stopped before its end, or have gone on beyond what the recipe has now.
const taken = (stage) => (stage.done < stage.steps ? `${stage.done} of ${plural(stage.steps, "step")}`
  : stage.done ? plural(stage.done, "step") : "");
const about = (stage) => [taken(stage), duration(stage.seconds)].filter(Boolean).join(" · ");

// ---- results ---------------------------------------------------------------------------------------------------------

function head(stage, result, hero) {
  const metric = result.name, form = stage.shares.includes(metric) ? "share" : "number";
  const before = stage.before[metric] ?? null, after = stage.after[metric];
  const change = before === null || after === null ? null : after - before;
  const sign = change > 0 ? "▲" : change < 0 ? "▼" : "=";
  return el("article", { class: hero ? "head hero" : "head" },
    el("p", { class: "name" }, el("b", {}, metric.replace(/^validation\//, "")),
      result.chance === null ? null : ` (chance ${formatted(result.chance, form)})`, ` ${stage.name}`),
    el("p", { class: "big" },
      before === null ? null : el("span", { class: "from" }, formatted(before, form), " →"),
      el("span", { class: "to" }, formatted(after, form)),
      change === null ? null : el("span", { class: "delta" }, `${sign} ${difference(change, form)}`)),
    spark(stage.curves.find((curve) => curve.name === metric)));
}

// What a stage is measured by comes first, what explains it after it.
const MAIN = ["mean@", "verified", "accuracy", "pass@", "mad", "loss"];
function weight(metric) {
  const name = metric.replace(/^validation\//, "");
  const found = name.includes("/") ? -1 : MAIN.findIndex((start) => name.startsWith(start));
  return found < 0 ? MAIN.length + name.includes("/") : found;
}

const COUNTS = /^(validation\/)?(prompts|rollouts|groups|items|pairs)$/; // how much was measured is no result

// Of results with the same numbers, such as a mean of right and wrong answers and pass@1, one is shown.
function distinct(stage) {
  const same = (result) => JSON.stringify([stage.before[result.name] ?? null, stage.after[result.name]]);
  const sorted = stage.results.filter((result) => !COUNTS.test(result.name)).sort((a, b) => weight(a.name) - weight(b.name));
  return sorted.filter((result, i) => sorted.findIndex((other) => same(other) === same(result)) === i);
}

function heads(data) {
  const kind = (stage) => data.evaluations.find((one) => one.name === stage.name)?.kind;
  // The tables of an evaluation have all that it measured: a policy's has one card, a reward's none.
  const lists = data.stages.filter((stage) => [undefined, "policy"].includes(kind(stage)))
    .map((stage) => distinct(stage).slice(0, kind(stage) ? 1 : 200).map((result) => [stage, result]));
  // Every stage has its say before any has its second.
  const turns = Array.from({ length: Math.max(0, ...lists.map((list) => list.length)) }, (_, i) => i);
  const all = turns.flatMap((i) => lists.map((list) => list[i]).filter(Boolean));
  if (!all.length) return null;
  // The biggest card is for what training changed; the later stage builds on the earlier one.
  const changed = ([stage, result]) => stage.before[result.name] !== undefined;
  const hero = lists.map((list) => list.find(changed)).filter(Boolean).pop() || all[0];
  const others = all.filter((one) => one !== hero);
  return [el("section", { class: "heads", "aria-label": "Results" },
    head(...hero, true), others.slice(0, 7).map((one) => head(...one, false))),
  others.length > 7 ? fold(false, `${others.length - 7} more results`, "",
    el("div", { class: "heads" }, others.slice(7, 200).map((one) => head(...one, false)))) : null];
}

// ---- evaluations: side by side, and each with its tables -------------------------------------------------------------

const KINDS = { rankings: "Rewards on groups with true scores", grades: "Rewards on graded answers", pairs: "Rewards on pairs",
  policy: "Policies" };

function sheet(columns, rows, shares) {
  // A column in which nothing is known says nothing.
  const kept = columns.map((_, i) => i).filter((i) => rows.some((row) => row[i] !== null && row[i] !== ""));
  const named = (row) => columns[0]?.name === "measure" && shares.includes(String(row[0]).replaceAll(" ", "_"));
  const form = (row, i) => (columns[i].form === "number" && named(row) ? "share" : columns[i].form);
  return table(kept.map((i) => ({ name: columns[i].name, right: columns[i].form !== "text" })),
    rows.map((row) => kept.map((i) => formatted(row[i], form(row, i)))));
}

// `some` are evaluations of one kind; `label` names each.
function compared(kind, some, label = (one) => one.name) {
  const names = [...new Set(some.flatMap((one) => Object.keys(one.main)))];
  const cell = (value, form) => [formatted(value ?? null, form), value > 0 && value <= 1 ? meter(value, 4) : null];
  return el("div", { class: "compared" }, el("h3", {}, KINDS[kind] || kind),
    table(["stage", ...names.map((name) => ({ name: name.replaceAll("_", " "), right: true }))],
      some.map((one) => [el("b", {}, label(one)), ...names.map((name) =>
        cell(one.main[name], one.shares.includes(name) ? "share" : "number"))]),
      { label: KINDS[kind] || kind }));
}

const byKind = (all) => {
  const kinds = new Map();
  for (const one of all) kinds.set(one.kind, [...(kinds.get(one.kind) || []), one]);
  return [...kinds];
};

const tables = (one) => one.tables.map((found) => el("div", { class: "sheet" }, el("h3", {}, found.title),
  sheet(found.columns, found.rows, one.shares),
  found.more ? el("p", { class: "soft small" }, `… ${plural(found.more, "more row")} not shown`) : null,
  found.note ? el("p", { class: "soft small" }, found.note) : null));

function evaluations(data) {
  if (!data.evaluations.length) return null;
  return el("section", { class: "stage", id: "evaluations", "aria-label": "Evaluations" },
    el("div", { class: "title" }, el("h2", {}, "Evaluations"), chip(plural(data.evaluations.length, "stage"))),
    data.evaluations.length > 1 ? el("div", { class: "card" }, byKind(data.evaluations).map(([kind, some]) => compared(kind, some))) : null,
    data.evaluations.map((one) => fold(data.evaluations.length === 1, one.name, one.kind,
      el("div", { class: "card" }, tables(one)))));
}

// What other rewards or estimators would have given to the rollouts of the run.
function replays(data) {
  return data.replays.map((one, i) => el("section", { class: "stage", "aria-label": `Replay ${one.name}` },
    el("div", { class: "title" }, el("h2", {}, `Replay: ${one.name}`)),
    one.unread ? el("p", { class: "soft" }, "This file cannot be read.")
      : i < 2 ? el("div", { class: "card" }, tables(one))
        : fold(false, plural(one.tables.length, "table"), "", el("div", { class: "card" }, tables(one)))));
}

// ---- usage of models, failures ---------------------------------------------------------------------------------------

const USED = { calls: "calls", cached: "from the cache", retries: "retries", failed: "failed", prompt_tokens: "tokens read",
  tokens: "tokens written", cost: "cost" };

// `rows` are models with the name that is shown of each.
function usage(rows) {
  const kept = Object.keys(USED).filter((key) => key === "calls" || rows.some((one) => one.used[key]));
  return table(["model", ...kept.map((key) => ({ name: USED[key], right: true }))],
    rows.map((one) => [one.name, ...kept.map((key) => show(one.used[key] ?? 0))]), { label: "Model usage" });
}
const models = (data) => (data.models.length ? fold(true, "Model usage", "over the whole run", usage(data.models)) : null);

function failures(rows) {
  if (!rows.length) return null;
  const most = Math.max(...rows.map((row) => row[2]));
  return fold(true, "Failures", "scores that could not be given, by part and kind",
    table(["part", "kind", { name: "count", right: true }, ""], rows.map(([part, kind, count]) => [part || "the whole score", kind,
      show(count), meter(count / most, "bad")]), { label: "Failures" }));
}

// ---- what a process reward has learned -----------------------------------------------------------------------------

// Each chart: its name after `learned/PART/`, and its lines with their labels.
const LEARNED = [["accuracy", { accuracy_fresh: "fresh", accuracy_after: "after" }],
  ["steps", { "steps/found": "wrong step found", "steps/chance": "by chance" }],
  ["trust", { trust: "trust" }], ["loss", { loss: "loss" }]];
const GREY = 5;

// Returns the parts that give rewards to tokens; other rewards learn too, and are shown among the other curves.
function learners(one) {
  const named = one.curves.map((curve) => /^learned\/(.+)\/(accuracy_fresh|steps\/found)$/.exec(curve.name)).filter(Boolean);
  const { pairs, first, last } = one.rollouts || { pairs: [], first: [], last: [] };
  const coloured = [...pairs.flat(), ...first, ...last].flatMap((group) => group.scales.map(([name]) => name));
  return [...new Set([...named.map((match) => match[1]), ...coloured])];
}

function lessons(one, part) {
  return LEARNED.map(([name, labels]) => {
    const lines = Object.entries(labels).flatMap(([measure, label]) => one.curves
      .filter((curve) => curve.name === `learned/${part}/${measure}`)
      .map((curve) => ({ ...curve, label, ...(measure === "steps/chance" ? { look: GREY } : {}) })));
    const fresh = lines.find((line) => line.label === "fresh");
    // Of two rollouts, one right and one wrong, a coin prefers the right one half the time.
    const chance = fresh && { x: fresh.x, y: fresh.x.map(() => 0.5), lost: 0, label: "chance", look: GREY };
    return [`learned/${part}/${name}`, chance ? [...lines, chance] : lines];
  }).filter(([, lines]) => lines.length);
}

// ---- the curves of a stage -------------------------------------------------------------------------------------------

// Returns what a stage draws: the charts of the watch, lessons of process rewards, charts by prefix, and the lines that
// say no more than a number.
function layout(one, watch) {
  const watched = watchCharts(one, watch), learned = learners(one).flatMap((part) => lessons(one, part));
  const used = new Set([...watched, ...learned].flatMap(([, lines]) => lines.map((line) => line.name)));
  // An alarm is a mark in the charts of the watch.
  const all = grouped(one.curves.filter((curve) => !used.has(curve.name) && curve.name !== "watch/alarm"), one.parts);
  const still = ([, lines]) => lines.every(isConstant);
  const groups = all.map(([prefix, charts]) => [prefix, charts.filter((entry) => !still(entry))])
    .filter(([, charts]) => charts.length);
  const flat = all.flatMap(([, charts]) => charts.filter(still).flatMap(([, lines]) => lines));
  return { watched, learned, groups, flat };
}

// The curves of a stage: `node`, and `update(stage, watch)`, which is false if there are other curves now. `watch` is what
// the watch of the stage found, and `link` returns the address of the rollouts of a prompt at a step.
function curves(one, { tabled = false, watch = null, link = null } = {}) {
  const sync = `stage ${one.name}`, made = [];
  const drawn = ([name, lines, more]) => {
    made.push(chart(name, lines, sync, more));
    return made[made.length - 1].node;
  };
  const { watched, learned, groups, flat } = layout(one, watch);
  const guard = watched.length || watch ? watchPanel(watched.map(drawn), watch, link) : null;
  const panel = learned.length ? fold(true, "Process rewards",
    "fresh: on rollouts that the model has not learned from; chance: what a coin gets",
    el("div", { class: `charts row${Math.min(4, learned.length)}` }, learned.map(drawn))) : null;
  const folds = groups.map(([prefix, charts], k) => {
    const group = fold(k < 8 && rank(prefix) < LATE && !tabled, prefix, plural(charts.length, "chart"),
      el("div", { class: "charts" }, charts.map(drawn)));
    group.classList.add(`wide${Math.min(3, charts.length)}`);
    return group;
  });
  const node = el("div", { class: "curves" }, guard && guard.node, panel,
    one.curves.length ? el("div", { class: "groups" }, folds)
      : el("p", { class: "empty" }, "No metrics were written for this stage."),
    constants(flat));
  const named = ([name, lines]) => [name, lines.map((line) => [line.name, line.label])];
  const shape = (now, found) => JSON.stringify([!found, now.watched.map(named), now.learned.map(([name]) => name),
    now.groups.map(([, charts]) => charts.map(named)), now.flat.map((line) => [line.name, line.y[0]])]);
  const before = shape({ watched, learned, groups, flat }, watch);
  const update = (next, found = null) => {
    const now = layout(next, found);
    if (shape(now, found) !== before) return false;
    const all = [...now.watched, ...now.learned, ...now.groups.flatMap(([, charts]) => charts)];
    all.forEach(([, lines, more], i) => made[i].update(lines, more));
    if (guard) guard.update(found);
    return true;
  };
  return { node, update };
}

const longest = (stages) => Math.max(0, ...stages.flatMap((stage) => stage.curves.map((curve) => curve.x.length)));

function title(one, data) {
  const tabled = data.evaluations.some((other) => other.name === one.name);
  return el("div", { class: "title" }, el("h2", {}, one.name), one.type && one.type !== one.name ? chip(one.type) : null,
    el("span", { class: "soft small" }, about(one)),
    tabled ? el("span", { class: "soft small" }, "its tables are above") : null);
}

// ---- the recipe --------------------------------------------------------------------------------------------------------

function coloured(line) {
  // Enough of TOML for colours; whatever it does not know stays plain.
  const comment = /^\s*#/.test(line), header = /^\s*\[/.test(line), setting = /^(\s*[\w."'-]+)(\s*=.*)$/.exec(line);
  if (comment || header) return el("span", { class: comment ? "t-comment" : "t-table" }, line);
  return setting ? [el("span", { class: "t-key" }, setting[1]), setting[2]] : line;
}

const recipe = (data) => (data.recipe ? el("section", { class: "stage recipe" },
  fold(false, "Recipe", "with every default filled in",
  el("pre", { tabindex: "0" }, data.recipe.split("\n").map((line) => [coloured(line), "\n"])))) : null);

// Which way is better: 1 up, -1 down, 0 where one cannot know.
const UP = /^(mean@|best@|pass@|accuracy|verified|top1|f1|precision|recall|exact)/,
  DOWN = /^(failed|failures|truncated|unsound|mad|loss|ties)/;
const direction = (metric) => { const name = metric.replace(/^(validation\/)?(sources\/[^/]+\/)?/, "");
return UP.test(name) ? 1 : DOWN.test(name) ? -1 : 0; };

Object.assign(window.rs, { distinct, direction, top, stateChip, about, heads, evaluations, replays, byKind, compared, models,
  usage, failures, curves, longest, stageTitle: title, recipe });
})();
