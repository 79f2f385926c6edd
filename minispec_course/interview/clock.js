// The time. And a message that asks a new field for the focus comes before the field is on the page, so the clock
// looks for it.
function render({ model, el }) {
  let last = null, seen = Date.now();
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  el.classList.add("drill-clock");
  el.setAttribute("role", "timer");
  const show = () => {
    const used = model.get("used") + (model.get("running") ? (Date.now() - seen) / 1000 : 0);
    const stopped = model.get("running") ? "" : " (stopped)";
    el.textContent = `${two(used / 60)}:${two(used % 60)} of ${model.get("minutes")} minutes${stopped}`;
  };
  const follow = (left) => {
    const drill = el.closest(".minispec-drill");
    const field = drill?.querySelector("textarea:enabled, input:enabled");
    if (field && field !== last) {
      last = field;
      field.focus();
    } else if (left) setTimeout(() => follow(left - 1), 50);  // it is not on the page yet, or there is none
  };
  const step = () => { seen = Date.now(); show(); follow(40); };
  model.on("change:step", step);
  const timer = setInterval(show, 1000);
  show();
  if (Date.now() / 1000 - model.get("made") < 10) step();  // a page that is loaded again must not jump
  return () => { clearInterval(timer); model.off("change:step", step); };
}
export default { render };
