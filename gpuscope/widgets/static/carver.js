// The partition carver: a bar of SMs that is dragged, and its fields.
function render({ model, el }) {
  const home = root(model, el, "gpuscope-carver", "Partitions: the GPU's SMs shared out");
  const send = voice(model, home);
  const names = h("div", { class: "gs-names", "aria-hidden": "true" });
  const cells = h("div", { class: "gs-cells", role: "img" });
  const handles = h("div", { class: "gs-handles" });
  const bubble = h("div", { class: "gs-bubble", hidden: true, "aria-hidden": "true" });
  const strip = h("div", { class: "gs-strip" }, cells, handles, bubble);
  const facts = h("p", { class: "gs-facts" });
  const list = h("ul", { class: "gs-rows" });
  const [add, makeRow] = adder(model, send, "Add partition", row);
  const apply = h("button", { class: "gs-primary", onclick: () => send({ action: "apply" }) }, "Apply");
  const revert = h("button", { onclick: () => send({ action: "revert" }) }, "Revert");
  const state = h("span", { class: "gs-state", role: "status" });
  const error = alarmPlace();
  home.append(
    names, strip, facts, list, h("div", { class: "gs-buttons" }, add, apply, revert, state), error,
  );

  const kept = { rows: new Map(), handles: new Map(), segments: new Map() };
  const rows = () => model.get("rows");
  const rowOf = (id) => rows().find((row) => row.id === id);
  let drag = null;
  const ask = (counts, settle) =>
    set(model, "asking", { counts, settle, serial: (model.get("asking").serial ?? 0) + 1 });

  // Owners from left to right, each with what it holds.
  function segments() {
    const found = [];
    for (const group of model.get("strip").groups ?? []) {
      const last = found.at(-1);
      if (last && last.owner === group.owner) last.sm_count += group.sm_count;
      else found.push({ owner: group.owner, sm_count: group.sm_count });
    }
    return found;
  }

  const title = (owner) => (owner ? rowOf(owner)?.name ?? "held by live partitions" : "no partition");

  const counted = (owner) => owner > 0 && rowOf(owner)?.asked !== "rest";

  // Boundaries that can be moved: where a counted partition is on at least one side.
  function boundaries() {
    const found = [], all = segments(), end = all.findLastIndex((one) => one.owner > 0);
    let at = 0;
    // A last partition that has everything left can be made smaller again.
    if (end >= 0 && all[end + 1]?.owner !== 0) all.splice(end + 1, 0, { owner: 0, sm_count: 0 });
    all.forEach((left, index) => {
      at += left.sm_count;
      const right = all[index + 1];
      if (!right || left.owner < 0 || right.owner < 0) return;
      if (!counted(left.owner) && !counted(right.owner)) return;
      const both = left.sm_count + right.sm_count;
      found.push({ left, right, both, at, start: at - left.sm_count, key: `${left.owner}|${right.owner}` });
    });
    return found;
  }

  // Ask for a boundary that leaves `count` SMs on its left, of those that both sides have now.
  function move(one, count, settle) {
    const { both } = one, most = one.right.owner === 0 ? both : both - 1;
    const left = Math.max(1, Math.min(most, Math.round(count)));
    const counts = {};
    if (counted(one.left.owner)) counts[one.left.owner] = left;
    if (counted(one.right.owner)) counts[one.right.owner] = Math.max(1, both - left);
    ask(counts, settle);
    return left;
  }

  const of = (key) => boundaries().find((one) => one.key === key && !model.get("disabled"));

  function press(key, event) {
    const one = of(key);
    const steps = {
      ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 4, PageDown: -4, Home: -Infinity, End: Infinity,
    }[event.key];
    if (!one || !steps) return;
    event.preventDefault();
    event.stopPropagation();
    move(one, one.left.sm_count + steps * model.get("strip").quantum, true);
  }

  function grab(key, event) {
    const one = of(key);
    if (!one || event.button !== 0) return;
    event.preventDefault();
    event.target.focus();
    event.target.setPointerCapture(event.pointerId);
    drag = { ...one, asked: one.left.sm_count };
  }

  function follow(event) {
    if (!drag) return;
    const box = strip.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * model.get("strip").total;
    drag.asked = move(drag, at - drag.start, false);
    paint();
  }

  function letGo() {
    if (!drag) return;
    const last = drag;
    drag = null;
    move(last, last.asked, true);
    paint();
  }

  function handle(key) {
    return h("div", {
      class: "gs-handle", role: "slider", tabindex: "0", "aria-orientation": "horizontal", "aria-valuemin": 0,
      onkeydown: (event) => press(key, event), onpointerdown: (event) => grab(key, event),
      onpointermove: follow, onpointerup: letGo, onpointercancel: letGo,
    });
  }

  function paintStrip() {
    const { groups = [], total = 1, quantum, remainder } = model.get("strip");
    cells.replaceChildren(...groups.map((group) => {
      const kind = group.kind === "remainder" ? " gs-remainder" : "";
      const owned = group.owner > 0 ? "" : group.owner < 0 ? " gs-held" : " gs-free";
      const node = h("div", {
        class: `gs-group${kind}${owned}`, title: `${group.kind}, ${group.sm_count} SMs: ${title(group.owner)}`,
      });
      node.style.flexGrow = group.sm_count;
      node.style.setProperty("--sms", group.sm_count);
      node.style.backgroundColor = rowOf(group.owner)?.color ?? "";
      return node;
    }));
    const all = segments();
    keyed(names, kept.segments, all.map((one) => one.owner), () => h("div"));
    for (const one of all) {
      const node = kept.segments.get(one.owner);
      node.style.flexGrow = one.sm_count;
      put(node, "textContent", `${title(one.owner)} ${one.sm_count}`);
      put(node, "title", `${title(one.owner)}: ${one.sm_count} SMs`);
    }
    put(cells, "aria-label", `${total} SMs: ` + all
      .map((one) => `${title(one.owner)} ${one.sm_count}`).join(", "));
    const apart = remainder ? `, the last ${remainder} (double line)` : "";
    const found = boundaries();
    put(strip, "title", found.length ? "Drag a boundary, or focus it and press the arrow keys" : null);
    put(facts, "textContent", quantum ? `${total} SMs in steps of ${quantum}${apart}` : "");
    // What is being dragged keeps its handle, whatever the answers do to its sides.
    if (drag && !found.some((one) => one.key === drag.key)) found.push(drag);
    keyed(handles, kept.handles, found.map((one) => one.key), handle);
    for (const one of found) {
      const node = kept.handles.get(one.key);
      const dragged = drag?.key === one.key;
      const at = dragged ? drag.start + drag.asked : one.at;
      node.style.left = `${(100 * at) / total}%`;
      put(node, "aria-label", `Boundary between ${title(one.left.owner)} and ${title(one.right.owner)}`);
      put(node, "aria-valuemax", one.both);
      put(node, "aria-valuenow", one.left.sm_count);
      put(node, "aria-valuetext", [one.left, one.right].map((side) => `${title(side.owner)} ${side.sm_count} SMs`).join(", "));
      put(node, "aria-disabled", model.get("disabled") ? "true" : null);
      if (dragged) {
        bubble.style.left = node.style.left;
        const side = counted(one.left.owner) ? one.left : one.right;
        const asked = side === one.left ? drag.asked : drag.both - drag.asked;
        put(bubble, "textContent",
          `${title(side.owner)}: ${asked} asked, ${side.sm_count} granted`);
      }
    }
    put(bubble, "hidden", !drag);
  }

  function row(id) {
    const node = h("li", { class: "gs-row" });
    const parts = {
      color: h("input", {
        type: "color", onchange: (event) => send({ action: "color", id, color: event.target.value }),
      }),
      name: commits(
        h("input", { type: "text", class: "gs-name", spellcheck: "false" }),
        (name) => send({ action: "rename", id, name }),
      ),
      nameError: faultPlace(),
      count: commits(
        h("input", { type: "text", inputmode: "numeric", class: "gs-count" }),
        (text) => ask({ [id]: /^\s*-?\d{1,15}\s*$/.test(text) ? Number(text) : text.trim() }, false),
      ),
      countError: faultPlace(),
      rest: h("input", {
        type: "checkbox",
        onchange: (event) => ask({ [id]: event.target.checked ? "rest" : rowOf(id).granted }, true),
      }),
      granted: h("output", { class: "gs-granted" }),
      warning: h("span", { class: "gs-warning", role: "status", id: freshId(), hidden: true }),
      remove: h("button", {
        class: "gs-quiet gs-remove", title: "Remove this partition",
        onclick: () => send({ action: "remove", id }),
      }, "×"),
    };
    node.append(
      labelled("Colour", parts.color),
      labelled("Partition", parts.name, parts.nameError),
      labelled("SMs", parts.count, parts.countError),
      h("label", { class: "gs-check" }, parts.rest, "rest"),
      parts.granted, parts.remove, parts.warning,
    );
    node.parts = parts;
    return node;
  }

  function paintRows() {
    const off = model.get("disabled");
    keyed(list, kept.rows, rows().map((one) => one.id), makeRow);
    for (const one of rows()) {
      const { parts } = kept.rows.get(one.id);
      const rest = one.asked === "rest";
      show(parts.color, one.color);
      show(parts.name, one.name);
      show(parts.count, rest ? String(one.granted ?? "") : String(one.asked));
      put(parts.rest, "checked", rest);
      fault(parts.name, parts.nameError, one.name_error);
      fault(parts.count, parts.countError, one.count_error);
      const granted = one.granted === null || one.count_error ? "" : `${one.granted} granted`;
      put(parts.granted, "textContent", one.sm_ids ? `${granted}; SM ids ${one.sm_ids}` : granted);
      tell(parts.warning, one.count_warning && `⚠ ${one.count_warning}`);
      if (one.count_warning) put(parts.count, "aria-describedby", parts.warning.id);
      put(parts.remove, "aria-label", `Remove partition ${one.name}`);
      for (const input of [parts.color, parts.name, parts.rest, parts.remove]) disable(input, off);
      disable(parts.count, off || rest);
    }
  }

  function paint() {
    paintStrip();
    paintRows();
    const off = model.get("disabled"), pending = model.get("pending");
    const wrong = model.get("error") || rows().some((one) => one.name_error || one.count_error);
    tell(error, model.get("error") || model.get("refused"));
    disable(add, off);
    disable(apply, off || Boolean(wrong) || !pending);
    disable(revert, off || !pending);
    apply.parentNode.classList.toggle("gs-pending", pending);
    put(state, "textContent", wrong ? "" : pending ? "Not applied yet." : "Applied.");
  }

  return watch(model, paint, "rows", "strip", "error", "refused", "pending", "disabled");
}

export default { render };
