// Charts: ECharts drawn as SVG, in the page's own colours, each with its table and its files.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = 8;
const colour = (i) => css(`--c${(i % COLOURS) + 1}`);
const KINDS = [
  "attention",
  "attention_core",
  "feed_forward",
  "experts",
  "embedding",
  "head",
  "recurrent",
  "shared_experts",
  "router",
  "norm",
  "other",
];
// From the ninth model on, colours repeat with other strokes and symbols.
const stroke = (i) => ["solid", "dashed", "dotted"][Math.floor(i / COLOURS)];
const sign = (i) => ["circle", "rect", "triangle"][Math.floor(i / COLOURS)];
const kindColour = (kind) => colour(Math.max(0, KINDS.indexOf(kind)));
const spoken = (name) => DATA.words[name] ?? name.replaceAll("_", " ");

function save(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // a busy machine may begin to read it late
}

// A heading: its text, in files with the unit of its column.
const heading = (head) => head.title ?? head;
const withUnit = (head) => (head.unit && !head.title.includes(head.unit) ? `${head.title} (${head.unit})` : heading(head));
// A number in a table that is no figure of the model: grouped for people, plain in files.
const count = (n) => ({ text: group(n), value: n, plain: true });
const valueOf = (cell) => (cell && typeof cell === "object" ? cell.value : cell);
const csvCell = (cell) => {
  const text = String(valueOf(cell) ?? "");
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const asCsv = (table) => [table.head.map(withUnit), ...table.rows].map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
const TEX = {
  "\\": "\\textbackslash{}",
  "%": "\\%",
  "&": "\\&",
  "#": "\\#",
  _: "\\_",
  $: "\\$",
  "{": "\\{",
  "}": "\\}",
  "~": "\\textasciitilde{}",
  "^": "\\textasciicircum{}",
  "·": "$\\cdot$",
  "×": "$\\times$",
  "²": "$^2$",
  "≥": "$\\geq$",
  "≤": "$\\leq$",
  "−": "$-$",
};
const texCell = (cell) =>
  String((cell?.real ? cell.value && +cell.value.toPrecision(6) : valueOf(cell)) ?? "").replace(/[\\%&#_${}~^·×²≥≤−]/g, (sign) => TEX[sign]);
function asLatex(table) {
  const lines = [table.head.map(withUnit), ...table.rows].map((row) => `${row.map(texCell).join(" & ")} \\\\`);
  const [start, end] = [`\\begin{tabular}{l${"r".repeat(table.head.length - 1)}}`, "\\end{tabular}\n"];
  const rules = ["\\toprule", lines[0], "\\midrule", ...lines.slice(1), "\\bottomrule"];
  return ["% \\usepackage{booktabs}", start, ...rules, end].join("\n");
}

function png(svg, width, height, done) {
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * width, 2 * height];
    const pen = canvas.getContext("2d");
    pen.fillStyle = css("--paper");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(done, "image/png");
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}

const Files = ({ name, table, picture }) => html`<span class="files">
  ${
    picture &&
    html`<button onClick=${() => {
      const drawn = picture();
      save(`${name}.svg`, "image/svg+xml", drawn.svg);
    }} aria-label="Save ${spoken(name)} as SVG">SVG</button>
  <button onClick=${() => {
    const drawn = picture();
    png(drawn.svg, drawn.width, drawn.height, (blob) => save(`${name}.png`, "image/png", blob));
  }} aria-label="Save ${spoken(name)} as PNG">PNG</button>`
  }
  <button onClick=${() => save(`${name}.csv`, "text/csv", asCsv(table))} aria-label="Save ${spoken(name)} as CSV">CSV</button>
  <button onClick=${() => save(`${name}.tex`, "application/x-tex", asLatex(table))} aria-label="Save ${spoken(name)} as LaTeX">LaTeX</button>
</span>`;

const Cells = ({ table }) => html`<div class="scroll" tabindex="0" role="group" aria-label=${table.title}><table class=${table.head.length > 8 ? "many" : ""}>
  <caption>${table.title}</caption>
  <thead><tr>${table.head.map((head) => html`<th scope="col" class=${["formula", "by"].includes(head) ? "text" : ""}>${heading(head)}</th>`)}</tr></thead>
  <tbody>${table.rows.map(
    (row) =>
      html`<tr>${row.map((cell, i) => {
        const shown =
          cell && typeof cell === "object" && cell.value !== undefined && !cell.plain
            ? html`<${Figure} ...${cell} />`
            : (cell?.text ?? cell);
        return i ? html`<td class=${cell?.style ?? ""}>${shown}</td>` : html`<th scope="row">${typeof shown === "string" ? shown.replace(/[._](?=\w)/g, "$&\u200b") : shown}</th>`;
      })}</tr>`,
  )}</tbody>
</table></div>`;

// A chart of an ECharts option; `table` has the same data, for screen readers and files.
function Chart({ name, title, note, option, table, height = 340 }) {
  const place = useRef(null),
    drawn = useRef(null);
  useEffect(() => {
    drawn.current = echarts.init(place.current, null, { renderer: "svg" });
    const watch = new ResizeObserver(() => drawn.current.resize());
    watch.observe(place.current);
    return () => {
      watch.disconnect();
      drawn.current.dispose();
    };
  }, []);
  useEffect(() => {
    const draw = () => drawn.current.setOption(painted(option), { notMerge: true });
    const soon = requestAnimationFrame(draw);
    addEventListener("repaint", draw);
    return () => {
      cancelAnimationFrame(soon);
      removeEventListener("repaint", draw);
    };
  });
  const picture = () => ({
    svg: drawn.current.renderToSVGString(),
    width: drawn.current.getWidth(),
    height: drawn.current.getHeight(),
  });
  return html`<figure class="chart" aria-label=${title}>
    <figcaption><h3>${title}</h3>${note && html`<p class="note">${note}</p>`}</figcaption>
    <div class="drawing" ref=${place} style=${{ height: `${height}px` }} role="img" aria-label=${`${title}. The table below it has its numbers.`}></div>
    <details><summary>Table and files</summary><${Files} name=${name} table=${table} picture=${picture} /><${Cells} table=${table} /></details>
  </figure>`;
}

function painted(option) {
  const text = { color: css("--ink"), fontFamily: "system-ui, sans-serif" }; // no quotes: they would break a saved file
  const axis = (own) =>
    own && {
      ...own,
      nameLocation: "middle",
      nameTextStyle: text,
      axisLabel: { ...text, hideOverlap: true, ...own.axisLabel },
      axisLine: { lineStyle: { color: css("--soft") } },
      splitLine: { lineStyle: { color: css("--line") } },
      minorSplitLine: { show: false },
    };
  return {
    animation: false,
    textStyle: text,
    aria: { enabled: true },
    backgroundColor: "transparent",
    color: Array.from({ length: COLOURS }, (_, i) => colour(i)),
    ...option,
    tooltip: option.tooltip && {
      confine: true,
      backgroundColor: css("--paper"),
      borderColor: css("--soft"),
      textStyle: text,
      ...option.tooltip,
    },
    legend: option.legend && { textStyle: text, top: 0, type: "scroll", pageTextStyle: text, ...option.legend },
    grid: option.grid && { left: 70, right: 24, top: 56, bottom: 52, ...option.grid },
    xAxis: axis(option.xAxis),
    yAxis: axis(option.yAxis),
  };
}

const tick = (value) => (value >= 1 ? short(BigInt(Math.round(value))) : String(value));
const tickTokens = (value) =>
  value >= 1048576 ? `${value / 1048576}M` : value >= 1024 ? `${value / 1024}k` : String(value);
const inBytes = (value) => (value >= 1 ? iec(BigInt(Math.round(value))) : "0");
// Lengths at which curves are evaluated: two per octave.
const LENGTHS = Array.from({ length: 41 }, (_, i) =>
  i % 2 ? (3n * 2n ** BigInt((i - 1) / 2)) / 2n || 1n : 2n ** BigInt(i / 2),
)
  .filter((n, i, all) => all.indexOf(n) === i)
  .sort((a, b) => (a < b ? -1 : 1));
// Few values of one order of magnitude are best seen on a linear axis.
const scaleOf = (values) => {
  const known = values.filter((value) => value > 0);
  return Math.max(...known) > 10 * Math.min(...known) ? "log" : "value";
};
const SHORTEST = 64; // tokens, where an axis begins
const overLengths = (name) => ({
  type: "log",
  name,
  nameGap: 30,
  logBase: 2,
  interval: 2, // octaves
  axisLabel: { formatter: tickTokens },
  min: SHORTEST,
  max: Number(LENGTHS.at(-1)),
});
