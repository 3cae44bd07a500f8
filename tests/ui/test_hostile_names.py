"""Names that mean harm, in files that others made, shown in a real browser: nothing of them acts.

Each output is opened as a page of its own, where scripts may run, and once more in a notebook.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_lab import IDLE

import gpuscope as gs
from gpuscope import analysis, figures, telling
from gpuscope.errors import MissingEvidence
from gpuscope.report.run import html_report
from gpuscope.report.trace import trace_report
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.widgets import html as dashboard
from gpuscope.widgets import results
from gpuscope.widgets.answers import answers, headline
from gpuscope.widgets.compared import side_by_side

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
import nsight_files as nsight

pytestmark = pytest.mark.ui

NAMES = (
    "<script>window.hacked='script'</script>",
    "</script><script>window.hacked='closing script'</script>",
    "<img src=x onerror=\"window.hacked='handler'\">",
    "<svg onload=window.hacked='svg'><b class=hacked>bold</b>",
    '" onmouseover="window.hacked=\'attribute\'" class="hacked',
    "' onfocus='window.hacked=1' autofocus class='hacked",
    "<a class=hacked href=\"javascript:window.hacked='link'\">click</a>",
    "[click](javascript:window.hacked='markdown')",
    "javascript:window.hacked='scheme'",
    "$\\href{javascript:window.hacked='tex'}{x}$",
    '</td></tr></table></div><iframe class=hacked srcdoc="<script>parent.hacked=1</script>">',
    "<!-- --><style>body{display:none}</style><base href=//evil>",
    "\u202egnp.exe\u202c \u2066isolated\u2069 \u200emark \u061c",
    "{{constructor.constructor('window.hacked=2')()}} ${window.hacked=3}",
    (
        ']]><math><mtext></mtext><mglyph><svg><mtext><style><path id="</style><img src=x '
        "onerror=window.hacked='mxss'>\">"
    ),
)
CONTROLS = "[\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]"

# What a name would have left behind if it had been taken for markup, in one part of a page.
TRACES_OF_HARM = f"""(root) => {{
    const found = [];
    if (window.hacked !== undefined) found.push('ran: ' + window.hacked);
    const whole = root === null ? document : document.querySelectorAll(root);
    const parts = root === null ? [document.documentElement] : [...whole];
    if (!parts.length) found.push('nothing is shown');
    for (const part of parts) {{
        for (const one of part.querySelectorAll('*')) {{
            const text = one.outerHTML.slice(0, 200);
            if (/(^|\\s)hacked(\\s|$)/.test(one.getAttribute('class') || ''))
                found.push('element: ' + text);
            for (const attribute of one.attributes) {{
                const value = attribute.value.trim();
                if (/^on/i.test(attribute.name) && /hacked/.test(value))
                    found.push('handler: ' + text);
                if (/^(xlink:)?(href|src|srcdoc|action)$/i.test(attribute.name)
                    && /^\\s*(javascript|data:text)/i.test(value)) found.push('link: ' + text);
                if (/{CONTROLS}/.test(value)) found.push('control in attribute: ' + text);
            }}
            if (['IFRAME', 'BASE', 'MJX-CONTAINER'].includes(one.tagName))
                found.push('element: ' + text);
            if (one.tagName === 'IMG' && one.getAttribute('src') === 'x')
                found.push('image: ' + text);
        }}
        const words = [part.innerText || '', ...[...part.querySelectorAll('text, tspan')].map(
            one => one.textContent)].join(' ');
        if (/{CONTROLS}/.test(words)) found.push('control in text');
    }}
    if (/{CONTROLS}/.test(document.title)) found.push('control in title');
    return found;
}}"""
DRAWN = """() => {
    const figures = [...document.querySelectorAll('.plotly-graph-div, [data-figure]')];
    return figures.length && figures.every(one => one.querySelector('.main-svg'));
}"""
# Every bar's text under the pointer, which Plotly reads as a subset of HTML.
HOVER = """() => {
    let seen = 0;
    for (const plot of document.querySelectorAll('.js-plotly-plot')) {
        (plot._fullData || []).forEach((trace, curve) => {
            const size = (trace.x || trace.y || []).length || 1;
            for (let point = 0; point < Math.min(size, 40); point += 1) {
                try {
                    window.Plotly.Fx.hover(plot, [{curveNumber: curve, pointNumber: point}]);
                    seen += plot.querySelectorAll('.hoverlayer text').length;
                } catch (error) { /* a trace without hover */ }
            }
        });
    }
    return seen;
}"""


# -- files full of such names ------------------------------------------------------------------
def chrome_trace():
    """Return a PyTorch-like trace that bears the names wherever a name can stand."""
    events, count = [], len(NAMES)
    for number, name in enumerate(NAMES):
        other = NAMES[(number + 1) % count]
        at = 100.0 * number
        events += [
            {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}},
            {"ph": "M", "name": "thread_name", "pid": number, "tid": number, "args":
             {"name": name}},
            {"ph": "X", "cat": other, "name": name, "pid": number, "tid": number, "ts": at,
             "dur": 80, "args": {name: other}},
            {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": number, "tid": number,
             "ts": at + 5, "dur": 5, "args": {"correlation": number + 1, name: 1}},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7 + number % 2,
             "ts": at + 20, "dur": 70, "args": {"device": 0, "stream": 7 + number % 2,
                                                "correlation": number + 1, name: other}},
            {"ph": "i", "cat": other, "name": name, "pid": number, "tid": number, "ts": at + 90},
            {"ph": "C", "name": name, "pid": number, "ts": at, "args": {name: 1, other: 2}},
            {"ph": name, "name": name, "ts": at},
            {"ph": "s", "cat": name, "id": name, "pid": number, "tid": number, "ts": at},
            {"ph": "f", "cat": name, "id": name, "pid": 0, "tid": 7, "ts": at},
        ]  # fmt: skip
    top = {name: name for name in NAMES}
    devices = [{"id": number, "name": name} for number, name in enumerate(NAMES)]
    return {**top, "deviceProperties": devices, "traceEvents": events}


def nsight_tables():
    """Return an export of Nsight Systems that bears the names, and they its texts' numbers."""
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [], "CUPTI_ACTIVITY_KIND_RUNTIME": [], "NVTX_EVENTS": [],
        "PROCESSES": [], "ThreadNames": [], "TARGET_INFO_GPU": [], "META_DATA_EXPORT": [],
        "TARGET_INFO_SYSTEM_ENV": [{"name": "NvDriverVersion", "value": NAMES[2]}],
        **{name: [{name: 1}] for name in NAMES},
    }  # fmt: skip
    for number, name in enumerate(NAMES):
        thread = nsight.tid(number, number)
        at = 1000 * number
        tables["NVTX_EVENTS"] += [
            {"start": 0, "eventType": 75, "text": name, "domainId": 1, "globalTid": thread},
            {"start": 0, "eventType": 33, "text": name, "domainId": 1, "category": 2,
             "globalTid": thread},
            {"start": at, "end": at + 900, "eventType": 59, "textId": number, "domainId": 1,
             "category": 2, "globalTid": thread, "jsonText": json.dumps({name: name})},
        ]  # fmt: skip
        tables["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
            {"start": at + 5, "end": at + 9, "globalTid": thread, "correlationId": number + 1,
             "nameId": number}
        )  # fmt: skip
        tables["CUPTI_ACTIVITY_KIND_KERNEL"].append(
            {"start": at + 20, "end": at + 990, "globalPid": nsight.tid(0, number), "deviceId": 0,
             "contextId": 1, "greenContextId": 1 + number % 3, "streamId": number % 4,
             "correlationId": number + 1, "demangledName": number}
        )  # fmt: skip
        tables["PROCESSES"].append({"pid": number, "name": name})
        tables["ThreadNames"].append({"nameId": number, "priority": 1, "globalTid": thread})
        tables["TARGET_INFO_GPU"].append({"id": number, "name": name, "uuid": name})
    tables["META_DATA_EXPORT"].append({"name": "EXPORT_PRODUCT_VERSION", "value": NAMES[0]})
    return tables


def own_trace():
    """Return a trace whose metadata bears the names, as a file of ours might."""
    rows, count = [], len(NAMES)
    for number, name in enumerate(NAMES):
        shared = {"source": "cupti", "device": 0, "process": 1, "thread": number,
                  "stream": number, "partition": name, "intended_partition": NAMES[number - 1],
                  "category": name, "status": name, "host": name}  # fmt: skip
        at = 1000 * number
        rows += [
            {"id": 4 * number + 1, "kind": "handle", "name": name, "start_ns": at,
             "end_ns": at + 900, **shared},
            {"id": 4 * number + 2, "kind": "kernel", "name": name, "start_ns": at + 10,
             "end_ns": at + 1500, "correlation": number + 1, **shared},
            {"id": 4 * number + 3, "kind": "range", "name": name, "start_ns": at,
             "end_ns": at + 950, "domain": name, "payload": json.dumps(name), **shared},
            {"id": 4 * number + 4, "kind": "block", "name": name, "start_ns": at + 10,
             "end_ns": at + 800, "parent": 4 * number + 2, "sm": number % 8, **shared},
        ]  # fmt: skip
    columns = list(dict.fromkeys(key for row in rows for key in row))
    facts = TraceMetadata(
        devices={name: {"index": number, "name": name, "driver": name}
                 for number, name in enumerate(NAMES)},
        driver=NAMES[0], setting=NAMES[1],
        process_names={"1": NAMES[3]},
        thread_names={str(number): name for number, name in enumerate(NAMES)},
        partitions={name: {"sm_count": 8, "sm_ids": list(range(8)), "context": number,
                           "shares_with": list(NAMES)} for number, name in enumerate(NAMES)},
        streams={str(number): {"name": name, "partition": name, "device": "cuda:0"}
                 for number, name in enumerate(NAMES)},
        versions={name: name for name in NAMES},
        counts=dict.fromkeys(NAMES, count), notes=NAMES,
        solo={name: {"kernel_ns": 5} for name in NAMES},
    )  # fmt: skip
    spans = {name: [row.get(name) for row in rows] for name in columns}
    return Trace.from_columns(spans, {"from": [2], "to": [6], "kind": ["event wait"]}, facts)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What it is → a file full of names."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "chrome.json").write_text(json.dumps(chrome_trace()))
    nsight.build(folder / "nsight.sqlite", nsight_tables(), NAMES)
    gs.export(own_trace(), folder / "own.parquet")
    return {path.stem: path for path in folder.iterdir()}


def hostile_run():
    """Return a run of an experiment that bears the names."""
    workloads = {
        name: {"kind": "gemm", "m": 64, "n": 64, "k": 64, "stream": name, "repeats": 2}
        for name in NAMES
    }
    return gs.run(
        {"name": NAMES[0], "partitions": dict.fromkeys(NAMES, 8),
         "streams": {name: {"partition": name} for name in NAMES}, "workloads": workloads},
        gs.open_device("sim:h200", quiet=True),
    )  # fmt: skip


def outputs(trace):
    """Return what it is → HTML of everything that can be shown of a trace."""
    found = {"trace": trace._repr_html_()}
    named = dict.fromkeys(NAMES[:2], trace)
    judged = {
        "overlap": lambda: analysis.overlap(trace),
        "overlap by partition": lambda: analysis.overlap(trace, by="partition"),
        "overlap by workload": lambda: analysis.overlap(trace, by="workload"),
        "gaps": lambda: analysis.gaps(trace), "summary": lambda: analysis.summary(trace),
        "latency": lambda: analysis.latency(trace),
        "launch latency": lambda: analysis.launch_latency(trace),
        "concurrency": lambda: analysis.concurrency(trace),
        "projection": lambda: analysis.range_projection(trace),
        "confinement": lambda: analysis.confinement(
            trace, intended=dict.fromkeys(NAMES, NAMES[0])
        ),
        "own confinement": lambda: analysis.confinement(trace),
        "explanation": lambda: telling.explain(trace,
            trace.where(kind="kernel").spans.column("id")[3].as_py()
        ),
    }  # fmt: skip
    drawn = {
        "timeline": lambda: figures.timeline(trace, title=NAMES[2]),
        "timelines": lambda: figures.timelines(named),
        "latency figure": lambda: figures.latency(named, NAMES[0]),
        "confinement figure": lambda: figures.confinement(trace),
        "SM map": lambda: figures.sm_map(trace),
    }
    for what, make in {**judged, **drawn}.items():
        try:
            made = make()
        except MissingEvidence:
            continue
        found[what] = made.to_html(include_plotlyjs=True) if what in drawn else made._repr_html_()
    return found


def shown(page, content, what, *, folder):
    """Open HTML as a page, move over its figures, and return what is wrong."""
    path = folder / "page.html"
    if "<html" not in content[:300].lower():
        content = f"<!doctype html><meta charset=utf-8><body>{content}</body>"
    path.write_text(content, "utf-8")
    problems = []
    page.on("dialog", lambda one: (problems.append(f"dialog {one.message}"), one.dismiss()))
    page.goto(path.as_uri())
    if "data-timeline>" in content:
        page.wait_for_selector(".gpuscope-tiles")
    if any(mark in content for mark in ("js-plotly-plot", "Plotly.newPlot", 'data-figure="')):
        page.wait_for_function(DRAWN)
        if what.endswith("timeline"):
            page.wait_for_function(HOVER)
        else:
            page.evaluate(HOVER)
    page.wait_for_timeout(50)
    return [f"{what}: {one}" for one in problems + page.evaluate(TRACES_OF_HARM, None)]


def test_the_check_itself_sees_each_kind_of_harm(browser_page, tmp_path):
    for name in NAMES:
        if name.startswith(("[", "javascript", "$", "{", '"', "'", "]", "<!--")):
            continue  # harmful elsewhere than between tags
        assert shown(browser_page, f"<p>{name}</p>", "raw", folder=tmp_path), name
    assert shown(browser_page, f'<p title="{NAMES[4]}">x</p>', "raw", folder=tmp_path)


@pytest.mark.parametrize("which", ["chrome", "nsight", "own"])
def test_no_output_of_a_foreign_trace_acts(which, files, browser_page, tmp_path):
    trace = gs.load_trace(files[which])
    found = outputs(trace)
    assert {"trace", "timeline", "overlap", "gaps", "summary"} <= set(found)
    problems = []
    for what, content in found.items():
        problems += shown(browser_page, content, what, folder=tmp_path)
    assert not problems


@pytest.mark.parametrize("which", ["chrome", "nsight", "own"])
def test_the_report_of_a_foreign_trace_does_not_act(which, files, browser_page, tmp_path):
    trace = gs.load_trace(files[which])
    page = trace_report(trace, tmp_path / "report.html", title=" ".join(NAMES))
    assert not shown(browser_page, page.read_text("utf-8"), "report", folder=tmp_path)


def test_a_run_with_such_names_does_not_act(browser_page, tmp_path):
    run = hostile_run()
    name, trace = next(iter(run.items()))
    summary = results.summarise(run)
    found = {
        "run": run._repr_html_(),
        "report": html_report(run, tmp_path / "r.html", title=NAMES[0]).read_text("utf-8"),
        "findings of the dashboard": results.sections(summary, dict.fromkeys(NAMES, "#123456")),
        "answers of the dashboard": answers(summary.judged, dict.fromkeys(NAMES, "#123456")),
        "verdict of the dashboard": headline(
            summary.judged.verdict.headline, summary.judged.verdict.notes
        ),
        "numbers of the dashboard": results.numbers(summary),
        "runs of the dashboard": side_by_side(
            {NAMES[0]: run, NAMES[1]: run, NAMES[2]: None, "last": run}
        ),
        "timeline": figures.timelines(run.traces).to_html(include_plotlyjs=True),
        **{f"{name}: {what}": content for what, content in outputs(trace).items()},
    }
    problems = []
    for what, content in found.items():
        problems += shown(browser_page, content, what, folder=tmp_path)
    assert not problems


def test_fragments_of_the_dashboard_do_not_act(browser_page, tmp_path):
    found = {}
    for name in NAMES:
        found |= {
            f"note {name}": dashboard.note(name),
            f"section {name}": dashboard.section(name, [dashboard.text(name)]),
        }  # fmt: skip
    for what, content in found.items():
        assert not shown(browser_page, content, what, folder=tmp_path)


RESULTS = Path(__file__).resolve().parents[2] / "test-results"
NOTEBOOK = """
import gpuscope as gs
from pathlib import Path
from IPython.display import display
traces = [gs.load_trace(Path({folder!r}) / name)
          for name in ("chrome.json", "nsight.sqlite", "own.parquet")]
"""
CELLS = (
    "for trace in traces: display(trace, gs.figures.timeline(trace))",
    (
        "for trace in traces: display(gs.analysis.overlap(trace), gs.analysis.gaps(trace),\n"
        "                             gs.analysis.summary(trace))"
    ),
    (
        "display(gs.analysis.range_projection(traces[0]), gs.analysis.confinement(traces[2]),\n"
        "        gs.telling.explain(\n"
        "            traces[0], traces[0].where(kind='kernel').spans.column('id')[0].as_py()))"
    ),
    "display(*(gs.Timeline(trace) for trace in traces))",
    "gs.load_trace(Path({folder!r}) / 'chrome.json', limits=Limits(rows=1))",
)


def test_a_notebook_of_foreign_traces_does_not_act(files, lab, browser_page):
    folder = str(files["chrome"].parent)
    cells = [NOTEBOOK.format(folder=folder), *(one.format(folder=folder) for one in CELLS)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3",
                                       "language": "python"}  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    nbformat.write(notebook, lab.folder / "hostile.ipynb")
    page, dialogs = browser_page, []
    page.on("dialog", lambda one: (dialogs.append(one.message), one.dismiss()))
    page.goto(lab.page("hostile.ipynb"))
    page.wait_for_function(IDLE)
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    # The last cell fails, so that an error's text is among what is shown.
    page.locator(
        ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']"
    ).wait_for()
    page.wait_for_function(IDLE)
    outputs = ".jp-OutputArea-output"
    figure = ".jp-RenderedPlotly"
    for what, least in (
        (f"{figure} img.plot-img[src]", 3), (".gpuscope-timeline .js-plotly-plot .main-svg", 3),
        (f"{outputs} table", 12),
    ):  # fmt: skip
        page.wait_for_function(
            "([what, least]) => document.querySelectorAll(what).length >= least",
            arg=[what, least],
        )  # fmt: skip
    for one in page.locator(figure).all():  # pictures, until the pointer comes
        one.locator("img.plot-img").dispatch_event("mouseenter")
        one.locator(".plot-container .main-svg").first.wait_for()
    page.wait_for_timeout(1000)  # formulas, were there any, are typeset late
    page.screenshot(path=RESULTS / "hostile-names.png")
    assert not dialogs
    assert page.evaluate(TRACES_OF_HARM, outputs) == []
