"use strict";
// The rollouts of a run: a scrubber over its steps, filters, a list in pages, and the chosen group with all its answers.
(() => {
const { el, chip, button, show, signed, plural, heat, prompt, messages, rollout, tinted, meanReward, source } = window.rs;
const PAGE = 50;
const FILTERS = ["kind", "source", "prompt", "dropped", "failure", "reward_min", "reward_max", "step_min", "step_max", "text"];
const KEPT = [...FILTERS, "by", "sort", "order"];

function select(label, name, value, choices, change) {
  const box = el("select", { name, "aria-label": label }, choices.map(([key, text]) => el("option", { value: key }, text)));
  box.value = value || "";
  box.addEventListener("change", () => change({ [name]: box.value }));
  return el("label", { class: "field" }, el("span", {}, label), box);
}

function input(label, name, value, change, attributes = {}) {
  const box = el("input", { name, "aria-label": label, value: value || "", ...attributes });
  let timer = null;
  const send = () => {
    clearTimeout(timer);
    if (box.value === (value || "")) return;
    value = box.value;
    change({ [name]: value });
  };
  box.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(send, 350); });
  box.addEventListener("keydown", (event) => { if (event.key === "Enter") send(); });
  return el("label", { class: "field" }, el("span", {}, label), box);
}

// ---- the scrubber ----------------------------------------------------------------------------------------------------

const stepsOf = (stage) => [...new Set(stage.steps.map(([step]) => step))];

// Bars of the mean reward of each step; a slider chooses one of them, or all.
function scrubber(stage, state, change) {
  const steps = stepsOf(stage), chosen = state.step_min !== "" && state.step_min === state.step_max ? Number(state.step_min) : null;
  const low = Math.min(0, stage.low ?? 0), high = Math.max(1, stage.high ?? 1);
  const value = new Map();
  for (const [step, kind, count, reward, failed] of stage.steps) {
    const now = value.get(step) || { count: 0, failed: 0, reward: null, kinds: [] };
    value.set(step, { count: now.count + count, failed: now.failed + failed,
      reward: kind === "train" || now.reward === null ? reward : now.reward, kinds: [...now.kinds, kind] });
  }
  const means = [...value.values()].map((one) => one.reward).filter((reward) => reward !== null);
  const least = Math.min(...means), most = Math.max(...means);
  const at = chosen === null ? 0 : steps.indexOf(chosen) + 1;
  const about = (i) => {
    if (!i) return `all ${plural(steps.length, "step")}`;
    const found = value.get(steps[i - 1]);
    return `step ${steps[i - 1]} · ${plural(found.count, "group")} · mean reward ${show(found.reward)}${found.failed ? ` · ${found.failed} failed` : ""}`;
  };
  const text = el("output", { class: "num" }, about(at));
  const slider = el("input", { type: "range", min: "0", max: String(steps.length), step: "1", "aria-label": "Step",
    "aria-valuetext": about(at) });
  slider.value = String(at);
  const choose = (i) => change(i ? { step_min: String(steps[i - 1]), step_max: String(steps[i - 1]) }
    : { step_min: "", step_max: "" });
  slider.addEventListener("input", () => {
    text.textContent = about(Number(slider.value));
    slider.setAttribute("aria-valuetext", text.textContent);
  });
  slider.addEventListener("change", () => choose(Number(slider.value)));
  const every = Math.max(1, Math.ceil(steps.length / 240));
  const bars = el("div", { class: "bars", "aria-hidden": "true" }, steps.filter((_, i) => i % every === 0).map((step) => {
    const found = value.get(step);
    const bar = el("i", { class: `fill${found.reward === null ? "bad" : heat(found.reward, low, high)}${step === chosen ? " on" : ""}`,
      title: about(steps.indexOf(step) + 1) });
    bar.style.height = `${found.reward === null ? 12 : 20 + 80 * (most > least ? (found.reward - least) / (most - least) : 0.5)}%`;
    bar.addEventListener("click", () => choose(steps.indexOf(step) + 1));
    return bar;
  }));
  return el("div", { class: "scrubber" }, bars, slider, el("div", { class: "title small" }, text,
    el("span", { class: "soft" }, "← → steps"), at ? button("all steps", () => choose(0), { class: "link" }) : null));
}

// ---- filters ---------------------------------------------------------------------------------------------------------

function filters(stages, stage, state, change) {
  const kinds = [...new Set(stage.steps.map(([, kind]) => kind))];
  const failing = [...new Set(stage.failures.map(([, kind]) => kind))];
  const scrubbed = state.step_min !== "" && state.step_min === state.step_max; // the scrubber shows it
  const set = FILTERS.filter((name) => state[name] && !(scrubbed && name.startsWith("step_")));
  const all = [["", "all"]];
  const more = el("div", { class: "fields" },
    kinds.length > 1 ? select("kind", "kind", state.kind, [...all, ...kinds.map((kind) => [kind, kind])], change) : null,
    stage.sources.length > 1 ? select("source", "source", state.source,
      [...all, ...stage.sources.map(([name, count]) => [name, `${name || "(none)"} (${count})`])], change) : null,
    failing.length ? select("failures", "failure", state.failure,
      [...all, ["any", "with a failure"], ...failing.map((kind) => [kind, kind])], change) : null,
    stage.drops.length ? select("dropped", "dropped", state.dropped, [...all, ["no", "kept"], ["yes", "dropped"]], change) : null,
    input("reward from", "reward_min", state.reward_min, change, { type: "number", step: "any", placeholder: show(stage.low) }),
    input("to", "reward_max", state.reward_max, change, { type: "number", step: "any", placeholder: show(stage.high) }),
    input("step from", "step_min", state.step_min, change, { type: "number", min: "0" }),
    input("to", "step_max", state.step_max, change, { type: "number", min: "0" }));
  return el("form", { class: "filters", role: "search", "aria-label": "Filter rollouts" },
    el("div", { class: "fields" },
      stages.length > 1 ? select("stage", "stage", stage.name, stages.map((one) => [one.name, one.name]),
        (to) => change({ ...to, step_min: "", step_max: "" })) : null,
      input("search", "text", state.text, change, { type: "search", id: "search",
        placeholder: "text of prompts, answers, feedback" }),
      select("list", "by", state.by || "groups", [["groups", "groups"], ["rollouts", "rollouts"]], change),
      select("sort", "sort", state.sort || "step", [["step", "step"], ["reward", "reward"], ["advantage", "advantage"],
        ["length", "length"]], change),
      select("order", "order", state.order || "up", [["up", "↑ lowest first"], ["down", "↓ highest first"]], change)),
    el("details", { class: "morefilters", open: set.some((name) => name !== "text") ? "" : null },
      el("summary", {}, "Filters", set.length ? chip(String(set.length)) : null), more),
    set.length ? el("p", { class: "small" }, state.prompt ? chip(`prompt ${state.prompt}`) : null,
      button("clear the filters", () => change(Object.fromEntries(FILTERS.map((name) => [name, ""]))), { class: "link" })) : null);
}

// ---- the list --------------------------------------------------------------------------------------------------------

function row(one, scale, address, current) {
  const cells = one.place === null ? one.rewards.map((value) =>
    el("i", { class: value === null ? "fillbad" : `fill${heat(value, scale.low, scale.high)}` })) : [];
  const failed = one.place === null ? one.failure : one.failures.length;
  return el("a", { class: `row${current ? " on" : ""}`, href: address, "aria-current": current ? "true" : null },
    el("span", { class: "when num" }, `${one.step}`, el("small", {}, one.kind === "validation" ? "val" : one.kind)),
    el("span", { class: "what" }, el("b", { dir: "auto" }, one.place === null ? one.head : one.ending || "(empty)"),
      el("small", {}, one.place === null ? [one.source, one.dropped ? ` · dropped: ${one.dropped}` : ""] : one.head)),
    el("span", { class: "value num" }, el("b", {}, one.reward === null ? "✕" : show(one.reward)),
      cells.length ? el("span", { class: "cells", "aria-hidden": "true" }, cells)
        : el("small", {}, one.failure || (one.advantage === null ? "" : `adv ${signed(one.advantage)}`)),
      failed && one.place === null ? el("small", { class: "bad" }, `${failed} failed`) : null));
}

// ---- a group ---------------------------------------------------------------------------------------------------------

function judged(run, stage, line, count) {
  const box = el("div", { class: "more" });
  if (!source.prompts) return el("p", { class: "soft small" },
    "Prompts of judges are rendered by `rewardsmith view`, not in a bundle.");
  const ask = button("Show the prompts of the judges", async () => {
    ask.disabled = true;
    box.replaceChildren(el("p", { class: "soft small" }, "rendering …"));
    try {
      const { prompts } = await source.prompts(run, stage, line);
      const who = (one) => (one.rollouts.length === count && count > 1 ? "all rollouts"
        : `rollout ${one.rollouts.map((i) => i + 1).join(", ")}`);
      box.replaceChildren(...(prompts.length ? prompts.map((one) => el("details", { class: "aside" },
        el("summary", {}, `${one.part} to ${one.model}: ${who(one)}`), messages(one.messages)))
        : [el("p", { class: "soft small" }, "No judge of this reward has a prompt about this group.")]));
    } catch (error) {
      box.replaceChildren(el("p", { class: "note" }, error.message));
      ask.disabled = false;
    }
  });
  return el("div", { class: "more" }, ask, box);
}

function groupView(group, state, scale, link) {
  const ink = tinted(group);
  const replies = group.rollouts.some((one) => one.feedback || one.parts.some((part) => part.feedback));
  return el("article", { class: "group", "aria-label": `Group of step ${group.step}` },
    el("div", { class: "title" }, button("← list", () => link.close(), { class: "back" }),
      el("h2", {}, `Step ${group.step}`), chip(group.kind), group.prompt.source ? chip(group.prompt.source) : null,
      group.dropped ? el("span", { class: "chip bad" }, `dropped: ${group.dropped}`) : null,
      el("span", { class: "soft small num" }, `${plural(group.rollouts.length + group.more, "rollout")} · ${meanReward(group)}`)),
    el("p", { class: "small soft tools" }, el("code", {}, group.prompt.id),
      el("a", { href: link.prompt(group.prompt.id) }, "all its groups"),
        source.raw ? el("a", { href: link.raw, download: "" }, "JSON") : null),
    el("div", { class: "card" }, prompt(group.prompt, { info: true })),
    replies || source.prompts ? judged(state.run, state.stage, state.line, group.rollouts.length) : null,
    ink.key,
    el("div", { class: "side" }, group.rollouts.map((one, i) => {
      const made = rollout(one, scale, ink, { trained: group.kind === "train" && !group.dropped, open: String(i) === state.rollout,
        name: `rollout ${i + 1}`,
        head: el("a", { class: "anchor", href: link.rollout(i), title: "link to this rollout" }, `#${i + 1}`) });
      if (String(i) === state.rollout) made.classList.add("on");
      return made;
    })),
    group.more ? el("p", { class: "soft small" }, `and ${plural(group.more, "rollout")} not shown: see the JSON`) : null);
}

// Scrolls a list, and not the page, until a row is in sight.
function showIn(list, one) {
  if (!one || list.scrollHeight <= list.clientHeight) return;
  const above = one.offsetTop - list.offsetTop, below = above + one.offsetHeight - list.clientHeight;
  if (list.scrollTop > above) list.scrollTop = above;
  if (list.scrollTop < below) list.scrollTop = below;
}

// ---- the view --------------------------------------------------------------------------------------------------------

// `app` has `state`, `go(changes)`, `address(changes)` and `say(text)`.
function browse(app) {
  const head = el("div", { class: "browsehead" }), list = el("div", { class: "rows" }),
    notes = el("p", { class: "soft small", role: "status" });
  const pager = el("div", { class: "pager" }), detail = el("section", { class: "detail", "aria-label": "Group" });
  const side = el("section", { class: "listside", "aria-label": "List of rollouts" }, notes, list, pager);
  const node = el("div", { class: "browse" }, head, el("div", { class: "panes" }, side, detail));
  const me = { node, refresh, next, step: scrub, rows: [], total: 0, page: 0 };
  let stages = [], shown = "", filtered = "", opened = "", alive = 0;

  // Unless one is chosen, the stage with the most groups.
  const stageOf = () => stages.find((one) => one.name === app.state.stage) || stages.toSorted((a, b) => b.groups - a.groups)[0];
  const scaleOf = (stage) => ({ low: Math.min(0, stage.low ?? 0), high: Math.max(1, stage.high ?? 1) });
  const change = (to) => { // the reader may have gone to another view before what was typed is sent
    if (node.isConnected) app.go({ ...to, page: "", line: "", rollout: "" });
  };

  async function refresh() {
    const { state } = app, mine = ++alive;
    const found = await source.stages(state.run);
    if (mine !== alive) return;
    stages = found.stages;
    const stage = stageOf();
    node.classList.toggle("open", state.line !== "");
    node.classList.toggle("bare", !stage);
    if (!stage) {
      head.replaceChildren(el("p", { class: "empty" }, found.indexed < 1 ? "Reading the rollouts …"
        : "This run has no rollouts yet."));
      if (found.indexed < 1 && source.live) setTimeout(() => mine === alive && refresh(), 400);
      return;
    }
    const focus = document.activeElement, place = head.contains(focus) ? [focus.name, focus.selectionStart] : null;
    const drawn = JSON.stringify([stages, state.stage, KEPT.map((name) => state[name])]);
    if (drawn !== filtered && !(place && focus.tagName === "INPUT" && focus.type !== "range"
      && focus.value !== (state[focus.name] || ""))) {
      filtered = drawn;
      const open = head.querySelector(".morefilters")?.open;
      head.replaceChildren(scrubber(stage, state, change), filters(stages, stage, state, change));
      if (open) head.querySelector(".morefilters").open = true;
      const again = place && place[0] && head.querySelector(`[name="${place[0]}"]`);
      if (again) again.focus({ preventScroll: true });
      if (place && !place[0]) head.querySelector(".scrubber input").focus({ preventScroll: true });
    }
    await Promise.all([fill(stage, mine), open(stage)]);
  }

  // A page of the list; `find` is a line whose page is wanted instead.
  function rowsOf(stage, page, find = "") {
    const filter = Object.fromEntries(KEPT.map((name) => [name, app.state[name]]));
    return source.rows(app.state.run, { ...filter, by: app.state.by || "groups", stage: stage.name,
      offset: page * PAGE, limit: PAGE, find });
  }

  async function fill(stage, mine) {
    const { state } = app;
    const found = await rowsOf(stage, Number(state.page || 0), state.page === "" ? state.line : "");
    if (mine !== alive) return;
    const page = Math.floor(found.offset / PAGE);
    me.page = page;
    me.rows = found.rows;
    me.total = found.total;
    const what = state.by === "rollouts" ? "rollout" : "group";
    const until = Math.min(found.total, (page + 1) * PAGE);
    notes.textContent = [found.total ? `${show(page * PAGE + 1)}–${show(until)} of ${plural(found.total, what)}`
      : `no ${what} matches`,
      found.searched < 1 ? `searched ${Math.floor(found.searched * 100)}%` : "",
      found.full ? "there may be more: narrow the search" : "",
      found.indexed < 1 ? `indexed ${Math.floor(found.indexed * 100)}%` : "",
      stage.unread ? `${plural(stage.unread, "line")} could not be read` : ""].filter(Boolean).join(" · ");
    const now = JSON.stringify([found.rows, state.line, state.rollout]);
    if (now !== shown) {
      shown = now;
      const current = (one) => String(one.line) === state.line && (one.place === null || String(one.place) === state.rollout);
      const top = list.scrollTop;
      list.replaceChildren(...found.rows.map((one) => row(one, scaleOf(stage),
        app.address({ stage: stage.name, line: one.line, rollout: one.place ?? "", page: String(page) }), current(one))));
      list.scrollTop = top;
      showIn(list, list.querySelector(".on"));
    }
    const last = Math.max(0, Math.ceil(found.total / PAGE) - 1);
    const turn = (label, to, disabled) => button(label, () => app.go({ page: String(to) }), { disabled: disabled ? "" : null });
    pager.replaceChildren(...(last ? [turn("first", 0, page === 0), turn("previous", page - 1, page === 0),
      el("span", { class: "num small" }, `page ${page + 1} of ${last + 1}`),
      turn("next", page + 1, page >= last), turn("last", last, page >= last)] : []));
    if (found.searched < 1 || found.indexed < 1) setTimeout(() => mine === alive && refresh().catch(app.failed),
      found.searched < 1 ? 30 : 500);
  }

  async function open(stage) {
    const { state } = app, wanted = JSON.stringify([state.run, stage.name, state.line, state.rollout]);
    if (wanted === opened) return;
    opened = wanted;
    if (state.line === "") {
      detail.replaceChildren(el("p", { class: "empty" },
        "Choose a group from the list: its answers stand side by side. j and k go on."));
      return;
    }
    try {
      const group = await source.group(state.run, stage.name, state.line);
      if (wanted !== opened) return;
      const link = { close: () => app.go({ line: "", rollout: "" }), rollout: (i) => app.address({ stage: stage.name, rollout: i }),
        prompt: (id) => app.address({ stage: stage.name, prompt: id, step_min: "", step_max: "", page: "0" }),
          raw: source.raw && source.raw(state.run, stage.name, state.line) };
      detail.replaceChildren(groupView(group, { ...state, stage: stage.name }, scaleOf(stage), link));
      const target = detail.querySelector(".rollout.on") || detail, { top, bottom } = target.getBoundingClientRect();
      if (top < 60 || (target !== detail && bottom > window.innerHeight)) target.scrollIntoView({ block: "start" });
      app.say(`group of step ${group.step}, ${meanReward(group)}`);
    } catch (error) {
      opened = "";
      detail.replaceChildren(el("p", { class: "note" }, error.message));
    }
  }

  // Goes to the next or previous row, over the ends of pages.
  async function next(by) {
    const { state } = app, stage = stageOf();
    if (!me.rows.length || !stage) return;
    let page = state.page === "" ? me.page : Number(state.page); // the list may not be drawn yet
    let { rows } = page === me.page ? me : await rowsOf(stage, page);
    const now = rows.findIndex((one) => String(one.line) === state.line
      && (one.place === null || String(one.place) === state.rollout));
    let at = now < 0 ? (by > 0 ? 0 : rows.length - 1) : now + by;
    if (at < 0 || at >= rows.length) {
      if ((by < 0 && page === 0) || page * PAGE + at >= me.total) return;
      page += by;
      ({ rows } = await rowsOf(stage, page));
      at = by > 0 ? 0 : rows.length - 1;
    }
    const one = rows[at];
    if (one) app.go({ stage: stage.name, line: one.line, rollout: one.place ?? "", page: String(page) });
  }

  function scrub(by) {
    const stage = stageOf();
    if (!stage) return;
    const steps = stepsOf(stage), { state } = app;
    const now = state.step_min !== "" && state.step_min === state.step_max ? steps.indexOf(Number(state.step_min)) : by > 0 ? -1
      : steps.length;
    const to = steps[Math.max(0, Math.min(steps.length - 1, now + by))];
    if (to !== undefined) change({ step_min: String(to), step_max: String(to) });
  }
  return me;
}

Object.assign(window.rs, { browse, KEPT });
})();
