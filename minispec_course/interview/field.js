// A text area of ipywidgets keeps Enter for itself, and JupyterLab takes the line break of Shift+Enter away from every
// text area in a notebook, so it is put in by hand.
function render({ model, el }) {
  const field = document.createElement("textarea");
  el.classList.add("minispec-field");
  el.dataset.lmSuppressShortcuts = "true";  // letters typed here are no commands of the notebook
  field.rows = 3;
  field.value = model.get("value");
  field.placeholder = "Enter replies, Shift+Enter breaks the line";
  field.setAttribute("aria-label", "your reply");
  const shut = () => { field.disabled = model.get("disabled"); };
  const follow = () => { field.value = model.get("value"); };
  const keep = () => { model.set("value", field.value); model.save_changes(); };
  field.onchange = keep;  // when it is left: sent letter by letter, a click could overtake it
  field.onkeydown = (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    if (event.shiftKey) return field.setRangeText("\n", field.selectionStart, field.selectionEnd, "end");
    model.send({ entered: field.value });
    field.value = "";
    keep();
  };
  model.on("change:disabled", shut);
  model.on("change:value", follow);
  shut();
  el.append(field);
  return () => { model.off("change:disabled", shut); model.off("change:value", follow); };
}
export default { render };
