// A timeline in a file: tiles.js paints it from the tiles that served.js makes, on axes of its own.
// file.py writes the elements that this fills.

const SHARES_PX = 72;
const GUTTER = [0.3, 190]; // for the labels of tracks: share of the width, and px at most
const WHEEL = 1.0015;

// The page's address tells the view of the one that is linked.
async function showTimeline(root, isLinked) {
  const spans = JSON.parse(root.querySelector("script").textContent);
  const { first, dark } = spans;
  const groups = readGroups(spans, await unpacked(spans.data));
  const rest = spans.rest ? readRest(spans.rest, await unpacked(spans.rest.data)) : [];
  groups.forEach((group, n) => (group.busy[3] = rest[n]));
  const calls = readCalls(spans.calls, await unpacked(spans.calls.data));
  const inDark = matchMedia("(prefers-color-scheme: dark)");
  let layout = null, painted = null, height = 0;
  const counters = readCounters(spans.counters, await unpacked(spans.counters.data));
  const make = tileServer(spans, groups, calls, counters, () => layout.labels.length);
  // Put the rows where a layout has them: those of the host as one, or each.
  const place = (which) => {
    layout = spans.layouts[which];
    ({ height, rows: spans.rows } = layout);
    for (const thing of [...groups, ...calls.lanes]) thing.place = layout.rows[thing.home];
    const { columns, top } = layout.scene;
    painted = { ...layout.scene, breaks: [...layout.scene.breaks, ...sparse()], root: make(0, columns * 2 ** top, columns) };
  };
  // Return where not all is drawn that there is, as breaks of some rows: spans from a time on, and
  // calls from a zoom on.
  const sparse = () => {
    const { tops, heights, waits, wait, extent } = layout.scene;
    const cut = new Set(groups.filter(({ isCut }) => isCut).map(({ place }) => place));
    return [
      ...(spans.rest ? [[spans.rest.from, extent[1], spans.rest.words, [...cut].map((row) => [tops[row], heights[row]]), 0]] : []),
      ...calls.lanes.flatMap(({ place }, n) =>
        (spans.calls.words[n] ? [[...extent, [spans.calls.words[n]], [[waits[place], wait]], 1 / spans.calls.column]] : [])),
    ];
  };
  place(0);
  const unions = spans.layouts[1].labels.map((_, home) => {
    const busy = groups.filter((group) => group.home === home).map((group) => group.busy);
    const union = unionOf(busy.flatMap(([from]) => from), busy.flatMap(([, till]) => till));
    return [...union, rest[groups.length + home]];
  });
  // Return the stretches of the view of which no rows are missing: as `seen_in` of columns.py.
  const seenIn = () => {
    const seen = [];
    let since = low;
    for (const [from, to] of [...layout.scene.breaks].sort(([a], [b]) => a - b)) {
      if (from > since) seen.push([since, Math.min(from, high)]);
      since = Math.max(since, to);
      if (since >= high) break;
    }
    return since < high ? [...seen, [since, high]] : seen;
  };
  // Return which share of them the rows of the GPU were busy for, and how long, or of how much where
  // they are not the whole view: as `shares_of` of words.py.
  const sharesIn = () => {
    const words = [], seen = seenIn(), length = seen.reduce((sum, [from, to]) => sum + to - from, 0);
    layout.rows.forEach((row, track) => {
      const busy = seen.reduce((sum, [from, to]) => sum + busyUpTo(unions[track], to) - busyUpTo(unions[track], from), 0);
      if (layout.scene.gpu[row])
        words[row] = length ? [percentOf(busy / length), length === high - low ? durationOf(busy) : `of ${durationOf(length)}`] : ["–"];
    });
    return words;
  };
  const themed = () => {
    const colours = getComputedStyle(root);
    return { ...painted, ink: colours.color, paper: colours.getPropertyValue("--card"),
      classes: inDark.matches ? dark : painted.classes };
  };

  // -- the elements, and what tiles.js asks of a plot ---------------------------------
  const holder = h("div", { class: "svg-container", tabindex: 0, role: "application", "aria-label": spans.label });
  const labels = h("div"), axis = h("div", { class: "axis" }), title = h("div", { class: "muted title" });
  const outline = h("div", { class: "selected", hidden: true }), dock = h("div", { class: "dock", "aria-live": "polite" });
  const listeners = {};
  const plot = {
    _fullData: painted.classes.map((_, meta) => ({ type: "bar", visible: true, meta })),
    layout: { xaxis: {} },
    on: (name, act) => (listeners[name] = act),
    querySelector: () => holder,
    plotly: { relayout: (_, changes) => relayout(changes) },
  };
  let selected = null, scene = themed(), heard = {}, pointers = new Map(), pressed = null;
  const model = {
    get: (name) => (name === "scene" ? scene : { get shares() { return sharesIn(); } }),
    on: (name, act) => (heard[name] = act),
    off: () => {},
  };
  const tell = (message) => {
    if (message.do !== "tiles") return;
    setTimeout(() => {
      const tiles = message.want.map(([levelOf, index]) => {
        const size = painted.columns * 2 ** levelOf;
        return { key: [levelOf, index], ...make(index * size, (index + 1) * size, painted.columns) };
      });
      heard["msg:custom"]({ tiles, version: scene.version }, []);
    });
  };
  const [least, most] = painted.extent;
  const linked = new URLSearchParams(isLinked ? location.hash.slice(1) : "");
  let [low, high] = (linked.get("t") ?? "").split("-").map(Number);
  if (!(high > low && low >= least && high <= most)) [low, high] = first;

  const fitWidth = () => {
    const width = root.clientWidth;
    lay(holder, { height });
    const left = Math.round(Math.min(GUTTER[0] * width, GUTTER[1]));
    const right = Math.min(SHARES_PX, 0.2 * width), wide = Math.max(50, width - left - right), xaxis = plot._fullLayout?.xaxis;
    plot._fullLayout = {
      width, height, _size: { l: left, t: 0, r: right, w: wide, h: height }, yaxis: { _length: height, _offset: 0 },
      xaxis: { range: [low / 1e3, high / 1e3], title: { text: "" }, ...xaxis, _length: wide, _offset: left },
    };
    const scale = height / scene.height;
    const labelled = [
      ...layout.labels.map((text, row) => [text, scene.tops[row], scene.heights[row]]),
      ...scene.counters.map(({ label, top, tall }) => [label, top, tall]),
    ];
    labels.replaceChildren(...labelled.map(([text, top, tall]) => {
      const label = h("div", { class: "track", title: text }, text);
      lay(label, { top: top * scale, lineHeight: tall * scale, width: left - 8 });
      return label;
    }));
    for (const node of [title, axis]) lay(node, { marginLeft: left });
  };
  // tiles.js puts the ticks of a range where it finds them in Plotly.
  const relayout = ({ "xaxis.range": range, "xaxis.title.text": text = plot._fullLayout.xaxis.title.text }) => {
    const xaxis = Object.assign(plot._fullLayout.xaxis, { range, tickmode: "array", title: { text } });
    [low, high] = range.map((edge) => Math.round(edge * 1e3));
    const px = xaxis._length / (high - low);
    axis.replaceChildren(...xaxis.ticktext.flatMap((text, n) => {
      const x = (xaxis.tickvals[n] * 1e3 - low) * px;
      if (x < 0 || x > xaxis._length) return [];
      const tick = h("span", {}, text);
      lay(tick, { left: x });
      return [tick];
    }));
    title.textContent = `${text} · ${durationOf(high - low)} of ${durationOf(most - least)} in view`;
    drawSelected();
    remember();
    listeners.plotly_afterplot();
  };

  // -- what is selected ---------------------------------------------------------------
  const find = (row) => {
    const group = groups.find(({ row: from, count }) => row !== null && row >= from && row < from + count);
    const n = row - group?.row;
    return { group, n, start: group?.start[n], end: group?.end[n], till: Math.min(group?.end[n], most) };
  };
  const drawSelected = () => {
    const { group, n, start, end } = find(selected);
    outline.hidden = !group || end < low || start > high;
    if (!group) return;
    const { xaxis } = plot._fullLayout, scale = height / scene.height;
    const x = (time) => xaxis._offset + (Math.min(Math.max(time, low), high) - low) * (xaxis._length / (high - low));
    const [top, tall] = painter.barAt(group.place, group.line[n], scale), left = x(start);
    lay(outline, { left: left - 2, width: Math.max(x(end) - left, 1) + 4, top: top - 2, height: tall + scale + 2 });
  };
  const select = (row) => {
    selected = row;
    const { group, n, start, end } = find(row);
    dock.replaceChildren();
    if (group) {
      const [name, tail] = spans.codes[group.code[n]];
      const lasts = end === Infinity ? "open: its end was not seen" : durationOf(end - start);
      const facts = [["track", spans.layouts[1].labels[group.home]], ["starts at", `${start.toLocaleString("en-US")} ns`], ["takes", lasts]];
      facts.push(...spans.tails[tail].map(([text]) => ["", text]), ...scene.classes[group.kind].lines.map((text) => ["", text]));
      const call = calls.row.indexOf(row);
      for (let part = calls.first[call]; part < calls.first[call + 1]; part++)
        facts.push([durationOf(calls.length[part]), calls.looks[calls.look[part]].name]);
      if (spans.explained[row]) facts.push(["why", spans.explained[row]]);
      dock.append(h("strong", {}, spans.names[name]), h("dl", {}, ...facts.flatMap(([what, text]) => [h("dt", {}, what), h("dd", {}, text)])));
    } else dock.append(h("span", { class: "muted" }, "Select a span to see what is known of it."));
    drawSelected();
    remember();
  };
  const remember = () => {
    const of = selected === null ? "" : `&s=${selected}`;
    if (isLinked) history.replaceState(null, "", `#t=${low}-${high}${of}`);
  };
  const reveal = (row) => {
    if (row === null) return;
    select(row);
    const { start, till } = find(row), width = Math.max(high - low, till - start);
    if (start < low || till > high) painter.goTo(start - width / 3, width);
  };
  // Return the row of the next span of some groups that starts after a time, or the first of all.
  const nextOf = (some, time) => {
    const firstAfter = (begin) => some.map((group) => [group, bound(group.start, begin, true)])
      .filter(([group, n]) => n < group.count).sort(([a, m], [b, n]) => a.start[m] - b.start[n])[0];
    const [group, n] = firstAfter(time) ?? firstAfter(-Infinity) ?? [];
    return group ? group.row + n : null;
  };
  const beside = (step) => {
    if (selected === null) return nextOf(groups, low - 1);
    const { group, n } = find(selected);
    return group.row + Math.min(Math.max(n + step, 0), group.count - 1);
  };
  const longest = () => {
    let best = [-1, null];
    for (const { start, end, row, count } of groups)
      for (let n = 0; n < count; n++) {
        const lasts = Math.min(end[n], most) - start[n];
        if (lasts > best[0] && start[n] >= low && start[n] < high) best = [lasts, row + n];
      }
    return best[1];
  };
  const ACTIONS = { // by key; the others move the view
    w: ["Zoom in"], s: ["Zoom out"], a: ["Earlier"], d: ["Later"], f: ["All"],
    z: ["To selection", () => {
      const { group, start, till } = find(selected);
      if (group) painter.goTo(start - (till - start), 3 * (till - start));
    }],
    l: ["Longest in view", () => reveal(longest())],
    ...(spans.escaped.includes(true) && {
      x: ["Next escape", () => reveal(nextOf(groups.filter(({ kind }) => spans.escaped[kind]), find(selected).start ?? low - 1))],
    }),
    h: ["Host rows", () => {
      place(layout === spans.layouts[0] ? 1 : 0);
      repaint();
      fitWidth();
      painter.show(low, high);
    }],
    ArrowLeft: ["Previous", () => reveal(beside(-1))], ArrowRight: ["Next", () => reveal(beside(1))],
    Escape: ["Clear", () => select(null)],
  };
  const run = (key) => (ACTIONS[key][1] ?? (() => painter.move(MOVES[key])))();
  const KEY_NAMES = { ArrowLeft: "←", ArrowRight: "→", Escape: "Esc" };

  // -- keys, buttons, pointers --------------------------------------------------------
  const tools = h("div", { class: "tools", role: "toolbar", "aria-label": "Timeline" }, ...Object.entries(ACTIONS).map(([key, [what]]) =>
    h("button", { onclick: () => run(key) }, `${what} `, h("kbd", {}, KEY_NAMES[key] ?? key.toUpperCase()))));
  const pressKey = (event) => {
    const key = event.key in ACTIONS ? event.key : event.key.toLowerCase();
    if (!(key in ACTIONS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    run(key);
  };
  const within = ({ clientX, clientY }) => {
    const box = holder.getBoundingClientRect(), { _size } = plot._fullLayout;
    return { x: (clientX - box.left - _size.l) / _size.w, y: (clientY - box.top) / _size.h };
  };
  const turn = (event) => { // a wheel scrolls the page, with Ctrl it zooms
    if (!event.ctrlKey) return;
    event.preventDefault();
    painter.move({ do: "zoom", by: WHEEL ** event.deltaY, at: within(event).x });
  };
  const grab = (event) => {
    holder.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, within(event));
    const xs = [...pointers.values()].map(({ x }) => x);
    pressed = { low, high, xs, moved: 0 };
  };
  const drag = (event) => {
    const at = within(event);
    if (!pointers.has(event.pointerId)) return painter.hover(at.x >= 0 ? at : null);
    pointers.set(event.pointerId, at);
    const xs = [...pointers.values()].map(({ x }) => x), width = pressed.high - pressed.low;
    pressed.moved = Math.max(pressed.moved, Math.abs(xs[0] - pressed.xs[0]) * plot._fullLayout._size.w);
    if (xs.length > 1) { // two fingers: the times under them stay there
      const [from, to] = pressed.xs.map((x) => pressed.low + x * width);
      const wide = (to - from) / (xs[1] - xs[0] || 1);
      if (wide > 0) painter.goTo(from - xs[0] * wide, wide);
    } else if (pressed.moved >= DRAG_PX) painter.goTo(pressed.low - (xs[0] - pressed.xs[0]) * width, width);
  };
  const release = (event) => {
    pointers.delete(event.pointerId);
    if (event.type === "pointerup" && pressed?.moved < DRAG_PX) select(painter.row(within(event)));
    if (!pointers.size) pressed = null;
  };
  const acts = { keydown: pressKey, wheel: turn, pointerdown: grab, pointermove: drag, pointerup: release, pointercancel: release,
    pointerleave: () => painter.hover(null) };
  for (const [name, act] of Object.entries(acts)) holder.addEventListener(name, act);

  const swatchOf = (look, tint) => {
    const swatch = h("canvas", { width: 16, height: 10 }), pen = swatch.getContext("2d");
    pen.fillStyle = fillOf(pen, look, tint);
    pen.fillRect(0, 0, 16, 10);
    return swatch;
  };
  const legend = () => scene.classes.map((look, kind) => {
    const entry = plot._fullData[kind];
    const name = h("button", { "aria-pressed": entry.visible, onclick: () => {
      entry.visible = !entry.visible;
      put(name, "aria-pressed", entry.visible);
      listeners.plotly_afterplot();
    } }, swatchOf(look), ` ${look.name}`);
    return name;
  });
  const layers = painted.counters.flatMap((lane) => lane.layers.filter(({ isDrawn }) => isDrawn));
  const distinct = layers.filter(({ name }, n) => layers.findIndex((layer) => layer.name === name) === n);
  const waits = [...calls.looks.filter(({ pattern }) => pattern), ...distinct].map((look) => h("span", {}, swatchOf(look, LOOKS.tint), ` ${look.name}`));
  const classes = h("div", { class: "classes" }), parts = h("div", { class: "classes" }, ...waits);
  holder.append(labels, outline);
  root.replaceChildren(tools, h("div", { class: "gpuscope-timeline-bar" }), holder, axis, title, parts, classes, dock);
  const painter = paintTiles(model, root, tell);
  fitWidth();
  painter.attach(plot);
  const repaint = () => {
    scene = themed();
    classes.replaceChildren(...legend());
    heard["change:scene"]();
  };
  repaint();
  inDark.onchange = repaint;
  new ResizeObserver(() => {
    fitWidth();
    painter.show(low, high);
  }).observe(root);
  select(find(Number(linked.get("s") ?? -1)).group ? Number(linked.get("s")) : spans.selected);
}

// The page's other figures wait for this.
globalThis.timelinesDrawn = Promise.all([...document.querySelectorAll("[data-timeline]")].map((root, n) =>
  showTimeline(root, n === 0).catch((error) => (root.textContent = `This browser cannot draw the timeline: ${error}`))));
