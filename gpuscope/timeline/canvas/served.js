// Makes the tiles of a timeline in the page itself, from all of its spans, where there is no kernel
// to ask: as `tile` of tiles.py. file.py packs the spans.

const WIDE_PX = 3; // of the median span of a track that draws its spans

async function unpacked(text) {
  const letters = atob(text), bytes = new Uint8Array(letters.length); // a report fetches nothing
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

// Return columns of values, the lowest bytes of all first, and where the bytes go on.
function readColumns(bytes, at, planes, count) {
  const columns = planes.map((many) => {
    const values = new Float64Array(count);
    for (let plane = many - 1; plane >= 0; plane--)
      for (let n = 0; n < count; n++) values[n] = values[n] * 256 + bytes[at + plane * count + n];
    at += many * count;
    return values;
  });
  return [columns, at];
}

// Return the calls that file.py packed, track by track in order, with the parts of their time.
function readCalls({ tracks, planes, parts, px, most, looks }, bytes) {
  const count = tracks.reduce((sum, [, calls]) => sum + calls, 0);
  const [[start, many, line, row], at] = readColumns(bytes, 0, planes.slice(0, 4), count);
  const [[length, look]] = readColumns(bytes, at, planes.slice(4), parts);
  const first = new Int32Array(count + 1), end = new Float64Array(count);
  let begin = 0;
  const lanes = tracks.map(([home, calls, lines]) => {
    const lane = { home, place: home, first: begin, last: (begin += calls), lines };
    for (let n = lane.first; n < lane.last; n++) if (n > lane.first) start[n] += start[n - 1];
    return lane;
  });
  for (let n = 0; n < count; n++) {
    first[n + 1] = first[n] + many[n];
    end[n] = start[n];
    for (let part = first[n]; part < first[n + 1]; part++) end[n] += length[part];
  }
  return { lanes, start, end, first, length, look, looks, px, most, line: line.map((at) => at - 1), row: row.map((at) => at - 1) };
}

// Return the groups of spans that file.py packed: sorted by start, with their unions.
function readGroups({ groups, planes }, bytes) {
  let at = 0, first = 0;
  return groups.map(([place, kind, count, isCut]) => {
    let columns;
    [columns, at] = readColumns(bytes, at, planes, count);
    const [start, length, code, line] = columns;
    const end = new Float64Array(count), reach = new Float64Array(count), left = new Float64Array(count);
    let isSorted = true;
    for (let n = 0; n < count; n++) {
      if (n) start[n] += start[n - 1];
      end[n] = length[n] ? start[n] + length[n] - 1 : Infinity;
      reach[n] = n ? Math.max(reach[n - 1], end[n]) : end[n];
      left[n] = Math.max(end[n], start[n] + 1);
      isSorted &&= !n || left[n] >= left[n - 1];
    }
    const busy = unionOf(start, end);
    first += count;
    return { home: place, place, kind, count, isCut, start, end, reach, left: isSorted ? left : left.sort(), code, line, busy, row: first - count };
  });
}

// Return for how long each group and then each track was busy from a time on, where a file has not all
// spans: sums before each column.
function readRest({ from, column, columns, planes }, bytes) {
  const count = bytes.length / (planes * columns);
  const [busy] = readColumns(bytes, 0, new Array(count).fill(planes), columns);
  return busy.map((values) => {
    const sums = new Float64Array(columns + 1);
    for (let n = 0; n < columns; n++) sums[n + 1] = sums[n] + values[n];
    return { from, column, columns, sums };
  });
}

// Return the quantities of the lanes of counters that file.py packed: steps, each quantity by ns, and the
// sums before each step.
function readCounters({ lanes, size }, bytes) {
  let at = 0;
  return lanes.flatMap(({ steps, planes }) => {
    let columns;
    [columns, at] = readColumns(bytes, at, planes, steps);
    const [start, length, ...quantities] = columns, end = new Float64Array(steps);
    for (let n = 0; n < steps; n++) {
      if (n) start[n] += end[n - 1];
      end[n] = start[n] + length[n];
    }
    return quantities.map((values) => {
      const sums = new Float64Array(steps + 1);
      for (let n = 0; n < steps; n++) sums[n + 1] = sums[n] + (values[n] / size) * length[n];
      return { start, end, sums, value: values.map((value) => value / size) };
    });
  });
}

// Return the sum of a quantity before a time.
function sumUpTo({ start, end, sums, value }, time) {
  const at = bound(start, time, true);
  return sums[at] - (at && end[at - 1] > time ? (end[at - 1] - time) * value[at - 1] : 0);
}

// Return the union of intervals that cover anything: starts, ends, and the ns before each.
function unionOf(starts, ends) {
  const busy = [[], [], [0]];
  let order = null;
  for (let n = 1; n < starts.length && !order; n++)
    if (starts[n] < starts[n - 1]) order = [...starts.keys()].sort((a, b) => starts[a] - starts[b]);
  for (let at = 0; at < starts.length; at++) {
    const n = order ? order[at] : at, last = busy[0].length - 1, till = Math.min(ends[n], Number.MAX_SAFE_INTEGER);
    if (till === starts[n]) continue;
    if (last >= 0 && starts[n] <= busy[1][last]) busy[1][last] = Math.max(busy[1][last], till);
    else busy[0].push(starts[n]), busy[1].push(till);
  }
  for (let n = 0; n < busy[0].length; n++) busy[2].push(busy[2][n] + busy[1][n] - busy[0][n]);
  return busy;
}

// Return for how long a union was busy before a time: with a rest, in its columns evenly.
function busyUpTo([from, till, before, rest], time) {
  if (rest && time > rest.from) {
    const { column, columns, sums } = rest, at = Math.min((time - rest.from) / column, columns), whole = Math.min(Math.floor(at), columns - 1);
    return busyUpTo([from, till, before], rest.from) + sums[whole] + (at - whole) * (sums[whole + 1] - sums[whole]);
  }
  const at = bound(from, time, true);
  return before[at] - (at && till[at - 1] > time ? till[at - 1] - time : 0);
}

// Return what makes the tile of a stretch of time, with its arrays. Groups and lanes of calls say at
// which `place` they are now, of how many `rows`.
function tileServer(spans, groups, calls, counters, rows) {
  const inside = ({ start, end, reach }, low, high) => {
    const found = [], last = bound(start, high);
    for (let n = Math.min(bound(start, low), bound(reach, low, true)); n < last; n++)
      if (end[n] > low || start[n] >= low) found.push(n);
    return found;
  };
  const countOf = ({ start, left }, low, high) => bound(start, high) - bound(left, low, true);
  // Return from how many px per ns on each track draws its spans: as `spans_from` of columns.py.
  const spansFrom = (low, high, columns) => {
    const on = Array.from({ length: rows() }, (_, place) => groups.filter((group) => group.place === place));
    const counts = on.map((some) => some.reduce((sum, group) => sum + countOf(group, low, high), 0));
    on.forEach((some, place) => {
      if (some.some(({ isCut }) => isCut) && high > spans.rest.from) counts[place] = Infinity; // not all are there
    });
    const from = counts.map((count) => (count ? null : 0));
    let most = spans.most;
    for (const place of counts.map((_, at) => at).sort((a, b) => counts[a] - counts[b])) {
      if (!counts[place]) continue;
      if (counts[place] > most) break;
      const widths = on[place].flatMap((group) =>
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
  const columnsOf = ({ start, busy: union }, low, wide, columns) => {
    const edges = Array.from({ length: columns + 1 }, (_, n) => low + n * wide);
    return [(time) => busyUpTo(union, time), (time) => bound(start, time)].map((upTo) => {
      const sums = edges.map(upTo);
      return sums.slice(1).map((sum, n) => sum - sums[n]);
    });
  };
  const countersIn = (low, wide, columns) => {
    const sums = counters.map((quantity) => Float64Array.from({ length: columns + 1 }, (_, n) => sumUpTo(quantity, low + n * wide)));
    return sums.map((before) => before.subarray(1).map((sum, n) => sum - before[n]));
  };
  // Return the calls that lanes draw of a stretch: as `waiting_of` of waiting.py.
  const callsIn = (low, wide, columns) => {
    const high = low + wide * columns, spansOf = new Array(rows()).fill(null), lines = new Array(rows()).fill(1);
    const drawn = calls.lanes.flatMap(({ place, first, last, lines: deep }) => {
      const starts = calls.start.subarray(first, last), till = first + bound(starts, high);
      let seen = [];
      for (let n = first; n < till; n++) if (calls.end[n] > low) seen.push(n);
      const lengths = seen.map((n) => calls.end[n] - calls.start[n]).sort((a, b) => a - b);
      const zoom = lengths.length ? calls.px / lengths[lengths.length >> 1] : 0;
      lines[place] = deep;
      if (zoom * (high - low) <= columns && seen.length <= calls.most && seen.every((n) => calls.line[n] >= 0)) spansOf[place] = zoom;
      else {
        const longest = new Map(); // column → the first of the longest calls that start in it
        for (let n = first + bound(starts, low); n < till; n++) {
          const column = Math.floor((calls.start[n] - low) / wide), best = longest.get(column);
          if (best === undefined || calls.end[n] - calls.start[n] > calls.end[best] - calls.start[best]) longest.set(column, n);
        }
        seen = [...longest.values()];
      }
      return seen.map((n) => [n, place]);
    });
    const of = (values) => drawn.map(([n]) => values[n]);
    return {
      ...calls, count: drawn.length, spans: spansOf, lines, start: of(calls.start), end: of(calls.end), row: of(calls.row),
      first: of(calls.first), last: of(calls.first.subarray(1)), place: drawn.map(([, place]) => place), line: of(calls.line),
    };
  };
  const marksOf = (what, rows) => rows.flatMap((counts, place) => {
    const marks = new Map(); // block of columns → the first in which something starts, and how much does
    counts.forEach((count, n) => {
      const block = Math.floor(n / spans.mark), [first, sum] = marks.get(block) ?? [n, 0];
      if (count) marks.set(block, [first, sum + count]);
    });
    return [...marks.values()].map(([column, count]) =>
      [place, column, what, spans.words[what][+(count > 1)].replace("2", count.toLocaleString("en-US"))]);
  });
  return (low, high, columns) => {
    const wide = (high - low) / columns, from = spansFrom(low, high, columns);
    const bars = groups.flatMap((group) => from[group.place] === null ? [] : inside(group, low, high).map((n) => [group, n]));
    const width = ([{ start, end }, n]) => Math.min(end[n], high) - Math.max(start[n], low);
    bars.sort((a, b) => width(b) - width(a) || a[0].start[a[1]] - b[0].start[b[1]] || a[0].row + a[1] - b[0].row - b[1]);
    const seen = groups.map((group) => [group, ...columnsOf(group, low, wide, columns)])
      .filter(([, busy, begins]) => busy.some(Boolean) || begins.some(Boolean));
    const instants = seen.flatMap(([, busy, begins], group) =>
      [...begins.keys()].filter((n) => !busy[n] && begins[n]).map((n) => [group, n]));
    const escapes = [], hazards = [];
    spans.hazards.forEach((starts, track) => {
      const counts = (hazards[spans.rows[track]] ??= new Float64Array(columns));
      for (const time of starts) if (time >= low && time < high) counts[Math.floor((time - low) / wide)] += 1;
    });
    for (const [{ place, kind }, , begins] of seen)
      if (spans.escaped[kind]) escapes[place] = begins.map((count, n) => count + (escapes[place]?.[n] ?? 0));
    const of = (name) => bars.map(([group, n]) => group[name][n]), ofGroup = (name) => bars.map(([group]) => group[name]);
    const code = (at) => bars.map(([group, n]) => spans.codes[group.code[n]][at]);
    return {
      low, high, columns, unit: 1, count: bars.length, instants: instants.length, calls: callsIn(low, wide, columns),
      counters: counters.length, ofCounters: countersIn(low, wide, columns),
      groups: seen.map(([{ place, kind }]) => [place, kind]), spans: from, names: spans.names, tails: spans.tails,
      start: of("start"), end: of("end"), row: bars.map(([group, n]) => group.row + n), line: of("line"),
      kind: ofGroup("kind"), place: ofGroup("place"), name: code(0), tail: code(1), later: code(2), earlier: code(3),
      instantGroup: instants.map(([group]) => group), instantColumn: instants.map(([, n]) => n),
      busy: seen.map(([, busy]) => busy), marks: [...marksOf("escape", escapes), ...marksOf("hazard", hazards)],
    };
  };
}
