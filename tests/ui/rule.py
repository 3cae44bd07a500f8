"""What a timeline draws by the rule, beside what a page has drawn: row by row, column by column."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
from jupyter_lab import ask

WATCH = """() => {
    window.canvas_frames = [];
    window.watches ??= (window.addEventListener(
        'gpuscope-canvas', event => window.canvas_frames.push(event.detail), true), true);
}"""
"""Keep what the canvas says of each of its frames."""
FRAME = """() => {
    const { width, height } = document.querySelector('.gpuscope-tiles');
    const { _length } = document.querySelector('.js-plotly-plot')._fullLayout.xaxis;
    return { ...window.canvas_frames.at(-1), px: [Math.round(_length * devicePixelRatio), height] };
}"""
DRAWN = """rows => {
    const canvas = document.querySelector('.gpuscope-tiles');
    const { data, width } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const pixels = new Uint32Array(data.buffer);
    return rows.map(([top, tall, wide, ...colours]) => colours.map(colour => {
        const [red, green, blue] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
        const wanted = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
        return [...Array(wide).keys()].map(x => {
            let seen = 0;
            for (let y = top; y < top + tall; y++) seen += pixels[y * width + x] === wanted;
            return seen;
        });
    }));
}"""
"""Row → colour → pixels of that colour in each column."""


def by_rule(timeline: Any, low: float, high: float, wide: int, tall: int) -> list[dict[str, Any]]:
    """Return of each row where it is, the heights of its classes by colour, and its escapes.

    Runs in the kernel, and asks the rows themselves.

    Parameters
    ----------
    low, high
        What is in view, ns on the axis.
    wide, tall
        Pixels of the canvas.
    """
    import numpy as np

    from gpuscope.timeline.canvas import tiles
    from gpuscope.timeline.columns import heights

    tracks, scene = timeline.state.tracks, timeline.bar.scene
    snapshot = timeline.state.snapshot((0, 1), following=False)
    edges = np.linspace(low, high, wide + 1)
    # Pixels are means of the columns of tiles, of which a pixel has two to four.
    column = 2 ** max(0, int(np.log2((high - low) / wide / 2)))
    stored = np.arange(low // column, high // column + 2) * column
    classes = tiles.classes_of(snapshot)
    found = []
    for at, track in enumerate(snapshot.places.tracks):
        shares = {}
        for group in tracks.row_of(track).groups:  # a folded row stacks those of its rows
            of_group = tracks.group == group
            start, end = tracks.start_ns[of_group], tracks.end_ns[of_group]
            order = np.argsort(start, kind="stable")
            start, reach = start[order], np.maximum.accumulate(end[order])
            first = np.r_[True, start[1:] > reach[:-1]]
            start, end = start[first], reach[np.r_[first[1:], True]]
            whole = np.r_[0, np.cumsum(end - start)]
            times = np.c_[start, end].ravel() - snapshot.zero_ns
            busy = np.interp(stored, times, np.c_[whole[:-1], whole[1:]].ravel())
            share = np.diff(np.interp(edges, stored, busy)) / np.diff(edges)
            number = classes.index([*tracks.groups][group][1])
            shares[number] = shares.get(number, 0) + share
        shares = dict(sorted(shares.items()))
        row, scale = scene["heights"][at], tall / scene["height"]
        px = int((row - 4) * scale + 0.5)
        busy = np.round(np.array([*shares.values()]).reshape(-1, wide), 9)
        by_colour = {}
        for number, height in zip(shares, heights(busy, busy > 0, np.ones(wide), px), strict=True):
            colour = scene["classes"][number]["fill"]
            by_colour[colour] = (by_colour.get(colour, 0) + height).tolist()
        escaped = tracks.escaped[np.isin(tracks.track[tracks.escaped], track.numbers)]
        times = np.sort(tracks.start_ns[escaped]) - snapshot.zero_ns
        found.append({
            "top": int((scene["tops"][at] + 2) * scale + 0.5), "px": px, "heights": by_colour,
            "escapes": times.tolist(), "column": column,
        })  # fmt: skip
    return found


def compare(page: Any, timeline: str = "timeline") -> dict[str, Any]:
    """Compare the last frame of the canvas with the rule; all of its tiles have to be there.

    Returns
    -------
    dict
        ``columns``: how many were compared, of rows that draw such; ``off_px``: the largest
        difference; ``blank``: columns in which something ran and nothing is painted; ``escapes``:
        how many are in view; ``lost``: those that have no mark and are in no count.
    """
    frame = page.evaluate(FRAME)
    low, high, (wide, tall) = frame["low"], frame["high"], frame["px"]
    asked = f"{timeline}, {low}, {high}, {wide}, {tall}"
    code = f"import json\nfrom typing import Any\n{inspect.getsource(by_rule)}"
    rows = json.loads(ask(page, f"{code}\nprint(json.dumps(by_rule({asked})))"))
    drawn = page.evaluate(DRAWN, [[row["top"], row["px"], wide, *row["heights"]] for row in rows])
    found = {"columns": 0, "off_px": 0, "blank": 0, "escapes": 0, "lost": 0}
    for at, (row, seen) in enumerate(zip(rows, drawn, strict=True)):
        wanted = np.array([*row["heights"].values()]).reshape(-1, wide)
        painted = np.array(seen).reshape(-1, wide)
        if not frame["bars"][at]:
            found["columns"] += wide
            off = int(np.abs(painted - wanted).max(initial=0))
            found["off_px"] = max(found["off_px"], off)
            found["blank"] += int(((wanted.sum(0) > 0) & (painted.sum(0) == 0)).sum())
        escapes = np.array(row["escapes"])
        marks = sorted(
            (mark["time"], int(mark["words"].split()[0].replace(",", "")))
            for mark in frame["marks"] if mark["place"] == at and mark["what"] == "escape"
        )  # fmt: skip
        inside = escapes[(escapes >= low) & (escapes < high)]
        found["escapes"] += len(inside)
        merged_ns = 24 * row["column"]  # as long as marks merge that stand in one place
        held = 0
        for time, count in marks:
            of_mark = (escapes >= time) & (escapes < time + merged_ns)
            assert count <= of_mark.sum(), f"a mark counts {count}, there are {of_mark.sum()}"
            held += count
        before = np.searchsorted([time for time, _ in marks], inside, "right") - 1
        near = [at >= 0 and time - marks[at][0] < merged_ns
                for at, time in zip(before.tolist(), inside.tolist(), strict=True)]  # fmt: skip
        found["lost"] += max(len(inside) - held, near.count(False))
    return found
