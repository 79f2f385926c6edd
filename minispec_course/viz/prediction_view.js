// A question with an empty field: Enter or the button commits, "skip" goes on without a guess. And the covered answer.

function add(parent, name, properties = {}) {
  const node = Object.assign(document.createElement(name), properties);
  parent.append(node);
  return node;
}

// Where the keyboard goes after a guess: to the next cell of the notebook, or, in other places, to what is said.
function goOn(el, said) {
  let cell = el.closest(".jp-Cell")?.nextElementSibling;
  while (cell && !cell.matches(".jp-CodeCell")) cell = cell.nextElementSibling;
  said.tabIndex = -1;
  (cell ?? said).focus();
  if (cell && !cell.contains(document.activeElement)) said.focus();
}

// A number makes the same words twice another message.
function tell(model, message) {
  model.set("told", {...message, number: (model.get("told").number ?? 0) + 1});
  model.save_changes();
}

function question({ model, el }) {
  const form = add(el, "div"), id = `minispec-${Math.random().toString(36).slice(2)}`;
  add(form, "label", {className: "question", htmlFor: id, textContent: model.get("question")});
  const row = add(form, "div", {className: "row"});
  const field = add(row, "input", {id, type: "text", inputMode: "decimal", autocomplete: "off",
    placeholder: "your guess", className: "guess"});
  add(row, "span", {textContent: model.get("unit")});
  const commit = add(row, "button", {type: "button", textContent: "commit", className: "jupyter-button",
    title: "after this the guess stays as it is"});
  const skip = add(row, "button", {type: "button", textContent: "skip", className: "jupyter-button",
    title: "see the answer without a guess"});
  const said = add(form, "p", {className: "said"});
  said.setAttribute("role", "status");
  const ask = () => tell(model, {commit: field.value});
  field.addEventListener("keydown", event => {  // before the notebook takes the key for its own
    event.stopPropagation();
    if (event.key === "Enter") { event.preventDefault(); ask(); }
  });
  commit.addEventListener("click", ask);
  skip.addEventListener("click", () => tell(model, {skip: true}));

  let gone = false;  // the kernel: nobody would hear

  function show() {
    const closed = model.get("closed");
    if (closed) field.value = model.get("shown");
    field.disabled = commit.disabled = skip.disabled = closed || gone;
    skip.hidden = commit.hidden = closed;
    field.setAttribute("aria-invalid", String(!closed && model.get("said") !== ""));
    said.textContent = gone && !closed ? "Run this cell to guess." : model.get("said");
  }
  model.on("comm_live_update", () => { gone = true; show(); });
  model.on("change:said", show);
  model.on("change:closed", () => {
    const here = el.contains(document.activeElement);
    show();
    if (here && model.get("closed")) goOn(el, said);
  });
  show();
}

function answer({ model, el }) {
  const said = add(el, "pre", {className: "answer"});
  said.setAttribute("role", "status");
  const skip = add(el, "button", {type: "button", textContent: "skip: show the answer", className: "jupyter-button"});
  skip.addEventListener("click", () => tell(model, {skip: true}));
  const show = () => { said.textContent = model.get("text"); skip.hidden = !model.get("covered"); };
  model.on("comm_live_update", () => { skip.hidden = true; });
  model.on("change:text", show);
  model.on("change:covered", show);
  show();
}

function render(context) {
  context.el.classList.add("minispec-guess");
  context.el.dataset.lmSuppressShortcuts = "true";  // letters and Enter are for the field
  (context.model.get("question") === undefined ? answer : question)(context);
}

export default { render };
