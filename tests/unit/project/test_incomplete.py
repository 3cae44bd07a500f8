"""Whatever speaks of a trace of which rows are missing says so: "incomplete: how many, why"."""

from __future__ import annotations

import contextlib
import gzip
import inspect
import json
import re
import sqlite3
import sys
import types
import weakref
import zipfile
from html import unescape
from pathlib import Path

import plotly.io as pio
import pyarrow.parquet as pq
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.testing.globalipapp import get_ipython  # noqa: F401 - makes testing quiet
from IPython.utils.capture import capture_output
from perfetto_packets import decoded
from report_pages import without_plotly

import gpuscope as gs
from gpuscope import analysis, cli, figures, telling
from gpuscope.analysis.settings import settings_table
from gpuscope.device import select
from gpuscope.formats import known_formats
from gpuscope.record.recorder import Recording
from gpuscope.report import html_report, prediction_report, trace_report
from gpuscope.timeline.canvas.state import TimelineState
from gpuscope.trace import Trace, schema
from gpuscope.trace.facts import HazardFacts
from gpuscope.trace.gpu_states import GpuStateFacts
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.run import Run, incomplete
from gpuscope.widgets import answers, results
from gpuscope.widgets.dashboard import Dashboard

SUFFIXES = [suffix for known in known_formats() for suffix in known.suffixes]
READABLE = {suffix for known in known_formats() if known.read for suffix in known.suffixes}
SENTENCE = "incomplete: 1,234 dropped; the buffer was full"
TOLD = re.compile(r"incomplete: +(\w[\w, ]*: )?[\d,]+ dropped; the buffer was full")
PLAN = {
    "name": "both",
    "alone_repeats": 2,
    "rounds": 1,
    "partitions": {"a": 16, "b": "rest"},
    "streams": {"s": {"partition": "a"}, "t": {"partition": "b"}},
    "workloads": {
        "small": {"kind": "traced_gemm", "m": 256, "n": 256, "k": 256, "stream": "s", "repeats": 3},
        "load": {"kind": "gemm", "m": 512, "n": 512, "k": 512, "stream": "t", "repeats": 3},
    },
}


def cut(trace: Trace) -> Trace:
    """The same rows, of a recording that lost some."""
    metadata = trace.metadata
    counts = {**metadata.counts, "dropped": 1234}
    return trace.with_metadata(complete=False, counts=counts, notes=("the buffer was full",))


def with_a_request(trace: Trace) -> Trace:
    """The same rows, and a request."""
    row = {"id": [1 << 60], "kind": ["range"], "name": ["request 0"], "category": ["chat"],
           "start_ns": [10], "end_ns": [30], "payload": ['{"tokens_ns":[10,20]}'],
           "source": ["host"]}  # fmt: skip
    both = Trace.concat([trace, Trace.from_columns(row, metadata=trace.metadata)])
    return both.with_metadata(complete=trace.metadata.complete, notes=trace.metadata.notes)


def of_two_ranks(trace: Trace) -> Trace:
    """A collective of two ranks, of recordings that lack what this one lacks."""
    rows = {"id": [1], "kind": ["kernel"], "name": ["ncclDevKernel_AllReduce_Sum_f32_RING_LL"],
            "start_ns": [10], "end_ns": [30], "stream": [7], "source": ["cupti"]}  # fmt: skip
    metadata = [TraceMetadata(ranks=({"rank": rank, "world_size": 2, "process": rank},))
                for rank in range(2)]  # fmt: skip
    both = gs.merge(
        [
            Trace.from_columns({**rows, "process": [rank]}, None, facts)
            for rank, facts in enumerate(metadata)
        ]
    )
    lack = trace.metadata
    return both.with_metadata(complete=lack.complete, counts=lack.counts, notes=lack.notes)


def beside_a_load(trace: Trace) -> Trace:
    """The same rows, of an experiment with a workload in the background."""
    workloads = {"small": {"background": False}, "load": {"background": True}}
    return trace.with_metadata(experiment={"workloads": workloads})


def looked_for_hazards(trace: Trace) -> Trace:
    """The same rows, and that no hazard was found among them."""
    return trace.with_metadata(hazards=HazardFacts(accesses=3))


def at_a_clock(trace: Trace) -> Trace:
    """The same rows, of a GPU whose clock was read."""
    return trace.with_metadata(gpu_states=[GpuStateFacts("cuda:0", sm_clock_mhz=1980)])


def with_a_block(trace: Trace) -> Trace:
    """The same rows, and a thread block of a finished kernel."""
    kernels = trace.where(kind="kernel")
    kernel = next(row for row in kernels.spans.to_pylist() if row["end_ns"] is not None)
    block = {**kernel, "id": 1 << 60, "parent": kernel["id"], "kind": "block", "sm": 0}
    block = Trace.from_columns({name: [value] for name, value in block.items()}).spans
    return Trace(
        schema.concat([trace.spans, block], schema.SPAN_TYPES), trace.edges, trace.metadata
    )


def with_a_sample(trace: Trace) -> Trace:
    """The same rows, and a sample of counters while a finished kernel ran."""
    kernels = trace.where(kind="kernel")
    kernel = next(row for row in kernels.spans.to_pylist() if row["end_ns"] is not None)
    names = ("device", "device_uuid", "start_ns", "end_ns", "source")
    sample = {name: kernel[name] for name in names}
    sample |= {"id": 1 << 60, "kind": "counter", "name": "busy SMs", "value": 3.0}
    sample = Trace.from_columns({name: [value] for name, value in sample.items()}).spans
    return Trace(
        schema.concat([trace.spans, sample], schema.SPAN_TYPES), trace.edges, trace.metadata
    )


def with_a_stack(trace: Trace) -> Trace:
    """The same rows, and a sampled stack as long as all of them."""
    begin, end = trace.array("start_ns").min(), trace.array("end_ns", fill=0).max()
    stack = {"id": 1 << 60, "kind": "stack", "name": "f", "start_ns": int(begin),
             "end_ns": int(end), "thread": 7, "value": 1.0, "source": "host"}  # fmt: skip
    stack = Trace.from_columns({name: [value] for name, value in stack.items()}).spans
    return Trace(
        schema.concat([trace.spans, stack], schema.SPAN_TYPES), trace.edges, trace.metadata
    )


def plain(text: str) -> str:
    """What people read of HTML, or of Plotly's."""
    text = text.replace("\\u003c", "<").replace("\\u003e", ">")
    return " ".join(unescape(re.sub("<[^>]*>", " ", text)).replace(" :", ":").split())


@pytest.fixture(scope="module")
def whole():
    return gs.run(PLAN, gs.open_device("sim:h200", quiet=True))


@pytest.fixture(scope="module")
def broken(whole):
    traces = {name: cut(trace) for name, trace in whole.items()}
    return Run(traces, settings_table(traces), whole.experiment)


@pytest.fixture(params=["incomplete", "complete"])
def run(request, whole, broken):
    return broken if request.param == "incomplete" else whole


@pytest.fixture
def trace(run):
    return run["default"]


@pytest.fixture
def check(run, broken):
    """Hold that texts say what is missing where something is, and else do not."""

    def hold(*texts: str) -> None:
        assert texts
        for text in texts:
            if run is broken:
                assert TOLD.search(plain(text)), plain(text)[:2000]
            else:
                assert "incomplete: " not in plain(text), plain(text)[:2000]

    return hold


@contextlib.contextmanager
def losing(monkeypatch, *, if_: bool):
    """Make every recording lose rows."""
    if if_:
        stop, trace = Recording.stop, Recording.trace
        monkeypatch.setattr(Recording, "stop", lambda self, **how: cut(stop(self, **how)))
        monkeypatch.setattr(Recording, "trace", property(lambda self: cut(trace.fget(self))))
    yield


# -- analyses -----------------------------------------------------------------------------
ANALYSES = {
    "settings_table": lambda run, trace: analysis.settings_table(run),
    "concurrency": lambda run, trace: analysis.concurrency(trace),
    "clocks": lambda run, trace: analysis.clocks(at_a_clock(trace)),
    "collectives": lambda run, trace: analysis.collectives(of_two_ranks(trace)),
    "confinement": lambda run, trace: analysis.confinement(trace),
    "findings": lambda run, trace: telling.findings(trace),
    "critical_path": lambda run, trace: analysis.critical_path(trace),
    "gaps": lambda run, trace: analysis.gaps(trace),
    "hazards": lambda run, trace: analysis.hazards(looked_for_hazards(trace)),
    "host_times": lambda run, trace: analysis.host_times(with_a_stack(trace)),
    "idle_causes": lambda run, trace: analysis.idle_causes(trace),
    "idle_sms": lambda run, trace: analysis.idle_sms(with_a_block(trace)),
    "partition_use": lambda run, trace: analysis.partition_use(with_a_sample(trace)),
    "launch_sites": lambda run, trace: analysis.launch_sites(trace),
    "interference": lambda run, trace: analysis.interference(
        trace, trace, of="small", given="load"
    ),
    "latency": lambda run, trace: analysis.latency(trace),
    "launch_latency": lambda run, trace: analysis.launch_latency(trace),
    "overlap": lambda run, trace: analysis.overlap(trace),
    "queue_depth": lambda run, trace: analysis.queue_depth(trace, of="load", at="small"),
    "queue_depths": lambda run, trace: analysis.queue_depths(beside_a_load(trace)),
    "range_projection": lambda run, trace: analysis.range_projection(trace),
    "ranks": lambda run, trace: analysis.ranks(of_two_ranks(trace)),
    "requests": lambda run, trace: analysis.requests(with_a_request(trace)),
    "steps": lambda run, trace: analysis.steps(trace),
    "summary": lambda run, trace: analysis.summary(trace),
    "top_kernels": lambda run, trace: analysis.top_kernels(trace),
    "what_would_help": lambda run, trace: analysis.what_would_help(trace),
}
"""Public function → what it says; one that is new belongs here."""
SERIES = {
    "SweepResult": lambda gpu: gs.search.sweep(PLAN, {"partitions.a": [8, 16]}, gpu),
    "InterferenceResult": lambda gpu: gs.search.measure_interference(
        gpu, {"a": 16, "b": "rest"},
        {"x": {"kind": "spin", "duration_us": 10, "partition": "a"},
         "y": {"kind": "spin", "duration_us": 10, "partition": "b"}},
        repeats=2, rounds=1,
    ),
    "Tuning": lambda gpu: gs.tune(
        PLAN, {"partitions.a": [8, 16]}, "small.latency_p50_us", None, gpu, repeats=3
    ),
}  # fmt: skip
"""Result of several recordings → how to get one."""


def test_every_analysis_and_result_is_walked():
    public = {name: getattr(analysis, name) for name in dir(analysis) if name[0] != "_"}
    functions = {name for name, one in public.items() if inspect.isfunction(one)}
    # Sentences: test_sentences_say_it, test_traces_and_explanations_say_it.
    assert functions - {"parts"} == set(ANALYSES) - {"findings"}
    made = {name for name, one in public.items() if isinstance(one, type)
            and hasattr(one, "note") and hasattr(one, "rows")}  # fmt: skip
    returned = {inspect.signature(public[name]).return_annotation for name in functions}
    assert made - {"Result"} == {name for name in returned if name in public} | set(SERIES)


@pytest.mark.parametrize("name", ANALYSES)
def test_analyses_say_it(name, run, trace, check):
    found = ANALYSES[name](run, trace)
    if name == "settings_table":
        check(*map(str, found.to_pylist()))
        check(Run(run.traces, found, run.experiment)._repr_html_())
    else:
        check(str(found), found.note, found._repr_html_(), *map(str, found.rows()))


def test_sentences_say_it(run, trace, check):
    check(telling.outcome(run))
    check(telling.confinement_verdict(trace).text)
    rules = [finding.rule for _, finding in telling.findings_by_setting(run)]
    assert ("incomplete" in rules) == (not trace.metadata.complete)


@pytest.mark.parametrize("name", SERIES)
def test_results_of_several_recordings_say_it(name, run, broken, check, monkeypatch):
    with losing(monkeypatch, if_=run is broken):
        found = SERIES[name](gs.open_device("sim:h200", quiet=True))
    check(found.incomplete or "nothing", found.note, found._repr_html_(), *map(str, found.rows()))
    if name == "SweepResult":
        check(words(figures.swept(found)))
    elif name == "Tuning":
        check(words(found.figure()))
    else:
        check(words(figures.interference(found)))


# -- figures ------------------------------------------------------------------------------
FIGURES = {
    "compared": lambda run, trace: gs.compare(trace, trace).figure(),
    "confinement": lambda run, trace: figures.confinement(trace),
    "host_times": lambda run, trace: figures.host_times(with_a_stack(trace)),
    "interference": None,  # of SERIES
    "tuning": None,
    "latency": lambda run, trace: figures.latency(run, "small"),
    "sm_map": lambda run, trace: figures.sm_map(with_blocks(trace)),
    "timeline": lambda run, trace: figures.timeline(with_blocks(trace), sm=True),
    "timelines": lambda run, trace: figures.timelines(run),
    "swept": None,
}


def with_blocks(trace: Trace) -> Trace:
    """A trace with that metadata in which a block said on which SM it ran."""
    columns = {
        "id": [1, 2], "kind": ["kernel", "block"], "name": ["k", "k"], "source": ["s", "s"],
        "start_ns": [0, 0], "end_ns": [9, 9], "stream": [1, None], "sm": [None, 3],
        "device": [0, 0], "partition": ["a", "a"],
    }  # fmt: skip
    return Trace.from_columns(columns, metadata=trace.metadata)


def words(figure) -> str:
    title = figure.layout.title
    notes = " ".join(note.text for note in figure.layout.annotations)
    return f"{title.text} {title.subtitle.text} {notes}"


def test_every_figure_is_walked():
    assert set(figures.__all__) == set(FIGURES)
    assert all(inspect.isfunction(getattr(figures, name)) for name in figures.__all__)


@pytest.mark.parametrize("name", [name for name, draw in FIGURES.items() if draw])
def test_figures_say_it_in_the_picture_and_in_its_title(name, run, trace, broken, check):
    figure = FIGURES[name](run, trace)
    check(words(figure))
    assert ("(incomplete)" in figure.layout.title.text) == (run is broken)


def test_a_figure_of_a_result_says_it(run, trace, broken, check):
    figure = figures.confinement(analysis.confinement(trace))
    check(words(figure))
    assert ("(incomplete)" in figure.layout.title.text) == (run is broken)


# -- traces -------------------------------------------------------------------------------
def test_traces_and_explanations_say_it(trace, check):
    kernel = trace.where(kind="kernel").array("id")[0]
    check(repr(trace), trace._repr_html_(), trace.provenance, trace.to_pandas().attrs["gpuscope"]
          if trace.metadata.complete else repr(trace))  # fmt: skip
    check(
        str(telling.explain(trace, kernel)),
        telling.explain(trace, kernel)._repr_html_(),
    )
    check(Trace.concat([trace, trace]).provenance)
    state = TimelineState(trace, None)
    check(" ".join(state.snapshot(state.extent_ns, following=False).heading))


def test_the_sentence_says_how_many_and_why():
    lost = TraceMetadata(
        complete=False, counts={"received": 9, "dropped": 3, "unread_bytes": 70_000, "unmatched": 0,
                                "in_shared_tasks": 4}, notes=("CUPTI dropped 3 records",),
    )  # fmt: skip
    assert lost.incomplete == (
        "incomplete: 3 dropped, 70,000 unread bytes; CUPTI dropped 3 records"
    )
    assert TraceMetadata().incomplete == ""
    assert TraceMetadata(counts={"unmatched": 4}, notes=("something",)).incomplete == ""
    silent = TraceMetadata(complete=False).incomplete
    assert silent == "incomplete: nothing says how much is missing"
    evil = TraceMetadata(complete=False, notes=("\x1b]52;c;AAAA\x07" + "x" * 10_000,)).incomplete
    assert "\x1b" not in evil
    assert len(evil) < 400


def test_of_several_traces_it_says_which():
    good, bad = (Trace.from_columns({}, metadata=TraceMetadata(complete=one, notes=("full",)))
                 for one in (True, False))  # fmt: skip
    assert incomplete({}) == incomplete({"one": good, "two": good}) == ""
    assert incomplete({"one": bad, "two": bad}) == "incomplete: full"
    assert incomplete({"one": bad, "two": good}) == "incomplete: one: full"
    many = incomplete({**{f"round {n}": bad for n in range(9)}, "alone": good})
    assert many.endswith("round 2: full; and 6 more traces")


def test_a_run_is_incomplete_where_what_ran_alone_is(monkeypatch):
    begun = []
    start, whole = Recording.start, Recording.trace.fget

    def noted(self):
        begun.append(self)
        start(self)

    def losing(self):
        trace = whole(self)
        return cut(trace) if begun.index(self) == 1 else trace  # the first that ran alone

    monkeypatch.setattr(Recording, "start", noted)
    monkeypatch.setattr(Recording, "trace", property(losing))
    made = gs.run(PLAN, gs.open_device("sim:h200", quiet=True))
    told = made["default"].metadata.incomplete
    assert "what ran alone is incomplete: small alone, round 1: 1,234 dropped" in told


# -- files --------------------------------------------------------------------------------
def fake_nsys(monkeypatch) -> None:
    """A writer of Nsight's reports that keeps the texts it is given."""

    class Anything:
        def __init__(self, told):
            self._told = told

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def get_registered_string(self, text):
            self._told.append(text)
            return text

        def __getattr__(self, _):
            return lambda *_, **__: Anything(self._told)

    class Session(Anything):
        def __init__(self, name, **_):
            super().__init__([])
            self._name = name

        def __exit__(self, *_):
            text = "\n".join(self._told)
            Path(f"{self._name}.nsys-rep").write_text(text, "utf-8")

    writer = types.ModuleType("nsys_writer")
    writer.Session = Session
    writer.TimeBase = types.SimpleNamespace(UTC=0, RELATIVE=1)
    errors = types.ModuleType("nvtx.writer")
    errors.WriterError = type("WriterError", (Exception,), {})
    monkeypatch.setitem(sys.modules, "nsys_writer", writer)
    monkeypatch.setitem(sys.modules, "nvtx.writer", errors)


def sqlite_texts(path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as database:
        lines = database.execute(
            "SELECT value FROM META_DATA_CAPTURE UNION ALL SELECT value FROM GPUSCOPE_METADATA "
            "WHERE name != 'metadata'"
        )
        return "\n".join(value for (value,) in lines)


def chrome_texts(top) -> str:
    labels = [
        one["args"]["labels"] for one in top["traceEvents"] if one["name"] == "process_labels"
    ]
    names = {one["pid"] for one in top["traceEvents"] if one["name"] == "process_name"}
    if labels:
        assert len(labels) == len(names)  # whichever process somebody looks at
    return "\n".join([top["otherData"].get("incomplete", ""), *labels])


def perfetto_texts(data):
    said = decoded(data)
    labels = [one.process.process_labels for one in said.tracks.values() if one.HasField("process")]
    assert len({tuple(one) for one in labels}) == 1
    return "\n".join([said.attributes.get("gpuscope.incomplete", ""), *labels[0]])


def archive_texts(path):
    with zipfile.ZipFile(path) as archive:
        return perfetto_texts(archive.read("trace.pftrace"))


READ = {
    ".json": lambda path: chrome_texts(json.loads(path.read_text("utf-8"))),
    ".json.gz": lambda path: chrome_texts(json.loads(gzip.decompress(path.read_bytes()))),
    ".sqlite": sqlite_texts,
    ".pftrace": lambda path: perfetto_texts(path.read_bytes()),
    ".perfetto-trace": lambda path: perfetto_texts(path.read_bytes()),
    ".pftrace.zip": archive_texts,
    ".nsys-rep": lambda path: path.read_text("utf-8"),
    ".parquet": lambda path: pq.read_schema(path).metadata[b"gpuscope.incomplete"].decode(),
    ".speedscope.json": lambda path: json.loads(path.read_text("utf-8"))["name"],
    ".html": lambda path: path.read_text("utf-8").partition("<body>")[2],
}
"""End of a file's name → what its readers are shown."""


@pytest.mark.filterwarnings("ignore:nsys")
@pytest.mark.parametrize(
    "suffix", [suffix for suffix in SUFFIXES if suffix not in (".csv", ".folded")]
)
def test_exports_say_it(suffix, trace, check, tmp_path, monkeypatch):
    if suffix == ".speedscope.json":
        trace = with_a_stack(trace)
    if suffix == ".nsys-rep":
        fake_nsys(monkeypatch)
    path = gs.export(trace, tmp_path / f"out{suffix}")
    check(READ[suffix](path))
    if suffix in READABLE and suffix != ".nsys-rep":
        check(gs.load_trace(path).provenance)


def test_reports_say_it_in_every_part_that_judges(run, trace, broken, check, tmp_path):
    pages = [
        html_report(run, tmp_path / "run.html"),
        trace_report(trace, tmp_path / "trace.html"),
        prediction_report(run, run, tmp_path / "prediction.html"),
    ]
    for page in pages:
        body = without_plotly(page.read_text("utf-8")).partition("<body>")[2]
        check(body)
        for part in body.split("<h2>")[1:]:
            title = part.partition("</h2>")[0]
            if title not in ("What the words mean", "Where the times come from", "Provenance"):
                check(part)
    assert ("banner" in pages[1].read_text("utf-8").partition("SIMULATED")[2]) == (run is broken)


# -- command line, notebook, dashboard ----------------------------------------------------
@pytest.fixture
def command(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpuscope", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "300")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    return call


def test_the_command_line_says_it(trace, run, broken, check, command, tmp_path):
    file = gs.export(trace, tmp_path / "in.parquet")
    check(command("summary", file))
    said = command("summary", file, "--all")
    check(said)
    if run is broken:
        for title in ("Partitions and streams", "Overlap of streams", "Latency"):
            assert re.search(f"{title}: {TOLD.pattern}", said), title
    facts = json.loads(command("summary", file, "--json"))
    check(facts["provenance"], *(str(row) for name in ("streams", "overlap", "latency")
                                 for row in facts[name]))  # fmt: skip
    command("view", file, "--out", tmp_path / "out.html")
    check((tmp_path / "out.html").read_text("utf-8").partition("<body>")[2])


def test_a_run_on_the_command_line_says_it(run, broken, check, command, tmp_path, monkeypatch):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN))
    with losing(monkeypatch, if_=run is broken):
        check(command("run", plan, "--device", "sim:h200", "--out", tmp_path / "out"))
        given = ("--against", tmp_path / "out", "--out", tmp_path / "other")
        check(command("predict", plan, *given))
    check((tmp_path / "out" / "report.html").read_text("utf-8").partition("<body>")[2])
    facts = json.loads((tmp_path / "out" / "comparison.json").read_text())
    check(*map(str, facts["comparison"]))


def test_the_magic_says_it_of_all_that_it_shows(run, broken, check, monkeypatch):
    monkeypatch.setattr(
        select, "_open", weakref.WeakValueDictionary()
    )  # devices that other tests left open
    monkeypatch.setattr(pio.renderers, "default", "plotly_mimetype")
    shell = InteractiveShell.instance()
    try:
        shell.run_line_magic("load_ext", "gpuscope")
        shell.user_ns.update(gs=gs, gpu=gs.open_device("sim:h200", quiet=True))
        cell = (
            "%%gpuscope\nwith gpu.create_stream() as s:\n"
            "    gs.Gemm(gpu, m=64, n=64, k=64).execute(stream=s)"
        )
        with losing(monkeypatch, if_=run is broken), capture_output() as seen:
            shell.run_cell(cell)
        outputs = [json.dumps(one.data, default=str, ensure_ascii=False) for one in seen.outputs]
        beside = "<style", "<details"  # the figure's, for dark pages and as a table
        outputs = [one for one in outputs if not any(tag in one for tag in beside)]
        assert len(outputs) == 3
        check(*outputs)
    finally:
        InteractiveShell.clear_instance()


def test_verdict_and_findings_of_the_dashboard_say_it(run, broken, check):
    summary = results.summarise(run)
    verdict, found = summary.judged.verdict, results.sections(summary, {})
    check(answers.headline(verdict.headline, verdict.notes), found, results.numbers(summary))
    assert ("all of its work" in plain(found)) == (run is not broken)
    check(results.sections(results.Summary(**{**vars(summary), "rows": ()}), {}))


def test_the_dashboard_says_it(run, broken, check, monkeypatch):
    dashboard = Dashboard("sim:h200")
    try:
        dashboard.form.workloads.edit("small", repeats=5)
        with losing(monkeypatch, if_=run is broken):
            dashboard.start()
            assert dashboard.wait(600)
        assert dashboard.bar.alarm == ""
        check(dashboard.verdict.value, dashboard.results.value, dashboard.bar.status)
    finally:
        dashboard.close()
