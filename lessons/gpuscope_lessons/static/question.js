// A question of a lesson: its fields, what was answered, and the check.
const CHANGES = "change:locked change:said change:tone";
let forms = 0;

// Make an element. A notebook takes keys, such as the arrows, for itself, unless the very element that
// has the focus says otherwise.
function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  node.append(...children);
  if (["button", "input", "select"].includes(tag)) node.setAttribute("data-lm-suppress-shortcuts", "true");
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "value") node.value = value;
    else node.setAttribute(name, value);
  }
  return node;
}

function radio(field, name) {
  const inputs = field.options.map((value) => h("input", { type: "radio", name, value }));
  const rows = inputs.map((input) => h("label", { class: "gs-option" }, input, input.value));
  return {
    node: h("div", {}, ...rows),
    inputs,
    get: () => inputs.find((input) => input.checked)?.value ?? null,
    set: (value) => inputs.forEach((input) => { input.checked = input.value === value; }),
  };
}

// A field of one input under its label.
function single(name, { label, unit }, input, read) {
  return {
    node: h("label", { class: name }, label, " ", input, " ", unit ?? ""),
    inputs: [input],
    get: () => (input.value === "" ? null : read(input.value)),
    set: (value) => { input.value = value ?? ""; },
  };
}

const number = (field) => single("gs-number", field, h("input", { type: "number", step: "any" }), Number);
const select = (field) => single("gs-place", field, h("select", {}, h("option", { value: "" }, "choose"),
  ...field.options.map((value) => h("option", { value }, value))), String);

function render({ model, el }) {
  const make = { radio, select, number }, name = `gpuscope-${Date.now().toString(36)}-${forms += 1}`;
  const parts = model.get("fields").map((one) => make[one.kind](one, name));
  const button = h("button", { type: "submit" }, model.get("button")), said = h("p", { class: "gs-said", role: "status" });
  const form = h("form", { class: "gpuscope-question" },
    h("fieldset", {}, h("legend", {}, model.get("text")), ...parts.map((part) => part.node)),
    button, said);
  form.onkeydown = (event) => {
    if (event.key !== "Enter" || event.target === button) return;
    event.preventDefault(); // JupyterLab keeps a field of numbers from sending its form
    form.requestSubmit();
  };
  form.noValidate = true; // what is missing is told in words, by the kernel
  form.onsubmit = (event) => {
    event.preventDefault();
    model.send({ values: parts.map((part) => part.get()) });
  };

  function update() {
    const locked = model.get("locked"), mine = locked && form.contains(document.activeElement);
    for (const part of parts) for (const input of part.inputs) input.disabled = locked;
    button.disabled = locked;
    said.textContent = model.get("said");
    said.dataset.tone = model.get("tone");
    // While it waits for a first answer, the style sheet hides what stands below.
    form.toggleAttribute("data-unanswered", !locked && model.get("tone") !== "wrong");
    // The next cell is the one to go on with: else the keys that run a cell would ask anew.
    if (mine) form.closest(".jp-Cell")?.nextElementSibling?.focus();
  }
  model.get("given").forEach((value, index) => parts[index].set(value));
  el.append(form);
  model.on(CHANGES, update);
  update();
  return () => model.off(CHANGES, update);
}

export default { render };
