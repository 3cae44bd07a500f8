// The choice of a device.
function render({ model, el }) {
  const home = root(model, el, "gpuscope-devices", "Device");
  const select = h("select", {
    onchange: (event) => { model.set("device", event.target.value); model.save_changes(); },
  });
  const badge = h("strong", { class: "gs-badge" });
  const error = h("p", { class: "gs-error", role: "alert", hidden: true });
  const words = h("p", { class: "gs-means", hidden: true });
  home.append(
    h("div", { class: "gs-buttons" },
      h("label", { class: "gs-inline" }, h("span", {}, "Device"), select), badge),
    words, error,
  );
  function paint() {
    const options = model.get("options");
    if (options.join("\n") !== [...select.options].map((one) => one.value).join("\n")) {
      select.replaceChildren(...options.map((key) => h("option", { value: key }, key)));
    }
    put(select, "value", model.get("device"));
    disable(select, model.get("disabled"));
    const simulated = model.get("simulated");
    put(badge, "textContent", simulated ? "SIMULATED, not measured" : "Measured");
    put(badge, "class", `gs-badge ${simulated ? "gs-simulated" : "gs-measured"}`);
    put(badge, "hidden", Boolean(model.get("error")));
    put(words, "textContent", model.get("words"));
    put(words, "title", model.get("words"));
    put(words, "hidden", Boolean(model.get("error")));
    put(badge, "title", model.get("words"));
    put(error, "textContent", model.get("error"));
    put(error, "hidden", !model.get("error"));
  }
  const heard = ["options", "device", "simulated", "words", "error", "disabled"];
  for (const name of heard) model.on(`change:${name}`, paint);
  paint();
  return () => { for (const name of heard) model.off(`change:${name}`, paint); };
}

export default { render };
