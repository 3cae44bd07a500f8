// The timeline's toolbar, and what it does for the plot beside it: keys, clicks, its size,
// the page's theme, and word of what was painted.

const RESIZES = 20, RESIZE_MS = 250; // how often Plotly is asked to fill its place
const KEYS = {
  ...MOVES,
  n: { do: "next" },
  N: { do: "previous" },
  m: { do: "measure" },
  x: { do: "escape" },
  l: { do: "wait" },
  z: { do: "closer" },
  h: { do: "host" },
  r: { do: "stretch" },
  Escape: { do: "clear" },
  ArrowLeft: { do: "step", along: -1, across: 0 },
  ArrowRight: { do: "step", along: 1, across: 0 },
  ArrowUp: { do: "step", along: 0, across: -1 },
  ArrowDown: { do: "step", along: 0, across: 1 },
};
const DOUBLE_MS = 350;
const PLOT = ".js-plotly-plot";
const AREA = ".nsewdrag"; // Plotly's name for the area between the axes

function isDark(element) {
  for (let at = element; at; at = at.parentElement) {
    const parts = getComputedStyle(at).backgroundColor.match(/[\d.]+/g);
    if (!parts) return false; // it is in no page any more
    const [red, green, blue, alpha] = parts.map(Number);
    if (alpha !== 0) return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
  }
  return false;
}

// -- the toolbar ---------------------------------------------------------------------------
function toolbar(model, el, move) {
  const send = (message) => move(message) || model.send(message);
  const buttons = {};
  // A button of a key, or of a trait that it turns on or off.
  const button = (key, words, label, keys = key.length > 1 ? key : key.toUpperCase()) => {
    const onclick = () => send(KEYS[key] ?? { do: key, on: !model.get("state")[key] });
    const title = keys ? `${label} (${keys})` : label;
    return (buttons[key] = h("button", { title, "aria-label": label, "aria-keyshortcuts": keys || null, onclick }, words));
  };
  const group = (label, ...children) => h("div", { role: "group", "aria-label": label }, ...children);

  const search = h("input", {
    type: "search", placeholder: "Search names", spellcheck: "false",
    "aria-label": "Search names of spans", "aria-keyshortcuts": "/",
    oninput: () => send({ do: "find", text: search.value }),
    onkeydown: (event) => {
      event.stopPropagation();
      if (event.key === "Enter") send({ do: event.shiftKey ? "previous" : "next" });
      if (event.key !== "Escape") return;
      search.value = "";
      send({ do: "find", text: "" });
      el.closest(".gpuscope-timeline")?.querySelector(PLOT)?.focus();
    },
  });
  const found = h("span", { class: "found" }), list = h("div", { class: "list" });
  const status = h("div", { class: "status", role: "status" });
  el.append(
    group("Live", button("follow", "Follow", "Follow the newest spans", "")),
    group(
      "Zoom and pan",
      button("a", "◂", "Pan left"),
      button("d", "▸", "Pan right"),
      button("w", "+", "Zoom in"),
      button("s", "−", "Zoom out"),
      button("f", "All", "All: show everything"),
      button("z", "Selection", "Zoom to the selection"),
    ),
    group(
      "Go to",
      button("x", "Next escape", "Next escape"),
      button("l", "Longest wait", "Longest wait"),
      button("ArrowLeft", "←", "Previous call"),
      button("ArrowRight", "→", "Next call"),
    ),
    group("Search", search, button("N", "‹", "Previous match", "Shift+N"), button("n", "›", "Next match"), found),
    group(
      "View",
      button("m", "Measure", "Measure between two clicks"),
      button("r", "Range", "Select the range in view; or drag with Shift"),
      button("Escape", "Clear", "Clear what is selected and measured"),
      button("h", "Host", "Each row of the host"),
      button("sms", "SMs", "SMs below the tracks", ""),
      h("details", {}, h("summary", {}, "Tracks"), list),
    ),
    status,
  );

  let shown = "";
  const showTracks = (state) => {
    const now = JSON.stringify(state.tracks);
    if (now === shown) return;
    shown = now;
    list.replaceChildren(
      ...state.tracks.map(([label, visible]) => {
        const onchange = (event) => send({ do: "hide", track: label, hidden: !event.target.checked });
        return h("label", {}, h("input", { type: "checkbox", checked: visible, onchange }), label);
      }),
    );
  };
  const show = () => {
    const state = model.get("state"), { search: text, match, matches } = state;
    buttons.follow.parentElement.hidden = !state.live;
    buttons.sms.hidden = state.sms === null;
    const pressed = { follow: state.follow, m: state.measuring, sms: state.sms === true, h: state.host };
    for (const [key, on] of Object.entries(pressed)) put(buttons[key], "aria-pressed", on);
    const there = { x: state.escapes, l: state.calls, n: matches, N: matches };
    for (const [key, some] of Object.entries(there)) buttons[key].disabled = !some;
    found.textContent = text ? `${match ? `${match} of ` : ""}${matches}` : "";
    if (document.activeElement !== search) search.value = text;
    put(status, "textContent", state.status);
    put(status, "title", state.status);
    status.classList.toggle("problem", state.problem);
    showTracks(state);
  };
  const help = Object.values(buttons).map(({ title }) => title).filter((title) => title.endsWith(")")).join(", ");
  return { search, help: `Timeline. ${help}, Search names (/)`, stop: watch(model, show, "state") };
}

// -- the plot beside it --------------------------------------------------------------------
function attend(model, root, { search, help }) {
  const controller = new AbortController();
  const tell = (message) => {
    try {
      model.send(message);
    } catch {
      // Its kernel is gone: nobody waits for what the page would tell.
    }
  };
  const on = (target, name, act, capture = false) =>
    target.addEventListener(name, act, { capture, passive: name === "wheel", signal: controller.signal });
  const plot = () => root.querySelector(PLOT);
  const area = () => root.querySelector(`${PLOT} ${AREA}`)?.getBoundingClientRect();
  let pointer = null;
  const tiles = paintTiles(model, root, tell);

  const within = (event) => {
    const box = area();
    if (!box?.width) return null;
    const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
    return x >= 0 && x <= 1 && y >= 0 && y <= 1 ? { x, y } : null;
  };

  // On the window, which hears a key before JupyterLab's own shortcuts do.
  on(window, "keydown", (event) => {
    if (!(event.target instanceof Element && root.contains(event.target)) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable=true]")) return;
    const known = KEYS[event.key] ?? KEYS[event.key.toLowerCase()];
    if (event.key.startsWith("Arrow") && !event.target.closest(PLOT)) return;
    if (event.key === "/") {
      search.focus();
      search.select();
    } else if (known) {
      // To look for what is under the pointer, until it moves again, would hold up each frame.
      root.querySelector(`${PLOT} ${AREA}`)?.dispatchEvent(new MouseEvent("mouseout"));
      const message = known.do === "zoom" && pointer ? { ...known, at: pointer.x } : known;
      if (!tiles.move(message)) tell(message);
    } else if (event.key.length !== 1 || event.key === " ") {
      return; // Tab, Enter, space: whoever has the focus
    }
    event.preventDefault();
    event.stopImmediatePropagation(); // a letter meant for the timeline must not cut a cell
  }, true);

  let down = null, clicked = null, swept = null; // where a drag with Shift began
  on(root, "mousedown", (event) => swept === null || event.stopImmediatePropagation(), true); // from Plotly
  on(root, "pointerdown", (event) => {
    if (!event.target.closest(PLOT)) return;
    swept = event.shiftKey && event.button === 0 ? within(event)?.x ?? null : null;
    if (swept !== null) return event.preventDefault();
    down = event.button === 0 && within(event) ? event : null;
    if (down) tell({ do: "hold", on: true });
    plot().focus({ preventScroll: true });
  }, true);
  on(window, "pointerup", (event) => {
    if (swept !== null) {
      const range = tiles.sweep(swept, pointer?.x ?? swept);
      swept = null;
      if (range) tell({ do: "stretch", range });
      return;
    }
    if (!down) return;
    const isAt = ({ clientX, clientY }) => Math.hypot(event.clientX - clientX, event.clientY - clientY) < DRAG_PX;
    const still = isAt(down), at = still && within(event);
    down = null;
    if (at) {
      // Plotly covers the page while a button is down: the browser sees no double click.
      const twice = clicked && event.timeStamp - clicked.timeStamp < DOUBLE_MS &&
        isAt(clicked) && !model.get("state").measuring;
      clicked = twice ? null : event;
      if (!twice) tell({ do: "click", ...at, row: tiles.row(at), released: true });
      else if (tiles.move({ do: "fit" })) tell({ do: "hold", on: false });
      else tell({ do: "fit", released: true });
      return;
    }
    const layout = plot()._fullLayout;
    const range = still ? null : layout?.xaxis?.range;
    // Before Plotly redraws what it has: the kernel works meanwhile.
    tell(range ? { do: "range", low: range[0], high: range[1], released: true } : { do: "hold", on: false });
    if (range) tiles.settle();
    if (range) layout._rehover = null; // while it drags, Plotly hears of no pointer that leaves
  }, true);
  on(window, "pointercancel", () => {
    if (down) tell({ do: "hold", on: false });
    down = null;
  });
  on(root, "pointermove", (event) => {
    tiles.hover((pointer = within(event)));
    if (swept !== null && pointer) tiles.sweep(swept, pointer.x);
  }, true);
  on(root, "pointerleave", () => tiles.hover((pointer = null)));
  on(root, "click", (event) => {
    if (!tiles.isOn() || !event.target.closest('.modebar-btn[data-title*="PNG"]')) return;
    event.stopImmediatePropagation(); // Plotly's picture would lack the canvas
    tiles.save();
  }, true);
  // A wheel scrolls the page, with Ctrl it zooms: Plotly alone would take every turn of it.
  on(root, "wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
  }, true);

  const tellTheme = () => tell({ do: "theme", dark: isDark(root) });
  const themes = new MutationObserver(tellTheme);
  themes.observe(document.body, { attributes: true });
  if (isDark(root) !== model.get("state").dark) tellTheme();

  const painted = () => {
    const frame = model.get("frame");
    if (!plot()?._fullData?.length) return; // it is not there yet
    requestAnimationFrame(() => setTimeout(() => {
      tell({ do: "painted", frame });
      root.dispatchEvent(new CustomEvent("gpuscope-painted", { bubbles: true, detail: { frame } }));
    }));
  };

  let width = 0, asked = 0, tries = 0, again = 0;
  let dressed = null;
  const sizes = new ResizeObserver(() => requestAnimationFrame(dress));
  const dress = () => {
    const found = plot();
    if (!found) return;
    if (found !== dressed) {
      dressed = found;
      found.tabIndex = 0;
      found.setAttribute("role", "application");
      found.setAttribute("aria-label", help);
      // Or Plotly, following the width of its place, forgets the height that it was given.
      lay(found, { height: model.get("height") });
      sizes.observe(found); // the details beside it take some of its width
      tiles.attach(found);
      tell({ do: "opened" });
      painted(); // Plotly may have drawn it before it was put here, and told nobody
    }
    // Plotly looks at the size of its place when the window changes only.
    const svg = found.querySelector(".svg-container");
    if (svg) sizes.observe(svg); // and it takes its time
    if (svg && found.clientWidth && Math.abs(svg.clientWidth - found.clientWidth) > 1) {
      // A frame that comes meanwhile may undo it: so it is asked again, a few times for a width.
      if (asked !== found.clientWidth) [asked, tries] = [found.clientWidth, RESIZES];
      if (tries-- > 0) {
        dispatchEvent(new Event("resize"));
        clearTimeout(again);
        again = setTimeout(dress, RESIZE_MS);
      }
    } else asked = 0;
    const now = Math.round(area()?.width ?? 0);
    if (now && now !== width) tell({ do: "size", pixels: (width = now) });
  };
  sizes.observe(root);
  // Each frame changes the page below: to measure it then would cost a layout of its own.
  const parts = new MutationObserver(() => plot() !== dressed && dress());
  parts.observe(root, { childList: true, subtree: true });
  dress();

  const unwatch = watch(model, painted, "frame");
  on(document, "plotlywidget-after-render", ({ detail }) => root.contains(detail.element) && painted());

  const stop = () => {
    clearTimeout(again);
    tiles.stop();
    unwatch();
    for (const observer of [themes, sizes, parts]) observer.disconnect();
    controller.abort();
  };
  return { move: tiles.move, stop };
}

function render({ model, el }) {
  el.classList.add("gpuscope-timeline-bar");
  let plot = null;
  const bar = toolbar(model, el, (message) => plot?.move(message));
  const stopWaiting = onceIn(el, ".gpuscope-timeline", (root) => (plot = attend(model, root, bar)));
  return () => {
    stopWaiting();
    plot?.stop();
    bar.stop();
  };
}

export default { render };
