// A model at chosen sizes: sliders, parts, rules of thumb, crossovers, cache, and the theorems behind them.

// A slider's values: all small ones, then eight per octave; the model's own, its divisors and multiples.
function stops(slider, value) {
  const own = Number(value),
    top = Math.max(own * 8, { T: 1 << 20, T_src: 1 << 17, B: 1024, L: 128 }[slider.symbol] ?? 64);
  const values = new Set([own]);
  for (let n = 1; n <= Math.min(16, top); n++) values.add(n);
  const grain = ["T", "T_src", "B", "W"].includes(slider.symbol) ? 2 : 8;
  for (let unit = 16 / grain; unit * grain <= top; unit *= 2)
    for (let m = grain; m < 2 * grain; m++) if (unit * m <= top) values.add(unit * m);
  for (let n = 1; n <= 8; n++) {
    if (own * n <= top) values.add(own * n);
    if (own % n === 0) values.add(own / n);
  }
  return [...values].sort((a, b) => a - b);
}

// The value for a slider that is moved from one stop to another: where the sizes would be refused, the next valid stop
// further on, or else the nearest one back.
function snap(model, slider, all, from, to) {
  const valid = (i) => isModel(model, { ...state.chosen[model.index], [slider.letter]: all[i] });
  const step = to < from ? -1 : 1;
  for (let i = to; i in all; i += step) if (valid(i)) return all[i];
  for (let i = to - step; i in all; i -= step) if (valid(i)) return all[i];
  return all[to];
}

function Slider({ model, slider, figures }) {
  const chosen = state.chosen[model.index][slider.letter];
  const now = chosen ?? figures.letters[slider.letter],
    all = stops(slider, slider.value ?? now);
  const at = all.reduce((best, n, i) => (Math.abs(n - Number(now)) < Math.abs(all[best] - Number(now)) ? i : best), 0);
  const id = `s-${slider.letter}`,
    set = (value) => choose(model.index, { [slider.letter]: value });
  return html`<div class="slider">
    <label for=${id}><b><${Letter} name=${slider.letter} /></b> <span>${slider.meaning}</span></label>
    ${chosen !== undefined && html`<button class="reset" onClick=${() => set(undefined)} aria-label=${`Reset ${slider.letter}`}>reset</button>`}
    <input type="range" id=${`${id}-range`} min="0" max=${all.length - 1} value=${at} aria-label=${`${slider.letter}: ${slider.meaning}`} aria-valuetext=${group(now)} onInput=${(e) => set(snap(model, slider, all, at, +e.target.value))} />
    <input type="number" id=${id} min="1" max=${MOST} step="1" value=${String(now)} onChange=${(e) => {
      const n = whole(e.target.value, 1, MOST);
      n === null ? refuse(slider.letter, e.target.value, `a whole number from 1 to ${group(MOST)}`) : set(n);
    }} />
    ${slider.value === null && html`<span class="follows">default: ${slider.rule}</span>`}
  </div>`;
}

// d_h as d with a subscript.
function Letter({ name }) {
  const [head, ...rest] = name.split("_");
  return rest.length ? html`${head}<sub>${rest.join(" ")}</sub>` : head;
}

const BADGES = {
  proved: "equal to the traced module for all sizes of a theorem's domain",
  measured: "equal to the module at the sizes where it was run",
  listed: "each leaf proved, the list of leaves transcribed",
  "by convention": "elements in a stated format",
  published: "a cited source prints it",
  modelled: "none of these: the formula alone",
};
const Badge = ({ how }) => html`<span class=${`badge ${how}`} title=${BADGES[how]}>${how}</span>`;

const Card = ({ name, title, value, text, how, unit }) => html`<div class="card">
  <h2>${title} ${how && html`<${Badge} how=${how} />`}</h2>
  <p class="big"><${Figure} name=${name} value=${value} text=${text ?? short(value)} />${unit ? ` ${unit}` : ""}</p>
  <p class="exact"><${Figure} name=${name} value=${value} /></p>
</div>`;

function Learn() {
  const model = MODELS[state.model],
    figures = current(model);
  return html`<div class="split">
    <aside aria-label="Sizes">
      ${MODELS.length > 1 && html`<label class="pick">Model <select value=${state.model} onChange=${(e) => update({ model: +e.target.value })}>${MODELS.map((m) => html`<option value=${m.index}>${m.name}</option>`)}</select></label>`}
      <details open><summary>Sizes</summary>
        ${model.sliders.map((slider) => html`<${Slider} key=${slider.letter} model=${model} slider=${slider} figures=${figures} />`)}
        ${model.fixed.length > 0 && html`<p class="note">Fixed, because these sizes decide the structure: ${model.fixed.join(", ")}.</p>`}
        ${Object.keys(state.chosen[model.index]).length > 0 && html`<button onClick=${() => update({ chosen: state.chosen.map((own, i) => (i === model.index ? {} : own)) })}>Reset all</button>`}
      </details>
    </aside>
    <div class="answer">
      <p class="summary">As loaded: ${model.summary.map((line) => html`<span>${line}</span>`)}</p>
      <p class="paper">Here: ${model.sliders.map((s) => `${s.letter} = ${group(figures.letters[s.letter])}`).join(", ")}</p>
      ${figures.refused && html`<p class="refused" role="alert" data-refused="1">These sizes are not valid: ${figures.refused}. The figures below are of the last valid sizes.</p>`}
      <${Headline} model=${model} figures=${figures} />
    </div>
    <div class=${figures.refused ? "content stale" : "content"}><${Answers} model=${model} figures=${figures} /></div>
  </div>`;
}

// What people ask first of a model.
function Headline({ model, figures }) {
  const t = figures.totals,
    how = (quantity) => known(model, figures, quantity);
  const [flops, attention] = hasWindows(model) ? ["flops_masked", "masked"] : ["flops", "dense"];
  return html`<section aria-label="Answer" class=${figures.refused ? "cards stale" : "cards"}>
    <${Card} name="params" title="Parameters" value=${t.params} how=${how("params")} />
    <${Card} name="weights_bytes" title="Weights in bf16" value=${bytes(t.params)} text=${iec(bytes(t.params))} how=${byConvention(how("params"))} />
    <${Card} name=${flops} title=${`FLOPs, forward, ${attention}`} value=${t[flops]} how=${how(flops)} />
    ${hasCache(t) && html`<${Card} name="cache_bytes" title=${`KV cache at ${group(figures.letters.T)} tokens, bf16`} value=${bytes(t.cache)} text=${iec(bytes(t.cache))} how=${byConvention(how("cache"))} />`}
  </section>`;
}
const hasCache = (totals) => totals.cache > 0n || totals.cache_constant > 0n;

function Answers({ model, figures }) {
  const t = figures.totals,
    how = (quantity) => known(model, figures, quantity);
  return html`
    <section aria-label="Totals" class="cards">
      ${t.active !== t.params && html`<${Card} name="active" title="Active per token" value=${t.active} how=${how("active")} />`}
      ${
        hasWindows(model)
          ? html`<${Card} name="flops" title="FLOPs, forward, dense" value=${t.flops} how=${how("flops")} />`
          : html`<${Card} name="flops_masked" title="FLOPs, forward, masked" value=${t.flops_masked} how=${how("flops_masked")} />`
      }
      <${Card} name="training" title="FLOPs, training step" value=${t.training} how=${how("training")} />
      <${Card} name="saved" title="Saved activations" value=${t.saved} how=${how("saved")} unit="elements" />
      ${
        hasCache(t) &&
        html`<${Card} name="cache_growth_bytes" title="KV cache per token" value=${bytes(t.cache_growth)} text=${iec(bytes(t.cache_growth))} how=${byConvention(how("cache"))} />`
      }
    </section>
    <${Parts} model=${model} figures=${figures} />
    <${Thumb} model=${model} figures=${figures} />
    ${!model.fixed_length && html`<${Crossing} model=${model} figures=${figures} />`}
    ${!model.fixed_length && t.cache > 0n && html`<${Growing} model=${model} figures=${figures} />`}
    <${Memory} model=${model} figures=${figures} />
    <${TrainingRun} model=${model} figures=${figures} />
    <${Theorems} model=${model} figures=${figures} />
    <section aria-label="Command"><h2>The same on the command line</h2><pre class="command"><code>${command(model, figures)}</code></pre></section>`;
}

function Parts({ model, figures }) {
  const what = state.parts,
    parts = `${{ params: "Parameters", flops: "FLOPs", cache: "KV cache elements" }[what]} by part`,
    all = figures.totals[what];
  const kinds = new Map();
  model.parts.forEach((part, i) => {
    const value = figures.parts[i][what];
    if (!value) return;
    if (!kinds.has(part.kind))
      kinds.set(part.kind, { name: spoken(part.kind), kind: part.kind, value: 0, children: [] });
    const own = kinds.get(part.kind);
    own.value += Number(value);
    own.children.push({
      name: part.path,
      value: Number(value),
      exact: value,
      formula: part.formulas[what],
      itemStyle: { color: kindColour(part.kind) },
    });
  });
  const rows = model.parts.flatMap((part, i) => {
    const value = figures.parts[i][what];
    return value
      ? [
          [
            part.path,
            part.copies,
            {
              text: html`<${Formula} text=${part.formulas[what]} letters=${figures.letters} value=${value} />`,
              plain: part.formulas[what],
            },
            { name: `${what} ${i}`, value },
            percent(`share ${i}`, value, all),
          ],
        ]
      : [];
  });
  const on = css("--on");
  const option = {
    tooltip: {
      formatter: ({ data }) =>
        data.exact === undefined
          ? data.name
          : `${data.name}<br>${data.formula}<br>= ${numbers(data.formula, figures.letters)}<br>= ${group(data.exact)}`,
    },
    series: [
      {
        type: "treemap",
        roam: false,
        nodeClick: false,
        breadcrumb: { show: false },
        left: 0,
        right: 0,
        top: 0,
        bottom: 0,
        label: {
          color: on,
          overflow: "truncate",
          formatter: ({ name }) =>
            name
              .split(".")
              .filter((step) => !/^\d+$/.test(step))
              .slice(-1)
              .join("."),
        },
        itemStyle: { borderColor: css("--paper"), borderWidth: 1, gapWidth: 1 },
        upperLabel: { show: true, height: 22, color: on },
        levels: [{ upperLabel: { show: false } }, { itemStyle: { gapWidth: 1 } }],
        data: [...kinds.values()].map((own) => ({
          ...own,
          itemStyle: { color: kindColour(own.kind), borderColor: kindColour(own.kind) },
        })),
      },
    ],
  };
  const table = { title: "Parts", head: ["part", "copies", "formula", "exact", "share"], rows };
  const files = {
    title: "Parts",
    head: ["part", "copies", "formula", { title: spoken(what), unit: UNITS[what === "cache" ? "saved" : what] }, "share"],
    rows: rows.map((row) => [row[0], row[1], row[2].plain, row[3], row[4]]),
  };
  return html`<section aria-label="Parts"><h2>${parts}</h2>
    <div class="choice" role="radiogroup" aria-label="Of what">${[
      ["params", "Parameters"],
      ["flops", "FLOPs"],
      ["cache", "KV cache"],
    ].map(
      ([key, title]) =>
        figures.totals[key] > 0n &&
        html`<label><input type="radio" name="parts" checked=${what === key} onChange=${() => update({ parts: key })} /> ${title}</label>`,
    )}</div>
    <${Chart} name=${`${model.name}-${what}`} title=${parts} option=${option} table=${files} height=${380} />
    <${Cells} table=${table} />
  </section>`;
}

// A formula; on hover or focus, the same with numbers.
const Formula = ({ text, letters, value }) =>
  html`<span class="formula" tabindex="0"><span class="plain">${text}</span><span class="worked">${numbers(text, letters)} = ${group(value)}</span></span>`;
const numbers = (text, known) =>
  text.replace(/[A-Za-z][A-Za-z0-9_]*/g, (letter) => (known[letter] === undefined ? letter : group(known[letter])));

function Thumb({ model, figures }) {
  const rows = rules(model, figures).map((rule) => [
    rule.what,
    { text: rule.formula, style: "text" },
    { name: `rule ${rule.formula} gives`, value: rule.gives, text: short(rule.gives) },
    { name: `rule ${rule.formula} exact`, value: rule.truth, text: short(rule.truth, rule.among) },
    error(rule),
  ]);
  return html`<section aria-label="Rules of thumb"><h2>Rules of thumb</h2><${Cells} table=${{ title: "Estimate and exact count at these sizes", head: ["quantity", "formula", "estimate", "exact", "error"], rows }} /></section>`;
}

const GROUPS = [
  ["scores and values", ["attention_core"]],
  ["attention projections", ["attention"]],
  ["feed-forward", ["feed_forward", "experts", "shared_experts", "router"]],
  ["recurrent", ["recurrent"]],
  ["head", ["head"]],
];

// FLOPs per token by group, masked where the model has windows, with the dense scores and values beside them.
function Crossing({ model, figures }) {
  const chosen = figures.chosen;
  const points = LENGTHS.map((tokens) => [tokens, evaluate(model, { ...chosen, B: 1, T: tokens }, false).totals]);
  const masked = hasWindows(model),
    attention = masked ? "masked" : "dense";
  const sum = (totals, kinds, quantity) => kinds.reduce((all, kind) => all + (totals[`${quantity} ${kind}`] ?? 0n), 0n);
  const groups = GROUPS.map(([name, kinds]) => [name, kinds, masked ? "flops_masked" : "flops"])
    .concat(masked ? [[`${GROUPS[0][0]}, dense`, GROUPS[0][1], "flops"]] : [])
    .filter(([, ...what]) => points.some(([, totals]) => sum(totals, ...what)));
  const crossed = crossovers(model, chosen);
  const from = (attention) => crossed.find((c) => c.attention === attention && c.rule === DATA.rules[0].name)?.tokens;
  const mark = from(attention);
  const words = (tokens) => (tokens === null ? "at no length" : `from ${group(tokens)} tokens on`);
  const note =
    mark === undefined || groups[0][0] !== GROUPS[0][0]
      ? ""
      : `Scores and values need at least the FLOPs of the feed-forward ${words(mark)}${masked ? `, masked; dense, ${words(from("dense"))}` : ""}.`;
  const option = {
    tooltip: { trigger: "axis", valueFormatter: tick },
    legend: {},
    grid: {},
    xAxis: overLengths("tokens T"),
    yAxis: { type: "log", name: "FLOPs per token", nameGap: 50, axisLabel: { formatter: tick } },
    series: groups.map(([name, ...what], i) => ({
      name,
      type: "line",
      showSymbol: false,
      color: name.endsWith(", dense") ? colour(0) : colour(i),
      lineStyle: { type: name.endsWith(", dense") ? "dashed" : "solid" },
      data: points.map(([tokens, totals]) => [Number(tokens), Number(sum(totals, ...what)) / Number(tokens) || null]),
      markLine:
        i || !mark
          ? undefined
          : {
              symbol: "none",
              lineStyle: { color: css("--ink"), type: "dashed" },
              label: { color: css("--ink"), formatter: `${group(mark)} tokens` },
              data: [{ xAxis: Number(mark) }],
            },
    })),
  };
  const table = {
    title: `FLOPs per token of one prefill, ${attention}`,
    head: ["tokens", ...groups.map(([title]) => ({ title, unit: "FLOPs/token" }))],
    rows: points.map(([tokens, totals]) => [
      count(tokens),
      ...groups.map(([name, ...what]) => quotient(`${name} at ${tokens}`, sum(totals, ...what), tokens)),
    ]),
  };
  const names = [...new Set(crossed.map((each) => each.rule))];
  const at = (name, attention) => {
    const each = crossed.find((c) => c.rule === name && c.attention === attention);
    return each.tokens === null ? "never" : { name: `crossover ${name} ${attention}`, value: each.tokens };
  };
  return html`<section aria-label="Crossover"><h2>When attention costs more than the rest</h2>
    <${Chart} name=${`${model.name}-crossover`} title=${table.title} note=${note} option=${option} table=${table} />
    ${names.length > 0 && html`<${Cells} table=${{ title: "Smallest T for which it holds", head: ["rule", "dense", "masked"], rows: names.map((name) => [name, at(name, "dense"), at(name, "masked")]) }} />`}
  </section>`;
}

function Growing({ model, figures }) {
  const chosen = figures.chosen;
  const points = LENGTHS.map((tokens) => [
    tokens,
    bytes(evaluate(model, { ...chosen, B: 1, T: tokens }, false).totals.cache),
  ]);
  const weights = bytes(figures.totals.params),
    here = figures.letters.T;
  const option = {
    tooltip: { trigger: "axis", valueFormatter: inBytes },
    legend: {},
    grid: { left: 84 },
    xAxis: overLengths("cached tokens"),
    yAxis: { type: "log", logBase: 2, name: "bytes", nameGap: 66, axisLabel: { formatter: inBytes } },
    series: [
      {
        name: "KV cache of one sequence",
        type: "line",
        showSymbol: false,
        color: colour(0),
        data: points.map(([tokens, held]) => [Number(tokens), Number(held)]),
        markLine: {
          symbol: "none",
          label: { formatter: `T = ${group(here)}`, color: css("--ink") },
          lineStyle: { color: css("--ink"), type: "dashed" },
          data: [{ xAxis: Number(here) }],
        },
      },
      {
        name: "weights",
        type: "line",
        showSymbol: false,
        color: colour(1),
        lineStyle: { type: "dashed" },
        data: points.map(([tokens]) => [Number(tokens), Number(weights)]),
      },
    ],
  };
  const table = {
    title: "KV cache of one sequence in bf16",
    head: ["tokens", { title: "KV cache", unit: "bytes" }, { title: "weights", unit: "bytes" }],
    rows: points.map(([tokens, held]) => [count(tokens), { name: `cache at ${tokens}`, value: held }, { text: group(weights), value: weights, plain: true }]),
  };
  return html`<section aria-label="Cache"><h2>KV cache against context</h2><${Chart} name=${`${model.name}-cache`} title="KV cache of one sequence, bf16" option=${option} table=${table} /></section>`;
}

const FIGURES = {
  params: "parameters",
  active: "active parameters",
  flops: "FLOPs, dense",
  flops_masked: "FLOPs, masked",
  training: "FLOPs of a training step",
  saved: "saved activations",
  cache: "cache",
};

// A figure's evidence at these sizes, with its theorems.
function behind(model, figures, quantity) {
  const how = known(model, figures, quantity),
    own = ["params", "flops"].includes(quantity) && figures.proved;
  const number = new Set(figures.theorems.map((each) => each.key)).size;
  const keys = number === 1 ? "the theorem above" : `the ${number} theorems above`;
  const where = !own && figures.same && model.known[quantity].where;
  const said = how === "modelled" ? "the formula alone" : where || keys;
  return [FIGURES[quantity], { text: html`<${Badge} how=${how} />` }, { text: said, style: "text" }];
}

const Theorems = ({
  model,
  figures,
}) => html`<section aria-label="Theorems"><h2>How each figure is known</h2>
  ${
    figures.theorems.length === 0
      ? html`<p data-proved="0">No theorem: ${model.unproved}.</p>`
      : html`<p data-proved=${figures.proved ? "1" : "0"}>${figures.proved ? "Proved at these sizes: the formula of each part equals what PyTorch counts." : "Not proved at these sizes: they are outside of a theorem's domain. The formulas are the same."}</p>
      <ul>${figures.theorems.map(
        (
          each,
        ) => html`<li><b>${each.part === "frame" ? "embedding and head" : each.part}</b>: proved for ${each.lengths}${each.holds ? "" : html`; <span class="bad">not at these sizes: ${each.why}</span>`}
        <details><summary>Sizes, and the theorem's key</summary><p>Theorem <code>${each.key}</code></p><ul>${each.conditions.map(([, text]) => html`<li>${text}</li>`)}</ul></details></li>`,
      )}</ul>`
  }
  <${Cells} table=${{ title: "At these sizes", head: ["figure", "evidence", "by"], rows: Object.keys(FIGURES).map((quantity) => behind(model, figures, quantity)) }} />
  <p class="note">FLOPs count 2 per multiply-add; only matmuls are counted; dense attention unless masked is stated; logits for all positions${model.latents ? "; latents expanded (MLA)" : ""}. Cache and weights in bf16.</p>
</section>`;

// The command that gives the same numbers.
function command(model, figures) {
  const said = [],
    counts = new Map();
  for (const slider of model.sliders) {
    const value = figures.chosen[slider.letter];
    for (const key of slider.keys) {
      const at = key.indexOf("layer:");
      if (at >= 0) {
        const half = key.slice(0, at);
        if (!counts.has(half)) counts.set(half, []);
        counts
          .get(half)
          .push([key.slice(at + 6), figures.letters[slider.letter], value !== undefined && value !== slider.value]);
      } else if (value !== undefined && value !== slider.value) said.push(`--set ${key}=${value}`);
    }
  }
  for (const [half, own] of counts)
    if (own.some(([, , moved]) => moved)) {
      said.push(`--set ${half}n_layers=${own.reduce((all, [, n]) => all + n, 0n)}`);
      said.push(`--set '${half}pattern=[${own.map(([name, n]) => `"${n}*${name}"`).join(", ")}]'`);
    }
  const lengths = [
    ["B", "--batch"],
    ["T", "--tokens"],
    ["T_src", "--source"],
  ].filter(([letter]) => figures.letters[letter] !== undefined && model.sliders.some((s) => s.letter === letter));
  return [
    "txcalc show",
    model.source,
    ...said,
    ...lengths.map(([letter, flag]) => `${flag} ${figures.letters[letter]}`),
  ].join(" ");
}
