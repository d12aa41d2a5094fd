// Numbers, programs and state. PROGRAMS (functions over BigInt, in the order of DATA.models) and DATA are defined before.

const { html, render, useEffect, useRef, useState, echarts } = vendor;
const MODELS = DATA.models.map((model, index) => ({
  ...model,
  index,
  run: PROGRAMS[index],
  positions: BigInt(model.positions ?? 0),
}));

// ---- A model's programs, evaluated at letters ----

// Every letter's value: chosen, the model's own, or computed from others.
function letters(model, chosen) {
  const values = {};
  for (const s of model.sliders) {
    if (chosen[s.letter] !== undefined) values[s.letter] = BigInt(chosen[s.letter]);
    else if (s.value !== null) values[s.letter] = BigInt(s.value);
  }
  const order = () => model.sliders.map((s) => values[s.letter]);
  for (const s of model.sliders)
    if (values[s.letter] === undefined) values[s.letter] = model.run.follows[s.letter](...order())[0];
  return values;
}

// The first condition that does not hold, in words; "" if all do. A division with remainder fails too.
function unmet(conditions, check, values) {
  try {
    const sides = check(...values);
    const at = conditions.findIndex(([relation], i) => !R[relation](sides[2 * i], sides[2 * i + 1]));
    if (at < 0) return "";
    return `${conditions[at][1]} does not hold: ${group(sides[2 * at])} and ${group(sides[2 * at + 1])}`;
  } catch (error) {
    if (error instanceof RangeError) return error.message;
    throw error;
  }
}

const named = (names, values) => Object.fromEntries(names.map((name, i) => [name, values[i]]));

// Totals, parts and proof of a model; or the reason why it is refused.
function evaluate(model, chosen, parts = true) {
  let known;
  try {
    known = letters(model, chosen);
  } catch (error) {
    if (error instanceof RangeError) return { refused: error.message };
    throw error;
  }
  const values = model.sliders.map((s) => known[s.letter]);
  const refused = unmet(model.conditions, model.run.checks, values);
  if (refused) return { refused, letters: known };
  try {
    const figures = { chosen, letters: known, positions: model.positions, totals: named(model.totals, model.run.totals(...values)) };
    if (parts) {
      const leaves = model.run.leaves(...values);
      figures.parts = model.parts.map((part, i) => ({
        params: leaves[3 * i],
        flops: leaves[3 * i + 1],
        cache: leaves[3 * i + 2],
      }));
      figures.theorems = theorems(model, values);
      figures.proved = figures.theorems.length > 0 && figures.theorems.every((each) => each.holds);
      const own = letters(model, {});
      figures.same = model.sliders.every((s) => !s.keys.length || known[s.letter] === own[s.letter]);
    }
    return figures;
  } catch (error) {
    if (error instanceof RangeError) return { refused: error.message, letters: known };
    throw error;
  }
}

const isModel = (model, chosen) => !evaluate(model, chosen, false).refused;

// A model at its current sizes. Where these are refused: at the last valid ones, with the reason.
function current(model, parts = true) {
  const figures = evaluate(model, state.chosen[model.index], parts);
  return figures.refused ? { ...evaluate(model, state.valid[model.index], parts), refused: figures.refused } : figures;
}

// For each part with its own theorems: the one that holds at these sizes, or the reason why the first does not.
function theorems(model, values) {
  const byPart = new Map();
  model.domains.forEach((domain, i) => {
    const why = unmet(domain.conditions, model.run.domains[i], values);
    if (why && byPart.has(domain.part)) return;
    const shown = {};
    for (const [quantity, { how, conditions }] of Object.entries(domain.further))
      if (!unmet(conditions, model.run.further[i][quantity], values)) shown[quantity] = how;
    byPart.set(domain.part, { ...domain, why, holds: !why, shown });
  });
  return [...byPart.values()];
}

// A figure's evidence at these sizes, as in the library.
function known(model, figures, quantity) {
  if ((quantity === "params" || quantity === "flops") && figures.proved) return "proved";
  if (figures.same && model.known[quantity]) return model.known[quantity].how;
  const ways = figures.proved ? figures.theorems.map((each) => each.shown[quantity]) : [undefined];
  return ways.includes(undefined) ? "modelled" : ways.includes("measured") ? "measured" : "proved";
}

// Evidence of bytes: their elements in a stated format.
const byConvention = (how) => (["proved", "listed", "measured"].includes(how) ? "by convention" : how);

// ---- Where attention overtakes the rest: planning/crossover.py, over the same programs ----

const abs = (n) => (n < 0n ? -n : n);

function crossovers(model, chosen) {
  if (model.fixed_length) return [];
  const ledgers = new Map();
  const at = (tokens) => {
    const key = String(tokens);
    if (!ledgers.has(key)) ledgers.set(key, evaluate(model, { ...chosen, B: 1, T: tokens }, false).totals);
    return ledgers.get(key);
  };
  const start = at(1n);
  if (!start) return [];
  const list = (name) => model.totals.filter((each) => each.startsWith(name)).map((each) => start[each]);
  const ends = [...new Set(list("end "))].sort((a, b) => (a < b ? -1 : 1));
  const chunk = list("chunk ")[0];
  if (chunk !== undefined && ends.length > 1) return [];
  const side = (rule, quantity, tokens) => {
    const costs = at(tokens);
    let left = 0n,
      right = 0n;
    for (const kind of DATA.kinds) {
      const cost = costs[`${quantity} ${kind}`] ?? 0n;
      if (rule.left.includes(kind)) left += cost;
      else if (rule.right === null ? !rule.without.includes(kind) : rule.right.includes(kind)) right += cost;
    }
    return [left, right];
  };
  return DATA.rules.flatMap((rule) =>
    [
      ["dense", "flops"],
      ["masked", "flops_masked"],
    ].map(([attention, quantity]) => {
      const [left, right] = side(rule, quantity, 1n);
      if (!left || !right) return { rule: rule.name, attention, tokens: null };
      const excess = (tokens) => {
        const [a, b] = side(rule, quantity, tokens);
        return a - b;
      };
      return {
        rule: rule.name,
        attention,
        tokens: chunk === undefined ? first(excess, ends) : firstInChunks(excess, chunk),
      };
    }),
  );
}

function first(excess, ends = []) {
  const starts = [1n, ...ends.filter((end) => end > 1n)];
  for (let p = 0; p < starts.length; p++) {
    const low = starts[p],
      most = p + 1 < starts.length ? starts[p + 1] - low : null;
    const number = most === null || most >= 3n ? 4 : Number(most) + 1;
    const values = Array.from({ length: number }, (_, i) => excess(low + BigInt(i)));
    const at = values.findIndex((value) => value >= 0n);
    if (at >= 0) return low + BigInt(at);
    if (number === 4) {
      const steps = reachesZero(values, most);
      if (steps !== null) return low + steps;
    }
  }
  return null;
}

function firstInChunks(excess, chunk) {
  const number = first((n) => excess(n * chunk));
  if (number === null) return null;
  if (number === 1n && excess(1n) >= 0n) return 1n;
  return least((number - 1n) * chunk || 1n, number * chunk, (n) => excess(n) >= 0n);
}

// The least number above `low` for which a condition holds, if it then holds up to `high`.
function least(low, high, holds) {
  while (high - low > 1n) {
    const middle = (low + high) / 2n;
    if (holds(middle)) high = middle;
    else low = middle;
  }
  return high;
}

function reachesZero(values, most) {
  const [start, one, two] = values;
  const slope = one - start,
    bend = two - one - slope;
  const value = (i) => start + i * slope + ((i * (i - 1n)) / 2n) * bend;
  if (bend === 0n && slope <= 0n) return null;
  let top = 1n;
  if (bend < 0n)
    top = slope > 0n ? (slope + abs(bend) - 1n) / abs(bend) : 0n; // it rises until here
  else while (value(top) < 0n) top *= 2n;
  if (most !== null && top > most) top = most;
  if (value(top) < 0n) return null;
  return least(0n, top, (i) => value(i) >= 0n);
}

// ---- Rules of thumb: planning/conventions.py ----

function rules(model, figures) {
  const t = figures.totals,
    sum = (kinds) => kinds.reduce((all, kind) => all + (t[`params ${kind}`] ?? 0n), 0n);
  const blocks = t.params - sum(["embedding", "head"]),
    attention = sum(["attention"]);
  const channel = sum(["feed_forward", "experts", "shared_experts", "router"]);
  const square = t.width * t.width,
    tokens = figures.letters.B * (figures.letters.T ?? model.positions);
  return [
    attention && ["attention of all layers", "4·L·D²", 4n * t.layers * square, attention, 1n],
    channel && ["feed-forward of all layers", "8·L·D²", 8n * t.layers * square, channel, 1n],
    ["parameters, no embeddings", "12·L·D²", 12n * t.layers * square, blocks, 1n],
    t.vocabulary && [
      "parameters",
      "12·L·D² + 2·V·D",
      12n * t.layers * square + 2n * t.vocabulary * t.width,
      t.params,
      1n,
    ],
    ["forward FLOPs per token", "2·N", 2n * t.active, t.flops, tokens],
    ["training FLOPs per token", "6·N", 6n * t.active, t.training, tokens],
  ]
    .filter(Boolean)
    .map(([what, formula, gives, truth, among]) => ({ what, formula, gives, truth, among }));
}

// A cell of the error of a rule, signed.
function error({ formula, gives, truth, among }) {
  if (!truth) return "";
  const off = gives * among - truth,
    value = Number(off) / Number(truth);
  const text = off ? `${off > 0n ? "+" : "−"}${fixed(100n * abs(off), truth, 2)} %` : "exact";
  return { name: `rule ${formula} error`, value, text, real: true, style: 10n * abs(off) > truth ? "bad" : "fair" };
}

// ---- Numbers formatted as on the command line ----

const group = (n) =>
  String(n)
    .replace(/\B(?=(\d{3})+(\.|$))/g, ",")
    .replace(/^-/, "−");

function rounded(number, among, base, names, digits) {
  if (number < 0n) return "-" + rounded(-number, among, base, names, digits);
  let power = 0,
    unit = BigInt(among);
  const near = (d) => Number((Number(number) / Number(d)).toPrecision(digits));
  while (power + 1 < names.length && (number >= unit * base || near(unit) >= Number(base))) {
    power += 1;
    unit *= base;
  }
  const whole = number / unit;
  if (whole * unit === number) return `${whole} ${names[power]}`.trim();
  const places = Math.max(0, digits - String(whole).length);
  let text = fixed(number, unit, places);
  if (places && !power) text = text.replace(/\.?0+$/, "");
  return `${text} ${names[power]}`.trim();
}

// A nonnegative fraction with `places` decimals, ties to even.
function fixed(number, among, places) {
  const scale = 10n ** BigInt(places);
  let scaled = (number * scale) / among;
  const rest = number * scale - scaled * among;
  if (2n * rest > among || (2n * rest === among && scaled % 2n)) scaled += 1n;
  const text = String(scaled).padStart(places + 1, "0");
  return places ? `${text.slice(0, -places)}.${text.slice(-places)}` : text;
}

const short = (n, among = 1n) => rounded(n, among, 1000n, ["", "K", "M", "B", "T", "P", "E", "Z", "Y"], 3);
const iec = (n, among = 1n) => rounded(n, among, 1024n, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB"], 4);
const bytes = (elements, bits = 16) => (elements * BigInt(bits) + 7n) / 8n;
// A cell with a part's share of a whole; for a float also to a tenth of a per cent.
const percent = (name, part, whole) =>
  whole ? { name, value: Number(part) / Number(whole), text: `${fixed(100n * part, whole, 1)} %`, real: true } : "";
const percentOf = (name, value) => ({ name, value, text: `${(100 * value).toFixed(1)} %`, real: true });
// Three significant digits; integers from a thousand on.
const three = (value) => (value >= 999.5 ? group(Math.round(value)) : value.toPrecision(3));
const seconds = (s) => {
  if (s === null || s === undefined) return "—";
  if (!s) return "0 s";
  const lengths = { days: 86400, h: 3600, min: 60 };
  for (const [unit, length] of Object.entries(lengths))
    if (s >= Math.max(1000, 2 * length)) return `${three(s / length)} ${unit}`;
  return rounded(BigInt(Math.round(s * 1e15)), 1000000n, 1000n, ["ns", "µs", "ms", "s"], 3);
};

// A cell of a quotient: an integer where it is one.
const quotient = (name, value, among) =>
  value % among
    ? { name, value: Number(value) / Number(among), text: group(fixed(value, among, 1)), real: true }
    : { name, value: value / among };

// A figure of the page: its exact value for programs, its text for people. `real`: not an integer.
const Figure = ({ name, value, text, real }) =>
  html`<data value=${String(value)} ...${{ [real ? "data-real" : "data-figure"]: name }}>${text ?? group(value)}</data>`;

// ---- State, kept in the page's address ----

const VIEWS = [
  DATA.serve.length > 0 && ["serve", "Serve"],
  ["learn", "Learn"],
  MODELS.length > 1 && ["compare", "Compare"],
  DATA.train.length > 0 && ["train", "Train"],
].filter(Boolean);
const QUANTITIES = [
  ["params", "parameters"],
  ["active", "active parameters"],
  ["flops", "FLOPs of a forward pass, dense"],
  ["flops_masked", "FLOPs of a forward pass, masked"],
  ["per_token", "FLOPs per token, dense"],
  ["per_token_masked", "FLOPs per token, masked"],
  ["cache", "KV cache of one sequence"],
  ["cache_growth", "KV cache per token"],
  ["saved", "saved activations"],
  ["training", "FLOPs of a training step"],
];
const UNITS = {
  flops: "FLOPs",
  flops_masked: "FLOPs",
  per_token: "FLOPs/token",
  per_token_masked: "FLOPs/token",
  cache: "bytes",
  saved: "elements",
  params: "parameters",
  active: "parameters",
  cache_growth: "bytes/token",
  training: "FLOPs",
};
// A model whose attention does not see the whole context computes the masked FLOPs.
const hasWindows = (model) => model.totals.some((name) => /^(end|chunk) /.test(name));
const PER_TOKEN = MODELS.some(hasWindows) ? "per_token_masked" : "per_token";
const start = () => ({
  view: VIEWS[0][0],
  model: 0,
  chosen: MODELS.map(() => ({})),
  valid: MODELS.map(() => ({})), // the last sizes that were not refused
  parts: "params",
  hidden: [],
  over: PER_TOKEN,
  x: "params",
  y: PER_TOKEN,
  same: "params",
  lineX: "D",
  lineY: "L",
  serve: 0,
  train: 0,
  at: {},
  notes: [],
});
const CHOICES = {
  parts: ["params", "flops", "cache"],
  over: QUANTITIES.map(([q]) => q),
  x: QUANTITIES.map(([q]) => q),
  y: QUANTITIES.map(([q]) => q),
  same: ["params", "active", "flops"],
};
let state = start();

function address() {
  const out = new URLSearchParams(),
    fresh = start();
  for (const key of ["view", "parts", "over", "x", "y", "same", "lineX", "lineY"])
    if (state[key] !== fresh[key]) out.set(key, state[key]);
  for (const key of ["model", "serve", "train"]) if (state[key]) out.set(key, state[key]);
  if (state.hidden.length) out.set("hide", state.hidden.join(","));
  state.chosen.forEach((own, i) => {
    const said = Object.entries(own).map(([letter, value]) => `${letter}:${value}`);
    if (said.length) out.set(`m${i}`, said.join(","));
  });
  for (const [key, value] of Object.entries(state.at)) out.set(`at.${key}`, value);
  return String(out);
}

const whole = (text, least, most) => (/^\d{1,10}$/.test(text) && +text >= least && +text <= most ? +text : null);

// The state in an address. Invalid entries are left out, and counted in a note.
function read(fragment) {
  const restored = start();
  let wrong = 0;
  const take = (ok, set) => (ok ? set() : wrong++);
  for (const [key, value] of new URLSearchParams(fragment.slice(0, 5000))) {
    const own = /^m(\d{1,2})$/.exec(key);
    if (key === "view")
      take(
        VIEWS.some(([name]) => name === value),
        () => (restored.view = value),
      );
    else if (Object.hasOwn(CHOICES, key)) take(CHOICES[key].includes(value), () => (restored[key] = value));
    else if (key === "lineX" || key === "lineY")
      take(
        MODELS.some((m) => m.sliders.some((s) => s.letter === value)),
        () => (restored[key] = value),
      );
    else if (["model", "serve", "train"].includes(key)) {
      const number = whole(value, 0, { model: MODELS, serve: DATA.serve, train: DATA.train }[key].length - 1);
      take(number !== null, () => (restored[key] = number));
    } else if (key === "hide") {
      const numbers = value.split(",").map((each) => whole(each, 0, MODELS.length - 1));
      take(!numbers.includes(null), () => (restored.hidden = [...new Set(numbers)]));
    } else if (own && MODELS[+own[1]]) {
      for (const pair of value.split(",")) {
        const [letter, text] = pair.split(":"),
          number = whole(text ?? "", 1, MOST);
        const slider = MODELS[+own[1]].sliders.find((s) => s.letter === letter);
        take(slider && number !== null, () => (restored.chosen[+own[1]][letter] = number));
      }
    } else if (key.startsWith("at.") && GRIDS[key.slice(3)]) {
      const number = whole(value, 0, GRIDS[key.slice(3)] - 1);
      take(number !== null, () => (restored.at[key.slice(3)] = number));
    } else wrong++;
  }
  if (wrong)
    restored.notes = [
      `${wrong} ${wrong === 1 ? "part" : "parts"} of the address could not be read and ${wrong === 1 ? "was" : "were"} ignored.`,
    ];
  return restored;
}

const MOST = 1e9;
// The number of positions of each control over a grid, filled by its view.
const GRIDS = {};

let pending = 0;
function update(change) {
  state = { ...state, notes: [], ...change };
  show();
  clearTimeout(pending);
  pending = setTimeout(() => history.replaceState(null, "", `#${address()}`), 150);
}

// Reports an invalid input, and keeps the old value.
const refuse = (name, text, wanted) =>
  update({ notes: [`${name} is ${text === "" ? "no number" : text}, expected ${wanted}: it stays as it was.`] });

const choose = (index, change) => {
  const own = { ...state.chosen[index], ...change };
  for (const letter of Object.keys(own)) if (own[letter] === undefined) delete own[letter];
  const valid = isModel(MODELS[index], state.chosen[index]) ? state.chosen[index] : state.valid[index];
  update({ chosen: state.chosen.map((each, i) => (i === index ? own : each)), valid: state.valid.map((each, i) => (i === index ? valid : each)) });
};
