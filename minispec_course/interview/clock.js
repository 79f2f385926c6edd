// The time. And at every step the field below it gets the keyboard, also after a button was pressed.
function render({ model, el }) {
  let seen = Date.now();
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  el.classList.add("drill-clock");
  el.setAttribute("role", "timer");
  const show = () => {
    const used = model.get("used") + (model.get("running") ? (Date.now() - seen) / 1000 : 0);
    const stopped = model.get("running") ? "" : " (stopped)";
    el.textContent = `${two(used / 60)}:${two(used % 60)} of ${model.get("minutes")} minutes${stopped}`;
  };
  const step = () => {
    seen = Date.now();
    show();
    el.closest(".minispec-drill")?.querySelector("textarea:enabled")?.focus();
  };
  model.on("change:step", step);
  const timer = setInterval(show, 1000);
  show();
  return () => { clearInterval(timer); model.off("change:step", step); };
}
export default { render };
