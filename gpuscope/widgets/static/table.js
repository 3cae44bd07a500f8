// A table of fields, a row each stream or workload.
function render({ model, el }) {
  const noun = model.get("noun");
  const home = root(model, el, "gpuscope-table", `${noun[0].toUpperCase()}${noun.slice(1)}s`);
  const send = voice(model, home);
  const list = h("ul", { class: "gs-rows" });
  const [add, makeRow] = adder(model, send, `Add ${noun}`, row);
  const error = alarmPlace();
  home.append(list, h("div", { class: "gs-buttons" }, add), error);
  const kept = new Map();
  const rowOf = (id) => model.get("rows").find((row) => row.id === id);
  const edit = (id, field, value) => send({ action: "edit", id, field, value });

  // What looks like a number is one; anything else goes as it is, to be refused with a reason.
  function typed(text) {
    const bare = text.trim(), number = Number(bare);
    return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(bare) && Math.abs(number) <= 2 ** 53
      ? number : bare;
  }

  const makers = {
    text: (change, name) => commits(h("input", { type: "text", spellcheck: "false", class: `gs-text gs-${name}` }), change),
    number: (change, name) => commits(
      h("input", { type: "text", inputmode: "decimal", class: `gs-number gs-${name}` }), (text) => change(typed(text))),
    choice: (change) => h("select", { onchange: (event) => change(JSON.parse(event.target.value)) }),
    flag: (change) => h("input", { type: "checkbox", onchange: (event) => change(event.target.checked) }),
    several: () => h("span", { class: "gs-several" }),
  };

  // A select whose value is not among its options still shows it.
  function fillChoice(select, options, value) {
    const all = options.map(([key, label]) => [JSON.stringify(key), label]);
    const now = JSON.stringify(value);
    if (!all.some(([key]) => key === now)) all.push([now, `${value} (not there)`]);
    if (`${all}` !== `${[...select.options].map(({ value, text }) => [value, text])}`)
      select.replaceChildren(...all.map(([key, label]) => h("option", { value: key }, label)));
    put(select, "value", now);
  }

  function fillSeveral(place, id, field, options, value, off) {
    const gone = value.filter((one) => !options.some(([key]) => key === one));
    const all = [...options, ...gone.map((one) => [one, `${one} (not there)`])];
    place.boxes ??= new Map();
    keyed(place, place.boxes, all.map(([key]) => key), (key) => {
      const onchange = ({ target }) => {
        const now = rowOf(id).values[field].filter((one) => one !== key);
        edit(id, field, target.checked ? [...now, key] : now);
      };
      return h("label", {}, h("input", { type: "checkbox", onchange }), h("span"));
    });
    for (const [key, name] of all) {
      const [box, words] = place.boxes.get(key).children;
      put(box, "checked", value.includes(key));
      disable(box, off);
      put(words, "textContent", name);
    }
  }

  function cell(id, field) {
    const fault = faultPlace();
    const input = makers[field.type]((value) => edit(id, field.name, value), field.name);
    const node = field.type === "several"
      ? h("fieldset", { class: "gs-field gs-group-of" }, h("legend", {}, field.label), input, fault)
      : labelled(field.label, input, fault);
    put(field.type === "several" ? node : input, "title", field.hint || null);
    node.parts = { input, fault };
    return node;
  }

  function row(id) {
    const legend = h("legend", { class: "gs-unseen" });
    const remove = h("button", {
      class: "gs-quiet", onclick: () => send({ action: "remove", id }),
    }, "Remove");
    const cells = new Map(model.get("fields").map((field) => [field.name, cell(id, field)]));
    const wrong = h("span", { class: "gs-fault", role: "alert", hidden: true });
    const name = h("strong");
    const line = h("span", { class: "gs-line" });
    const group = h("fieldset", { class: "gs-group-of gs-fields" }, legend, ...cells.values(), remove);
    const node = h("li", { class: "gs-row" }, h("details", {}, h("summary", {}, name, line, wrong), group));
    node.parts = { cells, legend, remove, wrong, name, line };
    return node;
  }

  function paint() {
    const off = model.get("disabled"), rows = model.get("rows");
    keyed(list, kept, rows.map((one) => one.id), makeRow);
    for (const one of rows) {
      const { cells, legend, remove, wrong, name, line } = kept.get(one.id).parts;
      const said = Object.values(one.problems).filter(Boolean);
      put(name, "textContent", one.values.name);
      put(line, "textContent", one.line);
      put(line.parentNode, "title", `${one.values.name}: ${one.line}`);
      tell(wrong, said.length ? `⚠ ${said.join("; ")}` : "");
      put(wrong, "data-whole", one.problems[""] ? "yes" : null);  // shown by no field
      put(legend, "textContent", `${noun} ${one.values.name}`);
      put(remove, "aria-label", `Remove ${noun} ${one.values.name}`);
      disable(remove, off);
      for (const field of model.get("fields")) {
        const { input, fault: place } = cells.get(field.name).parts;
        const value = one.values[field.name];
        const shown = Object.entries(field.when)
          .every(([other, values]) => values.includes(one.values[other]));
        put(cells.get(field.name), "hidden", !shown);
        const options = one.options[field.name] ?? field.options;
        if (field.type === "choice") fillChoice(input, options, value);
        else if (field.type === "flag") put(input, "checked", Boolean(value));
        else if (field.type === "several") fillSeveral(input, one.id, field.name, options, value, off);
        else show(input, String(value));
        if (field.type !== "several") disable(input, off);
        fault(input, place, one.problems[field.name] ?? "");
      }
    }
    tell(error, model.get("error"));
    disable(add, off);
  }

  return watch(model, paint);
}

export default { render };
