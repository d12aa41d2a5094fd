// The page: views as tabs, notes, licences; redrawn whenever the state changes.

const PAGES = { learn: Learn, compare: Compare, serve: Serve, train: Train };

function tab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const names = VIEWS.map(([name]) => name);
  const view = names[(names.indexOf(state.view) + step + names.length) % names.length];
  update({ view });
  document.getElementById(`tab-${view}`).focus();
}

function App() {
  const Page = PAGES[state.view];
  return html`
    <header><h1>${DATA.title}</h1>
      <div role="tablist" aria-label="Views" onKeyDown=${tab}>${VIEWS.map(([name, title]) => html`<button role="tab" id=${`tab-${name}`} aria-controls="view" aria-selected=${String(state.view === name)} tabindex=${state.view === name ? 0 : -1} onClick=${() => update({ view: name })}>${title}</button>`)}</div>
    </header>
    <main>
      ${state.notes.map((note) => html`<p class="refused" role="status">${note}</p>`)}
      <div id="view" role="tabpanel" aria-labelledby=${`tab-${state.view}`}><${Page} key=${state.view} /></div>
    </main>
    <footer><p>txcalc ${DATA.version}. Sliders recompute the library's formulas in exact integers; serving and training plans were computed when the page was written. Nothing is sent over the network. Command: <code>${DATA.command}</code>.</p>
      <details><summary>Notes on the models</summary><ul>${MODELS.flatMap((model) => model.notes.map((note) => html`<li>${model.name}: ${note}</li>`))}${MODELS.every((model) => !model.notes.length) && html`<li>none</li>`}</ul></details>
      <details><summary>Licences of the page's libraries</summary><pre tabindex="0">${DATA.licences}</pre></details></footer>`;
}

const root = document.getElementById("app");
function show() {
  render(html`<${App} />`, root);
}

root.replaceChildren();
state = read(location.hash.slice(1));
show();
addEventListener("hashchange", () => {
  if (location.hash.slice(1) !== address()) {
    state = read(location.hash.slice(1));
    show();
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
// Printing uses the light colours; charts are redrawn, since they have the current ones.
function printed(on) {
  document.documentElement.toggleAttribute("data-print", on);
  show();
  dispatchEvent(new Event("repaint"));
  for (const svg of document.querySelectorAll(".drawing svg")) {
    const [wide, high] = [svg.getAttribute("width"), svg.getAttribute("height")];
    on ? svg.setAttribute("viewBox", `0 0 ${wide} ${high}`) : svg.removeAttribute("viewBox"); // paper is narrower
  }
}
addEventListener("beforeprint", () => printed(true));
addEventListener("afterprint", () => printed(false));
// The elements of a view without drawing: components rendered, charts as tables.
function elements(node) {
  if (Array.isArray(node)) return node.flatMap(elements);
  if (!node || typeof node !== "object") return [];
  const { type, props } = node;
  if (type === Chart) return elements(html`<${Cells} table=${props.table} />`);
  return typeof type === "function" ? elements(type(props)) : [node, ...elements(props.children)];
}

// For programs that read the page.
window.txcalc = {
  models: MODELS,
  evaluate,
  stops,
  snap,
  crossovers,
  rules,
  address,
  read,
  get state() {
    return state;
  },
  set state(next) {
    state = { ...start(), ...next };
    show();
  },
  elements(next) {
    const shown = state;
    state = { ...start(), ...next };
    try {
      return elements(html`<${PAGES[state.view]} />`);
    } finally {
      state = shown;
    }
  },
};
