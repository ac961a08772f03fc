// Controls, bars and curves of the page. All numbers come from methods.js.
"use strict";

const NAMES = ["seg", "depth", "normals", "edges"];
const CURVE_METHODS = ["bpgs", "kendall", "uw-so", "uw-o"];
const VIEWS = { weight: "weight", contribution: "contribution", progress: "progress" };
const MOMENTS = { start: "at the first batch", later: "later, after all weights have converged without it" };
const FACTORS = range(61).map((i) => 10 ** (i / 20));
const START = {
  tasks: 3, losses: [1.2, 0.6, 0.25, 0.1], scaled: 0, factor: 100, steps: 480, when: "start",
  norms: [1, 1, 1, 1], cosines: [0.2, -0.3, 0.1, 0.1, 0, 0.2], view: "contribution", first: "static",
};
const SCALED = { tasks: 3, losses: START.losses, factor: 1000, steps: 480, view: "contribution" };
const CONFLICT = { losses: [1, 1, 1, 1], cosines: [-0.6, 0.4, -0.5, 0.3, -0.2, 0.1], view: "progress" };
const PRESETS = {
  "Equal": { losses: [1, 1, 1, 1], factor: 1, steps: 480, when: "start", cosines: [0.3, 0.3, 0.3, 0.3, 0.3, 0.3] },
  "×1000 from the start": { ...SCALED, scaled: 0, when: "start" },
  "×1000 later": { ...SCALED, scaled: 2, when: "later" },
  "Conflict": { ...CONFLICT, factor: 1 },
  "Conflict and ×100": { ...CONFLICT, factor: 100 },
};
// Pairs in the order 01, 02, 12, 03, …, so that three tasks use the first three.
const PAIRS = range(4).flatMap((i) => range(i).map((j) => [j, i]));

const DASHES = ["none", "9 4", "5 5", "2 5"];

const state = structuredClone(START);
const byId = (id) => document.getElementById(id);
const TITLES = {
  "uw-so": "UW-SO", "uw-o": "UW-O", "kendall-l1": "Kendall + ℓ1", "imtl-l": "IMTL-L", "gls": "Geometric mean",
  "first-loss": "First loss", "nash-mtl": "Nash-MTL", "imtl-g": "IMTL-G", "aligned-mtl": "Aligned-MTL",
};
const title = (method) => TITLES[method] ?? LIBRARY[method].name;

// ---- losses and gradients of the controls -----------------------------------------------------------------------------------------

function sceneAt(factor) {
  const before = state.losses.slice(0, state.tasks);
  const now = before.map((loss, i) => (i === state.scaled ? loss * factor : loss));
  return { before, now, later: state.when === "later", steps: state.steps };
}

function gramAt(factor) {
  const requested = range(state.tasks).map((i) => range(state.tasks).map((j) => (i === j ? 1 : cosine(i, j))));
  const { factor: shrinkage, cosines } = feasible(requested);
  const norms = range(state.tasks).map((i) => state.norms[i] * (i === state.scaled ? factor : 1));
  return { shrinkage, cosines, gram: cosines.map((row, i) => row.map((v, j) => v * norms[i] * norms[j])) };
}

const cosine = (i, j) => state.cosines[PAIRS.findIndex(([a, b]) => a === Math.min(i, j) && b === Math.max(i, j))];

/** Displayed values: shares of the weights, shares of weight × size (loss or gradient norm), or progress. */
function displayed(weights, sizes, gram) {
  if (state.view === "progress") return progress(gram, weights);
  const parts = state.view === "weight" ? weights : weights.map((w, i) => w * sizes[i]);
  const total = sum(parts.map(Math.abs));
  return parts.map((v) => v / total);
}

const gradientNorms = (gram) => gram.map((row, i) => Math.sqrt(row[i]));

// ---- drawing ------------------------------------------------------------------------------------------------------

function number(x) {
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e5 || size < 1e-4) {
    const [digits, power] = x.toExponential(1).split("e");
    return `${digits.replace("-", "−")}·10${sup(power.replace("+", ""))}`;
  }
  return String(Number(x.toPrecision(size >= 1 && size < 1000 ? 3 : 2))).replace("-", "−");
}

const sup = (digits) => [...digits].map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d] ?? "⁻").join("");
const percent = (x) => `${(100 * x).toFixed(Math.abs(x) < 0.1 ? 1 : 0)} %`;
const twoDigits = (x) => x.toFixed(2).replace("-", "−");
const formatValue = (value) => (state.view === "progress" ? twoDigits(value) : percent(value).replace("-", "−"));
const barLabel = (weight, value) => (state.view === "weight" ? `× ${number(weight)}` : formatValue(value));
const signed = () => state.view === "progress";

/** One bar per task, with its value or its weight as a label. */
function bars(weights, values) {
  const width = 240, left = 50, right = 66, row = 19, span = width - left - right;
  const low = signed() || values.some((v) => v < 0) ? -1 : 0;
  const xOf = (v) => left + (span * (v - low)) / (1 - low);
  const rows = values.map((value, i) => {
    const y = i * row + 3, a = xOf(Math.min(value, 0)), b = xOf(Math.max(value, 0));
    return `<text x="0" y="${y + 10}">${NAMES[i]}</text>
      <rect class="track" x="${left}" y="${y}" width="${span}" height="12" rx="2"/>
      <rect class="bar" data-value="${value}" x="${a}" y="${y}" width="${Math.max(b - a, 1)}" height="12" rx="2"
        fill="var(--t${i})"/>
      <text class="value" x="${left + span + 5}" y="${y + 10}">${barLabel(weights[i], value)}</text>`;
  });
  const height = values.length * row + 2;
  const zero = low < 0 ? `<line class="zero" x1="${xOf(0)}" x2="${xOf(0)}" y1="0" y2="${height}"/>` : "";
  const description = values.map((v, i) => `${NAMES[i]} ${formatValue(v)}, weight ${number(weights[i])}`).join("; ");
  return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${description}">${rows.join("")}${zero}</svg>`;
}

/** One curve per task over the factor, and a marker at the factor of the slider. */
function curves(method) {
  const width = 240, height = 150, left = 38, right = 8, top = 8, bottom = 22;
  const ticks = { weight: [1e-4, 1e-2, 1], contribution: [0, 0.5, 1], progress: [-1, 0, 1] }[state.view];
  const x = (factor) => left + ((width - left - right) * Math.log10(factor)) / 3;
  const logarithmic = (v) => 1 + Math.log10(Math.max(v, 1e-4)) / 4, linear = (v) => (v - ticks[0]) / (1 - ticks[0]);
  const y = (v) => top + (height - top - bottom) * (1 - (state.view === "weight" ? logarithmic(v) : linear(v)));
  const at = (factor) => {
    const scene = sceneAt(factor);
    return displayed(LOSS_SPACE[method](scene), scene.now, signed() ? gramAt(factor).gram : null);
  };
  const points = FACTORS.map(at), here = at(state.factor);
  const tick = (t) => (signed() ? number(t) : `${number(100 * t)} %`);
  const grid = ticks.map((t) => `<line class="grid" x1="${left}" x2="${width - right}" y1="${y(t)}" y2="${y(t)}"/>
    <text x="${left - 4}" y="${y(t) + 3.5}" text-anchor="end">${tick(t)}</text>`);
  const labels = [1, 10, 100, 1000].map((f) =>
    `<text x="${x(f)}" y="${height - 6}" text-anchor="${f === 1000 ? "end" : "middle"}">×${f}</text>`);
  // Later curves are dashed, so that coinciding curves stay visible.
  const lines = here.map((_, i) => `<path class="line" stroke="var(--t${i})" stroke-dasharray="${DASHES[i]}"
    d="M${points.map((p, k) => `${x(FACTORS[k]).toFixed(1)},${y(p[i]).toFixed(1)}`).join("L")}"/>`);
  const now = x(state.factor), shares = here.map((v, i) => `${NAMES[i]} ${formatValue(v)}`).join(", ");
  const dots = here.map((v, i) => `<circle class="ring" cx="${now}" cy="${y(v)}" r="4" fill="var(--t${i})"/>`);
  const description = `${title(method)} at ×${number(state.factor)}: ${shares}`;
  return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${description}">${grid.join("")}${labels.join("")}
    <line class="now" x1="${now}" x2="${now}" y1="${top}" y2="${height - bottom}"/>
    ${lines.join("")}${dots.join("")}</svg>`;
}

/** The interval that contains every s, and the tasks in it, on the axis of log-losses. */
function chart(scene) {
  const at = bpgsChart(scene), reach = at.std * at.tau, width = 640, left = 60, span = 560;
  const logs = scene.now.map(Math.log);
  const low = Math.min(at.mu - reach, ...logs) - 0.3, high = Math.max(at.mu + reach, ...logs) + 0.3;
  const x = (v) => left + (span * (v - low)) / (high - low), row = 24;
  const marks = at.s.map((s, i) => {
    const y = 34 + i * row;
    return `<text x="0" y="${y + 4}">${NAMES[i]}</text>
      <path d="M${x(s)},${y}H${x(logs[i])}" stroke="var(--t${i})" stroke-width="1.5" stroke-dasharray="2 3"/>
      <circle cx="${x(logs[i])}" cy="${y}" r="4.5" fill="var(--card)" stroke="var(--t${i})" stroke-width="2"/>
      <circle cx="${x(s)}" cy="${y}" r="3.5" fill="var(--t${i})"/>`;
  });
  const bottom = 34 + at.s.length * row;
  const table = at.theta.map((t, i) => `${NAMES[i]}: θ ${twoDigits(t)}, z/τ ${twoDigits(at.z[i])}, α ${number(at.alpha[i])}`);
  const edges = [[at.mu - reach, "μ − ς̄τ"], [at.mu, "μ"], [at.mu + reach, "μ + ς̄τ"]];
  return `<svg viewBox="0 0 ${width} ${bottom + 4}" role="img" aria-label="${table.join("; ")}">
    <rect class="track" x="${x(at.mu - reach)}" y="18" width="${x(2 * reach) - x(0)}" height="${bottom - 18}"/>
    ${edges.map(([v, name]) => `<text x="${x(v)}" y="12" text-anchor="middle">${name}</text>
      <line class="now" x1="${x(v)}" x2="${x(v)}" y1="18" y2="${bottom}"/>`).join("")}${marks.join("")}</svg>
    <p>Rings are log-losses, and dots are the log-variances s of the chart. The weights are the normalised e⁻ˢ. The shaded
    interval is computed from the batch and contains every s. ${table.join("; ")}.</p>`;
}

// ---- controls -----------------------------------------------------------------------------------------------------

const chip = (task) => `<span class="dot" style="background:var(--t${task})"></span>`;

/** Add a slider for one entry of the state. `range` is [low, high, step] of the slider. */
function slider(parent, id, label, range, read, write, text, colour) {
  const row = document.createElement("div");
  row.className = "slider";
  const [low, high, step] = range;
  row.innerHTML = `<label for="${id}">${colour === undefined ? "" : chip(colour)}${label}</label>
    <input type="range" id="${id}" min="${low}" max="${high}" step="${step}"><output for="${id}"></output>`;
  const [input, output] = [row.querySelector("input"), row.querySelector("output")];
  input.addEventListener("input", () => { write(Number(input.value)); draw(); });
  updates.push(() => {
    input.value = read();
    output.textContent = text();
    input.setAttribute("aria-valuetext", text());
  });
  parent.append(row);
}

/** Add one radio button per option. */
function choice(id, options, read, write) {
  const parent = byId(id);
  for (const [value, label] of Object.entries(options)) {
    const line = document.createElement("label");
    line.innerHTML = `<input type="radio" name="${id}" value="${value}">${label}`;
    const input = line.querySelector("input");
    input.addEventListener("change", () => {
      write(value);
      build();  // creates new buttons, so the focus has to be restored
      document.querySelector(`input[name="${id}"][value="${value}"]`).focus();
    });
    updates.push(() => { input.checked = String(read()) === value; });
    parent.append(line);
  }
}

let updates = [];

function build() {
  updates = [];
  for (const id of ["tasks", "losses", "scaled", "later", "norms", "cosines", "view"]) {
    const legend = byId(id).querySelector("legend");
    byId(id).replaceChildren(legend);
  }
  byId("strip").querySelectorAll(".slider").forEach((row) => row.remove());
  const tasks = range(state.tasks);
  state.scaled = Math.min(state.scaled, state.tasks - 1);
  choice("tasks", { 2: "2", 3: "3", 4: "4" }, () => state.tasks, (v) => { state.tasks = Number(v); });
  for (const i of tasks) {
    slider(byId("losses"), `loss-${i}`, NAMES[i], [-3, 3, 0.05], () => Math.log10(state.losses[i]),
      (v) => { state.losses[i] = 10 ** v; }, () => number(state.losses[i]), i);
  }
  const named = Object.fromEntries(tasks.map((i) => [i, NAMES[i]]));
  choice("scaled", named, () => state.scaled, (v) => { state.scaled = Number(v); });
  choice("later", MOMENTS, () => state.when, (v) => { state.when = v; });
  slider(byId("strip"), "factor", `factor on ${NAMES[state.scaled]}`, [0, 3, 0.01], () => Math.log10(state.factor),
    (v) => { state.factor = 10 ** v; }, () => `×${number(state.factor)}`, state.scaled);
  slider(byId("strip"), "steps", "steps since", [0, 3.5, 0.02], () => Math.log10(state.steps + 1),
    (v) => { state.steps = Math.round(10 ** v) - 1; }, () => String(state.steps));
  choice("view", VIEWS, () => state.view, (v) => { state.view = v; });
  for (const i of tasks) {
    slider(byId("norms"), `norm-${i}`, NAMES[i], [-1, 1, 0.02], () => Math.log10(state.norms[i]),
      (v) => { state.norms[i] = 10 ** v; }, () => number(state.norms[i]), i);
  }
  PAIRS.forEach(([i, j], k) => {
    if (j < state.tasks) {
      slider(byId("cosines"), `cosine-${i}-${j}`, `${NAMES[i]} · ${NAMES[j]}`, [-0.95, 0.95, 0.01],
        () => state.cosines[k], (v) => { state.cosines[k] = v; }, () => twoDigits(gramAt(1).cosines[i][j]));
    }
  });
  draw();
}

// ---- the page -----------------------------------------------------------------------------------------------------

const VIEW_HELP = {
  weight: "Share of each task in the sum of the weights (curves: logarithmic scale). Numbers are the weights.",
  contribution: "Share of each task in the sum of weight × loss, or of weight × gradient norm for methods that use gradients.",
  progress: "Cosine between the joint step and the gradient of each task. Below 0, the step increases the loss of the task.",
};

function card(method, weights, values) {
  const { name, paper, summary } = LIBRARY[method];
  return `<article class="card" data-method="${method}"><h3>${title(method)} <small>cp.${name}</small></h3>
    <p title="${paper}">${summary}</p>${bars(weights, values)}</article>`;
}

function draw() {
  updates.forEach((update) => update());
  const scene = sceneAt(state.factor), { gram, shrinkage } = gramAt(state.factor), k = state.scaled;
  const weights = Object.fromEntries(Object.entries(LOSS_SPACE).map(([name, weigh]) => [name, weigh(scene)]));
  const share = (name) => percent((weights[name][k] * scene.now[k]) / dot(weights[name], scene.now));
  byId("summary").innerHTML = `After ${state.steps} steps with <b>${NAMES[k]} ×${number(state.factor)}</b>, ${NAMES[k]}
    makes up <b>${share("bpgs")}</b> of the objective of BPGS, <b>${share("kendall")}</b> of Kendall,
    <b>${share("uw-so")}</b> of UW-SO and <b>${share("uw-o")}</b> of UW-O.`;
  const keys = range(state.tasks).map((i) => `<span>${chip(i)}${NAMES[i]}</span>`);
  byId("legend").innerHTML = `${keys.join("")}<span>${VIEW_HELP[state.view]}</span>`;
  byId("panels").innerHTML = CURVE_METHODS.map((name) => `<article class="panel" data-method="${name}"><h3>${title(name)}</h3>
    <p>weights sum to ${number(sum(weights[name]))}</p>${curves(name)}</article>`).join("");
  byId("loss-cards").innerHTML = Object.entries(weights)
    .map(([name, w]) => card(name, w, displayed(w, scene.now, gram))).join("");
  byId("chart").innerHTML = chart(scene);
  const scaled = Object.fromEntries(Object.entries(GRADIENT_SCALE).map(([name, weigh]) => [name, weigh(gram)]));
  byId("scale-cards").innerHTML = Object.entries(scaled)
    .map(([name, w]) => card(name, w, displayed(w, gradientNorms(gram), gram))).join("");
  const first = weights[state.first] ?? scaled[state.first];
  byId("gradient-cards").innerHTML = Object.keys(GRADIENT_SPACE).map((name) => {
    const w = aggregate(name, gram, first);
    return card(name, w, displayed(w, gradientNorms(gram), gram));
  }).join("");
  byId("infeasible").hidden = shrinkage === 1;
  byId("infeasible").textContent = "No gradients have this combination of cosines. All cosines are scaled to " +
    `${percent(shrinkage)} of the slider values.`;
}

for (const [name, values] of Object.entries(PRESETS)) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.addEventListener("click", () => { Object.assign(state, structuredClone(values)); build(); });
  byId("presets").append(button);
}
// GradNormProxy runs its own backward passes and cannot precede another method.
byId("first").innerHTML = [...Object.keys(LOSS_SPACE), "grad-normalise"]
  .map((name) => `<option value="${name}">${name === "static" ? "equal weights" : title(name)}</option>`).join("");
byId("first").value = state.first;
byId("first").addEventListener("change", (event) => { state.first = event.target.value; draw(); });

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = (name) => { document.documentElement.dataset.theme = name; };
theme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
const otherTheme = () => (document.documentElement.dataset.theme === "dark" ? "light" : "dark");
byId("theme").addEventListener("click", () => theme(otherTheme()));
build();
