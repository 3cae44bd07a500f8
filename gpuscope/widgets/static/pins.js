// Pinned runs, to compare with the next.
function render({ model, el }) {
  const home = root(model, el, "gpuscope-pins", "Compare runs");
  const send = voice(model, home);
  const list = h("div", { class: "gs-buttons", role: "group", "aria-label": "Runs to compare" });
  home.append(h("span", { class: "gs-inline" }, "Runs (a click pins one: it is kept beside the next runs)"), list);
  const kept = new Map();

  function paint() {
    const runs = model.get("runs");
    put(home, "hidden", runs.length === 0);
    keyed(list, kept, runs.map((run) => run.number), (number) => h("span", { class: "gs-joined" },
      h("button", { onclick: () => send({ action: "pin", number }) }),
      h("button", { onclick: () => send({ action: "show", number }), "aria-label": `Show run ${number}` }, "Show"),
    ));
    for (const { number, words, pinned, kept: there } of runs) {
      const [pin, show] = kept.get(number).children;
      put(pin, "textContent", `${pinned ? "📌 " : ""}${words}`);
      put(pin, "aria-pressed", String(pinned));
      put(pin, "title", pinned ? "Pinned: kept beside the next runs. Click to unpin" : "Pin: keep it beside the next runs");
      const shown = number === model.get("shown");
      put(show, "textContent", shown ? "shown" : "Show");
      put(show, "title", there ? "Show its timeline and verdicts, and save it" : "Its timeline is no longer kept: pin runs to keep theirs");
      disable(show, shown || !there);
    }
  }

  return watch(model, paint);
}

export default { render };
