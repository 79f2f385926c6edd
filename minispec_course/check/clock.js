// The time of an exam, in a corner of the window.
function render({ model }) {
  const box = document.body.appendChild(document.createElement("div"));
  box.setAttribute("role", "timer");
  box.style.cssText = "position:fixed;right:32px;bottom:40px;z-index:10;padding:0 .5em;border-radius:6px;" +
    "border:1px solid;background:var(--jp-layout-color1,Canvas);font:600 1.6em/1.5 monospace";
  const tick = () => {
    const left = Math.round(model.get("deadline") - Date.now() / 1000), shown = Math.abs(left);
    const minutes = Math.floor(shown / 60), seconds = String(shown % 60).padStart(2, "0");
    box.textContent = `${minutes}:${seconds} ` + (left >= 0 ? "left" : "over time");
    box.style.color = left >= 0 ? "var(--jp-ui-font-color1, inherit)" : "#d55e00";
  };
  tick();
  const timer = setInterval(tick, 1000);
  return () => { clearInterval(timer); box.remove(); };
}
export default { render };
