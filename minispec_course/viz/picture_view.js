// The picture of a panel, in the page: a plotly figure updated in place, or HTML; below it the sentence that says the same.
// The same file draws the pictures that are stored in the notebooks (classroom/pictures.py).

const CONFIG = {displayModeBar: false, displaylogo: false, showTips: false, responsive: false, doubleClick: false};
const PATIENCE = 200;  // ms; longer work shows that it works

// plotly.js is sent once for each kernel, in the one model that `library` names, and run once for each page.
async function plotly(model) {
  globalThis.minispecPlotly ??= (async () => {
    const id = model.get("library").replace("IPY_MODEL_", "");
    const source = (await model.widget_manager.get_model(id)).get("source");
    await new Promise(go => setTimeout(go, 200));  // running it keeps the page busy: let widgets that arrive with it go first
    const module = {exports: {}};
    new Function("module", new TextDecoder().decode(source))(module);
    return module.exports;
  })();
  try {
    return await globalThis.minispecPlotly;
  } catch (error) {
    globalThis.minispecPlotly = undefined;  // the next panel may have more luck: its kernel lives
    throw error;
  }
}

// One drawing after the other, with room between them for everything else the page has to do: a page that is busy for two
// seconds makes anywidget give up on the widgets that are just arriving.
function turn() {
  globalThis.minispecTurn = (globalThis.minispecTurn ?? Promise.resolve()).then(() => new Promise(go => setTimeout(go)));
  return globalThis.minispecTurn;
}

// A page runs code faster once it has run often. So the first figures are drawn a few times over, the same again, while
// there is nothing else to do: the first step of a slider is then as quick as the tenth.
function rehearse(draw) {
  const idle = globalThis.requestIdleCallback;
  if (!idle) return;
  globalThis.minispecRehearsals ??= 12;  // in all, on this page
  let here = 4;
  const again = time => {
    if (time.timeRemaining() > 20) {  // no frame is due, no key was pressed
      draw();
      globalThis.minispecRehearsals -= 1;
      here -= 1;
    }
    if (here > 0 && globalThis.minispecRehearsals > 0) idle(again);
  };
  idle(again);
}

// Plotly's promise may stay open for ever (a figure that was taken out of the page half drawn): the next drawing is not
// to wait for it.
const patiently = promise => Promise.race([promise, new Promise(resolve => setTimeout(resolve, 1000))]);

function isDark(el) {
  const [r, g, b] = getComputedStyle(el).color.match(/[\d.]+/g).map(Number);  // light text: a dark page
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 128;
}

// A figure is drawn for no page in particular. Here its text takes a colour that this page makes readable (4.5:1).
function inked(node, ink, was) {
  if (typeof node === "string") return was.includes(node.toLowerCase()) ? ink : node;
  if (Array.isArray(node)) return node.map(part => inked(part, ink, was));
  if (node === null || typeof node !== "object" || ArrayBuffer.isView(node)) return node;
  return Object.fromEntries(Object.entries(node).map(([key, part]) => [key, inked(part, ink, was)]));
}

// Measuring every tick's label, to hide those that reach beyond the picture, is a third of plotly's work. Margins give
// them room.
function lighter(layout) {
  const ofAll = layout.template?.layout ?? {}, loose = {ticklabeloverflow: "allow"};
  const template = {...layout.template, layout: {...ofAll, xaxis: {...ofAll.xaxis, ...loose}, yaxis: {...ofAll.yaxis, ...loose}}};
  return {...layout, template};
}

// What ipywidgets leaves without a name: sliders, their numbers, and the three buttons of a player.
function nameControls(panel) {
  for (const slider of panel.querySelectorAll(".widget-slider")) {
    const name = slider.querySelector(".widget-label")?.textContent.trim();
    if (!name) continue;
    slider.querySelectorAll(".noUi-handle").forEach(handle => handle.setAttribute("aria-label", name));
    for (const number of slider.querySelectorAll(".widget-readout")) {
      number.setAttribute("aria-label", `${name}, as a number`);
      number.setAttribute("role", "textbox");
    }
  }
  for (const player of panel.querySelectorAll(".widget-play")) {
    const names = ["play or pause", "stop and go back to the start", "play in a loop"];
    const buttons = [...player.querySelectorAll("button")];
    if (buttons.length > names.length) names.splice(1, 0, "pause");
    buttons.forEach((button, place) => {
      button.setAttribute("aria-label", names[place]);
      button.title = names[place];
    });
  }
}

function render({ model, el }) {
  el.classList.add("minispec-picture");
  const box = document.createElement("div"), words = document.createElement("p"), busy = document.createElement("div");
  box.className = "picture";
  words.className = "words";
  words.setAttribute("role", "status");
  busy.className = "busy";
  busy.setAttribute("role", "status");
  el.append(box, busy, words);
  let drawing = false, again = false, gone = false, tallest = {}, plotted = false, width = 0, timer;

  function keepHeight(node) {  // never lower than it was: what is below stays where it is
    const wide = Math.round(el.clientWidth / 50);
    if (wide !== tallest.wide) { tallest = {wide}; box.style.minHeight = words.style.minHeight = ""; }
    tallest[node.className] ??= node === words ? roomForLongest() : 0;
    const height = Math.max(tallest[node.className], Math.ceil(node.getBoundingClientRect().height));
    tallest[node.className] = height;
    node.style.minHeight = `${height}px`;
  }

  function roomForLongest() {  // the height of the longest sentence that this panel may say, at this width
    const probe = words.cloneNode();
    probe.textContent = model.get("longest");
    probe.style.cssText = "visibility: hidden; min-height: 0";
    words.after(probe);
    const height = Math.ceil(probe.getBoundingClientRect().height);
    probe.remove();
    return height;
  }

  async function drawFigure(figure) {
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", model.get("words") || "a chart");
    box.style.minHeight = `${Math.max(figure.layout.height ?? 400, tallest.picture ?? 0)}px`;
    const library = await plotly(model);
    if (!plotted || width !== box.clientWidth) await turn();  // a step of a slider need not wait for its turn
    width = box.clientWidth;  // less than the element's where that has a padding, as in a stored picture
    if (gone || !width) return;  // out of sight: the observer of sizes draws it when it comes back
    const ink = isDark(el) ? "#c8d0d9" : "#4a535d", wide = width;
    const drawn = () => {  // plotly keeps what it is given, so it gets a copy of its own
      const { data, layout } = inked(figure, ink, model.get("greys"));
      const size = {width: wide, height: layout.height ?? 400, autosize: false};
      // without the settings, which never change: to compare them it would copy them
      return library.react(box, data, {...lighter(layout), ...size}, plotted ? undefined : CONFIG);
    };
    await patiently(drawn());
    if (!plotted) {
      plotted = true;
      rehearse(() => { if (!gone && !drawing && figure === model.get("figure") && wide === box.clientWidth) drawn(); });
      box.on("plotly_click", ({ points: [point] }) => {
        const name = model.get("figure").layout.meta?.choose;
        if (name && point.customdata !== undefined) choose(name, [point.customdata].flat()[0]);
      });
    }
  }

  async function draw() {
    if (drawing) { again = true; return; }  // a drag never queues drawings: the newest follows the one under way
    drawing = true;
    try {
      do {
        again = false;
        const figure = model.get("figure");
        if (figure.data) await drawFigure(figure);
        else if (box.innerHTML !== model.get("html")) { box.innerHTML = model.get("html"); readyToChoose(); }
        words.textContent = model.get("words");
        words.hidden = !model.get("words");
        if (el.clientWidth) { keepHeight(box); if (!words.hidden) keepHeight(words); }
      } while (again);
    } finally {
      drawing = false;
      el.dataset.drawn = model.get("drawn");
    }
  }

  function choose(name, value) {
    model.set("chosen", {name, value, number: (model.get("chosen").number ?? 0) + 1});  // the same again is a choice too
    model.save_changes();
  }

  function readyToChoose() {  // <g data-choose='{"node": 3}'>: a click, or Enter, sets that control
    for (const node of box.querySelectorAll("[data-choose]")) {
      if (!node.hasAttribute("tabindex")) node.tabIndex = 0;
      if (!node.hasAttribute("role")) node.setAttribute("role", "button");
    }
  }
  const chosen = event => {
    const node = event.target.closest?.("[data-choose]");
    if (!node || (event.type === "keydown" && !["Enter", " "].includes(event.key))) return;
    event.preventDefault();
    event.stopPropagation();
    for (const [name, value] of Object.entries(JSON.parse(node.dataset.choose))) choose(name, value);
  };
  box.addEventListener("click", chosen);
  box.addEventListener("keydown", chosen);

  function showBusy() {
    clearTimeout(timer);
    if (model.get("busy")) timer = setTimeout(() => { busy.textContent = "computing …"; }, PATIENCE);
    else busy.textContent = "";
  }

  // A control without its kernel would move, and its picture would not.
  const life = new MutationObserver(() => {
    panel.firstElementChild.inert = panel.classList.contains("jupyter-widgets-disconnected");
  });
  const later = () => requestAnimationFrame(draw);
  model.on("change:drawn", draw);  // all of a message is there when its first change is told
  model.on("change:busy", showBusy);
  const sizes = new ResizeObserver(() => { if (box.clientWidth && box.clientWidth !== width) later(); });
  sizes.observe(el);
  const themes = new MutationObserver(() => setTimeout(later, 250));  // its style sheet follows the name
  themes.observe(document.body, {attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "class"]});
  const controls = new MutationObserver(() => panel && nameControls(panel));
  let panel = null;
  setTimeout(() => {  // once the panel around it is in the page
    panel = el.closest(".minispec-panel");
    if (!panel) return;
    nameControls(panel);
    life.observe(panel, {attributeFilter: ["class"]});
    controls.observe(panel.firstElementChild, {childList: true, subtree: true});
  });
  draw();
  return () => {
    gone = true;
    [sizes, themes, controls, life].forEach(observer => observer.disconnect());
    if (plotted) globalThis.minispecPlotly?.then(library => library.purge(box));
  };
}

export default { render };
