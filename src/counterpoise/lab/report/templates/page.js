"use strict";
(() => {
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null; // set by the button; null follows the system
  let printing = false;
  let opened = []; // for printing
  const dark = () => !printing && (chosen ?? prefersDark.matches);
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // Lightens the colours on a dark page by a quarter, as in the legend.
  const lighter = (hex) => "#" + [1, 3, 5].map((i) =>
    Math.round(parseInt(hex.slice(i, i + 2), 16) * 0.75 + 63.75).toString(16).padStart(2, "0")).join("");

  const columns = (plot) => Math.min(2, Number(getComputedStyle(plot.closest(".panels")).getPropertyValue("--columns")));
  let figures = null; // JSON texts by number, once they are unpacked
  function figure(plot) {
    let text = figures[plot.dataset.figure].replaceAll('"text-colour"', JSON.stringify(css("--text")));
    if (dark() && !text.includes('"heatmap"')) text = text.replace(/"#[0-9a-fA-F]{6}"/g, (s) => `"${lighter(s.slice(1, 8))}"`);
    const { data, layout } = JSON.parse(text);
    const hidden = hiddenIn(plot.closest(".figure"));
    for (const trace of data) if (hidden.has(trace.name)) trace.visible = false;
    for (const axis of [layout.xaxis, layout.yaxis]) {
      Object.assign(axis, { gridcolor: css("--line"), linecolor: css("--quiet"), tickcolor: css("--line") });
    }
    Object.assign(layout, {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: css("--text") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 8, r: 12, t: 10, b: 8, pad: 2 }, autosize: true,
      ...(printing ? { autosize: false, width: columns(plot) === 2 ? 330 : 680, height: plot.clientHeight } : {}),
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: css("--text") },
      hoverlabel: { bgcolor: css("--soft"), bordercolor: css("--line"), font: { color: css("--text") } },
    });
    return { data, layout };
  }

  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
  const drawn = new Set();
  function draw(plot) {
    drawn.add(plot);
    if (figures === null) return; // drawn when everything is unpacked
    const { data, layout } = figure(plot);
    Plotly.react(plot, data, layout, config);
    plot.dataset.drawn = "";
  }

  // Draws a figure when it comes near the window: a page may have hundreds.
  const plots = [...document.querySelectorAll(".plot")];
  const watch = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) { watch.unobserve(target); draw(target); }
  }, { rootMargin: "400px" });
  plots.forEach((plot) => watch.observe(plot));

  const buttons = (figure) => [...figure.querySelectorAll(".legend button")];
  const hiddenIn = (figure) =>
    new Set(buttons(figure).filter((b) => b.getAttribute("aria-pressed") === "false").map((b) => b.dataset.label));
  const press = (button, on) => button.setAttribute("aria-pressed", String(on));
  for (const element of document.querySelectorAll(".figure")) {
    const update = () => element.querySelectorAll(".plot").forEach((plot) => drawn.has(plot) && draw(plot));
    for (const button of buttons(element)) {
      button.addEventListener("click", () => { press(button, button.getAttribute("aria-pressed") === "false"); update(); });
      button.addEventListener("dblclick", () => { buttons(element).forEach((b) => press(b, b === button)); update(); });
    }
  }

  // Shows the claims with a chosen verdict and all searched words, and the answers, methods and studies with these words.
  const search = document.getElementById("search");
  const filters = [...document.querySelectorAll("button.filter")];
  const texts = new Map();
  const text = (element) => {
    if (!texts.has(element)) texts.set(element, element.textContent.toLowerCase());
    return texts.get(element);
  };
  // Opens what a search has found, and closes it after the search.
  function openFound(group, searching) {
    if (searching) group.open = !group.hidden;
    else if ("searched" in group.dataset) group.open = false;
    group.toggleAttribute("data-searched", Boolean(searching));
  }
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = (element) => words.every((word) => text(element).includes(word));
    const off = new Set(filters.filter((b) => b.getAttribute("aria-pressed") === "false").map((b) => b.dataset.verdict));
    for (const group of document.querySelectorAll(".claims")) {
      const rows = [...group.querySelectorAll("tbody tr")];
      for (const row of rows) row.hidden = off.has(row.dataset.verdict) || !found(row);
      group.hidden = rows.every((row) => row.hidden);
      openFound(group, words.length);
    }
    for (const table of document.querySelectorAll("#leaderboard > .more")) {
      const rows = [...table.querySelectorAll("tbody tr")];
      const studies = (table.dataset.studies || "").toLowerCase();
      const all = words.every((word) => studies.includes(word));
      for (const row of rows) row.hidden = !all && !found(row);
      table.hidden = rows.every((row) => row.hidden);
      openFound(table, words.length);
    }
    for (const answer of document.querySelectorAll(".answer")) {
      answer.hidden = !found(answer);
      answer.querySelectorAll("details").forEach((details) => openFound(details, words.length));
    }
    for (const section of document.querySelectorAll(".study[id]")) {
      section.hidden = !found(section);
      document.querySelector(`nav a[href="#${CSS.escape(section.id)}"]`).hidden = section.hidden;
    }
    tell(words.length);
  }
  // Says what a search has found, with links to the first of each kind.
  const status = document.getElementById("found");
  const searched = [
    ["answer", "answers", ".answer"],
    ["row of tables on methods", "rows of tables on methods", "#leaderboard > .more tbody tr"],
    ["claim", "claims", ".claims tbody tr"],
    ["study", "studies", ".study[id]"],
  ];
  function tell(searching) {
    status.hidden = !searching;
    const parts = searched.map(([one, several, selector]) => {
      const found = document.querySelectorAll(`${selector}:not([hidden])`);
      const part = document.createElement(found.length ? "a" : "span");
      if (found.length) part.href = `#${found[0].closest("[id]").id}`;
      part.textContent = `${found.length} ${found.length === 1 ? one : several}`;
      return part;
    });
    if (parts.some((part) => part.href)) {
      status.replaceChildren("Found: ", ...parts.flatMap((part) => [part, ", "]).slice(0, -1), ".");
    } else status.textContent = "Nothing found.";
  }
  search.addEventListener("input", filter);
  for (const button of filters) {
    button.addEventListener("click", () => { press(button, button.getAttribute("aria-pressed") === "false"); filter(); });
  }

  // Fades the right edge of what can be scrolled to the right.
  const mark = ({ target }) => target.classList.toggle("continues", target.scrollLeft + target.clientWidth < target.scrollWidth - 1);
  const resized = new ResizeObserver((entries) => entries.forEach(mark));
  for (const wide of document.querySelectorAll(".wide")) {
    resized.observe(wide);
    wide.addEventListener("scroll", () => mark({ target: wide }), { passive: true });
  }

  // Opens what a link points into, for example a table among "more tables".
  function reveal() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let element = target; element; element = element.parentElement)
      if (element.tagName === "DETAILS") element.open = true;
    target?.scrollIntoView();
  }
  addEventListener("hashchange", reveal);

  function save(address, name) {
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
  }
  for (const button of document.querySelectorAll("button.data")) {
    button.addEventListener("click", () => {
      const figure = button.closest(".figure");
      const parts = [...figure.querySelectorAll(".plot")].map((plot) => figures[plot.dataset.figure]);
      save(URL.createObjectURL(new Blob([`[${parts}]`], { type: "application/json" })), `${figure.dataset.name}.json`);
    });
  }
  for (const button of document.querySelectorAll("button.image")) {
    const image = button.closest(".sheet").querySelector("img");
    button.addEventListener("click", () => save(image.src, `${button.closest(".strip").id}.webp`));
  }

  function theme() {
    root.dataset.theme = dark() ? "dark" : "light";
    drawn.forEach(draw);
  }
  document.getElementById("theme").addEventListener("click", () => { chosen = !dark(); theme(); });
  prefersDark.addEventListener("change", theme);

  // For printing, draws all figures in the light theme, at the width of the paper.
  addEventListener("beforeprint", () => {
    printing = true;
    opened = [...document.querySelectorAll(":is(.claims, .answer details, #leaderboard > .more):not([open])")];
    for (const group of opened) group.open = true;
    plots.forEach((plot) => drawn.add(plot));
    theme();
  });
  addEventListener("afterprint", () => {
    printing = false;
    for (const group of opened) group.open = false;
    theme();
  });
  theme();
  if (location.hash) reveal();

  async function unpack(id) {
    const element = document.getElementById(id);
    const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
    element.remove();
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }
  // Waits until the page is on screen, because the library takes long to compile.
  requestAnimationFrame(() => setTimeout(async () => {
    const [texts, library] = await Promise.all([unpack("figures"), unpack("plotly")]);
    const script = document.createElement("script");
    script.textContent = library;
    document.head.append(script);
    figures = texts.split("\n");
    drawn.forEach(draw);
  }));
})();
