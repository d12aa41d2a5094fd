// Memory at the current sizes, for serving and training, and the cost of a whole training run.

const BITS = { fp32: 32, bf16: 16, fp8: 8, int4: 4 };
const DTYPES = Object.keys(BITS);
GRIDS.dtype = GRIDS.held = DTYPES.length;
const dtypeOf = (axis) => DTYPES[state.at[axis] ?? DTYPES.indexOf("bf16")];
const perByte = (bits, what) => (bits < 8 ? `⌈${what}/${8 / bits}⌉` : `${bits / 8}·${what}`);

function Memory({ model, figures }) {
  const t = figures.totals,
    dtype = dtypeOf("dtype"),
    held = dtypeOf("held");
  const letters = { ...figures.letters, N: t.params, A: t["params adapters"] ?? t.params, S: t.saved };
  const row = (title, name, text, value, quantity) => [
    title,
    { name: `memory ${name}`, value, text: iec(value) },
    { text: html`<${Formula} text=${text} letters=${letters} value=${value} />` },
    { name: `memory ${name}`, value },
    { text: html`<${Badge} how=${byConvention(known(model, figures, quantity))} />` },
  ];
  const head = ["quantity", "size", "formula", "bytes", "evidence"];
  const terms = model.parts.map((part) => part.formulas.cache).filter(Boolean); // of all copies
  const one = bytes(t.cache, BITS[held]),
    sum = terms.join(" + "),
    kept = sum.includes(" ") ? `(${sum})` : sum;
  const serving = [
    row(`weights, ${dtype}`, "weights", perByte(BITS[dtype], "N"), bytes(t.params, BITS[dtype]), "params"),
  ];
  if (t.cache > 0n) {
    serving.push(row(`KV cache of one sequence, ${held}`, "cache", perByte(BITS[held], kept), one, "cache"));
    serving.push(row("KV cache of all sequences", "caches", perByte(BITS[held], `B·${kept}`), figures.letters.B * one, "cache"));
  }
  const learnt = t["params adapters"] === undefined ? "N" : "A";
  const shares = DATA.state.map(([name, size], i) => [name, size, i ? learnt : "N"]);
  const all = shares.reduce((sum, [, size, of]) => sum + BigInt(size) * letters[of], 0n);
  const rest = DATA.state.slice(1).reduce((sum, [, size]) => sum + size, 0);
  const whole = learnt === "N" ? `${DATA.state[0][1] + rest}·N` : `${DATA.state[0][1]}·N + ${rest}·A`;
  const training = [
    ...shares.map(([name, size, of]) => row(name, name, `${size}·${of}`, BigInt(size) * letters[of], "params")),
    row("weights, gradients and optimizer state", "state", whole, all, "params"),
    row("saved activations, fused attention, bf16", "saved", "2·S", bytes(t.saved), "saved"),
  ];
  return html`<section aria-label="Memory"><h2>Memory</h2>
    <div>${[["dtype", "Weights in", dtype], ["held", "KV cache in", held]].map(([name, title, now]) => html`<label class="pick">${title} <select value=${now} onChange=${(e) => step(name)(DTYPES.indexOf(e.target.value))}>${DTYPES.map((each) => html`<option>${each}</option>`)}</select></label>`)}</div>
    <${Cells} table=${{ title: "Inference", head, rows: serving }} />
    <${Cells} table=${{ title: "Training with AdamW in mixed precision", head, rows: training }} />
    <p class="note">N parameters${learnt === "A" ? ", A of adapters" : ""}; S saved activations (elements) of a step of B sequences. Point at a formula to see it with numbers.</p>
  </section>`;
}

// ---- A run: tokens, accelerators, a price ----

const TOKENS = [8, 9, 10, 11, 12, 13, 14].flatMap((power) => [1, 2, 5].map((n) => n * 10 ** power));
const NUMBERS = Array.from({ length: 16 }, (_, i) => 2 ** i);
const SHARES = Array.from({ length: 100 }, (_, i) => i + 1);
const ASKED = DATA.train.map((plan) => plan.price).filter((price) => price !== null);
const PRICES = [...new Set([...Array.from({ length: 80 }, (_, i) => (i + 1) / 4), ...ASKED])].sort((a, b) => a - b);
const RUN = {
  amount: ["Tokens", TOKENS, TOKENS.indexOf(1e12), (n) => short(BigInt(n))],
  chip: ["Accelerator", DATA.gpus.map(([name]) => name), DATA.gpus.findIndex(([name]) => name === "h100-sxm"), String],
  number: ["GPUs", NUMBERS, NUMBERS.indexOf(64), group],
  mfu: ["MFU", SHARES, SHARES.indexOf(40), (n) => `${n} %`],
  hourly: ["Price", PRICES, PRICES.indexOf(2.5), (n) => `${n} per GPU-hour`],
};
for (const [name, [, values]] of Object.entries(RUN)) GRIDS[name] = values.length;
const runAt = (name) => state.at[name] ?? RUN[name][2];

// `one`: GPU-seconds per token, on `gpus` GPUs; `names` of the controls involved; the requested `price`.
function Spent({ one, gpus, names, price }) {
  const at = (name) => (name === "hourly" && price ? (state.at.hourly ?? PRICES.indexOf(price)) : runAt(name));
  const hours = (TOKENS[runAt("amount")] * one) / 3600;
  const card = (title, name, value) =>
    html`<div class="card"><h2>${title} <${Badge} how="modelled" /></h2><p class="big"><${Figure} name=${`run ${name}`} value=${value} text=${three(value)} real /></p></div>`;
  return html`<div class="steps">${names.map((name) => {
      const [title, values, , shown] = RUN[name];
      return html`<${Step} name=${name} title=${title} values=${values} at=${at(name)} shown=${shown} />`;
    })}</div>
    <div class="cards">${card("Days", "days", hours / gpus / 24)}${card("GPU-hours", "hours", hours)}${card("Cost", "cost", hours * PRICES[at("hourly")])}</div>`;
}

function TrainingRun({ model, figures }) {
  const [, peak] = DATA.gpus[runAt("chip")],
    tokens = figures.letters.B * (figures.letters.T ?? model.positions);
  const one = Number(figures.totals.training) / Number(tokens) / ((peak * SHARES[runAt("mfu")]) / 100);
  return html`<section aria-label="Training run"><h2>Time and cost of a training run</h2>
    <${Spent} one=${one} gpus=${NUMBERS[runAt("number")]} names=${Object.keys(RUN)} />
    <p class="note">FLOPs of forward and backward over the dense bf16 peak of the accelerators, at the MFU that you choose. <code>txcalc train</code> predicts the MFU of a layout.</p>
  </section>`;
}
