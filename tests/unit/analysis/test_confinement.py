"""Confinement: every planted escape is found and named, and nothing else is."""

from __future__ import annotations

import dataclasses
import json
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope import analysis, figures
from gpuscope.errors import MissingEvidence
from gpuscope.trace import Trace, schema
from gpuscope.trace.metadata import TraceMetadata

PARTITIONS = {
    "p": {"sm_count": 4, "sm_ids": [0, 1, 8, 9], "context": 2, "shares_with": []},
    "q": {"sm_count": 3, "sm_ids": [2, 3, 10], "context": 3, "shares_with": []},
}
OWNED = {name: set(facts["sm_ids"]) for name, facts in PARTITIONS.items()}
EVIL = "<script>alert(1)</script> \u202e$x$"


def build(rows, edges=(), partitions=PARTITIONS, **metadata):
    """Build a trace from dicts; ids are positions, edges are launches."""
    rows = [{"id": index, "source": "cupti", "name": "k", **row} for index, row in enumerate(rows)]
    names = {name for row in rows for name in row}
    columns = {name: [row.get(name) for row in rows] for name in names}
    ends = {
        "from": [call for call, _ in edges],
        "to": [work for _, work in edges],
        "kind": ["launch"] * len(edges),
    }
    metadata.setdefault("devices", {"cuda:0": {"name": "NVIDIA H200", "index": 0}})
    return Trace.from_columns(
        columns, ends if edges else None, TraceMetadata(partitions=partitions, **metadata)
    )


def kernel(intended, partition, start=0, end=10, name="k", stream=1, **more):
    context = PARTITIONS.get(partition, {}).get("context")
    return {
        "kind": "kernel", "name": name, "start_ns": start, "end_ns": end, "stream": stream,
        "partition": partition, "intended_partition": intended, "green_context": context,
        "device": 0, **more,
    }  # fmt: skip


def block(parent, sm, start=0, end=10, **more):
    return {
        "kind": "block", "parent": parent, "sm": sm, "start_ns": start, "end_ns": end, "device": 0,
        "source": "blocks", **more,
    }  # fmt: skip


def judged(rows, **options):
    return analysis.confinement(build(rows, **options))


# -- by what ran it -----------------------------------------------------------------------
def test_work_that_stayed_scores_one():
    one = judged([kernel("p", "p"), kernel("p", "p", 20, 50)])["p"]
    assert (one.fraction, one.kernels, one.time_ns, one.escaped_ns) == (1.0, 2, 40, 0)
    assert one.escapes == ()
    (evidence,) = one.evidence
    assert (evidence.kind, evidence.judged_by, evidence.observations) == ("allocated", "kernels", 2)
    assert one.weakest == "allocated"
    assert one.sm_ids_known
    assert one.notes == ()


def test_a_library_on_a_private_stream_inside_a_guard_scores_below_one_and_is_named():
    # 30 of 40 ns inside; "lib" ran 10 ns outside any partition, on stream 7.
    rows = [kernel("p", "p", 0, 30), kernel("p", None, 0, 6, "lib", 7),
            kernel("p", None, 10, 14, "lib", 7)]  # fmt: skip
    one = judged(rows)["p"]
    assert one.fraction == 0.75
    (escape,) = one.escapes
    assert (escape.kernel, escape.kernels, escape.time_ns) == ("lib", 2, 10)
    assert escape.where == "outside any partition (stream 7)"
    assert escape.blocks is None
    named = judged(rows, streams={"7": {"name": "mine"}})["p"].escapes[0]
    assert named.where == "outside any partition (mine)"


def test_escapes_are_by_kernel_and_place_the_longest_first():
    one = judged(
        [
            kernel("p", "q", 0, 5, "a"), kernel("p", None, 0, 20, "a", 7),
            kernel("p", None, 0, 1, "b", None), kernel("p", "p", 0, 4),
        ]
    )["p"]  # fmt: skip
    assert [(escape.kernel, escape.where, escape.time_ns) for escape in one.escapes] == [
        ("a", "outside any partition (stream 7)", 20),
        ("a", "q", 5),
        ("b", "outside any partition (no stream)", 1),
    ]
    assert one.fraction == pytest.approx(4 / 30)


def test_what_was_given_to_nobody_is_not_judged_wherever_it_ran():
    one = judged([kernel("p", "p"), kernel(None, "p"), kernel(None, None), kernel("q", "q")])["p"]
    assert (one.fraction, one.kernels) == (1.0, 1)


def test_copies_and_unfinished_kernels_are_not_judged():
    rows = [kernel("p", "p"), kernel("p", None, 0, None), kernel("p", None, kind="memcpy")]
    result = judged(rows)
    assert result["p"].fraction == 1.0
    assert result.notes == ("1 unfinished kernels are not judged",)
    assert "1 unfinished" in result.note


def test_the_green_context_decides_where_no_partition_is_named():
    rows = [
        {**kernel("p", None, 0, 10), "green_context": 2},
        {**kernel("p", None, 0, 10, "a"), "green_context": 3},
        {**kernel("p", None, 0, 10, "b"), "green_context": 77},
    ]
    one = judged(rows)["p"]
    assert one.fraction == pytest.approx(1 / 3)
    assert {escape.kernel: escape.where for escape in one.escapes} == {
        "a": "q", "b": "green context 77",
    }  # fmt: skip


def test_partitions_that_were_given_nothing_are_listed():
    result = judged([kernel("p", "p"), kernel("r", "p", name="r's")])
    assert [one.partition for one in result.partitions] == ["p", "q", "r"]
    nothing = result["q"]
    assert (nothing.fraction, nothing.observations, nothing.evidence) == (None, 0, ())
    assert result["r"].fraction == 0.0
    assert "no work was given to it" in result._repr_html_()
    with pytest.raises(KeyError, match="no partition 'z'"):
        result["z"]


def test_unknown_sm_ids_are_said():
    bare = {"p": {"context": 2}}
    one = judged([kernel("p", "p"), block(0, 0)], partitions=bare)["p"]
    assert (one.fraction, one.weakest, one.sm_ids_known) == (1.0, "allocated", False)
    assert "its SM ids were not seen" in one.notes[0]
    empty = {"p": {"context": 2, "sm_ids": []}}
    assert not judged([kernel("p", "p")], partitions=empty)["p"].sm_ids_known


def test_shared_sms_are_said():
    said = {**PARTITIONS, "p": {**PARTITIONS["p"], "shares_with": ["q"]}}
    assert judged([kernel("p", "p")], partitions=said)["p"].shares_with == ("q",)
    seen = {"p": {"sm_ids": [1, 2]}, "q": {"sm_ids": [2, 3]}, "r": {"sm_ids": [4]}}
    result = judged([kernel("p", "p")], partitions=seen)
    assert [one.shares_with for one in result.partitions] == [("q",), ("p",), ()]
    assert "does not mean alone" in result["p"].notes[0]


def test_simulated_evidence_says_so():
    rows = [{**kernel("p", "p"), "source": "simulated"}, kernel("p", "p"), block(1, 0)]
    one = judged(rows, simulated=True)["p"]
    assert [(part.kind, part.judged_by) for part in one.evidence] == [
        ("simulated", "blocks"), ("simulated", "kernels"),
    ]  # fmt: skip
    assert one.weakest == "simulated"


# -- by blocks ----------------------------------------------------------------------------
def test_blocks_decide_weighted_by_their_time():
    # SMs 0 and 9 are p's: 10 + 20 ns; SM 2 is q's: 10 ns; SM 99 nobody's: 10 ns.
    # Of the kernel's 100 ns 20/50 are outside, and of 20 + 100 ns in all 40.
    rows = [
        kernel("p", "p", 0, 100, "wide"), block(0, 0, 0, 10), block(0, 9, 0, 20),
        block(0, 2, 5, 15), block(0, 99, 5, 15), kernel("p", "p", 0, 20),
    ]  # fmt: skip
    one = judged(rows)["p"]
    blocks, allocated = one.evidence
    assert (blocks.kind, blocks.observations, blocks.kernels) == ("resident", 4, 1)
    assert blocks.fraction == pytest.approx(0.6)
    assert (allocated.kind, allocated.fraction) == ("allocated", 1.0)
    assert one.fraction == pytest.approx(80 / 120)
    assert one.weakest == "allocated"
    assert one.escaping_sm_ids == (2, 99)
    found = {escape.where: escape for escape in one.escapes}
    assert set(found) == {"SMs of q", "SMs of no partition"}
    assert all((one.kernels, one.blocks) == (1, 1) for one in found.values())
    assert found["SMs of q"].time_ns == pytest.approx(20)


def test_of_two_gpus_the_owner_of_an_sm_is_a_partition_of_the_gpu_that_the_block_ran_on():
    partitions = {
        "p": {**PARTITIONS["p"], "device_key": "cuda:0"},
        "q": {**PARTITIONS["q"], "device_key": "cuda:1"},  # has the SM 2 of the other GPU
    }
    devices = {f"cuda:{index}": {"name": "NVIDIA H200", "index": index} for index in (0, 1)}
    one = judged([kernel("p", "p"), block(0, 2)], partitions=partitions, devices=devices)["p"]
    assert [escape.where for escape in one.escapes] == ["SMs of no partition"]


def test_blocks_of_a_kernel_that_something_else_ran_escaped_to_there():
    rows = [kernel("p", None, 0, 10, "lib", 7), block(0, 0), block(0, 2), block(0, 3)]
    (escape,) = judged(rows)["p"].escapes
    assert escape.where == "outside any partition (stream 7)"
    assert (escape.kernels, escape.blocks) == (1, 2)
    assert escape.time_ns == pytest.approx(20 / 3)


def test_a_kernel_that_others_ran_on_the_right_sms_is_inside_and_noted():
    one = judged([kernel("p", None, name="lucky"), block(0, 0), block(0, 8)])["p"]
    assert one.fraction == 1.0
    assert one.notes == (
        "1 kernels that it did not run count as inside: all their blocks were seen on its SMs",
    )


def test_blocks_too_short_for_the_clock_still_escape():
    rows = [kernel("p", "p", 5, 5), block(0, 0, 5, 5), block(0, 99, 5, 5)]
    assert judged(rows)["p"].fraction == 0.5


def test_blocks_that_say_nothing_are_not_used():
    rows = [
        kernel("p", "p"), block(0, None), block(0, 99, 0, None), block(77, 99), block(None, 99),
    ]  # fmt: skip
    result = judged(rows)
    assert result["p"].evidence[0].judged_by == "kernels"
    assert result["p"].fraction == 1.0
    assert "2 blocks have no kernel row" in result.notes[0]


def test_an_sm_of_another_device_is_outside_whatever_its_number():
    rows = [kernel("p", None, device=1), block(0, 0, device=1), kernel("p", "p"), block(2, 0)]
    one = judged(
        rows,
        devices={"cuda:0": {"index": 0}, "cuda:1": {"index": 1}},
        streams={"1": {"name": "s", "partition": "p", "device": "cuda:0"}},
    )["p"]
    assert one.fraction == 0.5


# -- what was planted is found, and nothing else ------------------------------------------
place = st.sampled_from(["home", "other partition", "no partition", "one block abroad"])
planted = st.tuples(
    st.sampled_from(["p", "q"]), place, st.booleans(), st.integers(0, 50), st.integers(0, 9)
)


@given(st.lists(planted, min_size=1, max_size=25), st.randoms(use_true_random=False))
def test_every_planted_escape_is_found_and_nothing_else(plan, random):
    rows, escaped, total = [], {}, {}
    for number, (home, where, traced, length, others) in enumerate(plan):
        ran = {"home": home, "one block abroad": home, "no partition": None}.get(
            where, "q" if home == "p" else "p"
        )
        parent = len(rows)
        rows.append(kernel(home, ran, 100, 100 + length, f"{where} {number}", 1 + number % 3))
        allowed = sorted(OWNED[home])
        abroad = sorted({2, 5, 77, 131} - OWNED[home])
        sms = [random.choice(allowed if where == "home" else abroad)]
        mostly_home = where in ("home", "one block abroad")
        sms += random.choices(allowed if mostly_home else abroad, k=others)
        if traced or where == "one block abroad":
            begin = 100 + random.randrange(50)
            rows += [block(parent, sm, begin, begin + random.randrange(20)) for sm in sms]
        total[home] = total.get(home, 0) + max(length, 1)
        if where != "home":
            escaped.setdefault(home, {})[f"{where} {number}"] = max(length, 1)
    result = judged(rows)
    for home in ("p", "q"):
        one, theirs = result[home], escaped.get(home, {})
        assert {escape.kernel for escape in one.escapes} == set(theirs)
        if home not in total:
            assert one.fraction is None
            continue
        assert one.time_ns == total[home]
        assert (one.fraction < 1) == bool(theirs)
        whole = sum(ns for name, ns in theirs.items() if "abroad" not in name)
        assert whole <= one.escaped_ns + 1e-6
        assert one.escaped_ns <= sum(theirs.values()) + 1e-6
        assert sum(escape.time_ns for escape in one.escapes) == pytest.approx(one.escaped_ns)
        assert not set(one.escaping_sm_ids) & OWNED[home]
        for escape in one.escapes:
            kind = escape.kernel.rsplit(" ", 1)[0]
            if kind == "no partition":
                assert escape.where.startswith("outside any partition (stream ")
            elif kind == "other partition":
                assert escape.where == ("q" if home == "p" else "p")
            else:
                assert escape.where.startswith("SMs of ")


some_sms = st.one_of(st.none(), st.sets(st.integers(0, 9), max_size=4).map(sorted))
names = st.sampled_from(["a", "b", "c", "d", "e", None])
ran = st.tuples(
    names, names, st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1), st.integers(0, 9)), max_size=4),
)  # fmt: skip


@given(
    st.dictionaries(st.sampled_from("abcd"), some_sms, min_size=1),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1)),
    st.lists(ran, min_size=1, max_size=12),
)
def test_every_partition_is_judged_as_the_definition_says(sm_ids, homes, work):
    rows = []
    for given_to, ran_by, length, blocks in work:
        parent = len(rows)
        rows.append(kernel(given_to, ran_by, 0, length))
        rows += [block(parent, sm, 0, ns, device=device) for sm, device, ns in blocks]
    trace = build(
        rows,
        partitions={name: {"sm_ids": ids} for name, ids in sm_ids.items()},
        devices={"cuda:0": {"index": 0}, "cuda:1": {"index": 1}},
        streams={
            str(number): {"name": name, "partition": name, "device": f"cuda:{device}"}
            for number, (name, device) in enumerate(homes.items())
        },
    )
    if all(given_to is None for given_to, *_ in work):
        with pytest.raises(MissingEvidence):
            analysis.confinement(trace)
        return
    result = analysis.confinement(trace)
    others = {given_to for given_to, *_ in work if given_to is not None} - set(sm_ids)
    assert [one.partition for one in result.partitions][: len(sm_ids)] == list(sm_ids)
    assert {one.partition for one in result.partitions[len(sm_ids) :]} == others
    for one in result.partitions:
        own, home = set(sm_ids.get(one.partition) or ()), homes.get(one.partition)
        assert one.shares_with == tuple(
            name for name, ids in sm_ids.items()
            if name != one.partition and own & set(ids or ())
        )  # fmt: skip
        time_ns, escaped_ns, counts, abroad = 0, 0.0, {}, set()
        for given_to, ran_by, length, blocks in work:
            if given_to != one.partition:
                continue
            judged_by = "blocks" if own and blocks else "kernels"
            outside = [
                (max(ns, 1), sm) for sm, device, ns in blocks
                if sm not in own or home not in (None, device)
            ]  # fmt: skip
            if judged_by == "blocks":
                share = sum(ns for ns, _ in outside) / sum(max(ns, 1) for _, _, ns in blocks)
                abroad |= {sm for _, sm in outside}
            else:
                share = float(ran_by != given_to)
            time_ns += max(length, 1)
            escaped_ns += max(length, 1) * share
            counts[judged_by] = counts.get(judged_by, 0) + 1
        assert one.time_ns == time_ns
        assert one.escaped_ns == pytest.approx(escaped_ns)
        assert sum(escape.time_ns for escape in one.escapes) == pytest.approx(escaped_ns)
        assert {part.judged_by: part.kernels for part in one.evidence} == counts
        assert set(one.escaping_sm_ids) == abroad


# -- traces from elsewhere ----------------------------------------------------------------
def elsewhere():
    """Ranges decode (thread 1) and, in it, prefill; a call and a kernel in each, and one after."""
    rows = [
        {"kind": "range", "name": "decode", "start_ns": 0, "end_ns": 100, "thread": 1},
        {"kind": "range", "name": "prefill", "start_ns": 40, "end_ns": 60, "thread": 1},
    ]
    edges = []
    for at, context, name in ((10, 5, "a"), (50, 6, "b"), (70, None, "c"), (200, None, "d")):
        edges.append((len(rows), len(rows) + 1))
        rows.append({"kind": "api", "start_ns": at, "end_ns": at + 1, "thread": 1})
        rows.append(
            {
                "kind": "kernel", "name": name, "start_ns": at + 300, "end_ns": at + 310,
                "green_context": context, "stream": 3,
            }
        )  # fmt: skip
    return build(rows, edges, {})


def test_ranges_may_say_what_was_given_to_whom():
    # a and c were launched in decode, b in prefill inside it; c ran nowhere.
    result = analysis.confinement(elsewhere(), intended={"decode": 5, "prefill": 6})
    decode, prefill = result["green context 5"], result["green context 6"]
    assert (decode.kernels, decode.fraction) == (2, 0.5)
    assert [escape.kernel for escape in decode.escapes] == ["c"]
    assert (prefill.kernels, prefill.fraction) == (1, 1.0)
    assert not decode.sm_ids_known
    assert "its SM ids were not seen" in decode.notes[0]
    assert "the caller's word" in result.note


def test_a_range_of_another_thread_gives_nothing():
    trace = elsewhere()
    columns = trace.spans.to_pydict()
    columns["thread"] = [2, 2, *columns["thread"][2:]]
    other = Trace.from_columns(columns, trace.edges.to_pydict())
    with pytest.raises(MissingEvidence, match=r"applies to none of 4 finished kernels"):
        analysis.confinement(other, intended={"decode": 5})


def test_streams_may_say_what_was_given_to_whom():
    one = analysis.confinement(elsewhere(), intended={3: 5})["green context 5"]
    assert (one.kernels, one.fraction) == (4, 0.25)
    assert {escape.where for escape in one.escapes} == {
        "green context 6", "outside any partition (stream 3)",
    }  # fmt: skip


def test_the_callers_word_may_name_partitions_and_wins():
    rows = [kernel("p", "q", stream=4), kernel("p", "p", stream=1)]
    result = analysis.confinement(build(rows), intended={4: "q"})
    assert (result["p"].fraction, result["q"].fraction) == (1.0, 1.0)
    assert analysis.confinement(build(rows), intended={4: 3})["q"].kernels == 1


def test_kernels_without_a_launch_call_and_absent_keys_are_said():
    rows = [kernel(None, "p"), *elsewhere().spans.to_pylist()[:4]]
    rows = [{name: value for name, value in row.items() if name != "id"} for row in rows]
    result = analysis.confinement(build(rows, [(3, 4)]), intended={"decode": 5, "z": 6, 99: 7})
    assert result.notes[:2] == (
        "the trace has no 'z', 99, which intended= names",
        "1 kernels have no known launch call: in no range",
    )


def test_confinement_needs_to_know_what_was_given_to_whom():
    with pytest.raises(MissingEvidence, match=r"CallerStreamGuard.*intended="):
        judged([kernel(None, "p")])
    with pytest.raises(MissingEvidence, match="none of 0 finished kernels"):
        judged([])
    with pytest.raises(MissingEvidence, match="applies to none"):
        analysis.confinement(build([kernel("p", "p")]), intended={"z": 5})


def test_a_trace_from_elsewhere_must_say_where_kernels_ran():
    with pytest.raises(MissingEvidence, match="green context"):
        analysis.confinement(build([kernel(None, None, stream=4)]), intended={4: "p"})
    with_block = build([kernel(None, None, stream=4), block(0, 0)])
    assert analysis.confinement(with_block, intended={4: "p"})["p"].fraction == 1.0


# -- what is shown ------------------------------------------------------------------------
def mixed():
    return [
        kernel("p", "p", 0, 1_000_000), block(0, 0, 0, 9), block(0, 2, 0, 1),
        kernel("p", "p", 0, 500_000), kernel("p", None, 0, 20_000, EVIL, 7),
        *(kernel("q", None, 0, 10 + index, f"lib {index}", 7) for index in range(5)),
    ]  # fmt: skip


def test_rows_say_it_in_words():
    first, second = judged(mixed()).rows()
    assert first["partition"] == "p"
    assert first["evidence"] == "resident (2 blocks: 0.9) + allocated (2 kernels: 0.9615)"
    assert first["escaping SM ids"] == "2"
    assert second["confinement"] == 0.0
    assert "lib 4 ×1 (all) → outside any partition (stream 7), 14 ns" in second["escaping kernels"]
    assert second["escaping kernels"].endswith("and 2 more")
    assert "<script" not in judged(mixed())._repr_html_()


def texts(figure):
    title = figure.layout.title
    words = [title.text, title.subtitle.text, *(one.text for one in figure.layout.annotations)]
    return " ".join([*words, *(text for one in figure.data for text in one.hovertext)])


def test_the_figure_has_a_bar_a_partition_by_evidence():
    figure = figures.confinement(build(mixed()))
    widths = {}
    for one in figure.data:
        widths.setdefault(one.y[0], []).append((one.name, one.base[0], one.x[0]))
    first, second = (widths[y] for y in figure.layout.yaxis.tickvals)
    assert [name for name, _, _ in first] == [
        "inside, resident", "inside, allocated", "escaped, resident", "escaped, allocated",
    ]  # fmt: skip
    assert [name for name, _, _ in second] == ["escaped, allocated"]
    for parts in (first, second):
        assert parts[0][1] == 0
        assert sum(width for _, _, width in parts) == pytest.approx(1)
    assert [one.name for one in figure.data if one.showlegend] == [name for name, _, _ in first]
    assert "lib 4" in texts(figure)
    assert "ESCAPED: 2 more" in texts(figure)
    assert "measured on NVIDIA H200" in texts(figure)
    assert "SIMULATED" not in texts(figure)


def test_the_figure_of_a_result_is_that_of_its_trace():
    trace = build(mixed(), simulated=True)
    for judged_one in (trace, analysis.confinement(trace)):
        figure = figures.confinement(judged_one)
        assert "SIMULATED" in figure.layout.title.text
        assert "SIMULATED" in figure.layout.title.subtitle.text
        assert len(figure.data) == 5


def test_the_figure_names_partitions_without_work():
    assert "no work was given to it" in texts(figures.confinement(build([kernel("p", "p")])))


@pytest.mark.parametrize(
    ("ns", "said"), [(1, "below 0.01 % of the time"), (10**8, "10 % of the time")]
)
def test_almost_all_is_not_written_as_all(ns, said):
    rows = [kernel("p", "p", 0, 9 * 10**8), kernel("p", None, 0, ns)]
    assert said in texts(figures.confinement(build(rows))).replace("<br>", " ")


def test_foreign_names_are_harmless_in_the_figure():
    partitions = {EVIL: {"sm_ids": [0], "shares_with": [EVIL + "2"]}}
    rows = [kernel(EVIL, EVIL + "3", name=EVIL), kernel(EVIL, None, name=EVIL), kernel(EVIL, EVIL)]
    trace = build(rows, (), partitions, streams={"1": {"name": EVIL}})
    figure = figures.confinement(trace)
    text = json.dumps(figure.to_plotly_json(), default=lambda value: value.tolist())
    for raw in ("<script", "\u202e", "\\u202e", "$"):
        assert raw not in text
    assert "&lt;script" in text


def test_results_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        judged([kernel("p", "p")])["p"].fraction = 0.5


def test_a_million_blocks_take_about_a_second():
    kernels, count = 100_000, 1_000_000
    random = np.random.default_rng(0)
    parent = random.integers(0, kernels, count)
    sm = np.array([0, 1, 8, 9])[random.integers(0, 4, count)]
    sm[:50] = 2
    total = kernels + count
    is_block = np.arange(total) >= kernels
    only_blocks, only_kernels = ~is_block, is_block

    def text(values, codes, mask=None):
        indices = pa.array(codes.astype(np.int32), mask=mask)
        return pa.DictionaryArray.from_arrays(indices, values)

    columns = {
        "id": np.arange(total),
        "kind": text(["kernel", "block"], is_block),
        "name": text([f"k{index}" for index in range(50)], np.arange(total) % 50),
        "source": text(["cupti", "blocks"], is_block),
        "start_ns": np.zeros(total, np.int64),
        "end_ns": np.full(total, 10),
        "parent": pa.array(np.r_[np.zeros(kernels, int), parent], mask=only_blocks),
        "sm": pa.array(np.r_[np.zeros(kernels, int), sm].astype(np.int16), mask=only_blocks),
        "partition": text(["p"], np.zeros(total), only_kernels),
        "intended_partition": text(["p"], np.zeros(total), only_kernels),
    }
    spans = pa.table(
        [columns.get(name, pa.nulls(total)) for name in schema.SPAN_TYPES],
        names=list(schema.SPAN_TYPES),
    )
    trace = Trace(spans, schema.table({}, schema.EDGE_TYPES), TraceMetadata(partitions=PARTITIONS))
    began_s = time.process_time()
    one = analysis.confinement(trace)["p"]
    assert time.process_time() - began_s < 10  # about 0.5 s; machines of CI are slow
    assert sum(escape.blocks or 0 for escape in one.escapes) == 50
    assert one.escaping_sm_ids == (2,)


def test_an_escape_says_of_how_many_kernels_of_its_name_it_is():
    rows = [
        *(kernel("p", None, 0, 10, "norm") for _ in range(3)), kernel("p", "p", 0, 900, "gemm"),
        kernel("p", "p", 0, 10, "copy"), kernel("p", None, 0, 10, "copy"),
        kernel("q", "q", 0, 10, "norm"),
    ]  # fmt: skip
    result = judged(rows)
    counts = {one.kernel: (one.kernels, one.given) for one in result["p"].escapes}
    assert counts == {"norm": (3, 3), "copy": (1, 2)}
    told = result.rows()[0]["escaping kernels"]
    assert "norm ×3 (all) →" in told
    assert "copy ×1 (of 2) →" in told
