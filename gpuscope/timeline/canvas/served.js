// Makes the tiles of a timeline in the page itself, from all of its spans, where there is no kernel
// to ask: as `tile` of tiles.py. file.py packs the spans.

const WIDE_PX = 3; // of the median span of a track that draws its spans

async function unpacked(text) {
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let n = 0; n < bytes.length; n++) bytes[n] = letters.charCodeAt(n);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

// Return the position of the first of sorted values that is at least, or with `over` above, a limit.
function bound(values, limit, over = false) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < limit || (over && values[middle] === limit)) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Return the groups of spans that file.py packed: sorted by start, with their unions.
function readGroups({ groups, planes }, bytes) {
  let at = 0, first = 0;
  return groups.map(([place, kind, count]) => {
    const [start, length, code, line] = planes.map((many) => {
      const values = new Float64Array(count);
      for (let plane = many - 1; plane >= 0; plane--)
        for (let n = 0; n < count; n++) values[n] = values[n] * 256 + bytes[at + plane * count + n];
      at += many * count;
      return values;
    });
    const end = new Float64Array(count), reach = new Float64Array(count), left = new Float64Array(count);
    const busy = [[], [], [0]]; // starts, ends, ns before each
    let isSorted = true;
    for (let n = 0; n < count; n++) {
      if (n) start[n] += start[n - 1];
      end[n] = length[n] ? start[n] + length[n] - 1 : Infinity;
      reach[n] = n ? Math.max(reach[n - 1], end[n]) : end[n];
      left[n] = Math.max(end[n], start[n] + 1);
      isSorted &&= !n || left[n] >= left[n - 1];
      if (end[n] === start[n]) continue;
      const last = busy[0].length - 1, till = Math.min(end[n], Number.MAX_SAFE_INTEGER);
      if (last >= 0 && start[n] <= busy[1][last]) busy[1][last] = Math.max(busy[1][last], till);
      else busy[0].push(start[n]), busy[1].push(till);
    }
    busy[0].forEach((from, n) => busy[2].push(busy[2][n] + busy[1][n] - from));
    first += count;
    return { place, kind, count, start, end, reach, left: isSorted ? left : left.sort(), code, line, busy, row: first - count };
  });
}

// Return 1, 2 or 5 times a power of ten, so many of which at most are shorter than a length.
function stepOf(length, most) {
  const step = 10 ** Math.floor(Math.log10(length / most));
  return step * [1, 2, 5, 10].find((times) => length <= step * times * most);
}

// Return ticks of a window, and what the axis is called: as `ticks_of` of columns.py.
function ticksIn(low, high, most) {
  const length = high - low, step = Math.max(1, Math.round(stepOf(length, most)));
  const stretch = 1024 * length, round = Math.round(stepOf(stretch, 1));
  const base = Math.floor((Math.floor(Math.max(0, low) / stretch) * stretch) / round) * round;
  const [unit, size] = UNITS.find(([, ns]) => length >= 2 * ns || ns === 1);
  const digits = Math.max(0, `${size}`.length - `${step}`.length + `${step}`.replace(/0+$/, "").length - 1);
  const number = (value, least) => value.toLocaleString("en-US", { minimumFractionDigits: least, maximumFractionDigits: least });
  const ticks = [];
  for (let n = Math.ceil(low / step); n <= Math.floor(high / step); n++)
    ticks.push([n * step, number((n * step - base) / size, digits)]);
  let since = "the start";
  if (base) {
    const [name, ns] = UNITS.find(([, whole]) => base % Math.max(1, Math.floor(whole / 1000)) === 0);
    since = `${(base / ns).toLocaleString("en-US", { maximumSignificantDigits: 12 })} ${name} after the start`;
  }
  return [ticks, `time since ${since} (${unit})`];
}

// Return what makes the tile of a stretch of time, with the arrays that `readTile` reads.
function tileServer(spans, groups) {
  const inside = ({ start, end, reach }, low, high) => {
    const found = [], last = bound(start, high);
    for (let n = Math.min(bound(start, low), bound(reach, low, true)); n < last; n++)
      if (end[n] > low || start[n] >= low) found.push(n);
    return found;
  };
  const countOf = ({ start, left }, low, high) => bound(start, high) - bound(left, low, true);
  // Return from how many px per ns on each track draws its spans: as `spans_from` of columns.py.
  const spansFrom = (low, high, columns) => {
    const counts = spans.tracks.map((_, place) => groups.filter((group) => group.place === place)
      .reduce((sum, group) => sum + countOf(group, low, high), 0));
    const from = counts.map((count) => (count ? null : 0));
    let most = spans.most;
    for (const place of counts.map((_, at) => at).sort((a, b) => counts[a] - counts[b])) {
      if (!counts[place]) continue;
      if (counts[place] > most) break;
      const widths = groups.filter((group) => group.place === place).flatMap((group) =>
        inside(group, low, high).filter((n) => group.end[n] > group.start[n])
          .map((n) => Math.min(group.end[n], high) - Math.max(group.start[n], low))).sort((a, b) => a - b);
      const median = widths.length ? widths[widths.length >> 1] : 0;
      if (median * columns < WIDE_PX * (high - low)) continue;
      from[place] = WIDE_PX / median;
      most -= counts[place];
    }
    return from;
  };
  // Return how long a group is busy in each column, and how many of its spans start there.
  const columnsOf = ({ start, busy: [from, till, before] }, low, wide, columns) => {
    const upTo = (time) => {
      const at = bound(from, time, true);
      return before[at] - (at && till[at - 1] > time ? till[at - 1] - time : 0);
    };
    const busy = new Float64Array(columns), begins = new Float64Array(columns);
    let [sum, begun] = [upTo(low), bound(start, low)];
    for (let n = 0; n < columns; n++) {
      const edge = low + (n + 1) * wide, [next, after] = [upTo(edge), bound(start, edge)];
      [busy[n], begins[n], sum, begun] = [next - sum, after - begun, next, after];
    }
    return [busy, begins];
  };
  const marksOf = (what, rows, columns) => rows.flatMap((counts, place) => {
    const marks = [];
    for (let n = 0; n < columns; n++) {
      if (!counts?.[n]) continue;
      const last = marks.at(-1);
      if (last && Math.floor(last[1] / spans.mark) === Math.floor(n / spans.mark)) last[3] += counts[n];
      else marks.push([place, n, what, counts[n]]);
    }
    return marks.map(([, column, , count]) =>
      [place, column, what, spans.words[what][+(count > 1)].replace("2", count.toLocaleString("en-US"))]);
  });
  return (low, high, columns) => {
    const wide = (high - low) / columns, from = spansFrom(low, high, columns);
    const bars = groups.flatMap((group) => from[group.place] === null ? [] : inside(group, low, high).map((n) => [group, n]));
    const width = ([{ start, end }, n]) => Math.min(end[n], high) - Math.max(start[n], low);
    bars.sort((a, b) => width(b) - width(a) || a[0].start[a[1]] - b[0].start[b[1]] || a[0].row + a[1] - b[0].row - b[1]);
    const seen = groups.map((group) => [group, ...columnsOf(group, low, wide, columns)])
      .filter(([, busy, begins]) => busy.some(Boolean) || begins.some(Boolean));
    const unit = Math.max(1, Math.floor(wide / 2 ** 31)), bits = wide < 2 ** 16 ? 16 : 32;
    const instants = seen.flatMap(([, busy, begins], group) =>
      [...begins.keys()].filter((n) => !busy[n] && begins[n]).map((n) => [group, n]));
    const escapes = [], hazards = spans.hazards.map((starts) => {
      const counts = new Float64Array(columns);
      for (const time of starts) if (time >= low && time < high) counts[Math.floor((time - low) / wide)] += 1;
      return counts;
    });
    for (const [{ place, kind }, , begins] of seen)
      if (spans.escaped[kind]) escapes[place] = begins.map((count, n) => count + (escapes[place]?.[n] ?? 0));
    const code = (at) => bars.map(([group, n]) => spans.codes[group.code[n]][at]);
    const arrays = [
      Float64Array.from(bars, ([group, n]) => group.start[n]), Float64Array.from(bars, ([group, n]) => group.end[n]),
      Int32Array.from(bars, ([group, n]) => group.row + n), Int32Array.from(code(0)),
      Float32Array.from(code(2)), Float32Array.from(code(3)),
      Uint32Array.from(instants, ([group]) => group), Uint32Array.from(instants, ([, n]) => n),
      ...seen.map(([, busy]) => (bits === 16 ? Uint16Array : Uint32Array).from(busy, (ns) => Math.floor(ns / unit))),
      Uint16Array.from(bars, ([{ kind }]) => kind), Uint16Array.from(code(1)),
      Uint8Array.from(bars, ([{ place }]) => place), Uint8Array.from(bars, ([group, n]) => group.line[n]),
    ];
    const data = new Uint8Array(arrays.reduce((sum, { byteLength }) => sum + byteLength, 0));
    let at = 0;
    for (const { buffer, byteLength } of arrays) {
      data.set(new Uint8Array(buffer), at);
      at += byteLength;
    }
    const [ticks, axis] = ticksIn(low, high, Math.max(1, columns >> 8));
    return {
      low, high, columns, unit, bits, ticks, axis, data, count: bars.length, instants: instants.length,
      groups: seen.map(([{ place, kind }]) => [place, kind]), spans: from, names: spans.names, tails: spans.tails,
      marks: [...marksOf("escape", [...escapes], columns), ...marksOf("hazard", hazards, columns)],
    };
  };
}
