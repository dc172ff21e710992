"use strict";
// Several runs next to each other: results, curves in one chart, settings, evaluations, costs, and case by case.
(() => {
const { el, button, fold, table, show, formatted, difference, plural, heat, chart, controls, longest, prefixOf, rank, LATE,
  isConstant,
  constants, distinct, direction, byKind, compared, usage, source } = window.rs;
const MAX_CASES = 100; // rows of the grid on one page
const SMALL = 1e-9;

const change = (from, to, form, metric) => {
  if (from === null || from === undefined || to === null || to === undefined) return null;
  const by = to - from, good = by * direction(metric);
  return el("small", { class: Math.abs(by) < SMALL || !good ? "soft" : good > 0 ? "better" : "worse" },
    Math.abs(by) < SMALL ? "=" : `${by > 0 ? "▲" : "▼"} ${difference(by, form)}`);
};

// ---- results and settings --------------------------------------------------------------------------------------------

function results(runs) {
  const names = new Map();
  runs.forEach(({ data }) => data.stages.forEach((stage) => distinct(stage)
    .forEach((result) => names.set(`${stage.name} ${result.name}`, [stage.name, result.name]))));
  if (!names.size) return null;
  const of = ({ data }, stage) => data.stages.find((one) => one.name === stage);
  const rows = [...names.values()].map(([stage, metric]) => {
    const form = runs.some((run) => of(run, stage)?.shares.includes(metric)) ? "share" : "number";
    const first = of(runs[0], stage)?.after[metric];
    return [el("span", {}, `${stage} `, el("b", {}, metric.replace(/^validation\//, ""))), ...runs.map((run, i) => {
      const one = of(run, stage);
      if (!one || one.after[metric] === undefined) return "–";
      const before = one.before[metric];
      return el("span", { class: "cellvalue" }, before === undefined ? null
        : el("small", { class: "soft" }, `${formatted(before, form)} → `),
        el("b", {}, formatted(one.after[metric], form)), i ? change(first, one.after[metric], form, metric) : null);
    })];
  });
  return fold(true, "Results", runs.length > 1 ? `differences are to ${runs[0].name}` : "",
    table(["", ...runs.map((run) => ({ name: run.name, right: true }))], rows, { label: "Results" }));
}

function settings(runs) {
  if (runs.length < 2) return null;
  const paths = [...new Set(runs.flatMap(({ data }) => Object.keys(data.settings)))].sort();
  const differ = paths.filter((path) => new Set(runs.map(({ data }) => data.settings[path])).size > 1);
  const cell = (value) => (value === undefined ? el("span", { class: "soft" }, "not set") : el("code", {}, value));
  return fold(true, "Settings that differ", differ.length ? plural(differ.length, "setting") : "none",
    differ.length ? table(["setting", ...runs.map((run) => run.name)],
      differ.slice(0, 400).map((path) => [el("code", {}, path), ...runs.map(({ data }) => cell(data.settings[path]))]),
        { label: "Settings that differ" })
      : el("p", { class: "soft" }, "These runs have the same recipe."));
}

function costs(runs) {
  const rows = runs.flatMap((run) => run.data.models.map((one) => ({ name: `${run.name}: ${one.name}`, used: one.used })));
  return rows.length ? fold(true, "Costs", "usage of models over each run", usage(rows)) : null;
}

function measured(runs) {
  const all = runs.flatMap((run) => run.data.evaluations.map((one) => ({ ...one, run: run.name })));
  if (!all.length) return null;
  return fold(true, "Evaluations", "", el("div", { class: "card" }, byKind(all).map(([kind, some]) =>
    compared(kind, some, (one) => (runs.length > 1 ? `${one.run} · ${one.name}` : one.name)))));
}

// ---- curves ----------------------------------------------------------------------------------------------------------

// One chart for each metric of a stage, with a line for each run.
function overlays(runs) {
  const stages = [...new Set(runs.flatMap(({ data }) => data.stages.map((stage) => stage.name)))];
  const sections = stages.map((name) => {
    const found = runs.map((run, i) => ({ run, i, stage: run.data.stages.find((one) => one.name === name) }))
      .filter((one) => one.stage);
    const metrics = [...new Set(found.flatMap(({ stage }) => stage.curves.map((curve) => curve.name)))];
    const lines = (metric) => found.flatMap(({ run, i, stage }) => stage.curves.filter((curve) => curve.name === metric)
      .map((curve) => ({ ...curve, label: run.name, look: i })));
    const still = metrics.filter((metric) => { const all = lines(metric);
    return all.every(isConstant) && new Set(all.map((line) => line.y[0])).size === 1; });
    const prefixes = [...new Set(metrics.filter((metric) => !still.includes(metric)).map(prefixOf))].sort((a, b) =>
      rank(a) - rank(b));
    const groups = prefixes.map((prefix, k) => {
      const own = metrics.filter((metric) => prefixOf(metric) === prefix && !still.includes(metric));
      const made = fold(k < 3 && rank(prefix) < LATE, prefix, plural(own.length, "chart"), el("div", { class: "charts" },
        own.map((metric) => chart(metric, lines(metric), `compare ${name}`).node)));
      made.classList.add(`wide${Math.min(3, own.length)}`);
      return made;
    });
    return el("section", { class: "stage", "aria-label": `Curves of ${name}` }, el("h2", {}, name),
      el("div", { class: "groups" }, groups),
      constants(still.map((metric) => lines(metric)[0])));
  });
  return [el("div", { class: "controls" }, controls(longest(runs.flatMap(({ data }) => data.stages)))), sections];
}

// ---- case by case ----------------------------------------------------------------------------------------------------

// The columns of the grid: the last validation of each run, or the first and the last one of a single run.
function columnsOf(runs, all, stage) {
  const own = (i) => all[i].validations.find((one) => one.stage === stage);
  const named = (i, end, label) => ({ run: runs[i].name, stage, step: end.step, label,
    cases: new Map(end.cases.map((one) => [`${one.source} ${one.prompt}`, one])) });
  if (runs.length === 1) return own(0) ? own(0).ends.map((end) => named(0, end, `step ${end.step}`)) : [];
  return runs.map((run, i) => own(i) && named(i, own(i).ends[own(i).ends.length - 1], run.name)).filter(Boolean);
}

function casesOf(columns) {
  const keys = [...new Set(columns.flatMap((column) => [...column.cases.keys()]))];
  return keys.map((key) => {
    const cells = columns.map((column) => column.cases.get(key) || null);
    const first = cells[0]?.reward ?? null, last = cells[cells.length - 1]?.reward ?? null;
    const by = first === null || last === null ? null : last - first;
    return { key, cells, by, state: by === null ? "unknown" : by > SMALL ? "better" : by < -SMALL ? "worse" : "same",
      any: cells.find(Boolean) };
  });
}

function gridTable(columns, cases, app) {
  const values = columns.flatMap((column) => [...column.cases.values()].map((one) => one.reward).filter((value) => value !== null));
  const low = Math.min(0, ...values.slice(0, 5000)), high = Math.max(1, ...values.slice(0, 5000));
  const cell = (column, one) => {
    if (!one) return el("span", { class: "soft" }, "–");
    const level = one.reward === null ? "fillbad" : `fill${heat(one.reward, low, high)}`;
    return el("a", { class: "case num", href: app.address({ view: "rollouts", run: column.run, stage: column.stage, line: one.line,
      rollout: "", page: "" }, { fresh: true }),
      title: `${one.count} rollouts${one.failed ? `, ${one.failed} failed` : ""}` }, el("i", { class: level }),
        one.reward === null ? "✕" : show(one.reward));
  };
  const mark = { better: "▲ better", worse: "▼ worse", same: "=", unknown: "?" };
  return table(["prompt", ...columns.map((column) => ({ name: column.label, right: true })), "change"],
    cases.slice(0, MAX_CASES).map((one) => [el("span", { class: "clip", dir: "auto", title: one.any.prompt },
      one.any.head || one.any.prompt),
      ...columns.map((column, i) => cell(column, one.cells[i])), el("span", { class: one.state }, mark[one.state])]),
        { label: "Prompts by run" });
}

function grid(runs, all, app) {
  const stages = [...new Set(all.flatMap((one) => one.validations.map((found) => found.stage)))];
  const indexing = all.some((one) => one.indexed < 1);
  if (!stages.length) return indexing ? el("p", { class: "soft" }, "Reading the rollouts …") : null;
  const shared = stages.filter((name) => all.every((one) => one.validations.some((found) => found.stage === name)));
  const several = runs.length > 1 ? shared : stages.filter((name) => all[0].validations.find((found) => found.stage === name)
    .ends.length > 1);
  const stage = stages.includes(app.state.stage) ? app.state.stage : (several.length ? several : stages)[0];
  const columns = columnsOf(runs, all, stage), cases = casesOf(columns);
  const count = (state) => cases.filter((one) => one.state === state).length;
  const chosen = app.state.cases || "all";
  const sorted = cases.filter((one) => chosen === "all" || one.state === chosen)
    .sort((a, b) => Math.abs(b.by ?? 0) - Math.abs(a.by ?? 0));
  const tabs = ["all", "better", "worse", "same"].map((name) => button(`${name} ${name === "all" ? cases.length : count(name)}`,
    () => app.go({ cases: name }), { "aria-pressed": String(chosen === name) }));
  const picker = stages.length > 1 ? stages.map((name) => button(name, () => app.go({ stage: name }),
    { "aria-pressed": String(name === stage) })) : [];
  return fold(true, "Case by case",
    columns.length > 1 ? `prompts of the validation: ${columns[columns.length - 1].label} against ${columns[0].label}`
      : "prompts of the validation",
    picker.length ? el("div", { class: "chooser" }, "stage", picker) : null,
      el("div", { class: "chooser", role: "group", "aria-label": "Which cases" }, columns.length > 1 ? tabs : []),
    el("div", { class: "cases" }, gridTable(columns, sorted, app)),
    sorted.length > MAX_CASES ? el("p", { class: "soft small" },
      `the ${MAX_CASES} largest changes of ${plural(sorted.length, "prompt")}`) : null);
}

// ---- the view --------------------------------------------------------------------------------------------------------

function compare(app) {
  const chooser = el("div", { class: "chooser runs", role: "group", "aria-label": "Runs" }),
    body = el("div", { class: "comparison" }), cases = el("div");
  const node = el("div", { class: "page" }, el("div", { class: "title" }, el("h1", {}, "Compare")), chooser, body);
  let drawn = "", alive = 0;

  async function refresh() {
    const mine = ++alive, { state } = app;
    const chosen = state.with.filter((name) => app.runs.some((run) => run.name === name));
    const toggle = (name) => app.go({ with: chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name] });
    chooser.replaceChildren(...app.runs.map((run) => button(run.name, () => toggle(run.name),
      { "aria-pressed": String(chosen.includes(run.name)) })));
    if (!chosen.length) {
      drawn = "";
      body.replaceChildren(el("p", { class: "empty" }, "Choose one run, to compare its first and last validation, or several."));
      return;
    }
    const runs = await Promise.all(chosen.map(async (name) => ({ name, data: await source.overview(name) })));
    const found = await Promise.all(chosen.map((name) => source.validations(name)));
    if (mine !== alive) return;
    const now = JSON.stringify(runs.map((run) => [run.name, run.data.version]));
    if (now !== drawn) {
      drawn = now;
      const place = window.scrollY;
      body.replaceChildren(...[el("div", { class: "columns" }, results(runs), settings(runs)), cases, measured(runs), costs(runs),
        overlays(runs)].flat(3).filter(Boolean));
      window.scrollTo(0, place);
    }
    cases.replaceChildren(...[grid(runs, found, app)].filter(Boolean));
    if (found.some((one) => one.indexed < 1)) setTimeout(() => mine === alive && refresh().catch(app.failed), 700);
  }
  return { node, refresh };
}

Object.assign(window.rs, { compare });
})();
