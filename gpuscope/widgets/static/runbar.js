// The run bar: buttons, progress and keys.
function render({ model, el }) {
  const home = root(model, el, "gpuscope-bar", "Run");
  const send = voice(model, home);
  const button = (label, action, more = {}, look = {}) =>
    h("button", { onclick: () => send({ action, ...more }), ...look }, label);
  // What is carved by it is what the page shows: the kernel refuses anything else.
  const doRun = () => send({ action: "run", carving: model.get("carving") });
  // One button, in one place: what it does now it says. The second click of a double click is none.
  const verb = h("span"), key = h("kbd", { "aria-hidden": "true" });
  const run = h("button", { class: "gs-primary", onclick: ({ detail }) => {
    if (detail <= 1) model.get("running") ? send({ action: "stop" }) : doRun();
  } }, verb, " ", key);
  const fold = h("button", { class: "gs-fold", title: "Editor (E)", "aria-label": "Editor",
    onclick: () => set(model, "folded", !model.get("folded")) }, "◧");
  const flags = [
    ["live", "Draw while it runs: takes turns with what is measured", "Live"],
    ["sms", "Record which SM ran what, for the rows of SMs and their map: many more rows", "SM map"],
    ["hazards", "Look for work that shares bytes and that nothing orders", "Hazards"],
    ["counters", "Sample busy SMs, tensor pipes and memory, for a lane of each partition", "Counters"],
  ].map(([name, title, label]) => {
    const box = h("input", { type: "checkbox", onchange: () => set(model, name, box.checked) });
    return [box, h("label", { class: "gs-inline", title }, box, label), name];
  });
  const bar = h("progress", { max: "1", "aria-label": "Progress of the run" });
  bar.setAttribute("value", "0");  // without one it would look as if something went on
  const left = h("span", { class: "gs-left" }), times = h("div", {}, bar, left);
  const status = h("p", { class: "gpuscope-status", role: "status" });
  const alarm = h("p", { class: "gs-error gpuscope-error", role: "alert", hidden: true });
  const edited = h("option", { value: "" }, "a preset …");
  const presets = h("select", {
    "aria-label": "Start from", title: "Start from",
    onchange: (event) => { if (event.target.value) send({ action: "preset", name: event.target.value }); },
  }, edited, ...model.get("presets").map((name) => h("option", { value: name }, name)));
  const exports = model.get("exports").map(({ words: label, suffix, hint }) =>
    button(label, "export", { suffix }, { title: hint }));
  const codes = model.get("codes").map((kind) => button(kind, "code", { kind }));
  const save = button("Save as TOML", "save");
  const file = h("input", { type: "file", accept: ".toml", class: "gs-unseen", onchange: async () => {
    const [chosen] = file.files;
    if (chosen) send({ action: "open", name: chosen.name, text: await chosen.text() });
    file.value = "";
  } });
  const open = h("label", { class: "gs-file" }, file, "Open TOML");
  const nsight = button("Open in Nsight", "nsight");
  const codeText = h("textarea", { readonly: "", rows: "12", spellcheck: "false" });
  const copied = h("span", { role: "status" });
  const code = h("div", { class: "gs-code", hidden: true }, codeText, h("div", { class: "gs-buttons" },
    h("button", { onclick: () => copyCode() }, "Copy"),
    h("button", { onclick: () => set(model, "code", {}) }, "Close"), copied));
  const group = (label, ...inside) => h("div", { class: "gs-inline", role: "group", "aria-label": label },
    h("span", { "aria-hidden": "true" }, label), ...inside);
  const menu = (summary, ...inside) =>
    h("details", { class: "gs-more", name: "gpuscope-menus" }, summary, h("div", { class: "gs-menu gs-buttons" }, ...inside));
  home.append(
    fold, run, presets, h("div", { class: "gs-told" }, status, times),
    h("div", { class: "gs-menus" },
      menu(h("summary", {}, "Save"), group("Save run", ...exports)),
      menu(h("summary", { "aria-label": "More" }, "⋯"), ...flags.map(([, label]) => label),
        group("Copy", ...codes), save, open, nsight)),
    alarm, code,
  );

  // A browser may refuse its clipboard: then the code is there to be copied by hand.
  async function copyCode() {
    try {
      await navigator.clipboard.writeText(codeText.value);
      put(copied, "textContent", "Copied.");
    } catch {
      codeText.select();
      put(copied, "textContent", "Selected: copy it with the keyboard.");
    }
  }

  function paintCode() {
    const { kind, text } = model.get("code");
    put(code, "hidden", !text);
    if (!text) return;
    put(codeText, "value", text);
    put(codeText, "aria-label", `${kind} code`);
    copyCode();
  }

  function download() {
    const { name, text } = model.get("file");
    if (!text) return;
    const url = URL.createObjectURL(new Blob([text], { type: "application/toml" }));
    h("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  function paint() {
    const running = model.get("running"), waits = model.get("carving") ? "Apply and run" : "Run";
    put(verb, "textContent", running ? "Stop" : waits);
    put(key, "textContent", running ? "Esc" : waits === "Run" ? "Ctrl+Enter" : "");
    put(run, "title", running ? "Esc" : "Ctrl+Enter");
    run.classList.toggle("gs-stop", running);
    disable(run, running ? model.get("stopping") : !model.get("ready"));
    disable(presets, running);
    put(bar, "value", model.get("progress"));
    put(times, "hidden", !running);
    put(left, "textContent", model.get("left"));
    for (const name of ["textContent", "title"]) put(status, name, model.get("status"));
    tell(alarm, model.get("alarm"));
    put(fold, "aria-expanded", !model.get("folded")); // the dashboard's grid follows: `controls.css` reads it
    for (const [box, , name] of flags) {
      put(box, "checked", model.get(name));
      disable(box, running && name !== "live");
    }
    for (const one of exports) disable(one, running || !model.get("saves"));
    for (const one of [...codes, save, nsight]) disable(one, running || !model.get("ready"));
    put(file, "disabled", running);
  }

  // Apart from the rest: what was chosen stays in view until the kernel has taken it.
  const paintPreset = () => {
    const name = model.get("preset");
    const known = model.get("presets").includes(name);
    put(edited, "textContent", known || !name ? "a preset …" : name);
    put(presets, "value", known ? name : "");
  };

  // Before the notebook, which has its own use for these keys; anywhere in the dashboard.
  function press(event) {
    const board = el.closest(".gpuscope-dashboard") ?? el;
    if (!board.contains(event.target)) return;
    const runs = event.key === "Enter" && (event.ctrlKey || event.metaKey);
    const folds = event.key.toLowerCase() === "e" && !event.ctrlKey && !event.metaKey && !event.altKey
      && !event.target.matches("input:not([type=checkbox]), select, textarea");
    if (!runs && !folds && !(event.key === "Escape" && model.get("running"))) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    if (folds) return fold.click();
    if (!runs) return send({ action: "stop" });
    if (model.get("running")) return;
    if (event.target.dataset.typing === "yes") event.target.dispatchEvent(new Event("change"));
    doRun();
  }
  addEventListener("keydown", press, true);

  // Results are plain HTML, whose buttons say what they do: show a span, or mend what is wrong.
  function goTo(event) {
    const button = event.target.closest("[data-span], [data-mend]");
    if (button) send("mend" in button.dataset ? { action: "mend" } : { action: "span", span: Number(button.dataset.span) });
  }
  const stopWaiting = onceIn(el, ".gpuscope-dashboard", (board) => {
    board.tabIndex = -1; // a click beside the controls leaves the focus in the dashboard, so that its keys work
    board.addEventListener("click", goTo);
  });

  // The living widget hides what is saved for when its kernel is gone.
  const style = h("style", {}, `.gpuscope-saved-${model.get("uid")} { display: none; }`);
  document.head.append(style);

  model.on("change:file", download); // not at once: what was saved is saved
  const undo = [
    watch(model, paint), watch(model, paintPreset, "preset"), watch(model, paintCode, "code"),
    () => model.off("change:file", download), stopWaiting, () => style.remove(),
    () => removeEventListener("keydown", press, true),
  ];
  return () => { for (const act of undo) act(); };
}

export default { render };
