// The picture of a panel, in the page: HTML, and below it the sentence that says the same. The same file draws the
// pictures that are stored in the notebooks (build/pictures.py).

const PATIENCE = 200;  // ms; longer work shows that it works

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
  let tallest = {}, width = 0, timer;

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

  function draw() {
    if (box.innerHTML !== model.get("html")) { box.innerHTML = model.get("html"); readyToChoose(); }
    words.textContent = model.get("words");
    words.hidden = !model.get("words");
    width = box.clientWidth;
    if (el.clientWidth) { keepHeight(box); if (!words.hidden) keepHeight(words); }
    el.dataset.drawn = model.get("drawn");
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
  return () => [sizes, controls, life].forEach(observer => observer.disconnect());
}

export default { render };
