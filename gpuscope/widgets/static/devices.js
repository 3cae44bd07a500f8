// The choice of a device.
function render({ model, el }) {
  const home = root(model, el, "gpuscope-devices", "Device");
  const select = h("select", { "aria-label": "Device", onchange: () => set(model, "device", select.value) });
  const badge = h("strong", { class: "gs-badge" });
  const error = alarmPlace();
  home.append(h("div", { class: "gs-chip" }, badge, select), error);
  const kept = new Map();
  function paint() {
    keyed(select, kept, model.get("options"), (key) => h("option", { value: key }, key));
    put(select, "value", model.get("device"));
    disable(select, model.get("disabled"));
    const simulated = model.get("simulated"), failed = model.get("error");
    put(badge, "textContent", simulated ? "SIMULATED" : "Measured");
    put(badge.parentNode, "class", `gs-chip ${simulated ? "gs-simulated" : "gs-measured"}`);
    put(badge, "hidden", failed !== "");
    put(badge.parentNode, "title", model.get("words"));
    tell(error, failed);
  }
  return watch(model, paint);
}

export default { render };
