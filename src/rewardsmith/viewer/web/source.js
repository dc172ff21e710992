"use strict";
// Where the page gets its data: from the server of `rewardsmith view`, or from the files of a bundle.
(() => {
async function read(address) {
  const response = await fetch(address, { credentials: "same-origin" });
  const content = await response.json().catch(() => null);
  if (!response.ok || content === null) throw new Error(content?.error || `${response.status} ${response.statusText}`);
  return content;
}

function query(values) {
  const all = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== "" && one !== null && one !== undefined) all.append(name,
      one);
  }
  return all.toString();
}

const live = {
  live: true,
  runs: () => read("api/runs"),
  version: (run) => read(`api/version?${query({ run })}`),
  overview: (run) => read(`api/overview?${query({ run })}`),
  stages: (run) => read(`api/stages?${query({ run })}`),
  rows: (run, filter) => read(`api/rows?${query({ run, ...filter })}`),
  group: (run, stage, line) => read(`api/group?${query({ run, stage, line })}`),
  prompts: (run, stage, line) => read(`api/prompts?${query({ run, stage, line })}`),
  validations: (run) => read(`api/validations?${query({ run })}`),
  raw: (run, stage, line) => `api/raw?${query({ run, stage, line })}`,
};

// ---- a bundle: the same answers from files, filtered here ------------------------------------------------------------

const SEARCHED = 25; // files of bodies that one request searches
const MAX_FILES = 60; // that are kept
const files = new Map();

function file(path) {
  if (!files.has(path)) {
    files.set(path, read(`data/${path}.json`));
    files.get(path).catch(() => files.delete(path));
  }
  if (files.size > MAX_FILES) files.delete(files.keys().next().value);
  return files.get(path);
}

const kept = {}; // lists and overviews, which are small
const small = async (path) => (kept[path] ??= await read(`data/${path}.json`));
const folder = async (run) => {
  const found = (await small("runs")).runs.findIndex((one) => one.name === run);
  if (found < 0) throw new Error(`there is no run "${run}" in this bundle`);
  return `r${found}`;
};

async function place(run, stage) {
  const base = await folder(run), content = await small(`${base}/stages`);
  const i = content.stages.findIndex((one) => one.name === stage);
  return { base: `${base}/s${i}`, ...content.files, lines: i < 0 ? 0 : content.stages[i].lines };
}

// A file may be missing where none of its lines could be read.
const optional = (path) => file(path).catch(() => null);

function matches(group, one, filter) {
  const at = (value, low, high) => (low === "" || low === undefined || (value !== null && value >= Number(low)))
    && (high === "" || high === undefined || (value !== null && value <= Number(high)));
  return (!filter.kind || group.kind === filter.kind) && (!filter.source || group.source === filter.source)
    && (!filter.prompt || group.prompt === filter.prompt) && (!filter.dropped
      || (group.dropped !== "") === (filter.dropped === "yes"))
    && at(group.step, filter.step_min, filter.step_max) && at(one.reward, filter.reward_min, filter.reward_max)
    && (!filter.failure || (filter.failure === "any" ? one.failures.length > 0 : one.failures.includes(filter.failure)));
}

const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);

function groupRow(group) {
  const all = group.rollouts, known = (key) => all.map((one) => one[key]).filter((value) => value !== null);
  const { rollouts, ...shared } = group;
  return { ...shared, place: null, reward: mean(known("reward")), length: mean(known("length")),
    advantage: known("advantage").length ? Math.max(...known("advantage").map(Math.abs)) : null,
    failure: all.filter((one) => one.failure).length, failures: [], stop: "", ending: "" };
}

const searches = new Map();

async function search(at, text) {
  const key = `${at.base} ${text}`, wanted = text.toLowerCase();
  if (!searches.has(key)) searches.set(key, { next: 0, hits: new Map() });
  const state = searches.get(key), count = Math.ceil(at.lines / at.groups);
  const has = (value) => (typeof value === "string" ? value.toLowerCase().includes(wanted)
    : value !== null && typeof value === "object" && Object.values(value).some(has));
  for (let i = 0; i < SEARCHED && state.next < count; i += 1, state.next += 1) {
    for (const [line, body] of Object.entries(await optional(`${at.base}/groups-${state.next}`) || {})) {
      const places = has(body.prompt) ? body.rollouts.map((_, k) => k)
        : body.rollouts.flatMap((one, k) => (has({ ...one, rewards: null }) ? [k] : []));
      if (places.length) state.hits.set(Number(line), new Set(places));
    }
  }
  return { hits: state.hits, searched: count ? state.next / count : 1 };
}

async function rows(run, filter) {
  const at = await place(run, filter.stage), { hits, searched } = filter.text ? await search(at, filter.text)
    : { hits: null, searched: 1 };
  const found = [];
  for (let k = 0; k < Math.ceil(at.lines / at.rows); k += 1) {
    for (const group of await optional(`${at.base}/rows-${k}`) || []) {
      const listed = group.rollouts.filter((one) => matches(group, one, filter) && (!hits || hits.get(group.line)?.has(one.place)));
      if (filter.by === "rollouts") { const { rollouts, ...shared } = group;
      found.push(...listed.map((one) => ({ ...shared, ...one }))); }
      else if (listed.length) found.push(groupRow(group));
    }
  }
  const sign = filter.order === "down" ? -1 : 1, key = filter.sort || "step";
  const last = (value) => (value === null ? 1 : 0);
  found.sort((a, b) => last(a[key]) - last(b[key]) || sign * (a[key] - b[key]) || sign * (a.line - b.line) || a.place - b.place);
  const place_of = filter.find === "" || filter.find === undefined ? -1
    : found.findIndex((one) => one.line === Number(filter.find));
  const offset = place_of < 0 ? filter.offset || 0 : Math.floor(place_of / filter.limit) * filter.limit;
  return { full: false, total: found.length, rows: found.slice(offset, offset + filter.limit), offset, searched, indexed: 1 };
}

const bundle = {
  live: false,
  runs: () => small("runs"),
  overview: async (run) => small(`${await folder(run)}/overview`),
  stages: async (run) => small(`${await folder(run)}/stages`),
  validations: async (run) => small(`${await folder(run)}/validations`),
  rows,
  async group(run, stage, line) {
    const at = await place(run, stage);
    const found = (await optional(`${at.base}/groups-${Math.floor(line / at.groups)}`) || {})[line];
    if (!found) throw new Error("this group is not in the bundle");
    return found;
  },
};

Object.assign(window.rs, { source: document.documentElement.dataset.mode === "bundle" ? bundle : live, query });
})();
