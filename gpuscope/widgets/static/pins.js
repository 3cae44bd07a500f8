function render({ model, el }) {
  const home = root(model, el, "gpuscope-pins", "Compare runs");
  const send = voice(model, home);
  const list = h("div", { class: "gs-buttons", role: "group", "aria-label": "Runs to compare" });
  home.append(h("span", { class: "gs-inline" }, "Runs (a click pins one: it is kept beside the next runs)"), list);
  const kept = new Map();

  function paint() {
    const runs = model.get("runs");
    put(home, "hidden", runs.length === 0);
    keyed(list, kept, runs.map((run) => run.number), (number) => h("button", {
      type: "button", onclick: () => send({ action: "pin", number }),
    }));
    for (const { number, words, pinned } of runs) {
      const node = kept.get(number);
      put(node, "textContent", `${pinned ? "📌 " : ""}${words}`);
      put(node, "aria-pressed", String(pinned));
      put(node, "title", pinned ? "Pinned: kept beside the next runs. Click to unpin" : "Pin: keep it beside the next runs");
    }
  }

  model.on("change:runs", paint);
  paint();
  return () => model.off("change:runs", paint);
}

export default { render };
