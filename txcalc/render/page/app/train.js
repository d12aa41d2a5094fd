// Training: the computed runs, each with its ranks' memory and its pipeline.

DATA.train.forEach((plan) => {
  plan.runs = plan.runs.map(({ train, ...pipeline }) => ({ ...train, ...pipeline }));
  GRIDS.run = Math.max(GRIDS.run ?? 0, plan.runs.length);
});
const WORK = { F: "forward", B: "backward", I: "input gradients", W: "weight gradients" };
const layoutOf = (run) =>
  Object.entries(run.layout)
    .filter(([, n]) => n !== 1 && n !== 0 && n !== null && n !== false)
    .map(([name, n]) => `${name}=${n}`)
    .join(",") || "one GPU";
const runName = (run) =>
  `${layoutOf(run)}; ${run.recipe.framework}, micro-batch ${run.recipe.micro_batch}, recompute ${run.recipe.recompute}`;

function Train() {
  const plan = DATA.train[state.train],
    run = plan.runs[Math.min(state.at.run ?? 0, plan.runs.length - 1)];
  const shares = Object.entries(run.mfu).map(([name, share]) => [name, percentOf(`mfu ${name}`, share)]);
  const title = (each) => `${MODELS[each.model].name} on ${each.runs[0].gpu.count} × ${each.runs[0].gpu.name}`;
  const cell = (name, value, text) => ({ name, value, text, real: true });
  const real = (...own) => html`<${Figure} ...${cell(...own)} />`;
  const fullest = most(run.ranks.map((rank) => BigInt(rank.reserved_bytes))),
    memory = BigInt(run.gpu.usable_bytes);
  return html`<div class="content">
    <div class="wide"><label class="pick">Run <select value=${state.train} onChange=${(e) => update({ train: +e.target.value, at: { ...state.at, run: 0 } })}>${DATA.train.map((each, i) => html`<option value=${i}>${title(each)}</option>`)}</select></label>
    <label class="pick">Layout <select value=${plan.runs.indexOf(run)} onChange=${(e) => step("run")(+e.target.value)}>${plan.runs.map((each, i) => html`<option value=${i}>${runName(each)}</option>`)}</select></label></div>
    <p class="summary"><b class=${run.fits ? "good" : "bad"}>${run.fits ? "fits" : "does not fit"}: peak <${Figure} name="reserved" value=${fullest} text=${iec(fullest)} /> of <${Figure} name="memory" value=${memory} text=${iec(memory)} /> usable by PyTorch on the fullest GPU</b>
      <span>${group(run.recipe.accumulation)} micro-batches of ${run.recipe.micro_batch} × ${group(run.recipe.tokens)} tokens; global batch ${group(run.recipe.global_batch)}; ${run.recipe.optimizer}; matmuls in ${run.recipe.products}${run.recipe.schedule ? `; schedule ${run.recipe.schedule}` : ""}</span></p>
    <section class="cards" aria-label="Answers">
      ${run.tokens_per_s_per_gpu !== null && html`<div class="card"><h2>Tokens/s per GPU <${Badge} how="modelled" /></h2><p class="big">${real("tokens/s", run.tokens_per_s_per_gpu, group(Math.round(run.tokens_per_s_per_gpu)))}</p></div>`}
      ${
        run.step_s.achievable !== null &&
        html`<div class="card"><h2>Step <${Badge} how="modelled" /></h2><p class="big">${real("step", run.step_s.achievable, seconds(run.step_s.achievable))}</p></div>
      <div class="card"><h2>Step, floor</h2><p class="big">${real("floor", run.step_s.floor, seconds(run.step_s.floor))}</p></div>`
      }
      ${shares.slice(0, 1).map(([name, share]) => html`<div class="card"><h2>MFU, ${name}</h2><p class="big"><${Figure} ...${share} /></p></div>`)}
      <div class="card"><h2>Largest micro-batch</h2><p class="big"><${Figure} name="max_micro_batch" value=${run.max_micro_batch} /></p></div>
    </section>
    ${run.tokens_per_s_per_gpu !== null && html`<section aria-label="Run"><h2>Time and cost of a training run</h2><${Spent} one=${1 / run.tokens_per_s_per_gpu} gpus=${run.gpu.count} names=${["amount", "hourly"]} price=${plan.price} /></section>`}
    ${shares.length > 1 && html`<section aria-label="MFU"><h2>MFU by convention</h2><${Cells} table=${{ title: "Model FLOPs utilisation", head: ["convention", "MFU"], rows: shares }} /></section>`}
    <${Ranks} run=${run} memory=${memory} />
    <${Pipeline} run=${run} />
    ${
      run.spent_s &&
      html`<section aria-label="Time"><h2>Step time by cause</h2><${Cells} table=${{
        title: "Slowest stage",
        head: ["cause", "time", "share"],
        rows: Object.entries(run.spent_s)
          .filter(([, s]) => s > 0)
          .map(([name, s]) => [
            spoken(name),
            cell(`spent ${name}`, s, seconds(s)),
            percentOf(`spent share ${name}`, s / run.step_s.achievable),
          ]),
      }} /></section>`
    }
  </div>`;
}

function Ranks({ run, memory }) {
  const names = Object.keys(run.ranks[0].bytes).filter((name) => run.ranks.some((rank) => Number(rank.bytes[name])));
  const shown = run.ranks.slice(0, 64),
    of = (rank) => names.map((name) => BigInt(rank.bytes[name] ?? 0));
  const top = most([memory, ...shown.map((rank) => of(rank).reduce((a, b) => a + b))]);
  const title = (rank) =>
    run.ranks.length === 1 ? `each of ${group(rank.count)} ${rank.count === 1 ? "GPU" : "GPUs"}` : `rank ${group(rank.rank)}${rank.count > 1 ? ` (${group(rank.count)} identical)` : ""}, stage ${rank.stage}`;
  const rows = run.ranks.map((rank) => [
    title(rank),
    ...names.map((name) => ({ name: `${name} of ${rank.rank}`, value: BigInt(rank.bytes[name] ?? 0) })),
    { name: `allocated of ${rank.rank}`, value: rank.allocated_bytes },
    { name: `reserved of ${rank.rank}`, value: rank.reserved_bytes },
  ]);
  return html`<section aria-label="Memory" class="wide"><h2>Memory per rank</h2><${Legend} names=${names} limit="usable memory" />
    ${shown.map((rank) => html`<${Stack} title=${title(rank)} sizes=${of(rank)} names=${names.map(spoken)} memory=${memory} top=${top} />`)}
    ${run.ranks.length > shown.length && html`<p class="note">The table has all ${run.ranks.length}.</p>`}
    <${Cells} table=${{ title: "Peak bytes of a rank", head: ["ranks", ...names.map(spoken), "allocated", "reserved"], rows }} /></section>`;
}

// One row per stage, one block per micro-batch's forward and backward, to scale.
function Pipeline({ run }) {
  const stages = run.timeline;
  if (!stages)
    return run.too_many
      ? html`<section aria-label="Pipeline" class="wide"><h2>Pipeline schedule</h2><p class="note">${group(run.too_many)} events are too many to draw.</p></section>`
      : null;
  const end = Math.max(...stages.flat().map(([, , , to]) => to)),
    width = 1000,
    row = 26,
    height = row * stages.length;
  const kinds = Object.keys(WORK).filter((kind) => stages.some((events) => events.some(([own]) => own === kind)));
  const busy = stages.map((events) => events.reduce((all, [, , from, to]) => all + to - from, 0));
  return html`<section aria-label="Pipeline" class="wide"><h2>Pipeline schedule ${run.recipe.schedule}</h2>
    <ul class="legend">${kinds.map((kind, i) => html`<li><span class="swatch" style=${{ background: colour(i) }}></span>${WORK[kind]}</li>`)}</ul>
    <div class="scroll" tabindex="0" role="group" aria-label="Timeline"><svg viewBox=${`0 0 ${width} ${height}`} class="timeline" role="img" aria-label=${`Timeline of ${stages.length} stages over ${seconds(end)}`} preserveAspectRatio="none" style=${{ height: `${height}px` }}>
      ${stages.map((events, rank) => events.map(([kind, batch, from, to]) => html`<rect x=${(from / end) * width} y=${rank * row + 2} width=${Math.max(0.2, ((to - from) / end) * width)} height=${row - 4} fill=${colour(kinds.indexOf(kind))} stroke=${css("--paper")} stroke-width="0.4"><title>stage ${rank}, micro-batch ${batch}, ${WORK[kind]}: ${seconds(to - from)}</title></rect>`))}
    </svg></div>
    <${Cells} table=${{ title: `Stages over ${seconds(end)}`, head: ["stage", "busy", "idle"], rows: stages.map((_, i) => [`${i}`, { name: `busy ${i}`, value: busy[i], text: seconds(busy[i]), real: true }, percentOf(`idle ${i}`, 1 - busy[i] / end)]) }} /></section>`;
}
