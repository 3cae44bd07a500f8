function render({ model, el }) {
  const home = root(model, el, "gpuscope-bar", "Run");
  const send = voice(model, home);
  const act = (action, more = {}) => () => send({ action, ...more });
  const button = (words, action, more = {}, look = {}) =>
    h("button", { type: "button", onclick: act(action, more), ...look }, words);
  const run = button("Run", "run", {}, { class: "gs-primary" });
  const stop = button("Stop", "stop", {}, { class: "gs-stop" });
  const live = h("input", {
    type: "checkbox",
    onchange: (event) => { model.set("live", event.target.checked); model.save_changes(); },
  });
  const bar = h("progress", { max: "1", "aria-label": "Progress of the run" });
  bar.setAttribute("value", "0");  // without one it would look as if something went on
  const left = h("span", { class: "gs-left" });
  const status = h("p", { class: "gpuscope-status", role: "status" });
  const alarm = h("p", { class: "gs-error gpuscope-error", role: "alert", hidden: true });
  const codes = model.get("codes").map((kind) => button(kind, "code", { kind }));
  const save = button("Save as TOML", "save");
  const file = h("input", { type: "file", accept: ".toml", class: "gs-unseen" });
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    if (chosen) send({ action: "open", name: chosen.name, text: await chosen.text() });
    file.value = "";
  });
  const open = h("label", { class: "gs-file" }, file, "Open TOML");
  const nsight = button("Open in Nsight", "nsight");
  const codeText = h("textarea", { readonly: "", rows: "12", spellcheck: "false", "aria-label": "Code" });
  const copied = h("span", { role: "status" });
  const copy = h("button", { type: "button", onclick: () => copyCode() }, "Copy");
  const hide = h("button", { type: "button", onclick: () => { model.set("code", {}); model.save_changes(); } }, "Close");
  const code = h("div", { class: "gs-code", hidden: true }, codeText,
    h("div", { class: "gs-buttons" }, copy, hide, copied));
  home.append(
    h("div", { class: "gs-buttons" }, run, stop,
      h("label", { class: "gs-inline", title: "Draw while it runs: takes turns with what is measured" },
        live, "Live"), bar, left),
    status, alarm,
    h("div", { class: "gs-buttons" },
      h("span", { id: "" }, "Copy as Python or C++:"), ...codes, save, open, nsight),
    code,
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
    const { text } = model.get("code");
    put(code, "hidden", !text);
    if (!text) return;
    put(codeText, "value", text);
    put(codeText, "aria-label", `${model.get("code").kind} code`);
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
    const running = model.get("running");
    put(run, "disabled", running || !model.get("ready"));
    put(stop, "disabled", !running || model.get("stopping"));
    put(live, "checked", model.get("live"));
    put(bar, "value", model.get("progress"));
    put(left, "textContent", model.get("left"));
    put(status, "textContent", model.get("status"));
    put(alarm, "textContent", model.get("alarm"));
    put(alarm, "hidden", !model.get("alarm"));
    for (const one of [...codes, save, nsight]) put(one, "disabled", running || !model.get("ready"));
    put(file, "disabled", running);
  }

  // The living widget hides what is saved for when its kernel is gone.
  const style = h("style", {}, `.gpuscope-saved-${model.get("uid")} { display: none; }`);
  document.head.append(style);

  const heard = ["running", "stopping", "ready", "live", "progress", "left", "status", "alarm"];
  for (const name of heard) model.on(`change:${name}`, paint);
  model.on("change:code", paintCode);
  model.on("change:file", download);
  paint();
  paintCode();
  return () => {
    for (const name of heard) model.off(`change:${name}`, paint);
    model.off("change:code", paintCode);
    model.off("change:file", download);
    style.remove();
  };
}

export default { render };
