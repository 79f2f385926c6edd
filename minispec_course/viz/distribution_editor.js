// Two distributions as bars that can be dragged: the control of the residual explorer. It works offline, and from the keyboard.
const NS = "http://www.w3.org/2000/svg";
const LEFT = 44, TOP = 18, HEIGHT = 128;
const STEPS = {ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1};

function add(parent, name, attributes = {}, text = "") {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  parent.appendChild(node);
  return node;
}

function render({ model, el }) {
  el.classList.add("minispec-distributions");
  el.dataset.lmSuppressShortcuts = "true";  // arrow keys are ours while a bar has the focus
  const figure = document.createElement("div");
  const legend = document.createElement("div");
  legend.className = "legend";
  legend.innerHTML = `<span><i class="both"></i>min(p, q): accepted</span>
    <span><i class="uncovered"></i>[p − q]₊: uncovered, the residual's share</span>
    <span><i class="surplus"></i>[q − p]₊: surplus, rejected</span>
    <span class="hint">drag, or press ↑ ↓</span>`;
  el.append(figure, legend);
  let bars = [], dragging = false, scale = 1, lines = [];

  function change(which, i, wanted) {
    const probs = structuredClone(model.get("value")), one = probs[which];
    const v = Math.round(Math.min(1, Math.max(0, wanted)) * 100) / 100, rest = 1 - one[i];
    probs[which] = one.map((x, j) => j === i ? v : rest > 1e-9 ? x * (1 - v) / rest : (1 - v) / (one.length - 1));
    model.set("value", probs);
    model.save_changes();
  }

  function build() {
    const narrow = el.clientWidth && el.clientWidth < 440, COLUMN = narrow ? 64 : 112, BAR = narrow ? 25 : 38;
    const labels = model.get("labels"), width = LEFT + labels.length * COLUMN + 8;
    figure.replaceChildren();
    const svg = add(figure, "svg", {viewBox: `0 0 ${width} ${TOP + HEIGHT + 44}`, role: "group",
      "aria-label": "the target's distribution p and the draft's distribution q, token by token",
      style: `width:100%; max-width:${1.1 * width}px; display:block`});
    const hatch = add(add(svg, "defs"), "pattern", {id: "minispec-surplus", width: 6, height: 6,
      patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"});
    add(hatch, "rect", {width: 2, height: 6, class: "stripe"});
    lines = [0, 0.5, 1].map(part => {
      const y = TOP + HEIGHT * (1 - part);
      add(svg, "line", {x1: LEFT, x2: width - 8, y1: y, y2: y, class: "grid"});
      return {part, text: add(svg, "text", {x: LEFT - 8, y: y + 4, "text-anchor": "end", class: "small"})};
    });
    bars = [];
    labels.forEach((label, i) => {
      const x0 = LEFT + i * COLUMN + (COLUMN - 2 * BAR - 6) / 2;
      add(svg, "text", {x: x0 + BAR + 3, y: TOP + HEIGHT + 38, "text-anchor": "middle", class: "token"}, label);
      ["p", "q"].forEach((which, side) => {
        const x = x0 + side * (BAR + 6), shape = {x, width: BAR};
        const bar = {which, i, x,
          both: add(svg, "rect", {...shape, class: "both"}),
          rest: add(svg, "rect", {...shape, class: which === "p" ? "uncovered" : "surplus"}),
          line: add(svg, "rect", {...shape, class: "outline"}),
          grip: add(svg, "line", {x1: x - 2, x2: x + BAR + 2, class: "grip"}),
          value: add(svg, "text", {x: x + BAR / 2, "text-anchor": "middle", class: "small"})};
        add(svg, "text", {x: x + BAR / 2, y: TOP + HEIGHT + 17, "text-anchor": "middle", class: "name"}, which);
        const hit = bar.hit = add(svg, "rect", {x: x - 2, y: TOP - 12, width: BAR + 4, height: HEIGHT + 34, rx: 4,
          class: "hit", tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": 1,
          "aria-orientation": "vertical", "aria-label": `${which} of token ${label}`});
        const drag = event => {
          const y = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).y;
          change(which, i, scale * (TOP + HEIGHT - y) / HEIGHT);
        };
        hit.addEventListener("pointerdown", event => {
          dragging = true; hit.setPointerCapture(event.pointerId); hit.focus(); drag(event); event.preventDefault();
        });
        hit.addEventListener("pointermove", event => { if (dragging) drag(event); });
        const drop = () => { if (dragging) { dragging = false; update(); } };
        hit.addEventListener("pointerup", drop);
        hit.addEventListener("pointercancel", drop);
        hit.addEventListener("keydown", event => {
          const now = model.get("value")[which][i];
          const wanted = event.key in STEPS ? now + STEPS[event.key] : {Home: 0, End: 1}[event.key];
          if (wanted === undefined) return;
          change(which, i, wanted); event.preventDefault(); event.stopPropagation();
        });
        bars.push(bar);
      });
    });
    update();
  }

  function update() {
    const probs = model.get("value");
    if (probs.p.length * 2 !== bars.length) return;  // the labels are about to follow
    const peak = Math.max(...probs.p, ...probs.q);
    if (!dragging) scale = [0.5, 0.75, 1].find(s => peak <= 0.98 * s) ?? 1;
    lines.forEach(line => { line.text.textContent = String(line.part * scale); });
    const up = v => HEIGHT * Math.min(v, scale) / scale;
    for (const bar of bars) {
      const v = probs[bar.which][bar.i], low = Math.min(probs.p[bar.i], probs.q[bar.i]), floor = TOP + HEIGHT;
      const place = (node, from, to) => {
        node.setAttribute("y", floor - up(to));
        node.setAttribute("height", up(to) - up(from));
      };
      place(bar.both, 0, low); place(bar.rest, low, v); place(bar.line, 0, v);
      bar.grip.setAttribute("y1", floor - up(v)); bar.grip.setAttribute("y2", floor - up(v));
      bar.value.setAttribute("y", floor - up(v) - 5); bar.value.textContent = v.toFixed(2);
      bar.hit.setAttribute("aria-valuenow", v.toFixed(2));
    }
  }

  build();
  model.on("change:labels", build);
  model.on("change:value", update);
}
export default { render };
