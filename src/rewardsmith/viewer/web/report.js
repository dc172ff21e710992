"use strict";
// Lays out the page: what was reached, the curves of each stage, what the policy wrote, and the recipe.
(() => {
const { data, el, chip, show, plural, duration, grouped, chart, spark, rank, LATE, smooth, tinted } = window.report;
const SHOWN = 3;
const fold = (open, title, note, ...children) => el("details", { class: "fold", open: open ? "" : null },
  el("summary", {}, title, note ? el("span", { class: "soft" }, note) : null), ...children);
const cutNote = (item) => (item.cut ? el("p", { class: "soft small" }, `… ${plural(item.cut, "more character")} not shown`) : null);

// ---- what was reached ----------------------------------------------------------------------------------------------

const STATE = { finished: "✓ finished", running: "… still running when this was written", stopped: "■ stopped early",
  failed: "✗ ended by an error",
  unknown: "? no summary: killed, or still running" };

function top() {
  const about = [duration(data.seconds), data.stages.length ? plural(data.stages.length, "stage") : ""];
  return el("header", { class: "top" },
    el("div", { class: "brand" }, "rewardsmith", el("span", { class: `chip ${data.state}` }, STATE[data.state])),
    el("h1", {}, data.title),
    el("p", { class: "soft" }, about.filter(Boolean).join(" · ")),
    data.error ? el("div", { class: "error", role: "alert" }, el("b", {}, "The run ended by an error"), el("pre", {}, data.error)) : null);
}

function rail() {
  const links = data.stages.map((stage, i) => [i ? el("span", { class: "arrow", "aria-hidden": "true" }, "→") : null,
    el("a", { href: `#stage-${i}` }, stage.name, el("span", {}, about(stage)))]);
  const longest = Math.max(0, ...data.stages.flatMap((stage) => stage.curves.map((curve) => curve.x.length)));
  const slider = el("input", { type: "range", min: "0", max: "0.95", step: "0.05", value: longest > 60 ? "0.6" : "0" });
  slider.addEventListener("input", () => smooth(Number(slider.value)));
  smooth(Number(slider.value));
  return el("nav", { class: "rail", "aria-label": "Stages" }, links, longest > 20 ? el("label", {}, "Smoothing", slider) : null);
}

// A stage may have been stopped before its end, or have gone on beyond what the recipe has now.
const taken = (stage) => (stage.done < stage.steps ? `${stage.done} of ${plural(stage.steps, "step")}`
  : stage.done ? plural(stage.done, "step") : "");
const about = (stage) => [taken(stage), duration(stage.seconds)].filter(Boolean).join(" · ");

function head(stage, result, hero) {
  const metric = result.name;
  const before = stage.before[metric] ?? null, after = stage.after[metric];
  const show = (value) => told(value, stage.shares.includes(metric) ? "share" : "number");
  const change = before === null || after === null ? null : after - before;
  const sign = change > 0 ? "▲" : change < 0 ? "▼" : "=";
  return el("article", { class: hero ? "head hero" : "head" },
    el("p", { class: "name" }, el("b", {}, metric.replace(/^validation\//, "")),
      result.chance === null ? null : ` (chance ${show(result.chance)})`, ` ${stage.name}`),
    el("p", { class: "big" },
      before === null ? null : el("span", { class: "from" }, show(before), " →"),
      el("span", { class: "to" }, show(after)),
      change === null ? null : el("span", { class: "delta" }, `${sign} ${show(Math.abs(change))}`)),
    spark(stage.curves.find((curve) => curve.name === metric)));
}

// What a stage is measured by comes first, what explains it after it.
const MAIN = ["mean@", "verified", "accuracy", "pass@", "mad", "loss"];
function weight(metric) {
  const name = metric.replace(/^validation\//, "");
  const found = name.includes("/") ? -1 : MAIN.findIndex((start) => name.startsWith(start));
  return found < 0 ? MAIN.length + name.includes("/") : found;
}

function heads() {
  const tabled = data.evaluations.filter((one) => one.kind !== "policy").map((one) => one.name);
  const lists = data.stages.filter((stage) => !tabled.includes(stage.name)).map((stage) => [...stage.results]
    .sort((a, b) => weight(a.name) - weight(b.name)).map((result) => [stage, result]));
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

const share = (value) => (value === null ? "–" : `${(value * 100).toFixed(1)}%`.replace("-", "−"));
const told = (value, form) => (typeof value === "string" ? value : form === "share" ? share(value) : show(value));

const KINDS = { rankings: "Rewards on groups with true scores", grades: "Rewards on graded answers", pairs: "Rewards on pairs",
  policy: "Policies" };

function sheet(columns, rows, shares) {
  // A column in which nothing is known says nothing.
  const kept = columns.map((_, i) => i).filter((i) => rows.some((row) => row[i] !== null && row[i] !== ""));
  const side = (i) => (columns[i].form === "text" ? {} : { class: "right" });
  const named = (row) => columns[0]?.name === "measure" && shares.includes(String(row[0]).replaceAll(" ", "_"));
  const form = (row, i) => (columns[i].form === "number" && named(row) ? "share" : columns[i].form);
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, kept.map((i) => el("th", side(i), columns[i].name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, kept.map((i) => el("td", side(i), told(row[i], form(row, i)))))))));
}

function compared(kind, some) {
  const names = [...new Set(some.flatMap((one) => Object.keys(one.main)))];
  const cell = (value, form) => el("td", { class: "right" }, told(value ?? null, form),
    value > 0 && value <= 1 ? meter(value, 4) : null);
  return el("div", { class: "compared" }, el("h3", {}, KINDS[kind] || kind), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, el("th", {}, "stage"),
      names.map((name) => el("th", { class: "right" }, name.replaceAll("_", " "))))),
    el("tbody", {}, some.map((one) => el("tr", {}, el("th", { scope: "row" }, one.name),
      names.map((name) => cell(one.main[name], one.shares.includes(name) ? "share" : "number"))))))));
}

function evaluations() {
  if (!data.evaluations.length) return null;
  const kinds = new Map();
  for (const one of data.evaluations) kinds.set(one.kind, [...(kinds.get(one.kind) || []), one]);
  const tables = (one) => one.tables.map((table) => el("div", { class: "sheet" }, el("h3", {}, table.title),
    sheet(table.columns, table.rows, one.shares),
    table.more ? el("p", { class: "soft small" }, `… ${plural(table.more, "more row")} not shown`) : null,
    table.note ? el("p", { class: "soft small" }, table.note) : null));
  return el("section", { class: "stage", id: "evaluations", "aria-label": "Evaluations" },
    el("div", { class: "title" }, el("h2", {}, "Evaluations"), chip(plural(data.evaluations.length, "stage"))),
    el("div", { class: "card" }, [...kinds].map(([kind, some]) => compared(kind, some))),
    data.evaluations.map((one) => fold(data.evaluations.length === 1, one.name, one.kind,
      el("div", { class: "card" }, tables(one)))));
}

// ---- usage of models -------------------------------------------------------------------------------------------------

const USED = { calls: "calls", cached: "from the cache", retries: "retries", failed: "failed", prompt_tokens: "tokens read",
  tokens: "tokens written", cost: "cost" };

function models() {
  const told = Object.keys(USED).filter((key) => key === "calls" || data.models.some((one) => one.used[key]));
  if (!data.models.length) return null;
  return fold(true, "Model usage", "over the whole run", el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, el("th", {}, "model"), told.map((key) => el("th", { class: "right" }, USED[key])))),
    el("tbody", {}, data.models.map((one) => el("tr", {}, el("td", {}, one.name),
      told.map((key) => el("td", { class: "right" }, show(one.used[key] ?? 0)))))))));
}

// ---- what the policy wrote -----------------------------------------------------------------------------------------

const heat = (value, low, high) => Math.max(0, Math.min(6, Math.floor(((value - low) / (high - low || 1)) * 6.999)));

function meter(share, kind) {
  const bar = el("span", { class: `fill${kind}` });
  bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("span", { class: "meter", "aria-hidden": "true" }, bar);
}

function rollout(one, { low, high }, trained, ink) {
  const level = one.failure ? null : heat(one.value, low, high);
  const sign = one.advantage > 0 ? "+" : "";
  const failed = [one.failure, ...one.parts.map((part) => part.called && part.failure && { ...part.failure, name: part.name })];
  const details = [...new Map(failed.filter((failure) => failure && failure.text).reverse()
    .map((failure) => [failure.text, failure])).values()].reverse();
  const said = one.parts.filter((part) => part.feedback);
  if (one.feedback && said.every((part) => part.feedback.text !== one.feedback.text)) said.unshift(one);
  return el("article", { class: `rollout ${one.failure ? "failed" : `heat${level}`}` },
    el("div", { class: "marks" },
      one.failure ? el("span", { class: "score" }, `✕ failed: ${one.failure.kind}`)
        : [el("span", { class: "score", title: "score" }, show(one.value)), meter((one.value - low) / (high - low || 1), level)],
      one.advantage !== null ? el("span", {}, `advantage ${sign}${show(one.advantage)}`)
        : trained ? el("span", {}, "no advantage") : null,
      one.tokens ? el("span", {}, plural(one.tokens, "token")) : null,
      one.stop === "length" ? el("span", { class: "chip bad" }, "cut off at the token limit") : null),
    one.text ? ink.text(one) : el("p", { class: "soft small" }, "(empty)"),
    cutNote(one),
    one.parts.length ? el("div", { class: "parts" }, one.parts.map((part) => (part.failure
      ? el("span", { class: part.called ? "chip bad" : "chip", title: part.failure.text },
        `${part.name} ${part.called ? "✕" : "–"} ${part.failure.kind}`)
      : chip(part.name, el("b", {}, show(part.value)))))) : null,
    details.map((failure) => el("details", { class: "aside" },
      el("summary", {}, `what failed${failure.name ? ` in ${failure.name}` : ""}`), el("pre", {}, failure.text))),
    said.map((part) => el("details", { class: "aside" },
      el("summary", {}, part === one ? "feedback" : `feedback of ${part.name}`),
      el("pre", { dir: "auto" }, part.feedback.text), cutNote(part.feedback))));
}

function column(title, group, scale, flat) {
  const values = group.rollouts.map((one) => one.value).filter((value) => value !== null);
  const mean = values.length ? `mean score ${show(values.reduce((a, b) => a + b, 0) / values.length)}` : "no scores";
  const ink = tinted(group);
  const all = group.rollouts.map((one) => rollout(one, scale, flat, ink));
  const rest = all.slice(SHOWN);
  return el("div", { class: flat ? "column flat" : "column" },
    el("div", { class: "title" }, el("h3", {}, title),
      group.dropped ? el("span", { class: "chip bad" }, `dropped: ${group.dropped}`) : null,
      el("span", { class: "soft small num" }, mean)),
    ink.key,
    all.slice(0, SHOWN),
    rest.length ? el("details", {}, el("summary", { class: "soft small" }, plural(rest.length, "more rollout")),
      el("div", { class: "more" }, rest)) : null,
    group.more ? el("p", { class: "soft small" }, `and ${plural(group.more, "rollout")} not shown`) : null);
}

function prompt(one) {
  return el("div", { class: "chat" },
    one.earlier ? el("p", { class: "soft small" }, `${plural(one.earlier, "earlier message")} not shown`) : null,
    one.messages.map((message) => el("div", { class: "turn" }, el("span", { class: "role" }, message.role),
      el("div", {}, el("pre", { dir: "auto", tabindex: "0" }, message.text), cutNote(message)))),
    one.answer ? el("div", { class: "turn" }, el("span", { class: "role" }, "answer"),
      el("pre", { dir: "auto" }, one.answer.text)) : null);
}

function pair(one, scale) {
  const names = one.groups.length > 1 ? ["Before", "After"] : [""];
  return el("article", { class: "card" }, prompt(one.prompt), el("div", { class: "columns" },
    one.groups.map((group, i) => column([names[i], `step ${group.step}`].filter(Boolean).join(" · "), group, scale))));
}

const training = (groups, scale) => groups.map((group) => el("article", { class: "card" }, prompt(group.prompt),
  column(`step ${group.step}`, group, scale, true)));

function failures(found) {
  if (!found.failures.length) return null;
  const most = Math.max(...found.failures.map((row) => row[2]));
  return fold(true, "Failures", "scores that could not be given, by part and kind", el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, el("th", {}, "part"), el("th", {}, "kind"), el("th", { class: "right" }, "count"), el("th", {}, ""))),
    el("tbody", {}, found.failures.map(([part, kind, count]) => el("tr", {},
      el("td", {}, part || "the whole score"), el("td", {}, kind),
      el("td", { class: "right" }, show(count)), el("td", {}, meter(count / most, "bad"))))))));
}

const tints = (groups) => groups.some((group) => group.scales.length);

function rollouts(found) {
  if (!found || !(found.groups || found.unread)) return null;
  const scale = found;
  const where = found.whole ? "" : " at both ends of a long file";
  const counts = [`${plural(found.groups, "group")}, ${plural(found.rollouts, "rollout")} read${where}`,
    found.truncated ? `${show(found.truncated)} cut off at the token limit` : "",
    ...found.drops.map(([reason, count]) => `${plural(count, "group")} dropped: ${reason}`),
    found.unread ? `${plural(found.unread, "line")} could not be read` : ""].filter(Boolean);
  const sides = [["first", "Training groups of the first step"], ["last", "Training groups of the last step"],
    ["dropped", "Dropped groups"]];
  return [el("div", { class: "parts" }, counts.map((text) => chip(text))),
    found.pairs.length ? fold(true, "What it wrote", "the first prompts of the validation, not chosen by their scores",
      el("div", { class: "cards" }, found.pairs.map((one) => pair(one, scale)))) : null,
    sides.map(([key, title], i) => (found[key].length ? fold(i < 2 && (!found.pairs.length || tints(found[key])), title, "",
      el("div", { class: "cards" }, training(found[key], scale))) : null)),
    failures(found)];
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
  const groups = [...pairs.flatMap((two) => two.groups), ...first, ...last];
  const coloured = groups.flatMap((group) => group.scales.map(([name]) => name));
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

function panel(learned, peers) {
  if (!learned.length) return null;
  return fold(true, "Process rewards", "fresh: on rollouts that the model has not learned from; chance: what a coin gets",
    el("div", { class: `charts row${Math.min(4, learned.length)}` }, learned.map(([name, lines]) => chart(name, lines, peers))));
}

// ---- stages, recipe, page ------------------------------------------------------------------------------------------

function stage(one, i) {
  const peers = [], tabled = data.evaluations.some((other) => other.name === one.name);
  const learned = learners(one).flatMap((part) => lessons(one, part));
  const taken = new Set(learned.flatMap(([, lines]) => lines.map((line) => line.name)));
  const rest = one.curves.filter((curve) => !taken.has(curve.name));
  const groups = grouped(rest, one.rollouts ? one.rollouts.parts : []).map(([prefix, charts], k) => {
    const all = el("div", { class: "charts" }, charts.map(([name, lines]) => chart(name, lines, peers)));
    const group = fold(k < 8 && rank(prefix) < LATE && !tabled, prefix, plural(charts.length, "chart"), all);
    group.classList.add(`wide${Math.min(3, charts.length)}`);
    return group;
  });
  return el("section", { class: "stage", id: `stage-${i}`, "aria-label": `Stage ${one.name}` },
    el("div", { class: "title" }, el("h2", {}, one.name), one.type && one.type !== one.name ? chip(one.type) : null,
      el("span", { class: "soft small" }, about(one)),
      tabled ? el("a", { class: "small", href: "#evaluations" }, "its tables are above") : null),
    panel(learned, peers),
    one.curves.length ? el("div", { class: "groups" }, groups)
      : el("p", { class: "empty" }, "No metrics were written for this stage."),
    rollouts(one.rollouts));
}

function tokens(line) {
  // Enough of TOML for colours; whatever it does not know stays plain.
  const comment = /^\s*#/.test(line), table = /^\s*\[/.test(line), setting = /^(\s*[\w."'-]+)(\s*=.*)$/.exec(line);
  if (comment || table) return el("span", { class: comment ? "t-comment" : "t-table" }, line);
  return setting ? [el("span", { class: "t-key" }, setting[1]), setting[2]] : line;
}

function footer() {
  const notes = [data.unread ? `${plural(data.unread, "line")} of the metrics could not be read, as after a run that was killed.` : "",
    data.left_out ? `${plural(data.left_out, "curve")} left out: there are too many metrics for one page.` : "",
    "This file is complete in itself: it loads nothing and sends nothing."];
  return el("footer", {}, notes.filter(Boolean).map((note) => el("p", {}, note)));
}

document.getElementById("page").replaceChildren(...[top(), rail(), heads(), evaluations(), models(),
  el("main", { id: "main" }, data.stages.length ? data.stages.map(stage)
    : el("p", { class: "empty" }, "Nothing has been written to this folder yet.")),
  data.recipe ? el("section", { class: "stage recipe" }, fold(false, "Recipe", "with every default filled in",
    el("pre", { tabindex: "0" }, data.recipe.split("\n").map((line) => [tokens(line), "\n"])))) : null,
  footer()].flat().filter(Boolean));
})();
