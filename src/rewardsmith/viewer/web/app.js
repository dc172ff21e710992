"use strict";
// The page of `rewardsmith view`: its state is the hash of the address, so that every place has a link.
(() => {
const { el, button, direction, chip, table, duration, plural, formatted, difference, stateChip, top, heads, trust, watchOf, refill,
  evaluations, replays, models, failures, curves, longest, stageTitle, recipe, controls, browse, compare, source, query, KEPT } = window.rs;
const POLL = 2000, SLOW = 15000; // milliseconds; slow while nobody looks
const NAMES = ["view", "run", "stage", "line", "rollout", "page", "cases", ...KEPT];
const VIEWS = { runs: "Runs", run: "Overview", rollouts: "Rollouts", compare: "Compare" };
const main = document.getElementById("main"), bar = document.getElementById("bar"), say = document.getElementById("say");

const app = {
  runs: [],
  // What the address says, also before the page is drawn for it; `view` and `run` have defaults.
  get state() {
    const given = new URLSearchParams(location.hash.slice(1)), { runs } = app;
    const state = { ...Object.fromEntries(NAMES.map((name) => [name, given.get(name) || ""])), with: given.getAll("with") };
    if (!Object.hasOwn(VIEWS, state.view)) state.view = state.run || runs.length === 1 ? "run" : "runs";
    if (!state.run && runs.length) state.run = runs.length === 1 || state.view !== "runs" ? runs[0].name : "";
    return state;
  },
  // The address of a place: the present one with some changes; `fresh` forgets the filters.
  address(changes, { fresh = false } = {}) {
    const base = fresh ? { view: app.state.view, run: app.state.run, with: app.state.with } : app.state;
    return `#${query({ ...base, ...changes })}`;
  },
  go(changes) { location.hash = app.address(changes); },
  say(text) { say.textContent = text; },
  failed(error) { app.say(error.message); notice(error.message); },
};

function notice(text) {
  const box = document.getElementById("notice");
  if (box) box.replaceChildren(...(text ? [el("p", { class: "note", role: "alert" }, text)] : []));
}

// ---- the bar at the top ----------------------------------------------------------------------------------------------

function drawBar() {
  const { state } = app;
  const tab = (view, changes) => el("a", { href: app.address({ view, ...changes }, { fresh: true }),
    "aria-current": state.view === view ? "page" : null }, VIEWS[view]);
  const run = el("select", { "aria-label": "Run" }, app.runs.map((one) => el("option", { value: one.name }, one.name)));
  run.value = state.run;
  run.addEventListener("change", () => { location.hash = app.address({ run: run.value }, { fresh: true }); });
  const now = app.runs.find((one) => one.name === state.run);
  const withNow = state.with.length || !state.run ? {} : { with: [state.run] };
  bar.replaceChildren(el("div", { class: "bar" }, el("a", { class: "brand", href: "#view=runs" }, "rewardsmith"),
    el("nav", { "aria-label": "Views" }, tab("runs", {}), now ? [tab("run", {}), tab("rollouts", {})] : null,
      tab("compare", withNow)),
    now && ["run", "rollouts"].includes(state.view) ? [run, state.view === "rollouts" ? stateChip(now.state) : null] : null,
    el("span", { class: "grow" }), source.live ? el("span", { class: "live", title: "the page follows the runs" }, "live")
      : chip("bundle"),
    button("?", help, { "aria-label": "Keys", class: "round" })), el("div", { id: "notice" }));
}

// ---- the list of runs ------------------------------------------------------------------------------------------------

const ago = (seconds) => `${duration(Math.max(0, Date.now() / 1000 - seconds))} ago`;

function runsView() {
  const node = el("div", { class: "page" });
  function refresh() {
    const chosen = new Set(app.state.with);
    const result = (one) => {
      const form = one.share ? "share" : "number";
      return el("div", { class: "num" }, el("small", { class: "soft" }, `${one.stage} ${one.name} `),
        one.before === null ? null : `${formatted(one.before, form)} → `, el("b", {}, formatted(one.after, form)),
        one.before === null || one.after === null ? null : el("small",
          { class: ["worse", "soft", "better"][Math.sign((one.after - one.before) * direction(one.name)) + 1] },
          ` ${one.after >= one.before ? "▲" : "▼"} ${difference(one.after - one.before, form)}`));
    };
    const steps = (run) => run.stages.map((stage) => `${stage.name} ${stage.done}${stage.steps ? `/${stage.steps}` : ""}`)
      .join(" → ");
    const when = (run) => (run.state === "running" ? `last write ${ago(run.changed)}` : run.started.slice(0, 16).replace("T", " "));
    const tick = (run) => {
      const box = el("input", { type: "checkbox", "aria-label": `compare ${run.name}` });
      box.checked = chosen.has(run.name);
      box.addEventListener("change", () => app.go({ with: box.checked ? [...app.state.with, run.name]
        : app.state.with.filter((name) => name !== run.name) }));
      return box;
    };
    const rows = app.runs.map((run) => [tick(run), el("div", {},
      el("a", { class: "runname", href: app.address({ view: "run", run: run.name }, { fresh: true }) }, run.name),
        el("div", { class: "small soft" }, run.title)),
      stateChip(run.state), el("span", { class: "small" }, steps(run)), el("div", {}, run.results.map(result)),
        el("span", { class: "small num" }, duration(run.seconds)),
      el("span", { class: "small soft num" }, when(run))]);
    const go = el("a", { class: "action", href: app.address({ view: "compare" }, { fresh: true }) },
      `Compare ${plural(chosen.size, "run")}`);
    node.replaceChildren(el("div", { class: "title" }, el("h1", {}, "Runs"), chip(String(app.runs.length)),
      chosen.size ? go : el("span", { class: "soft small" }, "tick runs to compare them")),
      app.runs.length ? el("div", { class: "card runs" }, table(["", "run", "state", "steps", "result", "time", ""], rows,
        { label: "Runs" })) : el("p", { class: "empty" }, "No run has begun in this folder yet."));
  }
  return { node, refresh };
}

// ---- the overview of a run -------------------------------------------------------------------------------------------

function runView() {
  const above = el("div"), trusted = el("div"), measured = el("div"), stages = el("div"), below = el("div");
  const node = el("div", { class: "page" }, above, trusted, measured, stages, below);
  let drawn = "", shape = "", audited = "", made = [];
  async function refresh() {
    const run = app.state.run;
    const [data, found] = await Promise.all([source.overview(run), source.stages(run)]);
    const now = `${run} ${data.version} ${found.indexed}`;
    if (run !== app.state.run || now === drawn) return;
    drawn = now;
    const counted = (name) => found.stages.find((one) => one.name === name);
    const link = (name) => (counted(name) && counted(name).groups
      ? el("a", { class: "action", href: app.address({ view: "rollouts", stage: name }, { fresh: true }) },
      `${plural(counted(name).rollouts, "rollout")} in ${plural(counted(name).groups, "group")}`) : null);
    const rollouts = (stage) => (prompt, step) => app.address({ view: "rollouts", stage, prompt, step_min: step, step_max: step },
      { fresh: true });
    above.replaceChildren(...[top(data), heads(data)].flat().filter(Boolean));
    if (JSON.stringify(data.trust) !== audited) { // what a reader has opened stays open while a run goes on
      audited = JSON.stringify(data.trust);
      refill(trusted, [trust(data)].filter(Boolean));
    }
    measured.replaceChildren(...[evaluations(data), replays(data), models(data),
      failures(found.stages.flatMap((one) => one.failures.map(([part, kind, count]) =>
        [`${one.name}: ${part || "the whole score"}`, kind, count])))].flat().filter(Boolean));
    const names = JSON.stringify([run, data.stages.map((stage) => stage.name)]);
    if (names !== shape || !data.stages.every((stage, i) => made[i].update(stage, watchOf(data, stage)))) {
      shape = names;
      made = data.stages.map((stage) => curves(stage, { tabled: data.evaluations.some((one) => one.name === stage.name),
        watch: watchOf(data, stage), link: rollouts(stage.name) }));
      stages.replaceChildren(el("div", { class: "controls" }, controls(longest(data.stages))),
        ...data.stages.map((stage, i) => el("section", { class: "stage", "aria-label": `Stage ${stage.name}` },
        el("div", { class: "title", "data-stage": stage.name }), made[i].node)));
    }
    stages.querySelectorAll("[data-stage]").forEach((place, i) =>
      place.replaceChildren(stageTitle(data.stages[i], data), ...[link(data.stages[i].name)].filter(Boolean)));
    const open = below.querySelector("details")?.open;
    below.replaceChildren(...[recipe(data)].filter(Boolean));
    if (open) below.querySelector("details").open = true;
  }
  return { node, refresh };
}

// ---- keys ------------------------------------------------------------------------------------------------------------

const KEYS = [["j / k", "next and previous group in the list"], ["← / →", "previous and next step; in a chart, along the curve"],
  ["/", "search the rollouts"],
  ["Esc", "back to the list"], ["1 – 4", "runs, overview, rollouts, compare"], ["?", "this list"]];

function help() {
  const box = el("dialog", { class: "help", "aria-label": "Keys" }, el("h2", {}, "Keys"),
    el("dl", {}, KEYS.map(([key, text]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)))),
      el("p", { class: "soft small" },
        "Drag in a chart to zoom in, double-click to zoom out. Every place of this page has an address of its own."),
    button("Close", () => box.close()));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=checkbox]):not([type=range]), select, textarea, dialog");
  if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && typing) { typing.blur(); return; }
  if (typing) return;
  const inBrowse = app.state.view === "rollouts" && shown?.next, slider = event.target.matches("input[type=range]");
  const changeTo = (view) => () => {
    if (view === "runs" || view === "compare" || app.state.run) location.hash = app.address({ view }, { fresh: true });
  };
  const actions = { "?": help, "/": search, 1: changeTo("runs"), 2: changeTo("run"), 3: changeTo("rollouts"),
    4: changeTo("compare"),
    ...(inBrowse ? { j: () => shown.next(1), k: () => shown.next(-1), Escape: () => app.go({ line: "", rollout: "" }),
      ...(slider ? {} : { ArrowRight: () => shown.step(1), ArrowLeft: () => shown.step(-1) }) } : {}) };
  if (!Object.hasOwn(actions, event.key)) return;
  event.preventDefault();
  Promise.resolve(actions[event.key]()).catch(app.failed);
});

function search() {
  if (app.state.view !== "rollouts" && app.state.run) location.hash = app.address({ view: "rollouts" }, { fresh: true });
  const find = (left) => {
    const box = document.getElementById("search");
    if (box) { box.focus(); box.select(); } else if (left) setTimeout(() => find(left - 1), 50);
  };
  find(40);
}

// ---- the page --------------------------------------------------------------------------------------------------------

const MAKE = { runs: runsView, run: runView, rollouts: () => browse(app), compare: () => compare(app) };
let shown = null, place = "";

async function draw() {
  const { state } = app;
  notice("");
  drawBar();
  document.title = ["rewardsmith", state.view === "runs" || state.view === "compare" ? VIEWS[state.view] : state.run].join(" · ");
  const now = `${state.view} ${state.view === "run" || state.view === "rollouts" ? state.run : ""}`;
  if (now !== place) {
    place = now;
    shown = MAKE[state.view]();
    main.className = state.view;
    main.replaceChildren(shown.node);
    window.scrollTo(0, 0);
  }
  await shown.refresh();
}

const update = () => draw().catch(app.failed);
let known = "{}";

const versions = () => source.version([...new Set([app.state.run,
  ...(app.state.view === "compare" ? app.state.with : [])])].filter(Boolean));

async function poll() {
  try {
    const now = await versions(), text = JSON.stringify(now);
    notice("");
    if (text !== known) {
      if (JSON.parse(known).list !== now.list) app.runs = (await source.runs()).runs;
      await draw();
    }
    known = text;
  } catch (error) {
    notice(`The server does not answer (${error.message}): is \`rewardsmith view\` still running?`);
  }
  setTimeout(poll, document.hidden ? SLOW : POLL);
}

window.addEventListener("hashchange", update);
(async () => {
  try {
    if (source.live) known = JSON.stringify(await versions()); // before anything is read, so that no change is missed
    app.runs = (await source.runs()).runs;
    await draw();
  } catch (error) {
    drawBar();
    app.failed(error);
  }
  if (source.live) setTimeout(poll, POLL);
})();
})();
