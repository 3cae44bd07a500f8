// The choice of a device.
function render({ model, el }) {
  const home = root(model, el, "gpuscope-devices", "Device");
  const select = h("select", {
    onchange: (event) => set(model, "device", event.target.value),
  });
  const badge = h("strong", { class: "gs-badge" });
  const error = h("p", { class: "gs-error", role: "alert", hidden: true });
  const means = h("p", { class: "gs-means", hidden: true });
  home.append(
    h("div", { class: "gs-buttons" },
      h("label", { class: "gs-inline" }, h("span", {}, "Device"), select), badge),
    means, error,
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
    const failed = model.get("error");
    put(badge, "hidden", Boolean(failed));
    tell(means, failed ? "" : model.get("words"));
    for (const node of [badge, means]) put(node, "title", model.get("words"));
    tell(error, failed);
  }
  return watch(model, ["options", "device", "simulated", "words", "error", "disabled"], paint);
}

export default { render };
