// Several models on one axis, each at its own sizes; and contour lines of one figure.

// A quantity of a model at its sizes, as a fraction.
function quantity(figures, name) {
  const t = figures.totals,
    L = figures.letters;
  const tokens = L.B * (L.T ?? figures.positions);
  if (name === "per_token") return [t.flops, tokens];
  if (name === "per_token_masked") return [t.flops_masked, tokens];
  if (name === "cache" || name === "cache_growth") return [bytes(t[name]), 1n];
  return [t[name], 1n];
}
const titleOf = (name) => QUANTITIES.find(([q]) => q === name)[1];
const inWords = (name) => (name === "cache" || name === "cache_growth" ? iec : short);
const Pick = ({ label, value, options, set }) =>
  html`<label class="pick">${label} <select value=${value} onChange=${(e) => set(e.target.value)}>${options.map(([key, title]) => html`<option value=${key}>${title}</option>`)}</select></label>`;

function Compare() {
  const at = MODELS.map((model) => current(model));
  const seen = MODELS.filter((model) => !state.hidden.includes(model.index));
  const refused = MODELS.filter((model) => at[model.index].refused);
  return html`<div class="content">
    <fieldset class="choice"><legend>Models, at the sizes set under Learn</legend>${MODELS.map(
      (model) => html`<label>
      <input type="checkbox" checked=${!state.hidden.includes(model.index)} onChange=${() => update({ hidden: state.hidden.includes(model.index) ? state.hidden.filter((i) => i !== model.index) : [...state.hidden, model.index] })} />
      <span class="swatch" style=${{ background: colour(model.index) }}></span>${label(model, at)}</label>`,
    )}</fieldset>
    ${refused.map((model) => html`<p class="refused" role="alert" data-refused="1">${model.name}: these sizes are not valid: ${at[model.index].refused}. Its figures are of the last valid sizes.</p>`)}
    <${Table} seen=${seen} at=${at} />
    <${Curves} seen=${seen} at=${at} />
    <${Scatter} seen=${seen} at=${at} />
    <${Lines} />
  </div>`;
}

// A model's name, with its changed sizes.
function label(model, at) {
  const own = Object.entries(at[model.index].chosen).map(([letter, value]) => `${letter} = ${group(value)}`);
  return `${model.name}${own.length ? ` (${own.join(", ")})` : ""}`;
}

function Table({ seen, at }) {
  const rows = QUANTITIES.map(([name, title]) => [
    title,
    ...seen.map((model) => {
      const [value, among] = quantity(at[model.index], name);
      return { ...quotient(`${name} of ${model.index}`, value, among), text: inWords(name)(value, among) };
    }),
  ]);
  const names = seen.map((model) => label(model, at));
  const table = { title: "At the sizes set under Learn", head: ["quantity", ...names], rows };
  const files = {
    head: ["quantity", "unit", ...names],
    rows: rows.map(([title, ...cells], i) => [title, UNITS[QUANTITIES[i][0]], ...cells]),
  };
  return html`<section aria-label="Table"><h2>Side by side</h2><${Cells} table=${table} /><${Files} name="models" table=${files} /></section>`;
}

function Curves({ seen, at }) {
  const name = state.over,
    own = seen.filter((model) => !model.fixed_length);
  const lines = own.map((model) =>
    LENGTHS.map((tokens) => {
      const figures = evaluate(model, { ...at[model.index].chosen, T: tokens }, false);
      return figures.totals ? quantity(figures, name) : null;
    }),
  );
  const number = (pair) => (pair && pair[0] ? Number((pair[0] * 1000n) / pair[1]) / 1000 : null);
  const option = {
    tooltip: { trigger: "axis", valueFormatter: name.startsWith("cache") ? inBytes : tick },
    legend: {},
    grid: { left: 84 },
    xAxis: overLengths("tokens T"),
    yAxis: {
      type: scaleOf(lines.flatMap((line) => line.filter((_, j) => LENGTHS[j] >= SHORTEST).map(number))),
      name: titleOf(name),
      nameGap: 66,
      axisLabel: { formatter: name.startsWith("cache") ? inBytes : tick },
    },
    series: own.map((model, i) => ({
      name: label(model, at),
      type: "line",
      showSymbol: false,
      color: colour(model.index),
      lineStyle: { type: stroke(model.index) },
      data: lines[i].map((pair, j) => [Number(LENGTHS[j]), number(pair)]),
    })),
  };
  const table = {
    title: titleOf(name),
    head: ["tokens", ...own.map((model) => ({ title: label(model, at), unit: UNITS[name] }))],
    rows: LENGTHS.map((tokens, j) => [
      count(tokens),
      ...lines.map((line, i) => (line[j] ? quotient(`${name} of ${own[i].index} at ${tokens}`, ...line[j]) : "")),
    ]),
  };
  return html`<section aria-label="Against sequence length"><h2>Against sequence length</h2>
    <${Pick} label="Quantity" value=${name} options=${QUANTITIES} set=${(over) => update({ over })} />
    <${Chart} name=${`models-${name}`} title=${`${titleOf(name)} against sequence length`} option=${option} table=${table} /></section>`;
}

function Scatter({ seen, at }) {
  const points = seen.map((model) => [quantity(at[model.index], state.x), quantity(at[model.index], state.y)]);
  const number = ([value, among]) => Number((value * 1000n) / among) / 1000;
  const axis = (name, gap, values) => ({
    type: scaleOf(values),
    name: titleOf(name),
    nameGap: gap,
    axisLabel: { formatter: name.startsWith("cache") ? inBytes : tick },
  });
  const option = {
    tooltip: {
      formatter: ({ seriesName, data }) =>
        `${seriesName}<br>${titleOf(state.x)}: ${tick(data[0])}<br>${titleOf(state.y)}: ${tick(data[1])}`,
    },
    legend: {},
    grid: { left: 84 },
    xAxis: axis(state.x, 30, points.map(([x]) => number(x))),
    yAxis: axis(state.y, 66, points.map(([, y]) => number(y))),
    series: seen.map((model, i) => ({
      name: label(model, at),
      type: "scatter",
      symbol: sign(model.index),
      symbolSize: 14,
      color: colour(model.index),
      data: [[number(points[i][0]), number(points[i][1])]],
    })),
  };
  const cell = (model, axis, pair) => quotient(`${axis} of ${model.index}`, ...pair);
  const column = (name) => ({ title: titleOf(name), unit: UNITS[name] });
  const table = {
    title: "Points",
    head: ["model", column(state.x), column(state.y)],
    rows: seen.map((model, i) => [label(model, at), cell(model, "x", points[i][0]), cell(model, "y", points[i][1])]),
  };
  return html`<section aria-label="Two quantities"><h2>Two quantities against each other</h2>
    <${Pick} label="x axis" value=${state.x} options=${QUANTITIES} set=${(x) => update({ x })} /> <${Pick} label="y axis" value=${state.y} options=${QUANTITIES} set=${(y) => update({ y })} />
    <${Chart} name="models-scatter" title=${`${titleOf(state.y)} against ${titleOf(state.x)}`} option=${option} table=${table} /></section>`;
}

// The largest value of one letter at which a figure does not exceed a target, and the figure there; or null.
function under(model, chosen, letter, what, target) {
  const at = (value) => evaluate(model, { ...chosen, [letter]: value }, false).totals?.[what];
  let low = 0,
    high = 1;
  while (high < 1 << 24) {
    const value = at(high);
    if (value !== undefined && value > target) break;
    low = value === undefined ? low : high;
    high *= 2;
  }
  if (!low) return null;
  while (high - low > 1) {
    const middle = (low + high) >> 1,
      value = at(middle);
    if (value === undefined || value > target) high = middle;
    else low = middle;
  }
  return [low, at(low)];
}

const SAME = [
  ["params", "parameters"],
  ["active", "active parameters"],
  ["flops", "FLOPs of a forward pass"],
];

function Lines() {
  const model = MODELS[state.model],
    base = current(model, false),
    chosen = base.chosen;
  const has = (letter) => model.sliders.some((s) => s.letter === letter);
  const x = has(state.lineX) ? state.lineX : model.sliders.find((s) => s.symbol === "D").letter;
  const y =
    has(state.lineY) && state.lineY !== x
      ? state.lineY
      : model.sliders.find((s) => s.letter !== x && s.keys.length).letter;
  const choices = model.sliders.filter((s) => s.keys.length).map((s) => [s.letter, `${s.letter}: ${s.meaning}`]);
  const now = base.totals[state.same];
  const slider = model.sliders.find((s) => s.letter === x);
  const pairs = stops(slider, base.letters[x])
    .filter((n) => n * 8 >= Number(base.letters[x]))
    .flatMap((value) => {
      const pair = under(model, { ...chosen, [x]: value }, y, state.same, now);
      return pair ? [[value, ...pair]] : [];
    });
  const title = `Equal ${SAME.find(([key]) => key === state.same)[1]}: ${model.name}, ${y} over ${x}`;
  const option = {
    tooltip: { trigger: "item", formatter: ({ data }) => `${x} = ${group(data[0])}, ${y} = ${group(data[1])}` },
    grid: {},
    xAxis: { type: "log", name: x, nameGap: 30, axisLabel: { formatter: tick } },
    yAxis: { type: "log", name: y, nameGap: 50, axisLabel: { formatter: tick } },
    series: [
      { name: "equal", type: "line", symbolSize: 7, color: colour(0), data: pairs.map(([a, b]) => [a, b]) },
      {
        name: model.name,
        type: "scatter",
        symbol: "diamond",
        symbolSize: 16,
        color: colour(1),
        data: [[Number(base.letters[x]), Number(base.letters[y])]],
      },
    ],
  };
  const table = {
    title: `${title}: the largest ${y} that is not above ${group(now)}`,
    head: [x, y, { title: state.same, unit: UNITS[state.same] }, { title: "below the model", unit: "share" }],
    rows: pairs.map(([a, b, value]) => [
      count(a),
      { name: `equal ${y} at ${a}`, value: b },
      { name: `equal ${state.same} at ${a}`, value },
      percent(`below at ${a}`, now - value, now),
    ]),
  };
  return html`<section aria-label="Equal lines"><h2>Sizes of equal ${SAME.find(([key]) => key === state.same)[1]}</h2>
    <${Pick} label="Model" value=${state.model} options=${MODELS.map((m) => [m.index, m.name])} set=${(value) => update({ model: +value })} />
    <${Pick} label="Equal" value=${state.same} options=${SAME} set=${(same) => update({ same })} />
    <${Pick} label="x axis" value=${x} options=${choices} set=${(lineX) => update({ lineX })} /> <${Pick} label="y axis" value=${y} options=${choices} set=${(lineY) => update({ lineY })} />
    <p class="note">Sizes are whole numbers, so each point is the largest ${y} that does not exceed the model's figure. Widths that the heads do not divide are left out.</p>
    <${Chart} name=${`${model.name}-equal-${state.same}`} title=${title} option=${option} table=${table} /></section>`;
}
