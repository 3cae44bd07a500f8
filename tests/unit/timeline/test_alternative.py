"""The table of a timeline: the spans that the picture has, in words, harmless."""

from __future__ import annotations

import re

from gpuscope.timeline.timeline_figure import timeline
from gpuscope.trace.model import Trace


def table(count, name="k"):
    trace = Trace.from_columns(
        {
            "id": list(range(count)),
            "kind": ["kernel"] * count,
            "name": [name] * count,
            "stream": [7] * count,
            "start_ns": [1000 * number for number in range(count)],
            "end_ns": [1000 * number + 400 for number in range(count)],
            "source": ["cupti"] * count,
        }
    )
    return timeline(trace, window_ns=(0, 1000 * count)).table()


def test_a_table_has_row_name_start_and_duration_of_each_span_in_order():
    rows = re.findall(r"<tr>((?:<td>.*?</td>)+)</tr>", table(3))
    cells = [re.findall("<td>(.*?)</td>", row) for row in rows]
    assert [cell[1] for cell in cells] == ["k"] * 3
    assert len({cell[0] for cell in cells}) == 1
    starts = [float(cell[2].replace(",", "")) for cell in cells]
    assert starts[1] - starts[0] == starts[2] - starts[1] > float(cells[0][3]) > 0


def test_names_are_text_and_long_timelines_say_what_is_left_out():
    assert "&lt;b&gt;" in table(1, "<b>")
    assert "<b>" not in table(1, "<b>")
    assert "20 further spans" in table(120)
    assert table(120).count("<tr><td>") == 100
