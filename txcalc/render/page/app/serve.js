// Serving: the library's answers at the points of a grid; only the price is applied here.

const AXES = ["weights", "kv", "context", "prompt", "users"];
const sizes = (plan) => [
  plan.weights.length,
  plan.kv.length,
  plan.context.length,
  plan.prompt[0].length,
  plan.users.length,
];
DATA.serve.forEach((plan) =>
  AXES.forEach((axis, i) => {
    GRIDS[axis] = Math.max(GRIDS[axis] ?? 0, sizes(plan)[i]);
  }),
);
GRIDS.engine = 3;
GRIDS.price = 1000000; // in thousandths

const places = (plan) => sizes(plan).map((size, i) => Math.min(state.at[AXES[i]] ?? 0, size - 1));
const pointOf = (plan, at) => plan.points[at.reduce((all, place, i) => all * sizes(plan)[i] + place, 0)];
const frontOf = (plan, at) => plan.fronts[at.slice(0, 4).reduce((all, place, i) => all * sizes(plan)[i] + place, 0)];
const step = (axis) => (place) => update({ at: { ...state.at, [axis]: place } });
const millionOutput = (price, served) => ((price / 3600) * 1e6) / served;

// Copies an element's text to the clipboard; selects it where the browser forbids that for local files.
function copy(element) {
  const chosen = getSelection();
  chosen.selectAllChildren(element);
  navigator.clipboard?.writeText(element.textContent).catch(() => {});
}

// A control with only the computed values.
function Step({ name, title, values, at, shown = String }) {
  const id = `g-${name}`,
    set = step(name);
  return html`<div class="slider step"><label for=${id}><b>${title}</b> <span>${shown(values[at])}</span></label>
    <input type="range" id=${id} min="0" max=${values.length - 1} value=${at} disabled=${values.length < 2} aria-valuetext=${shown(values[at])} onInput=${(e) => set(+e.target.value)} /></div>`;
}

function Serve() {
  const plan = DATA.serve[state.serve],
    at = places(plan),
    point = pointOf(plan, at),
    model = MODELS[plan.model];
  const price = state.at.price !== undefined ? state.at.price / 1000 : plan.price;
  const title = (each) => `${MODELS[each.model].name} on ${each.count ?? "the fewest"} × ${each.gpu}`;
  return html`<div class="split">
    <aside aria-label="Deployment">
      <label class="pick">Deployment <select value=${state.serve} onChange=${(e) => update({ serve: +e.target.value })}>${DATA.serve.map((each, i) => html`<option value=${i}>${title(each)}</option>`)}</select></label>
      <${Step} name="weights" title="Weights" values=${plan.weights} at=${at[0]} />
      <${Step} name="kv" title="KV cache" values=${plan.kv} at=${at[1]} />
      <${Step} name="context" title="Context" values=${plan.context} at=${at[2]} shown=${(n) => `${group(n)} tokens`} />
      <${Step} name="prompt" title="Prompt" values=${plan.prompt[at[2]]} at=${at[3]} shown=${(n) => `${group(n)} tokens, answer ${group(plan.context[at[2]] - n)}`} />
      <${Step} name="users" title="Concurrent users" values=${plan.users} at=${at[4]} shown=${group} />
      <div class="slider step"><label for="g-price"><b>Price</b> <span>per GPU-hour</span></label><input type="number" id="g-price" min="0" step="0.01" max="999" value=${price ?? ""} onChange=${(
        e,
      ) => {
        const n = Math.round(+e.target.value * 1000);
        if (e.target.value !== "" && n >= 0 && n < GRIDS.price) update({ at: { ...state.at, price: n } });
        else refuse("The price", e.target.value, "a number from 0 to 999");
      }} /></div>
      <p class="note">The sliders stop at the ${group(plan.points.length)} computed points; nothing is interpolated.</p>
    </aside>
    <div class="content">${point.refused ? html`<p class="refused" role="alert">${point.refused}</p>` : html`<${Deployed} plan=${plan} at=${at} point=${point} model=${model} price=${price} />`}</div>
  </div>`;
}

function Deployed({ plan, at, point, model, price }) {
  const speed = point.speed,
    free = BigInt(point.headroom_bytes);
  const over = free < 0n ? -free : free,
    spare = html`<${Figure} name="spare" value=${over} text=${iec(over)} />`;
  const verdict = point.fits
    ? html`fits: ${spare} to spare on the fullest GPU`
    : html`${point.max_concurrency > 0 ? html`holds ${group(point.max_concurrency)} of ${group(plan.users[at[4]])} at the full context` : "does not fit"}: ${spare} too much on the fullest GPU, for its ${point.limit}`;
  const engine = Math.min(state.at.engine ?? 0, plan.engines.length - 1);
  const real = (name, value, text = three(value)) => html`<${Figure} ...${{ name, value, text, real: true }} />`;
  const lasting = speed && speed.ttft_s !== null;
  return html`
    <p class="summary"><b class=${point.fits ? "good" : lasting ? "fair" : "bad"}>${verdict}</b><span>${point.gpus} × ${plan.gpu}, <${Figure} name="memory" value=${plan.memory_bytes} text=${iec(BigInt(plan.memory_bytes))} /> each; ${point.layout}; weights ${point.weights}, cache ${plan.kv[at[1]]}</span></p>
    <p class="paper">${model.name}: ${plan.users[at[4]] === 1 ? "1 concurrent user" : `${group(plan.users[at[4]])} concurrent users`}, a context of ${group(plan.context[at[2]])} tokens: a prompt of ${group(plan.prompt[at[2]][at[3]])}, the rest answer${price === null ? "" : `; ${price} per GPU-hour`}</p>
    <section class="cards" aria-label="Answers">
      <div class="card"><h2>Maximum concurrency</h2><p class="big"><${Figure} name="most" value=${point.max_concurrency} /></p></div>
      <div class="card"><h2>Longest context</h2><p class="big">${point.max_context === null ? "unlimited" : html`<${Figure} name="longest" value=${point.max_context} />`}</p></div>
      <div class="card"><h2>Fewest GPUs that hold it in memory</h2><p class="big">${point.min_gpus === null ? "more than were tried" : html`<${Figure} name="least" value=${point.min_gpus} />`}</p></div>
      ${
        lasting &&
        html`<div class="card"><h2>Time to first token <${Badge} how="modelled" /></h2><p class="big">${real("ttft", speed.ttft_s, seconds(speed.ttft_s))}</p></div>
        ${speed.tpot_s !== null && html`<div class="card"><h2>Time per output token <${Badge} how="modelled" /></h2><p class="big">${real("tpot", speed.tpot_s, seconds(speed.tpot_s))}</p></div>`}
        ${speed.line_s > 0 && html`<div class="card"><h2>Queueing time for cache space <${Badge} how="modelled" /></h2><p class="big">${real("line", speed.line_s, seconds(speed.line_s))}</p></div>`}
        <div class="card"><h2>End-to-end latency <${Badge} how="modelled" /></h2><p class="big">${real("e2e", speed.e2e_s, seconds(speed.e2e_s))}</p></div>
        <div class="card"><h2>Tokens/s per GPU <${Badge} how="modelled" /></h2><p class="big">${real("served", speed.tokens_per_s_gpu)}</p></div>
        ${
          price !== null &&
          html`<div class="card"><h2>Cost of 1M output tokens <${Badge} how="modelled" /></h2><p class="big">${real("cost", millionOutput(price, speed.tokens_per_s_gpu))}</p></div>
        <div class="card"><h2>Cost per hour</h2><p class="big">${real("hour", price * point.gpus)}</p></div>`
        }`
      }
      ${speed && !lasting && html`<p class="refused">Requests arrive faster than they can be served.</p>`}
    </section>
    <${Bars} plan=${plan} point=${point} />
    <${Front} plan=${plan} at=${at} point=${point} price=${price} model=${model} />
    <section aria-label="Command"><h2>Command that starts the engine</h2>
      <div class="choice" role="radiogroup" aria-label="Engine">${plan.engines.map((name, i) => html`<label><input type="radio" name="engine" checked=${engine === i} onChange=${() => step("engine")(i)} /> ${name}</label>`)}</div>
      <pre class="command" tabindex="0"><code>${plan.texts[point.commands[engine]]}</code></pre>
      <button onClick=${(e) => copy(e.target.previousElementSibling)}>Copy</button></section>
    ${point.notes.length > 0 && html`<section aria-label="Plan's notes"><h2>Notes</h2><ul>${point.notes.map((i) => html`<li>${plan.texts[i]}</li>`)}</ul></section>`}`;
}

const HELD = ["weights", "cache", "activations", "reserve"];

// A bar of stacked sizes to a common scale, with the available memory as a line.
function Stack({ title, sizes: own, names, memory, top }) {
  const share = (size) => `${Number((BigInt(size) * 100000n) / top) / 1000}%`;
  return html`<div class="stack"><span class="what">${title}</span><div class="bar" style=${{ "--end": share(memory) }} role="img" aria-label=${`${title}: ${names.map((name, i) => `${name} ${iec(BigInt(own[i]))}`).join(", ")}`}>${own.map((size, i) => html`<span style=${{ width: share(size), background: colour(i) }} title=${`${names[i]}: ${iec(BigInt(size))}`}></span>`)}</div></div>`;
}
const Legend = ({ names }) =>
  html`<ul class="legend">${names.map((name, i) => html`<li><span class="swatch" style=${{ background: colour(i) }}></span>${spoken(name)}</li>`)}<li><span class="swatch line"></span>memory</li></ul>`;
const most = (numbers) => numbers.reduce((a, b) => (a > b ? a : b));

function Bars({ plan, point }) {
  const memory = BigInt(plan.memory_bytes),
    of = (stage) => HELD.map((name) => BigInt(stage[name]));
  const sums = point.memory.map((stage) => of(stage).reduce((a, b) => a + b)),
    top = most([memory, ...sums]);
  const name = (stage) => `stage ${stage.stage}${stage.stages_alike > 1 ? ` and ${stage.stages_alike - 1} like it` : ""}`;
  const rows = point.memory.map((stage, i) => [
    name(stage),
    ...HELD.map((what) => ({ name: `${what} of ${i}`, value: BigInt(stage[what]) })),
    { name: `free of ${i}`, value: memory - sums[i] },
  ]);
  return html`<section aria-label="Memory"><h2>Memory of each GPU</h2><${Legend} names=${HELD} />
    ${point.memory.map((stage) => html`<${Stack} title=${name(stage)} sizes=${of(stage)} names=${HELD} memory=${memory} top=${top} />`)}
    <${Cells} table=${{ title: "Bytes on each GPU", head: ["GPU", ...HELD, "free"], rows }} /></section>`;
}

function Front({ plan, at, point, price, model }) {
  const front = frontOf(plan, at);
  if (!front.length) return null;
  const here = point.speed,
    points = front.map((each) => [each.tpot_s, each.tokens_per_s_gpu]);
  const option = {
    tooltip: { formatter: ({ data }) => `${seconds(data[0])} per token<br>${three(data[1])} tokens/s per GPU` },
    legend: {},
    grid: {},
    xAxis: {
      type: "value",
      name: "time per output token",
      nameGap: 30,
      scale: true,
      axisLabel: { formatter: seconds },
    },
    yAxis: { type: "value", name: "tokens/s per GPU", nameGap: 50 },
    series: [
      { name: "Pareto front over layouts and batches", type: "line", symbolSize: 9, color: colour(0), data: points },
      {
        name: "this load",
        type: "scatter",
        symbol: "diamond",
        symbolSize: 16,
        color: colour(1),
        data: here?.tpot_s ? [[here.tpot_s, here.tokens_per_s_gpu]] : [],
      },
    ],
  };
  const cell = (name, value, text = three(value)) => ({ name, value, text, real: true });
  const rows = front.map((each, i) => [
    each.layout,
    { name: `front users ${i}`, value: each.sequences },
    cell(`front ttft ${i}`, each.ttft_s, seconds(each.ttft_s)),
    cell(`front tpot ${i}`, each.tpot_s, seconds(each.tpot_s)),
    cell(`front served ${i}`, each.tokens_per_s_gpu),
    ...(price === null ? [] : [cell(`front cost ${i}`, millionOutput(price, each.tokens_per_s_gpu))]),
  ]);
  const head = ["layout", "users", { title: "TTFT", unit: "s" }, { title: "TPOT", unit: "s" }, "tokens/s per GPU"];
  if (price !== null) head.push("cost of 1M output tokens");
  return html`<section aria-label="Front"><h2>Latency against throughput</h2><${Chart} name=${`${model.name}-front`} title="Pareto front: throughput against time per token" option=${option} table=${{ title: "Pareto front", head, rows }} /></section>`;
}
