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
GRIDS.price = GRIDS.ttft = GRIDS.tpot = 1000000; // in thousandths

// The view opens at the middle of the contexts and users.
const initial = (axis, size) => (["context", "users"].includes(axis) ? (size - 1) >> 1 : 0);
const people = (n) => (n === 1 ? "1 user" : `${group(n)} users`);
const places = (plan) =>
  sizes(plan).map((size, i) => Math.min(state.at[AXES[i]] ?? initial(AXES[i], size), size - 1));
const pointOf = (plan, at) => plan.points[at.reduce((all, place, i) => all * sizes(plan)[i] + place, 0)];
const textOf = (plan, i) => plan.texts[i].map((line) => plan.lines[line]).join("\n");
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

const gpusOf = (plan) => `${plan.count ?? "fewest"} × ${plan.gpu}`;

// A number with up to three decimals; an empty field takes it away.
function NumberField({ name, title, unit, value }) {
  const set = (text) => {
    const n = Math.round(+text * 1000),
      { [name]: _, ...rest } = state.at;
    if (text === "") update({ at: rest });
    else if (n >= 0 && n < GRIDS[name]) update({ at: { ...rest, [name]: n } });
    else refuse(title, text, "a number from 0 to 999");
  };
  return html`<div class="slider field"><label for=${`g-${name}`}><b>${title}</b> <span>${unit}</span></label>
    <input type="number" id=${`g-${name}`} min="0" step="any" max="999" value=${value ?? ""} onChange=${(e) => set(e.target.value)} /></div>`;
}

const LIMITS = [
  ["ttft", "Limit of TTFT"],
  ["tpot", "Limit of TPOT"],
];
// The mean latencies of a point that exceed their limits; of a point that is not served, every limit.
const misses = (point) =>
  LIMITS.filter(([name]) => {
    const seconds = point.speed?.[`${name}_s`];
    if (state.at[name] === undefined) return false;
    return seconds === undefined || (seconds === null ? point.speed.ttft_s === null : seconds > state.at[name] / 1000);
  });

function Serve() {
  const plan = DATA.serve[state.serve],
    at = places(plan),
    point = pointOf(plan, at),
    model = MODELS[plan.model];
  const price = state.at.price !== undefined ? state.at.price / 1000 : plan.price;
  const planned = MODELS.filter((each) => DATA.serve.some((other) => other.model === each.index));
  const gpus = DATA.serve.flatMap((each, i) => (each.model === plan.model ? [[i, gpusOf(each)]] : []));
  const choose = (index) =>
    update({ serve: DATA.serve.findIndex((each) => each.model === +index && gpusOf(each) === gpusOf(plan)) });
  const shown = { plan, at, point, model, price };
  return html`<div class="split">
    <aside aria-label="Deployment">
      <${Pick} label="Model" value=${plan.model} options=${planned.map((each) => [each.index, each.name])} set=${choose} />
      <${Pick} label="GPUs" value=${state.serve} options=${gpus} set=${(i) => update({ serve: +i })} />
      <${Step} name="context" title="Context" values=${plan.context} at=${at[2]} shown=${(n) => `${group(n)} tokens`} />
      <${Step} name="users" title="Concurrent users" values=${plan.users} at=${at[4]} shown=${group} />
      <${NumberField} name="price" title="Price" unit="per GPU-hour" value=${price} />
      ${LIMITS.map(([name, title]) => html`<${NumberField} name=${name} title=${title} unit="mean, seconds" value=${state.at[name] === undefined ? "" : state.at[name] / 1000} />`)}
      <details open><summary>Formats and prompt</summary>
        <${Step} name="kv" title="KV cache" values=${plan.kv} at=${at[1]} />
        ${plan.weights.length > 1 && html`<${Step} name="weights" title="Weights" values=${plan.weights} at=${at[0]} />`}
        <${Step} name="prompt" title="Prompt" values=${plan.prompt[at[2]]} at=${at[3]} shown=${(n) => `${group(n)} tokens, answer ${group(plan.context[at[2]] - n)}`} />
      </details>
      <p class="note">The sliders stop at the ${group(plan.points.length)} computed points; nothing is interpolated.</p>
    </aside>
    ${
      point.refused
        ? html`<div class="answer"><p class="refused" role="alert">${point.refused}</p></div>`
        : html`<${Verdict} ...${shown} /><div class="content"><${Deployed} ...${shown} /></div>`
    }
  </div>`;
}

const Real = ({ name, value, text = three(value) }) => html`<${Figure} name=${name} value=${value} text=${text} real />`;
const Tile = ({ title, style = "", children, detail }) => html`<div class="card">
  <h2>${title}</h2><p class=${`big ${style}`}>${children}</p><p class="exact">${detail}</p></div>`;

// Whether it fits, how fast it is and what it costs.
function Verdict({ plan, at, point, model, price }) {
  const speed = point.speed?.ttft_s == null ? null : point.speed,
    free = BigInt(point.headroom_bytes),
    spare = html`<${Figure} name="spare" value=${abs(free)} text=${iec(abs(free))} />`,
    memory = html`<${Figure} name="memory" value=${plan.usable_bytes} text=${iec(BigInt(plan.usable_bytes))} />`;
  const users = plan.users[at[4]],
    most = point.max_concurrency;
  const verdict = point.fits
    ? html`fits: ${spare} free on the fullest GPU`
    : html`${most > 0 ? `holds ${group(most)} of ${group(users)} sequences at the full context` : "does not fit"}: the fullest GPU lacks ${spare} (${point.limit})`;
  const style = point.fits ? "good" : most > 0 ? "" : "bad";
  const unserved = point.speed ? "Requests arrive faster than they can be served." : "";
  return html`<div class="answer">
    <p class="summary"><b class=${style}>${verdict}</b><span>${model.name} on ${point.gpus} × ${plan.gpu}, ${memory} usable each; ${point.layout}; weights ${point.weights}, KV cache ${plan.kv[at[1]]}</span></p>
    <section class="cards" aria-label="Answer">
      <${Tile} title="Does it fit?" style=${style} detail=${html`at most <${Figure} name="most" value=${most} /> concurrent sequences`}>${point.fits ? "yes" : most > 0 ? "in part" : "no"}<//>
      <${Tile} title=${html`How fast? <${Badge} how="modelled" />`} detail=${speed ? html`per output token${speed.tpot_s === null ? "" : html`; first token after <${Real} name="ttft" value=${speed.ttft_s} text=${seconds(speed.ttft_s)} />`}; <${Real} name="served" value=${speed.tokens_per_s_gpu} /> tokens/s per GPU` : unserved}>
        ${speed ? (speed.tpot_s === null ? html`<${Real} name="ttft" value=${speed.ttft_s} text=${seconds(speed.ttft_s)} />` : html`<${Real} name="tpot" value=${speed.tpot_s} text=${seconds(speed.tpot_s)} />`) : "—"}<//>
      <${Tile} title=${html`What does it cost? <${Badge} how="modelled" />`} detail=${speed && price !== null ? html`per 1M output tokens; <${Real} name="hour" value=${price * point.gpus} /> per hour` : price === null ? "Enter a price per GPU-hour." : ""}>
        ${speed && price !== null ? html`<${Real} name="cost" value=${millionOutput(price, speed.tokens_per_s_gpu)} />` : "—"}<//>
    </section>
    <${Limits} plan=${plan} at=${at} point=${point} />
    <p class="paper">${people(users)}, a context of ${group(plan.context[at[2]])} tokens: a prompt of ${group(plan.prompt[at[2]][at[3]])}, the rest answer${price === null ? "" : `; ${price} per GPU-hour`}</p>
  </div>`;
}

// Whether the mean latencies meet the limits, and the largest computed load that does.
function Limits({ plan, at, point }) {
  const asked = LIMITS.filter(([name]) => state.at[name] !== undefined);
  if (!asked.length) return null;
  const over = misses(point),
    value = (name) => seconds(point.speed?.[`${name}_s`]);
  const limit = (name) => `mean ${name.toUpperCase()} ≤ ${seconds(state.at[name] / 1000)}`;
  const loads = plan.users.filter((_, i) => {
    const other = pointOf(plan, [...at.slice(0, 4), i]);
    return other.fits && misses(other).length === 0;
  });
  const text = over.length
    ? `misses ${over.map(([name]) => `${limit(name)} (${value(name)})`).join(" and ")}`
    : `meets ${asked.map(([name]) => limit(name)).join(" and ")}`;
  return html`<p class="summary" data-limits=${over.length ? "missed" : "met"}><b class=${over.length ? "bad" : "good"}>${text}</b>
    <span>${loads.length ? `Largest computed load that fits and meets the limits: ${people(Math.max(...loads))}` : "No computed load fits and meets the limits"}</span></p>`;
}

function Deployed({ plan, at, point, model, price }) {
  const speed = point.speed?.ttft_s == null ? null : point.speed;
  const engine = Math.min(state.at.engine ?? 0, plan.engines.length - 1);
  return html`
    <section class="cards" aria-label="Capacity">
      <div class="card"><h2>Longest context</h2><p class="big">${point.max_context === null ? "unlimited" : html`<${Figure} name="longest" value=${point.max_context} />`}</p></div>
      <div class="card"><h2>Fewest GPUs that hold it in memory</h2><p class="big">${point.min_gpus === null ? "more than were tried" : html`<${Figure} name="least" value=${point.min_gpus} />`}</p></div>
      ${
        speed &&
        html`${speed.line_s > 0 && html`<div class="card"><h2>Queueing time for cache space <${Badge} how="modelled" /></h2><p class="big"><${Real} name="line" value=${speed.line_s} text=${seconds(speed.line_s)} /></p></div>`}
        <div class="card"><h2>End-to-end latency <${Badge} how="modelled" /></h2><p class="big"><${Real} name="e2e" value=${speed.e2e_s} text=${seconds(speed.e2e_s)} /></p></div>`
      }
    </section>
    <${Bars} plan=${plan} point=${point} />
    <${Front} plan=${plan} at=${at} point=${point} price=${price} model=${model} />
    <section aria-label="Command"><h2>Command that starts the engine</h2>
      <div class="choice" role="radiogroup" aria-label="Engine">${plan.engines.map((name, i) => html`<label><input type="radio" name="engine" checked=${engine === i} onChange=${() => step("engine")(i)} /> ${name}</label>`)}</div>
      <pre class="command" tabindex="0"><code>${textOf(plan, point.commands[engine])}</code></pre>
      <button onClick=${(e) => copy(e.target.previousElementSibling)}>Copy</button></section>
    ${point.notes.length > 0 && html`<section aria-label="Plan's notes"><h2>Notes</h2><ul>${point.notes.map((i) => html`<li>${textOf(plan, i)}</li>`)}</ul></section>`}`;
}

const HELD = ["weights", "cache", "activations", "reserve"];

// A bar of stacked sizes to a common scale, with the available memory as a line.
function Stack({ title, sizes: own, names, memory, top }) {
  const share = (size) => `${Number((BigInt(size) * 100000n) / top) / 1000}%`;
  return html`<div class="stack"><span class="what">${title}</span><div class="bar" style=${{ "--end": share(memory) }} role="img" aria-label=${`${title}: ${names.map((name, i) => `${name} ${iec(BigInt(own[i]))}`).join(", ")}`}>${own.map((size, i) => html`<span style=${{ width: share(size), background: colour(i) }} title=${`${names[i]}: ${iec(BigInt(size))}`}></span>`)}</div></div>`;
}
const Legend = ({ names, limit = "usable memory" }) =>
  html`<ul class="legend">${names.map((name, i) => html`<li><span class="swatch" style=${{ background: colour(i) }}></span>${spoken(name)}</li>`)}<li><span class="swatch line"></span>${limit}</li></ul>`;
const most = (numbers) => numbers.reduce((a, b) => (a > b ? a : b));

function Bars({ plan, point }) {
  const memory = BigInt(plan.usable_bytes),
    of = (stage) => HELD.map((name) => BigInt(stage[name]));
  const sums = point.memory.map((stage) => of(stage).reduce((a, b) => a + b)),
    top = most([memory, ...sums]);
  const name = (stage) => point.memory.length === 1 ? "each GPU" : `stage ${stage.stage}${stage.stages_alike > 1 ? ` and ${stage.stages_alike - 1} like it` : ""}`;
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
