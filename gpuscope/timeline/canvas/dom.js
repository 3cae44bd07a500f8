// What every widget's script begins with.

const AS_PROPERTY = new Set(["value", "checked", "disabled", "textContent", "hidden", "open"]);

// Give an element an attribute or property; null takes it away.
function put(node, name, value) {
  if (AS_PROPERTY.has(name)) {
    if (node[name] !== value) node[name] = value;
  } else if (value === null || value === undefined) {
    node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, value);
  }
}

const FOCUSABLE = new Set(["button", "input", "select", "textarea", "summary"]);
const FIRST = `:is(${[...FOCUSABLE].join(", ")}):not(:disabled, [type=color])`;

// Make an element; "onclick" and the like are listeners. A notebook takes keys, such as the
// arrows, for itself, unless the very element that has the focus says otherwise. Children come
// first: the value of an option is its text until it is given another, an empty one too.
function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  node.append(...children);
  if (tag === "button") node.type = "button";
  if (FOCUSABLE.has(tag) || "tabindex" in attributes) put(node, "data-lm-suppress-shortcuts", "true");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else put(node, name, value);
  }
  return node;
}

// Return the square that a pattern repeats; LOOKS is `for_pages` of timeline/hatches.py.
function patternCell({ fill, pattern, escaped }, tint = 0) {
  const { cell: size, ink, hatches } = LOOKS, hatch = escaped ? LOOKS.escaped : hatches[pattern];
  const cell = h("canvas", { width: size, height: size }), pen = cell.getContext("2d");
  pen.fillStyle = fill;
  pen.globalAlpha = escaped ? 1 : tint;
  pen.fillRect(0, 0, size, size);
  pen.globalAlpha = 1;
  pen.strokeStyle = escaped ? ink : fill;
  pen.lineWidth = hatch.width;
  for (const points of hatch.strokes) pen.stroke(new Path2D(`M${points.join("L")}`));
  return cell;
}

// Give an element a place or a size, in px.
function lay(node, sizes) {
  for (const [name, px] of Object.entries(sizes))
    if (node.style[name] !== `${px}px`) node.style[name] = `${px}px`; // to set it costs even if it stays
}

const focused = (node) => node.getRootNode().activeElement;

// Nothing can be done with an element now. What has the focus keeps it: a browser would take it
// from a disabled one.
function disable(node, off) {
  const held = off && node === focused(node);
  put(node, "disabled", off && !held);
  put(node, "aria-disabled", held ? "true" : null);
  if ("readOnly" in node) node.readOnly = held;
}

// Keep one child for each key, in order. What stays is not touched, so it keeps the focus; that
// of a child which goes is its neighbour's, of whatever stands behind them all, or the dashboard's.
function keyed(parent, kept, keys, make) {
  for (const [key, node] of [...kept]) {
    if (!keys.includes(key)) {
      const held = node.contains(focused(node));
      const next = node.nextElementSibling ?? node.previousElementSibling ?? parent.nextElementSibling;
      node.remove();
      kept.delete(key);
      if (held) (next?.querySelector(FIRST) ?? parent.closest("[tabindex]"))?.focus({ preventScroll: true });
    }
  }
  keys.forEach((key, index) => {
    if (!kept.has(key)) kept.set(key, make(key));
    const node = kept.get(key);
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
  });
}

// A field's value follows the model, but not under the hands of whoever is typing.
function show(input, value) {
  const typing = input === input.getRootNode().activeElement && input.dataset.typing === "yes";
  if (!typing) put(input, "value", value);
}

// Mark a field as being typed in until it is left or Enter is pressed; then commit what changed.
function commits(input, commit) {
  const done = () => {
    if (input.dataset.typing !== "yes") return;
    input.dataset.typing = "";
    commit(input.value);
  };
  input.oninput = () => { input.dataset.typing = "yes"; };
  input.onchange = done;
  input.onkeydown = ({ key }) => { if (key === "Enter") done(); };
  return input;
}

let numbers = 0;
function freshId() {
  numbers += 1;
  return `gpuscope-${Date.now().toString(36)}-${numbers}`;
}

// A button that adds a row, and what makes the rows of a list: who added one goes on in its first field.
function adder(model, send, label, make) {
  let adding = false;
  const onclick = () => {
    adding = !model.get("disabled");
    send({ action: "add" });
  };
  const row = (id) => {
    const node = make(id), fold = node.querySelector("details");
    if (adding && fold) fold.open = true;
    if (adding) requestAnimationFrame(() => node.querySelector("input[type=text]")?.focus());
    adding = false;
    return node;
  };
  return [h("button", { onclick }, label), row];
}

// A field under its label, with room for an error: whatever stands there, the name stays the label.
function labelled(label, input, ...below) {
  input.id ||= freshId();
  return h("div", { class: "gs-field" }, h("label", { for: input.id }, label), input, ...below);
}

// Words in an element that is hidden where there are none.
function tell(place, text) {
  put(place, "textContent", text);
  put(place, "hidden", !text);
}

// Where errors stand: of a field, and of a control.
const faultPlace = () => h("span", { class: "gs-fault", id: freshId(), hidden: true });
const alarmPlace = () => h("p", { class: "gs-error", role: "alert", hidden: true });

// An error under a field, and the field told of it.
function fault(input, place, text) {
  tell(place, text);
  put(input, "aria-invalid", text ? "true" : null);
  put(input, "aria-describedby", text ? place.id : null);
}

// The outermost element.
function root(model, el, className, label) {
  const heading = model.get("heading");
  const node = h("section", {
    class: `gpuscope-control ${className}`, "aria-label": heading || label,
  });
  if (heading) node.append(h("h3", {}, heading));
  el.append(node);
  return node;
}

// How a control speaks to its kernel; where that is gone, it says so once.
function voice(model, home) {
  return (message) => {
    try {
      model.send(message);
    } catch {
      home.querySelector(":scope > .gs-gone")?.remove();
      home.append(h("p", { class: "gs-error gs-gone", role: "alert" },
        "The kernel of this widget is gone: run its cell again."));
    }
  };
}

// Act now, and whenever one of these traits changes, or any; what is returned ends that.
function watch(model, act, ...names) {
  const events = names.map((name) => `change:${name}`).join(" ") || "change";
  model.on(events, act);
  act();
  return () => model.off(events, act);
}

// Act once an element stands in another; what is returned ends the wait.
function onceIn(el, selector, act) {
  const sizes = new ResizeObserver(() => {
    const home = el.closest(selector);
    if (!home) return;
    sizes.disconnect();
    act(home);
  });
  sizes.observe(el);
  return () => sizes.disconnect();
}

// Set a trait, and tell the kernel.
function set(model, name, value) {
  model.set(name, value);
  model.save_changes();
}
