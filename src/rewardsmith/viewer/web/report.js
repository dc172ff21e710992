"use strict";
// Lays out the report: the overview of the run from the JSON next to this script, and what the policy wrote.
(() => {
const { el, chip, fold, show, plural, column, prompt, top, about, heads, trust, trustWord, watchOf, evaluations, replays, models,
  failures, curves, longest, stageTitle, recipe, controls } = window.rs;
const data = JSON.parse(document.getElementById("data").textContent);
window.rs.data = data;

function rail() {
  const links = data.stages.map((stage, i) => [i ? el("span", { class: "arrow", "aria-hidden": "true" }, "→") : null,
    el("a", { href: `#stage-${i}` }, stage.name, el("span", {}, about(stage)))]);
  const word = trustWord(data);
  return el("nav", { class: "rail", "aria-label": "Stages" }, links,
    word ? el("a", { href: "#trust" }, "reward", el("span", {}, word)) : null, el("span", { class: "controls" }, controls(longest(data.stages))));
}

function pair(groups, scale) {
  const names = groups.length > 1 ? ["Before", "After"] : [""];
  return el("article", { class: "card" }, prompt(groups[0].prompt), el("div", { class: "columns" },
    groups.map((group, i) => column([names[i], `step ${group.step}`].filter(Boolean).join(" · "), group, scale))));
}

const training = (groups, scale) => groups.map((group) => el("article", { class: "card" }, prompt(group.prompt),
  column(`step ${group.step}`, group, scale, { flat: true })));
const tints = (groups) => groups.some((group) => group.scales.length);

function rollouts(found) {
  if (!found || !(found.groups || found.unread)) return null;
  const where = found.whole ? "" : " at both ends of a long file";
  const counts = [`${plural(found.groups, "group")}, ${plural(found.rollouts, "rollout")} read${where}`,
    found.truncated ? `${show(found.truncated)} cut off at the token limit` : "",
    ...found.drops.map(([reason, count]) => `${plural(count, "group")} dropped: ${reason}`),
    found.unread ? `${plural(found.unread, "line")} could not be read` : ""].filter(Boolean);
  const sides = [["first", "Training groups of the first step"], ["last", "Training groups of the last step"],
    ["dropped", "Dropped groups"]];
  return [el("div", { class: "parts" }, counts.map((text) => chip(text))),
    found.pairs.length ? fold(true, "What it wrote", "the first prompts of the validation, not chosen by their scores",
      el("div", { class: "cards" }, found.pairs.map((groups) => pair(groups, found)))) : null,
    sides.map(([key, title], i) => (found[key].length ? fold(i < 2 && (!found.pairs.length || tints(found[key])), title, "",
      el("div", { class: "cards" }, training(found[key], found))) : null)),
    failures(found.failures)];
}

function stage(one, i) {
  const tabled = data.evaluations.some((other) => other.name === one.name);
  return el("section", { class: "stage", id: `stage-${i}`, "aria-label": `Stage ${one.name}` },
    stageTitle(one, data), curves(one, { tabled, watch: watchOf(data, one) }).node, rollouts(one.rollouts));
}

function footer() {
  const notes = [data.unread ? `${plural(data.unread, "line")} of the metrics could not be read, as after a run that was killed.` : "",
    data.left_out ? `${plural(data.left_out, "curve")} left out: there are too many metrics for one page.` : "",
    "This file is complete in itself: it loads nothing and sends nothing. `rewardsmith view` shows all rollouts of a run."];
  return el("footer", {}, notes.filter(Boolean).map((note) => el("p", {}, note)));
}

document.getElementById("page").replaceChildren(...[top(data, "rewardsmith"), rail(), heads(data), trust(data), evaluations(data),
  replays(data), models(data),
  el("main", { id: "main" }, data.stages.length ? data.stages.map(stage)
    : el("p", { class: "empty" }, "Nothing has been written to this folder yet.")),
  recipe(data), footer()].flat().filter(Boolean));
})();
