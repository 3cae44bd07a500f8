// The tracks of a timeline: painted on a canvas under the plot, on the plot's own axes, from tiles
// that are kept. tiles.py makes them; what is not there yet is painted from a coarser tile, so that
// nothing here ever waits for the kernel.

const KEPT = 150; // tiles
const WANTED = 8; // of one request
const PATIENCE_MS = 2000; // until a request counts as lost
const POINT_PX = 6; // of a mark, on either side of where it stands
const BREAK_PX = 70; // of a break that has room for its length
const NAMES = 250; // in one picture
const FONT = "px system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
const HIT_PX = 2, DRAG_PX = 4; // beside what is hit; of a click at most
const TICK_COLUMNS = 256; // from tick to tick at least, each between a half and a quarter of a pixel
const OVERVIEW_PX = 34;
const LEAST_SMS = 1e-6, OVER_SMS = 0.5; // what is less is rounding; is not said to be more than granted
const UNSURE = 0.01; // share of SMs granted from which on they are said to be estimated, or unknown
const MOVES = { // by key
  w: { do: "zoom", by: 0.5 }, s: { do: "zoom", by: 2 }, a: { do: "pan", by: -0.25 }, d: { do: "pan", by: 0.25 }, f: { do: "fit" },
};
const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

// Return the arrays of a tile, in the order in which tiles.py writes them.
function arraysOf({ count, columns, instants, counters, groups, bits, calls }, data) {
  const bytes = data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength);
  let at = 0;
  const take = (Kind, many) => {
    const values = new Kind(bytes, at, many);
    at += values.byteLength;
    return values;
  };
  const all = (many, kinds) => Object.fromEntries(Object.entries(kinds).map(([name, Kind]) => [name, take(Kind, many)]));
  const arrays = {
    ...all(count, { start: Float64Array, end: Float64Array, row: Int32Array, name: Int32Array, later: Float32Array, earlier: Float32Array }),
    ...all(instants, { instantGroup: Uint32Array, instantColumn: Uint32Array }),
    ofCounters: Array.from({ length: counters }, () => take(Float32Array, columns)),
    busy: groups.map(() => take(bits === 16 ? Uint16Array : Uint32Array, columns)),
    ...all(count, { kind: Uint16Array, tail: Uint16Array, place: Uint8Array, line: Uint8Array }),
  };
  at = calls.at;
  const ofCalls = {
    ...all(calls.count, { start: Float64Array, end: Float64Array }), ...all(calls.parts, { length: Float64Array }),
    ...all(calls.count, { row: Int32Array }), ...all(calls.count + 1, { first: Int32Array }),
    ...all(calls.parts, { look: Uint16Array }), ...all(calls.count, { place: Uint8Array, line: Uint8Array }),
  };
  return { ...arrays, calls: { ...calls, ...ofCalls, last: ofCalls.first.subarray(1) } };
}

// Return a tile as it is painted; one without `data` has its arrays already.
function readTile(scene, tile, data) {
  const read = { ...tile, ...(data && arraysOf(tile, data)), column: (tile.high - tile.low) / tile.columns, before: [] };
  read.instants = tile.groups.map(() => []);
  for (let n = 0; n < tile.instants; n++)
    read.instants[read.instantGroup[n]].push(tile.low + read.instantColumn[n] * read.column);
  read.members = scene.classes.map(() => []);
  for (let n = 0; n < tile.count; n++) read.members[read.kind[n]]?.push(n);
  return read;
}

// Return 1, 2 or 5 times a power of ten, so many of which at most are shorter than a length.
function stepOf(length, most = 1) {
  const step = 10 ** Math.floor(Math.log10(length / most));
  return step * [1, 2, 5, 10].find((times) => length <= step * times * most);
}

// Return even ticks of a stretch of time, and what the axis is called. Unit and step are those of so many
// ns, in which there are so many ticks at most. Labels count from the clock's zero, or far from it from a
// round time, which the title states and which is the same in a stretch of 1,024 times that length.
function ticksIn(low, high, length, most) {
  const step = Math.max(1, Math.round(stepOf(length, most)));
  const stretch = 1024 * length, round = Math.round(stepOf(stretch));
  const base = Math.floor((Math.floor(Math.max(0, (low + high) / 2) / stretch) * stretch) / round) * round;
  const [unit, size] = UNITS.find(([, ns]) => length >= 2 * ns || ns === 1);
  const digits = Math.max(0, `${size}`.length - `${step}`.length + `${step}`.replace(/0+$/, "").length - 1);
  const tickvals = [], ticktext = [];
  for (let n = Math.ceil(low / step) || 0; n <= Math.floor(high / step); n++) { // and no negative zero
    tickvals.push((n * step) / 1e3);
    ticktext.push(decimal((n * step - base) / size, digits));
  }
  let since = "the start";
  if (base) {
    const [name, ns] = UNITS.find(([, whole]) => base % Math.max(1, Math.floor(whole / 1000)) === 0);
    since = `${(base / ns).toLocaleString("en-US", { maximumSignificantDigits: 12 })} ${name} after the start`;
  }
  return { tickvals, ticktext, title: `time since ${since} (${unit})` };
}

// Return how long a group was busy before each column of a tile, in ns, or after the groups the sums of a
// quantity of lanes of counters: summed when it is painted.
function sumsOf(tile, group) {
  if (!tile.before[group]) {
    const busy = tile.busy[group] ?? tile.ofCounters[group - tile.groups.length], sums = new Float64Array(tile.columns + 1);
    for (let n = 0; n < tile.columns; n++) sums[n + 1] = sums[n] + busy[n] * tile.unit;
    tile.before[group] = sums;
  }
  return tile.before[group];
}

// Change how many pixels each group of a track has in a column to what is painted: what was busy at
// all is seen, and so is that a column was not full. As `heights` of timeline/columns.py.
function fit(tall, there, total, px, least, free) {
  let sum = 0, largest = 0;
  for (let k = 0; k < tall.length; k++) {
    tall[k] = there[k] ? Math.max(Math.round((tall[k] / Math.max(total, 1)) * px), least) : 0;
    sum += tall[k];
    if (tall[k] > tall[largest]) largest = k;
  }
  const isFull = total > 1 - 1e-9;
  const over = sum - (isFull ? px : px - free);
  if (over > 0 || (isFull && over < 0)) tall[largest] -= over;
}

// Return what fills the bars of a class.
const fillOf = (context, look, tint) =>
  (look.pattern ? context.createPattern(patternCell(look, tint), "repeat") : look.fill);

// Write a number with so many digits after its point.
const decimals = [];
const decimal = (value, digits) =>
  (decimals[digits] ??= new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })).format(value);

function durationOf(ns) {
  const [unit, size] = UNITS.find(([, least]) => Math.abs(ns) >= least) ?? ["ns", 1];
  return `${Number((ns / size).toPrecision(4))} ${unit}`;
}

// Write a share to three digits: almost all never as all. As `percent` of _text.py.
function percentOf(share) {
  if (share > 0 && share < 1e-4) return "below 0.01 %";
  const text = `${Number((100 * share).toPrecision(3))} %`;
  return text === "100 %" && share < 1 ? "just under 100 %" : text;
}

// Say what the means of a lane of counters are: as `_value_words` of counter_lanes.py.
function counterWords({ isMemory, byModel, isToPeak, layers, reach, unit: [unit, size] }, means) {
  const model = byModel ? ", by model" : "", sms = smsOf;
  if (isMemory) {
    const share = isToPeak ? `, ${percentOf(means.reduce((sum, mean) => sum + mean, 0) / reach)} of the peak` : "";
    return `${layers.map(({ what }, n) => `${what} ${(means[n] / size).toFixed(2)}`).join(" + ")} ${unit}${share}${model}`;
  }
  const [certain, estimated, between, unused, low, high] = means, of = `of ${reach} ${unit}`;
  if (between > LEAST_SMS) return `between ${sms(low)} and ${sms(high)} ${of}${model}`;
  if (estimated > LEAST_SMS) return `≈ ${sms(certain + estimated)} ${of}, between ${sms(low)} and ${sms(high)}${model}`;
  if (certain + unused <= LEAST_SMS) return `0 ${of}: nothing ran`;
  return `${sms(certain)} ${of}${model || ", told"}${certain > reach + OVER_SMS ? ", more than granted" : ""}`;
}

function smsOf(count) {
  return count.toFixed(1).replace(/\.0$/, "");
}

// Say how many SMs a lane used while work ran, of means of a view: as `_used_words` of counter_lanes.py.
function usedWords({ isMemory, isToPeak, reach }, [certain, estimated, between, unused]) {
  if (isMemory) return isToPeak ? "the peak" : "";
  const ran = certain + estimated + between + unused, least = (reach * (certain + estimated)) / ran;
  if (ran <= 0) return "";
  if (between > UNSURE * ran) return `${least.toFixed(0)}–${(least + (reach * between) / ran).toFixed(0)} used`;
  return `${estimated > UNSURE * ran ? "≈" : ""}${smsOf(least)} used`;
}

// Paint what a model's scene says under a plot; `tell` sends a message to the kernel.
function paintTiles(model, root, tell) {
  const canvas = h("canvas", { class: "gpuscope-tiles" });
  const context = canvas.getContext("2d");
  const tip = h("div", { class: "gpuscope-tip", hidden: true, role: "tooltip" });
  let plot = null, scene = {}, base = null, fills = [], kept = new Map(), widths = new Map();
  let asked = 0, news = 0, words = 0, shown = "", filled = "", told = "", image = null, frame = 0, tickFrame = 0, ticked = [0, 0], tickvals = null, seen = [];
  let bars = [], marked = [], lanes = []; // track → whether its spans are painted; the marks; waits
  const partFills = new Map();
  let sweeping = null; // a range that the kernel does not know yet
  const changed = () => {
    sweeping = null;
    words += 1;
    ask();
  };

  const range = () => plot._fullLayout.xaxis.range.map((edge) => edge * 1e3);
  const isOn = () => Boolean(base && plot?._fullLayout?.xaxis?._length);
  const plotly = () => plot.plotly ?? window.Plotly; // a file's plot has axes of its own

  const take = () => {
    const next = model.get("scene");
    if (next.version !== scene.version) [kept, asked] = [new Map(), 0];
    scene = next;
    base = scene.root ? readTile(scene, scene.root, scene.root.data) : null;
    fills = (scene.classes ?? []).map((look) => fillOf(context, look));
    news += 1;
    if (scene.view && isOn() && plotly() && !plot._dragging) showRange(...scene.view);
    ask();
  };

  // -- which tiles ---------------------------------------------------------------------
  const sizeOf = (level) => scene.columns * 2 ** level;
  const levelOf = (low, high, width) =>
    Math.min(scene.top, Math.max(0, Math.floor(Math.log2((high - low) / (scene.finer * width)))));
  const find = (level, index) => {
    if (level >= scene.top) return base;
    const key = `${level}/${index}`;
    const tile = kept.get(key);
    if (tile) { // the oldest is thrown away first
      kept.delete(key);
      kept.set(key, tile);
    }
    return tile;
  };
  // Return pieces of the view, each with the best tile there is, and which tiles are missing.
  const cover = (low, high, width) => {
    if (scene.live) return [[{ tile: base, low: base.low, high: base.high }], [], []];
    const level = levelOf(low, high, width), size = sizeOf(level);
    const most = Math.floor(scene.extent[1] / size);
    const [first, last] = [Math.max(0, Math.floor(low / size)), Math.min(most, Math.floor(high / size))];
    const pieces = [], missing = [];
    for (let index = first; index <= last; index++) {
      let tile = find(level, index);
      if (!tile) missing.push([level, index]);
      for (let up = 1; !tile; up++) tile = find(level + up, index >> up);
      const before = pieces.at(-1);
      if (before?.tile === tile) before.high = (index + 1) * size;
      else pieces.push({ tile, low: index * size, high: (index + 1) * size });
    }
    const ahead = [[level, first - 1], [level, last + 1], [level + 1, (first + last) >> 2]];
    for (let index = 2 * first; index <= 2 * last + 1; index++) ahead.push([level - 1, index]);
    const soon = ahead.filter(([l, i]) => l >= 0 && l < scene.top && i >= 0 &&
      i * sizeOf(l) <= scene.extent[1] && !kept.has(`${l}/${i}`));
    return [pieces, missing, soon];
  };
  const request = (want) => {
    if (!want.length || (asked && performance.now() - asked < PATIENCE_MS)) return;
    asked = performance.now();
    tell({ do: "tiles", version: scene.version, want });
  };
  const arrived = (message, buffers) => {
    if (!message.tiles) return;
    asked = 0;
    if (message.version !== scene.version) return;
    news += 1;
    message.tiles.forEach((tile, n) => kept.set(tile.key.join("/"), readTile(scene, tile, buffers[n])));
    for (const key of [...kept.keys()].slice(0, -KEPT)) kept.delete(key);
    ask();
  };

  // -- the picture ---------------------------------------------------------------------
  const hiddenKinds = () =>
    new Set(plot._fullData.filter(({ type, visible }) => type === "bar" && visible !== true).map(({ meta }) => meta));
  const barAt = (place, line, scale) => {
    const height = scene.heights[place], room = Math.max(height - 6, height / 2);
    const size = room / scene.lines[place];
    const top = scene.tops[place] + (height - room) / 2 + size * Math.min(line, scene.lines[place] - 1);
    return [top * scale, Math.max(1, (size - 1) * scale)];
  };
  const paint = () => {
    cancelAnimationFrame(frame);
    frame = 0;
    if (!isOn()) return;
    const { xaxis, yaxis } = plot._fullLayout;
    const [low, high] = range();
    tickSoon(low, high);
    const width = xaxis._length, height = yaxis._length, ratio = devicePixelRatio || 1;
    const holder = plot.querySelector(".svg-container");
    const hidden = hiddenKinds();
    const now = [low, high, width, height, xaxis._offset, yaxis._offset, ratio, news, ...hidden, ""].join();
    if (canvas.parentNode !== holder) holder.prepend(canvas);
    else if (shown === now + words) return;
    shown = now + words;
    const right = plot._fullLayout._size.r; // in which words stand
    const [wide, tall] = [Math.round((width + right) * ratio), Math.round(height * ratio)];
    if (canvas.width !== wide || canvas.height !== tall) {
      Object.assign(canvas, { width: wide, height: tall });
      told = "";
    }
    lay(canvas, { left: xaxis._offset, top: yaxis._offset, width: width + right, height });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width + 1, height);
    const px = width / (high - low), x = (time) => (time - low) * px;
    const view = { low, high, width, px, x, scale: height / scene.height };
    const [pieces, missing, soon] = cover(low, high, width);
    seen = pieces;
    // A track draws its spans where all that is seen of it has them, and they are wide enough.
    bars = scene.tops.map((_, place) => pieces.every(({ tile }) =>
      tile.spans[place] !== null && view.px >= tile.spans[place]));
    const ratioY = canvas.height / height;
    if (filled !== now) paintColumns(pieces, view, hidden, ratio, ratioY, Math.round(width * ratio));
    filled = now;
    context.putImageData(image, 0, 0);
    context.save();
    context.beginPath();
    context.rect(0, 0, width, height);
    context.clip();
    paintBreaks(view, height);
    const named = [];
    scene.classes.forEach((look, kind) => {
      if (hidden.has(kind)) return;
      for (const piece of pieces) paintBars(piece, look, kind, view, named);
    });
    paintWaits(pieces, view, ratio);
    paintGrants(view);
    paintNames(named, view);
    paintMarks(pieces, view, hidden);
    paintStretch(view, height);
    context.restore();
    paintShares(view, right, height);
    paintOverview(low, high);
    if (missing.length) request([...missing, ...soon].slice(0, WANTED));
    else requestAnimationFrame(() => setTimeout(() => request(soon.slice(0, WANTED))));
    root.dispatchEvent(new CustomEvent("gpuscope-canvas", { bubbles: true, detail: { low, high, missing: missing.length, bars, marks: marked } }));
  };
  // Return the groups of a track: its classes in order, and of each where it is in each piece.
  const groupsOf = (pieces, place, hidden = new Set()) => {
    const groups = new Map();
    pieces.forEach(({ tile }, number) => tile.groups.forEach(([of, kind], group) => {
      if (of === place && !hidden.has(kind)) groups.set(kind, (groups.get(kind) ?? []).concat([[number, group]]));
    }));
    return [...groups].sort(([a], [b]) => a - b);
  };
  // Return which share of each of `count` steps from `low` on the groups of a track were busy for,
  // group by group: means of the tiles' columns, weighted by time.
  const sharesOf = (pieces, groups, low, step, count) => {
    const shares = new Float64Array(groups.length * count);
    groups.forEach(([, where], k) => {
      for (const [number, group] of where) {
        const { tile, low: begin, high: end } = pieces[number];
        const { columns, column, low: zero } = tile;
        const before = sumsOf(tile, group);
        const upTo = (time) => {
          const at = Math.min(Math.max((time - zero) / column, 0), columns);
          const whole = Math.floor(at);
          return before[whole] + (at - whole) * ((before[whole + 1] ?? 0) - before[whole]);
        };
        const first = Math.max(0, Math.floor((begin - low) / step));
        const last = Math.min(count, Math.ceil((end - low) / step));
        let sum = upTo(Math.max(begin, low + first * step));
        for (let x = first; x < last; x++) {
          const next = upTo(Math.min(end, low + (x + 1) * step));
          shares[k * count + x] += (next - sum) / step;
          sum = next;
        }
      }
    });
    return shares;
  };
  // Return which share of each of `count` steps from `low` on a lane of counters has samples for, and then
  // the means of its quantities over these.
  const meansOf = (pieces, { at, quantities }, low, step, count) => {
    const groups = Array.from({ length: quantities }, (_, n) =>
      [n, pieces.flatMap(({ tile }, number) => (tile.counters ? [[number, tile.groups.length + at + n]] : []))]);
    const means = sharesOf(pieces, groups, low, step, count);
    for (let n = count; n < means.length; n++) means[n] = means[n % count] > 0 ? means[n] / means[n % count] : 0;
    return means;
  };
  const paintCounters = (pieces, view, pixels, ratioY, wide) => {
    const step = (view.high - view.low) / wide, scale = view.scale * ratioY;
    for (const lane of scene.counters) {
      const means = meansOf(pieces, lane, view.low, step, wide), colours = lane.layers.map(({ fill }) => pixelOf(fill));
      const px = Math.round(lane.tall * scale), bottom = Math.min(canvas.height, Math.round(lane.top * scale) + px);
      const most = Math.min(bottom, px + Math.round(lane.over * scale));
      for (let x = 0; x < wide; x++)
        for (let k = 0, sum = 0, up = 0; k < colours.length; k++) {
          sum += means[(k + 1) * wide + x];
          for (const end = Math.min(most, Math.round((sum / lane.reach) * px)); up < end; up++) pixels[(bottom - 1 - up) * wide + x] = colours[k];
        }
    }
  };
  const pixelOf = (fill) => {
    const rgb = parseInt(fill.slice(1), 16);
    return (255 << 24) | ((rgb & 255) << 16) | (rgb & 0xff00) | (rgb >> 16);
  };
  const paintColumns = (pieces, view, hidden, ratio, ratioY, wide) => {
    if (image?.width !== wide || image.height !== canvas.height) image = context.createImageData(wide, canvas.height);
    const pixels = new Uint32Array(image.data.buffer).fill(0);
    const step = (view.high - view.low) / wide;
    scene.tops.forEach((top, place) => {
      if (bars[place]) return;
      const groups = groupsOf(pieces, place, hidden);
      if (!groups.length) return;
      const colours = groups.map(([kind]) => pixelOf(scene.classes[kind].fill));
      // Instants cover nothing: they are seen where they are.
      const instants = groups.map(([, where]) => new Set(where.flatMap(([number, group]) => {
        const { tile, low, high } = pieces[number];
        return tile.instants[group].filter((time) => time >= low && time < high)
          .map((time) => Math.floor((time - view.low) / step));
      })));
      const px = Math.round((scene.heights[place] - 4) * view.scale * ratioY);
      const bottom = Math.min(canvas.height, Math.round((top + 2) * view.scale * ratioY) + px);
      const shares = sharesOf(pieces, groups, view.low, step, wide);
      const tall = new Float64Array(groups.length), there = new Array(groups.length);
      for (let x = 0; x < wide; x++) {
        let total = 0;
        for (let k = 0; k < tall.length; k++) {
          tall[k] = shares[k * wide + x];
          total += tall[k];
          there[k] = tall[k] > 0 || instants[k].has(x);
        }
        fit(tall, there, total, px, Math.round(scene.least * ratio), Math.round(scene.free * ratio));
        // Column by column: to ask in each line which columns reach it takes three times as long.
        for (let k = 0, sum = 0, up = 0, at = (bottom - 1) * wide + x; k < tall.length; k++)
          for (sum += tall[k]; up < sum && at >= 0; up++, at -= wide) pixels[at] = colours[k];
      }
    });
    paintCounters(pieces, view, pixels, ratioY, wide);
  };
  const paintBreaks = (view, height) => {
    for (const [from, to, what, boxes, zoom] of scene.breaks) {
      const [x, end] = [Math.max(from, view.low), Math.min(to, view.high)].map(view.x);
      if (end <= x) continue;
      if (boxes) { // of some rows, which are hatched where not all is drawn
        if (view.px >= zoom) paintSparse(boxes, x, end, what[0], view);
        continue;
      }
      context.globalAlpha = 0.18;
      context.fillStyle = scene.ink;
      context.fillRect(x, 0, Math.max(1, end - x), height);
      context.globalAlpha = 0.7;
      context.strokeStyle = scene.ink;
      context.lineWidth = 1;
      context.setLineDash([2, 3]);
      context.beginPath();
      for (const edge of [x, end]) {
        context.moveTo(edge, 0);
        context.lineTo(edge, height);
      }
      context.stroke();
      context.setLineDash([]);
      if (end - x >= BREAK_PX) {
        context.font = 12 + FONT;
        context.textAlign = "center";
        context.textBaseline = "bottom";
        what.forEach((line, n) => context.fillText(line, (x + end) / 2, height / 2 + 15 * n));
        context.textAlign = "left";
      }
      context.globalAlpha = 1;
    }
  };
  const paintSparse = (boxes, x, end, what, view) => {
    for (const [top, tall] of boxes.map((box) => box.map((px) => px * view.scale))) {
      context.globalAlpha = 0.35;
      context.fillStyle = fillOf(context, { fill: scene.ink, pattern: "/" });
      context.fillRect(x, top, end - x, tall);
      context.globalAlpha = 1;
      fitInto(what, x, end, top + tall / 2, 11);
    }
  };
  // Paint the marks of escapes and hazards.
  const paintMarks = (pieces, view, hidden) => {
    marked = pieces.flatMap(({ tile, low, high }) => tile.marks
      .map(([place, column, what, words]) => ({ place, what, words, time: tile.low + column * tile.column }))
      .filter(({ place, what, time }) => time >= low && time < high && // the last it counts may be in view
        time + scene.merged * tile.column > view.low && time < view.high &&
        (what !== "escape" || tile.groups.some(([of, kind]) => of === place && scene.classes[kind].escaped && !hidden.has(kind)))));
    context.fillStyle = scene.marked;
    context.strokeStyle = scene.ink;
    context.lineWidth = 1;
    const size = Math.min(5, (scene.lane * view.scale - 1) / 2); // of many rows, the lanes are low
    for (const { place, time, what } of marked) { // what a colour may not tell, a shape does
      const [x, y] = [Math.max(0, view.x(time)), (scene.tops[place] - scene.lane / 2) * view.scale];
      context.beginPath();
      for (const [dx, dy] of LOOKS.marks[what]) context.lineTo(x + size * dx, y + size * dy);
      context.closePath();
      context.fill();
      context.stroke();
    }
  };
  const paintBars = ({ tile, low, high }, look, kind, view, named) => {
    const [from, to] = [Math.max(low, view.low), Math.min(high, view.high)];
    const edges = [];
    const least = look.escaped ? 4 : 1;
    for (const n of tile.members[kind]) {
      const start = tile.start[n], end = tile.end[n];
      if (!bars[tile.place[n]] || end < from || start > to) continue;
      // On whole pixels, or pieces of a bar would not meet.
      const left = Math.round(view.x(Math.max(start, from)));
      const right = Math.round(view.x(Math.min(end, to)));
      const [top, tall] = barAt(tile.place[n], tile.line[n], view.scale);
      const x = right - left < least ? Math.min(left, view.width - least) : left;
      const wide = Math.max(right - left, least);
      context.fillStyle = wide < (look.escaped ? 8 : 4) ? look.fill : fills[kind]; // no room for a pattern
      context.fillRect(x, top, wide, tall);
      if (wide >= 4 && start >= from) edges.push([x, top, 1, tall]);
      if (wide >= 4 && end <= to) edges.push([x + wide - 1, top, 1, tall]);
      if (wide >= 4 && look.pattern) edges.push([x, top, wide, 1], [x, top + tall - 1, wide, 1]);
      if (wide >= 22 && tall >= 9) named.push([tile, n, kind, top, tall]);
    }
    context.fillStyle = look.edge;
    for (const edge of edges) context.fillRect(...edge);
  };
  // Paint below each row what its calls waited for: as spans where they are wide, else of the longest
  // call that starts in each column its parts, one on the other.
  const paintWaits = (pieces, view, ratio) => {
    lanes = scene.waits.map((top, place) => {
      if (!top) return null;
      const isWide = pieces.every(({ tile: { calls } }) => calls.spans[place] !== null && view.px >= calls.spans[place]);
      return { top: (top + 3) * view.scale, tall: (scene.wait - 6) * view.scale, isWide, longest: new Map(), axis: 0 };
    });
    const step = 1 / ratio;
    pieces.forEach(({ tile: { calls }, low, high }, number) => {
      for (let n = 0; n < calls.count; n++) {
        const lane = lanes[calls.place[n]], start = calls.start[n];
        if (!lane) continue;
        if (lane.isWide) paintCall(calls, n, lane, view, Math.max(low, view.low), Math.min(high, view.high));
        else if (start >= low && start < high && start >= view.low && start < view.high) {
          const x = Math.floor(view.x(start) / step), best = lane.longest.get(x);
          if (!best || calls.end[n] - start > best.length) lane.longest.set(x, { calls, n, length: calls.end[n] - start });
        }
      }
    });
    for (const lane of lanes) {
      if (!lane || lane.isWide) continue;
      lane.axis = stepOf([...lane.longest.values()].reduce((most, { length }) => Math.max(most, length), 1));
      for (const [x, { calls, n }] of lane.longest) {
        let sum = 0;
        for (let part = calls.first[n]; part < calls.last[n]; part++) {
          const low = lane.tall * (sum / lane.axis);
          sum += calls.length[part];
          context.fillStyle = partFill(calls.looks[calls.look[part]]);
          context.fillRect(x * step, lane.top + lane.tall * (1 - sum / lane.axis), step, lane.tall * (sum / lane.axis) - low);
        }
      }
    }
  };
  const paintGrants = (view) => {
    context.globalAlpha = 0.6;
    context.fillStyle = scene.ink;
    for (const { top } of scene.counters) context.fillRect(0, Math.round(top * view.scale) - 1, view.width, 1);
    context.globalAlpha = 1;
  };
  const paintCall = (calls, n, lane, view, from, to) => {
    const lines = calls.lines[calls.place[n]], tall = lane.tall / lines, top = lane.top + tall * calls.line[n];
    let time = calls.start[n];
    for (let part = calls.first[n]; part < calls.last[n]; part++) {
      const [begin, end] = [time, (time += calls.length[part])];
      const how = calls.looks[calls.look[part]];
      if (!how.pattern || end < from || begin > to) continue; // the row above shows what runs
      const [x, right] = [Math.max(begin, from), Math.min(end, to)].map(view.x);
      context.fillStyle = partFill(how);
      context.fillRect(x, top, Math.max(1, right - x), tall - 1);
      context.fillStyle = how.fill;
      for (const y of [top, top + tall - 2]) context.fillRect(x, y, right - x, 1);
      if (begin >= from) context.fillRect(x, top, 1, tall - 1);
      if (end <= to) context.fillRect(right - 1, top, 1, tall - 1);
      if (how.who) fitInto(how.who, x, right, top + tall / 2, Math.min(11, tall - 3));
    }
    if (calls.row[n] === model.get("state").row) {
      context.strokeStyle = scene.ink;
      context.lineWidth = 2;
      context.strokeRect(view.x(calls.start[n]), top, (calls.end[n] - calls.start[n]) * view.px, tall - 1);
    }
  };
  // Write for whom a part waited into it, where there is room.
  const fitInto = (text, left, right, y, size) => {
    const room = right - left - 12;
    if (size < 8 || widthOf(text, size) > room) return;
    write(text, left + 6, y, size, scene.ink, scene.paper);
  };
  const write = (text, x, y, size, ink, halo) => {
    Object.assign(context, { font: size + FONT, textBaseline: "middle", lineWidth: 4, lineJoin: "round", strokeStyle: halo, fillStyle: ink });
    if (halo) context.strokeText(text, x, y); // a pattern would run through the letters
    context.fillText(text, x, y);
  };
  const partFill = (how) => {
    const key = how.fill + how.pattern;
    if (!partFills.has(key)) partFills.set(key, fillOf(context, how, LOOKS.tint));
    return partFills.get(key);
  };
  // Write at the right of each row which share of the view it was busy for, and what its lane reaches to.
  const paintShares = (view, right, height) => {
    const shares = model.get("state").shares ?? [], x = view.width + 6;
    const lines = [[], []]; // of each font what is written, and where
    scene.tops.forEach((top, place) => {
      const words = shares[place] ?? [], middle = (top + scene.heights[place] / 2) * view.scale;
      words.forEach((text, n) => lines[n].push([text, x, middle + 13 * (n - (words.length - 1) / 2)]));
      if (lanes[place]?.axis) lines[1].push([`▔ ${durationOf(lanes[place].axis)}`, x, lanes[place].top + 5]);
    });
    for (const lane of scene.counters) {
      const y = lane.top * view.scale + 5, [, ...means] = meansOf(seen, lane, view.low, view.high - view.low, 1);
      lines[1].push([`▔ ${lane.words}`, x, y], [usedWords(lane, means), x, y + 13]);
    }
    const now = JSON.stringify([scene.ink, lines]);
    if (now === told) return; // most views have the words of the one before
    told = now;
    context.clearRect(view.width + 1, 0, right, height);
    Object.assign(context, { textBaseline: "middle", fillStyle: scene.ink });
    lines.forEach((written, n) => { // a font is set once: to read its name takes longer than to write
      context.font = (n ? 11 : 12) + FONT;
      context.globalAlpha = n ? 0.75 : 1;
      for (const [text, left, y] of written) context.fillText(text, left, y);
    });
    context.globalAlpha = 1;
  };
  // Shade the selected stretch of time, or the one that is being dragged.
  const paintStretch = (view, height) => {
    const range = sweeping ?? model.get("state").range;
    if (!range) return;
    const [x, end] = range.map((at) => Math.min(Math.max(view.x(at), -2), view.width + 2));
    context.lineWidth = 1.5;
    shade(context, scene.ink, [x, 0, end - x, height], 0.1, 0.8, 0);
  };
  const shade = (pen, colour, [x, y, wide, tall], inside, edge, inset) => {
    pen.fillStyle = pen.strokeStyle = colour;
    pen.globalAlpha = inside;
    pen.fillRect(x, y, wide, tall);
    pen.globalAlpha = edge;
    pen.strokeRect(x + inset, y + inset, wide - 2 * inset, tall - 2 * inset);
    pen.globalAlpha = 1;
  };
  // Take two points of a drag, from 0 to 1; return the range in ns, if it has some width.
  const sweep = (one, other) => {
    if (!isOn()) return null;
    const [low, high] = range();
    sweeping = [one, other].sort((a, b) => a - b).map((at) => Math.round(low + at * (high - low)));
    words += 1;
    ask();
    return sweeping[1] > sweeping[0] ? sweeping : null;
  };
  const paintNames = (named, view) => {
    const done = new Set();
    for (const [tile, n, kind, top, tall] of named) {
      if (done.size >= NAMES) break;
      if (done.has(tile.row[n])) continue; // it goes on in the next piece
      done.add(tile.row[n]);
      const left = Math.max(0, view.x(tile.start[n]));
      const right = Math.min(view.width, view.x(tile.end[n]));
      const size = Math.min(12, Math.round(tall * 0.8));
      const text = fitted(tile.names[tile.name[n]].replace(/^void /, ""), right - left - 8, size);
      const look = scene.classes[kind];
      if (text) write(text, left + 4, top + tall / 2 + 0.5, size, look.text, look.pattern && look.fill);
    }
  };
  const widthOf = (text, size) => {
    const key = `${size}${text}`;
    if (widths.size > 20000) widths = new Map();
    if (!widths.has(key)) {
      context.font = size + FONT;
      widths.set(key, context.measureText(text).width);
    }
    return widths.get(key);
  };
  // Return as much of a name as there is room for, nothing where that would tell little.
  const fitted = (text, room, size) => {
    if (widthOf(text, size) <= room) return text;
    const letters = Math.floor((room / widthOf(text, size)) * text.length) - 1;
    const half = letters >> 1; // its end tells as much, such as a size
    return letters >= 4 ? `${text.slice(0, letters - half)}…${text.slice(-half)}` : "";
  };
  const ask = () => (frame ||= requestAnimationFrame(paint));

  // Return the ticks of a view, and of half as much on either side, there while it is dragged. They stay
  // as they are within a level of tiles.
  const ticksOf = (low, high, px) => {
    const over = (high - low) / 2;
    if (scene.live) return ticksIn(low - over, high + over, 2 * over, Math.ceil((px * scene.finer) / TICK_COLUMNS));
    const length = sizeOf(levelOf(low, high, px)), most = sizeOf(scene.top); // beyond there are no ticks
    return ticksIn(Math.max(low - over, 0), Math.min(high + over, most), length, scene.columns / TICK_COLUMNS);
  };
  // Plotly keeps the ticks that it was given: others are due where the view is another.
  const tickSoon = (low, high) => {
    const [from, to] = ticked, near = (to - from) / 100;
    if (Math.abs(low - from) < near && Math.abs(high - to) < near && plot.layout.xaxis?.tickvals === tickvals) return;
    clearTimeout(tickFrame);
    tickFrame = setTimeout(() => {
      if (isOn() && !plot._dragging) showRange(...range());
    }, 120);
  };
  const putTicks = (ticks, low, high) => {
    clearTimeout(tickFrame);
    for (const held of [plot._fullLayout.xaxis, plot.layout.xaxis]) Object.assign(held, ticks);
    tickvals = ticks.tickvals;
    ticked = [low, high];
  };
  // Have Plotly draw the ticks that are due with its own redraw at the end of a drag.
  const settle = () => {
    if (!isOn()) return;
    const [low, high] = range(), axis = plot._fullLayout.xaxis, { title, ...ticks } = ticksOf(low, high, axis._length);
    if (axis.tickmode === "array" && axis.title.text === title) putTicks(ticks, low, high);
  };
  // Show a range of time. Where it is all that changes, Plotly redraws one axis and not the plot,
  // which takes three times as long: so ticks are put where it finds them.
  const showRange = (low, high) => {
    const axis = plot._fullLayout.xaxis;
    const { title, ...ticks } = ticksOf(low, high, axis._length);
    const changes = { "xaxis.range": [low / 1e3, high / 1e3] };
    if (axis.tickmode !== "array" || axis.title.text !== title)
      Object.assign(changes, { "xaxis.tickmode": "array", "xaxis.tickvals": ticks.tickvals, "xaxis.ticktext": ticks.ticktext, "xaxis.title.text": title });
    putTicks(ticks, low, high);
    tip.hidden = true; // what it tells of is elsewhere now
    plotly().relayout(plot, changes);
  };

  // -- all time, and what of it is in view -----------------------------------------------
  const strip = h("canvas", { class: "gpuscope-overview", role: "img", title: "All time. Drag to choose what is in view",
    "aria-label": "Overview of all time; what is framed is in view, and the keys W, S, A and D move it" });
  const picture = h("canvas");
  let drawn = "", grabbed = null;
  const paintOverview = (low, high) => {
    strip.hidden = scene.live;
    if (scene.live) return;
    const bar = root.querySelector(".gpuscope-timeline-bar");
    if (strip.parentNode !== bar) bar.append(strip);
    const { xaxis, _size } = plot._fullLayout, ratio = devicePixelRatio || 1;
    const [wide, tall] = [Math.round(xaxis._length * ratio), OVERVIEW_PX * ratio];
    lay(strip, { marginLeft: xaxis._offset, width: xaxis._length });
    const now = [scene.version, wide, ratio, scene.ink].join();
    if (drawn !== now) {
      drawn = now;
      for (const canvas of [strip, picture]) Object.assign(canvas, { width: wide, height: tall });
      paintWhole(picture.getContext("2d"), wide, tall, ratio);
    }
    const pen = strip.getContext("2d");
    pen.clearRect(0, 0, wide, tall);
    pen.drawImage(picture, 0, 0);
    const [x, end] = brushAt(low, high, wide);
    pen.lineWidth = 1.5 * ratio;
    shade(pen, scene.focus, [x, 0, end - x, tall], 0.2, 1, ratio);
  };
  const brushAt = (low, high, wide) => {
    const [first, last] = scene.extent, px = wide / (last - first);
    const middle = ((low + high) / 2 - first) * px, half = Math.max(((high - low) * px) / 2, 4 * wide / plot._fullLayout.xaxis._length);
    return [Math.max(0, middle - half), Math.min(wide, middle + half)];
  };
  const paintWhole = (pen, wide, tall, ratio) => {
    const [first, last] = scene.extent, step = (last - first) / wide, pieces = [{ tile: base, low: base.low, high: base.high }];
    const rows = scene.tops.map((_, place) => place).filter((place) => scene.gpu[place]);
    const top = 7 * ratio, each = (tall - top) / Math.max(1, rows.length);
    rows.forEach((place, n) => {
      const groups = groupsOf(pieces, place), shares = sharesOf(pieces, groups, first, step, wide);
      for (let x = 0; x < wide; x++) {
        let sum = 0, most = 0;
        for (let k = 0; k < groups.length; k++) {
          sum += shares[k * wide + x];
          if (shares[k * wide + x] > shares[most * wide + x]) most = k;
        }
        if (!sum) continue;
        const high = Math.max(ratio, Math.min(sum, 1) * (each - ratio));
        pen.fillStyle = scene.classes[groups[most][0]].fill;
        pen.fillRect(x, top + (n + 1) * each - high, 1, high);
      }
    });
    for (const [, column, what] of base.marks) {
      pen.fillStyle = what === "escape" ? scene.marked : scene.ink;
      pen.fillRect(Math.round((base.low + column * base.column - first) / step), 0, 1.5 * ratio, 6 * ratio);
    }
    pen.fillStyle = scene.ink;
    pen.globalAlpha = 0.25;
    for (const [from, to, , boxes] of scene.breaks) if (!boxes) pen.fillRect((from - first) / step, 0, Math.max(1, (to - from) / step), tall);
    pen.globalAlpha = 1;
  };
  const timeAt = ({ offsetX }) => {
    const [first, last] = scene.extent;
    return first + (offsetX / strip.clientWidth) * (last - first);
  };
  strip.onpointerdown = (event) => {
    if (event.button !== 0 || model.get("state").follow || !isOn()) return;
    const [low, high] = range(), time = timeAt(event), [x, end] = brushAt(low, high, strip.clientWidth), at = event.offsetX;
    const isWhole = high - low >= 0.99 * (scene.extent[1] - scene.extent[0]);
    grabbed = { time, low, high, moves: at >= x && at <= end && !isWhole };
    strip.setPointerCapture(event.pointerId);
  };
  strip.onpointermove = (event) => {
    if (!grabbed) return;
    const { time, low, high, moves } = grabbed, now = timeAt(event);
    if (moves) goTo(low + now - time, high - low);
    else if (Math.abs(now - time) * strip.clientWidth > 3 * (scene.extent[1] - scene.extent[0])) goTo(Math.min(time, now), Math.abs(now - time));
  };
  strip.onpointerup = () => (grabbed = null);

  // -- moving --------------------------------------------------------------------------
  let due = null; // the range that the kernel is told of when it is painted
  const goTo = (from, wide) => {
    const [least, most] = scene.extent, width = Math.min(Math.max(wide, scene.narrowest), most - least);
    const low = Math.round(Math.min(Math.max(from, least), most - width)), high = Math.round(low + width);
    showRange(low, high);
    paint();
    due = { do: "range", low: low / 1e3, high: high / 1e3 };
    requestAnimationFrame(() => setTimeout(tellRange)); // a notebook is busy with each answer
  };
  const tellRange = () => {
    if (due) tell(due);
    due = null;
  };
  // Do what a message asks for, if it moves the view and nothing else does; return whether.
  const move = ({ do: what, by, at = 0.5 }) => {
    if (!isOn() || model.get("state").follow || !plotly()) return tellRange();
    const [low, high] = range(), width = high - low;
    const wide = { zoom: Math.max(scene.narrowest, width * by), pan: width, fit: Infinity }[what];
    if (!wide) return tellRange();
    goTo(what === "pan" ? low + by * width : low + (width - wide) * at, wide);
    return true;
  };

  // -- what is under the pointer -------------------------------------------------------
  // Return when and how far down a point from 0 to 1 is, what of the time still counts as near it, and
  // the px of the view.
  const pointAt = ({ x, y }) => {
    const [low, high] = range(), { xaxis, yaxis, _size } = plot._fullLayout, px = xaxis._length / (high - low);
    return { time: low + x * (high - low), up: _size.t + y * _size.h - yaxis._offset, near: HIT_PX / px, low, px,
      scale: yaxis._length / scene.height };
  };
  const hit = ({ time, up, near, scale }) => {
    const hidden = hiddenKinds();
    let bar = null, best = [false, Infinity];
    for (const { tile, low: from, high: to } of seen) {
      if (time + near < from || time - near > to) continue;
      for (let n = 0; n < tile.count; n++) {
        if (tile.start[n] > time + near || tile.end[n] < time - near || hidden.has(tile.kind[n])) continue;
        if (!bars[tile.place[n]]) continue;
        const [top, tall] = barAt(tile.place[n], tile.line[n], scale);
        if (up < top - 1 || up > top + tall + 1) continue;
        const rank = [scene.classes[tile.kind[n]].escaped, tile.end[n] - tile.start[n]];
        if (rank[0] < best[0] || (rank[0] === best[0] && rank[1] >= best[1])) continue;
        [bar, best] = [{ tile, n }, rank];
      }
    }
    return bar;
  };
  const linesOf = ({ tile, n }) => {
    const [low, high] = scene.live ? [tile.low, tile.high] : range();
    const [start, end] = [tile.start[n], tile.end[n]];
    const isOpen = end === Infinity;
    let lasts = end > start ? durationOf(end - start) : "an instant";
    if (end > high) lasts += `, ${durationOf(end - high)} of it after the window`;
    if (isOpen) lasts = `OPEN: its end was not seen; ${durationOf(high - start)} until the window's end`;
    if (start < low) lasts += `, ${durationOf(low - start)} of it before the window`;
    const lines = [tile.names[tile.name[n]], lasts];
    if (tile.later[n]) lines.push(`true start up to ${durationOf(tile.later[n])} later`);
    if (tile.earlier[n] && !isOpen) lines.push(`true end up to ${durationOf(tile.earlier[n])} earlier`);
    return [...lines, ...tile.tails[tile.tail[n]], `starts at ${microseconds(start)}`, ...scene.classes[tile.kind[n]].lines];
  };
  // Return the call whose parts are painted at a point.
  const callAt = ({ time, up, near, low, px }) => {
    const place = lanes.findIndex((lane) => lane && up >= lane.top && up < lane.top + lane.tall);
    if (place < 0) return null;
    const lane = lanes[place], ratio = devicePixelRatio || 1;
    if (!lane.isWide) {
      const at = Math.floor((time - low) * px * ratio);
      for (let off = 0; off <= HIT_PX * ratio; off++)
        for (const column of [at - off, at + off]) if (lane.longest.has(column)) return lane.longest.get(column);
      return null;
    }
    for (const { tile: { calls } } of seen)
      for (let n = 0; n < calls.count; n++) {
        const line = Math.floor(((up - lane.top) / lane.tall) * calls.lines[place]);
        if (calls.place[n] === place && calls.line[n] === line && calls.start[n] <= time + near && calls.end[n] >= time - near)
          return { calls, n };
      }
    return null;
  };
  const wordsOf = ({ calls, n }) => {
    const lines = [`a call of ${durationOf(calls.end[n] - calls.start[n])}`];
    for (let part = calls.first[n]; part < calls.last[n]; part++)
      lines.push(`${durationOf(calls.length[part])} ${calls.looks[calls.look[part]].name}`);
    return { edge: scene.ink, lines };
  };
  // Return what is said of the columns or the marks under the pointer, the strongest class first.
  const columnAt = ({ time, up, low, px, scale }) => {
    const down = up / scale, step = 1 / px;
    const mark = marked.find(({ place, time: at }) => Math.abs(Math.max(at, low) - time) * px <= POINT_PX &&
      down >= scene.tops[place] - scene.lane && down < scene.tops[place]);
    if (mark) return { edge: scene.marked, lines: [mark.words] };
    const place = scene.tops.findIndex((top, n) => down >= top && down < top + scene.heights[n]);
    if (place < 0 || bars[place]) return null;
    const from = low + Math.floor((time - low) / step) * step;
    const groups = groupsOf(seen, place, hiddenKinds()), shares = sharesOf(seen, groups, from, step, 1);
    const busy = groups.map(([kind], k) => [shares[k], kind]).filter(([share]) => share > 0).sort(([a], [b]) => b - a);
    if (!busy.length) return null;
    const lines = busy.map(([share, kind]) => `${percentOf(share)} busy: ${scene.classes[kind].lines.join(", ")}`);
    return { edge: scene.classes[busy[0][1]].fill, lines: [`${durationOf(step)} from ${microseconds(from)}`, ...lines] };
  };
  // Return what is said of a column of a lane of counters.
  const counterAt = ({ time, up, low, px, scale }) => {
    const down = up / scale, step = 1 / px, from = low + Math.floor((time - low) / step) * step;
    const lane = scene.counters.find(({ top, tall, margin }) => down >= top - margin && down < top + tall + margin);
    const [share, ...means] = lane ? meansOf(seen, lane, from, step, 1) : [0];
    if (!share) return null;
    const lines = [counterWords(lane, means), ...(share < 0.999 ? [`of ${durationOf(share * step)} sampled`] : [])];
    if (lane.scale) lines.push(lane.scale);
    return { edge: lane.layers[0].fill, lines: [...lines, `${durationOf(step)} from ${microseconds(from)}`] };
  };
  const microseconds = (ns) => `${decimal(ns / 1e3, 3)} µs`;
  const hover = (at) => {
    const point = at && isOn() && !plot._dragging ? pointAt(at) : null;
    const bar = point && hit(point), call = point && !bar && callAt(point);
    const words = bar ? { edge: scene.classes[bar.tile.kind[bar.n]].fill, lines: linesOf(bar) } : call ? wordsOf(call) : point && (columnAt(point) ?? counterAt(point));
    tip.hidden = !words;
    if (!words) return;
    const pairs = words.lines.map((line, n) => (Array.isArray(line) ? line : [line, !n])); // text, whether it stands out
    tip.replaceChildren(...pairs.map(([text, standsOut]) => h(standsOut ? "strong" : "div", {}, text)));
    Object.assign(tip.style, { color: scene.ink, background: scene.paper, borderColor: words.edge });
    const holder = plot.querySelector(".svg-container");
    if (tip.parentNode !== holder) holder.append(tip);
    const { l, t, w, h: tall } = plot._fullLayout._size, x = l + at.x * w, y = t + at.y * tall;
    const left = x + 14 + tip.offsetWidth > holder.clientWidth ? x - 14 - tip.offsetWidth : x + 14;
    lay(tip, { left: Math.max(0, left), top: Math.max(0, Math.min(y + 12, holder.clientHeight - tip.offsetHeight)) });
  };

  // Save a picture of the figure with what the canvas shows.
  const save = () => {
    const { xaxis, yaxis, _size, width, height } = plot._fullLayout;
    const [x, y] = [(xaxis._offset - _size.l) / _size.w, 1 - (yaxis._offset - _size.t) / _size.h];
    const image = {
      source: canvas.toDataURL(), xref: "paper", yref: "paper", x, y, layer: "below", sizing: "stretch",
      sizex: (xaxis._length + _size.r) / _size.w, sizey: yaxis._length / _size.h,
    };
    const images = [...(plot.layout.images ?? []), image];
    plotly().downloadImage({ data: plot.data, layout: { ...plot.layout, images } }, { format: "png", filename: "timeline", width, height });
  };

  const attach = (element) => {
    plot = element;
    plot.on("plotly_relayouting", paint);
    plot.on("plotly_afterplot", paint);
    ask();
  };
  const heard = Object.entries({ "change:scene": take, "change:state": changed, "msg:custom": arrived });
  for (const [name, act] of heard) model.on(name, act);
  take();
  return {
    attach, barAt, goTo, hover, isOn, move, save, settle, sweep, show: showRange,
    row: (at) => {
      if (scene.live || !isOn()) return null;
      const point = pointAt(at), bar = hit(point), call = bar ? null : callAt(point);
      return bar ? bar.tile.row[bar.n] : call ? call.calls.row[call.n] : null;
    },
    stop: () => {
      for (const [name, act] of heard) model.off(name, act);
      cancelAnimationFrame(frame);
      clearTimeout(tickFrame);
      for (const node of [canvas, strip, tip]) node.remove();
    },
  };
}
