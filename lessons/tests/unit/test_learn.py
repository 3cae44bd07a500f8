"""Predictions, outcomes and checks: told rightly, also where nobody answers."""

from __future__ import annotations

import csv
import gc
import importlib
import importlib.util
import weakref
from html import unescape

import pytest
from playing import NOTEBOOKS, cells

import gpuscope as gs
import gpuscope_lessons as learn
from gpuscope.timeline.raster import png
from gpuscope.workloads.spin import Spin
from gpuscope_lessons import Choice, Interval, Order, Value
from gpuscope_lessons.outcome import RESULTS, Outcome, Result

OPTIONS = ["at once", "later"]


@pytest.fixture
def gpu():
    return gs.open_device("sim:h200", quiet=True)


@pytest.fixture
def lesson(gpu):
    return learn.Lesson(7, "A <lesson>", gpu)


@pytest.fixture
def trace(gpu):
    first, second = (Spin(gpu, duration_ns=500_000, name=name) for name in ("first", "second"))
    with gpu.create_stream(name="s") as stream, gs.profile(gpu) as recording:
        first.execute(stream=stream)
        second.execute(stream=stream)
        second.wait()
    return recording.trace


def send(question, *values):
    """What the page sends when its form is submitted."""
    question._take(question, {"values": list(values)}, [])


# -- kinds of answers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "answer", "measured", "right"),
    [
        (Choice(OPTIONS), ("later",), "later", "later", True),
        (Choice(OPTIONS), ("later",), "later", "at once", False),
        (Order(["a", "b", "c"]), ("c", "a", "b"), ("c", "a", "b"), ["c", "a", "b"], True),
        (Order(["a", "b", "c"]), ("c", "a", "b"), ("c", "a", "b"), ["a", "b", "c"], False),
        (Value(), (7,), 7.0, 7.0, True),
        (Value(), (7,), 7.0, 7.1, False),
        (Value("µs", within=0.25), (80,), 80.0, 100, True),
        (Value("µs", within=0.25), (70,), 70.0, 100, False),
        (Interval("ms"), (1, 4), (1.0, 4.0), 4.0, True),
        (Interval("ms"), (1, 4), (1.0, 4.0), 0.9, False),
    ],
)
def test_an_answer_is_read_and_judged_by_what_was_measured(kind, given, answer, measured, right):
    assert kind.read(given) == answer
    assert kind.is_right(answer, measured) is right
    assert len(kind.fields()) == len(given)
    assert kind.show(answer)
    assert kind.show(measured)


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (Choice(OPTIONS), (None,), "Choose one"),
        (Choice(OPTIONS), ("never",), "Choose one"),
        (Order(["a", "b"]), ("a", None), "each place"),
        (Order(["a", "b"]), ("a", "a"), "twice"),
        (Value(), (None,), "Write a number"),
        (Value(), ("x",), "Write a number"),
        (Value(), (float("nan"),), "Write a number"),
        (Interval("µs"), (1, None), "Write a number"),
        (Interval("µs"), (4, 1), "does not end before"),
        (Interval("µs"), (0, 1), "above zero"),
        (Interval("µs", factor=4), (1, 4.1), "Be bolder"),
    ],
)
def test_what_is_no_answer_is_told_in_words(kind, given, words):
    with pytest.raises(ValueError, match=words):
        kind.read(given)


@pytest.mark.parametrize("options", ["ab", [], ["a"], ["a", "a"]])
def test_options_are_different_texts(options):
    with pytest.raises(ValueError, match="at least two different"):
        Choice(options)


def test_a_measured_option_that_was_not_offered_is_the_lessons_fault():
    with pytest.raises(ValueError, match="none of"):
        Choice(OPTIONS).is_right("later", "never")
    with pytest.raises(ValueError, match="orders other things"):
        Order(["a", "b"]).is_right(("a", "b"), ["a", "c"])


# -- the form -----------------------------------------------------------------------------


def test_a_prediction_is_committed_once(lesson):
    question = lesson.predict("when", "When?", Choice(OPTIONS))
    send(question, None)
    assert (question.tone, question.locked) == ("error", False)
    assert "Choose one" in question.said
    send(question, "later")
    assert question.locked
    assert question.given == ["later"]
    assert "You predict: later" in question.said
    send(question, "at once")
    assert question.given == ["later"], "what was committed stays"
    with pytest.raises(ValueError, match="answered already"):
        question.give("at once")


@pytest.mark.parametrize("content", [None, [], {}, {"values": []}, {"values": ["a", "b"]}])
def test_messages_that_are_no_answers_change_nothing(lesson, content):
    question = lesson.predict("when", "When?", Choice(OPTIONS))
    question._take(question, content, [])
    assert not question.locked
    assert question.given == []


def test_the_page_gets_texts_and_fields_only(lesson):
    question = lesson.predict("when", "When <b>?", Choice(OPTIONS))
    state = question.get_state()
    assert state["text"] == "When <b>?"
    assert state["fields"] == [{"kind": "radio", "options": OPTIONS}]
    assert state["button"] == "Commit to this prediction"
    script = question._esm
    assert "innerHTML" not in str(script), "what a question says is never HTML"
    assert "data-lm-suppress-shortcuts" in str(script), "keys are the form's, not JupyterLab's"


def test_a_page_without_scripts_shows_the_question(lesson):
    bundle, _ = lesson.predict("when", "When <b>?", Order(["a", "b"]))._repr_mimebundle_()
    assert bundle["text/html"] == "<p><b>When &lt;b&gt;?</b></p><ul><li>a</li><li>b</li></ul>"
    assert "application/vnd.jupyter.widget-view+json" in bundle


# -- outcomes -----------------------------------------------------------------------------


def test_a_right_and_a_wrong_prediction_are_told_so(lesson, trace):
    for name, said in (("one", "later"), ("two", "at once")):
        lesson.predict(name, "When?", Choice(OPTIONS)).give(said)
    right = lesson.reveal("one", "later", trace=trace, why="second", rule="In order.")
    wrong = lesson.reveal("two", "later", trace=trace, why="second", rule="In order.")
    assert (right.result.verdict, wrong.result.verdict) == ("right", "wrong")
    assert "Right." in right.html()
    assert "Not this time." in wrong.html()
    for words in ("You predicted: <b>at once</b>", "Outcome: <b>later</b>", "The rule: In order."):
        assert words in wrong.html()
    assert "behind first in stream s" in wrong.html()
    title = wrong.figure.layout.title.text
    assert "Predicted: at once. Outcome: later" in title
    assert "SIMULATED" in title
    assert lesson.questions["two"].tone == "wrong"


def test_bars_bear_the_names_of_workloads(lesson, trace):
    lesson.predict("when", "When?", Choice(OPTIONS))
    figure = lesson.reveal("when", "later", trace=trace).figure
    assert {"first", "second"} <= {text for bars in figure.data for text in bars.text or ()}
    assert "spin_kernel" not in str(figure.data)


def test_a_prediction_that_nobody_made_is_not_predicted(lesson, trace):
    question = lesson.predict("when", "When?", Choice(OPTIONS))
    outcome = lesson.reveal("when", "later", trace=trace)
    assert outcome.result.verdict == "not predicted"
    assert outcome.result.attempts == 0
    assert "You made no prediction" in outcome.html()
    assert question.locked, "it is too late now"
    assert "before you predicted" in question.said
    assert outcome.explanation is None


def test_asking_again_starts_anew_and_keeps_the_first_answer(lesson):
    lesson.predict("n", "How many?", Value()).give(1)
    assert lesson.reveal("n", 2).result.attempts == 1
    assert lesson.reveal("n", 2).result.attempts == 1, "looking again is no attempt"
    lesson.predict("n", "How many?", Value()).give(2)
    outcome = lesson.reveal("n", 2)
    assert (outcome.result.verdict, outcome.result.attempts) == ("right", 2)
    assert "Right." in outcome.html()
    assert "Your first prediction stays in the results: <b>1</b>" in outcome.html()
    (kept,) = lesson.results
    assert (kept.answer, kept.verdict, kept.attempts) == ("1", "wrong", 2)


def test_a_prediction_may_be_changed_until_its_outcome_is_seen(lesson):
    lesson.predict("n", "How many?", Value()).give(1)
    lesson.predict("n", "How many?", Value()).give(2)
    outcome = lesson.reveal("n", 2)
    assert (outcome.result.verdict, outcome.kept.verdict) == ("right", "right")
    assert "first prediction" not in outcome.html()


def test_who_saw_the_outcome_did_not_predict_it(lesson):
    lesson.predict("n", "How many?", Value())
    lesson.reveal("n", 2)
    lesson.predict("n", "How many?", Value()).give(2)
    assert "in the results: <b>none</b>" in lesson.reveal("n", 2).html()
    assert [(one.answer, one.verdict) for one in lesson.results] == [(None, "not predicted")]


def test_what_was_never_asked_cannot_be_revealed(lesson):
    with pytest.raises(LookupError, match="no prediction 'x'"):
        lesson.reveal("x", 1)


def test_the_picture_shows_the_predicted_range_and_what_was_waited_for(lesson, trace):
    start = int(trace.array("start_ns").min())
    lesson.predict("t", "How long?", Interval("µs")).give(20, 80)
    figure = lesson.reveal("t", 50.0, trace=trace, why="second", since_ns=start).figure
    shapes = [shape for shape in figure.layout.shapes if shape.type == "rect" and shape.xref == "x"]
    labels = [note.text for note in figure.layout.annotations]
    assert "your prediction" in labels
    assert "stream order" in labels
    guess = next(shape for shape in shapes if shape.line.dash == "dot")
    assert guess.x1 - guess.x0 == pytest.approx(60)
    assert len(shapes) == 2
    assert png(figure).startswith(b"\x89PNG"), "for pages without scripts"


def test_a_window_is_what_is_drawn(lesson, trace):
    start = int(trace.array("start_ns").min())
    lesson.predict("t", "How long?", Value())
    figure = lesson.reveal("t", 1, trace=trace, window_ns=(start, start + 30_000)).figure
    assert figure.layout.xaxis.range[1] == pytest.approx(30)


def test_outcomes_show_themselves_as_text_and_picture(lesson, trace, monkeypatch):
    shown = []
    display = importlib.import_module("IPython.display")
    monkeypatch.setattr(display, "display", lambda one, **_: shown.append(one))
    lesson.predict("n", "How many?", Value())
    lesson.reveal("n", 1, trace=trace)._ipython_display_()
    lesson.reveal("n", 1, then="*So* it is.")._ipython_display_()
    assert [hasattr(one, "to_plotly_json") for one in shown] == [False, True, False, False]
    assert shown[0][RESULTS][0]["measured"] == "1"
    assert shown[-1] == {"text/markdown": "*So* it is."}, "last, and only where there is something"


def test_foreign_text_is_escaped(lesson):
    lesson.predict("n", "<i>How?</i>", Choice(["<b>so</b>", "not"])).give("<b>so</b>")
    outcome = lesson.reveal("n", "not", rule="<u>r</u>")
    for text in (outcome.html(), lesson._repr_html_()):
        assert "<b>so" not in text
        assert "<i>" not in text
        assert "<u>" not in text
    assert "&lt;b&gt;so&lt;/b&gt;" in outcome.html()


def test_kernels_of_libraries_are_explained_in_words_that_fit():
    trace = learn.recording_of("cupy")
    lesson = learn.Lesson(1, "x", gs.open_device("cpu", quiet=True))
    lesson.predict("n", "How many?", Value())
    outcome = lesson.reveal(
        "n", 1, trace=trace, why=gs.telling.find(trace, None, -1, kind="kernel")
    )
    said = outcome.html()
    assert "kernel reduce (float32), default stream: " in said
    assert "in default stream" in said
    assert len(said) < 1500


def test_rows_are_found_by_name_and_number(trace):
    ids = [gs.telling.find(trace, "first"), gs.telling.find(trace, "second", -1)]
    assert [row["category"] for row in trace.where(id=tuple(ids)).spans.to_pylist()] == [
        "first", "second",
    ]  # fmt: skip
    assert gs.telling.find(trace, "second", kind="handle") != ids[1]
    assert gs.telling.find(trace, None) == ids[0]
    with pytest.raises(gs.errors.MissingEvidence, match="0 such rows"):
        gs.telling.find(trace, None, kind="memcpy")
    for number in (1, -2):
        with pytest.raises(gs.errors.MissingEvidence, match="1 rows called 'first'"):
            gs.telling.find(trace, "first", number)


# -- exercises ----------------------------------------------------------------------------


def test_a_check_tells_what_it_found_and_hints_one_after_the_other(lesson):
    found = iter([None, "It was 3.", "It was 4.", "It was 5.", True, True, True])

    def check():
        return lesson.check("sum", "Add", lambda _: next(found), ["First?", "Second?"], rule="R.")

    untried = check()
    assert (untried.result.verdict, untried.hint, untried.result.attempts) == ("not tried", "", 0)
    hints, rules = [], []
    for said in ("It was 3.", "It was 4.", "It was 5."):
        feedback = check()
        assert feedback.found == said
        assert feedback.result.verdict == "not solved"
        hints.append(feedback.hint)
        rules.append(feedback.rule)
    assert rules == ["", "R.", "R."]
    assert hints == ["First?", "Second?", "Second?"]
    solved = check()
    assert (solved.result.verdict, solved.hint, solved.result.attempts) == ("solved", "", 4)
    assert "Solved.</b> It returned what was asked for, with each of 3 sets" in solved.html()
    assert [one.rule for one in (untried, solved)] == ["", "R."]
    assert "The rule: R." in solved.html()


def test_a_solution_is_shown_as_code(lesson):
    feedback = lesson.check("sum", "Add", lambda _: False, ["A solution:\nif a < b:\n    b"])
    assert "Hint: A solution:</div>" in feedback.html()
    assert ">if a &lt; b:\n    b</pre>" in feedback.html()


@pytest.mark.parametrize(
    ("on_gpu", "lost", "failures", "verdict", "tries"),
    [
        (True, False, 2, "solved", 3 + 2), (True, False, 99, "not solved", 3),
        (False, True, 2, "solved", 3 + 2), (False, True, 99, "not solved", 3),
        (False, False, 1, "not solved", 1),
    ],
)  # fmt: skip
def test_a_program_is_run_again_where_it_may_not_be_to_blame(
    lesson, gpu, monkeypatch, on_gpu, lost, failures, verdict, tries
):
    monkeypatch.setattr(type(gpu), "is_simulated", property(lambda _: not on_gpu))
    left, seeds = [failures], []

    def test(chance):
        seeds.append(chance.random())
        attempt = lesson.watch(gpu.synchronize)
        if lost:
            monkeypatch.setattr(type(attempt.trace.metadata), "incomplete", "rows are missing")
        left[0] -= 1
        return "It came late." if left[0] >= 0 else True

    assert lesson.check("a", "an exercise", test).result.verdict == verdict
    assert len(seeds) == tries
    assert len(set(seeds)) == (3 if verdict == "solved" else 1), "with the same values again"
    assert lesson.results[0].attempts == 1


def test_what_was_solved_stays_so_whatever_is_tried_later(lesson):
    found = iter([True, True, True, "It was 3.", None])

    def check():
        return lesson.check("sum", "Add", lambda _: next(found), ["First?"])

    check()
    again = check()
    assert (again.result.verdict, again.found, again.hint) == ("not solved", "It was 3.", "First?")
    assert check().result.verdict == "not tried"
    (kept,) = lesson.results
    assert (kept.verdict, kept.attempts) == ("solved", 1)


def test_an_error_of_the_learners_code_is_told(lesson):
    feedback = lesson.check("sum", "Add", lambda _: 1 / 0, ["Think."])
    assert feedback.found == "It raised ZeroDivisionError: division by zero"
    assert "Hint: Think." in feedback.html()


def test_a_quiz_may_be_answered_again(lesson):
    question = lesson.quiz(
        "q", "Which?", Choice(["a", "b", "c"]), "c", ["Not the first letter."], rule="Letters end."
    )
    assert lesson.results[0].verdict == "not tried"
    send(question, "a")
    assert (question.tone, question.locked) == ("wrong", False)
    assert question.said == "Not a. Hint: Not the first letter."
    assert lesson.results[0].verdict == "not solved"
    send(question, "b")
    assert question.said == "Not b. The answer is c. Letters end.", "hints end with it"
    send(question, "c")
    assert (question.tone, question.locked) == ("right", True)
    assert question.said == "Right: c. Letters end."
    result = lesson.results[0]
    assert (result.verdict, result.answer, result.attempts) == ("solved", "c", 3)


def test_an_exercise_that_is_checked_again_keeps_its_attempts(lesson):
    lesson.check("sum", "Add", lambda _: "It was 3.")
    assert lesson.check("sum", "Add", lambda _: None).result.attempts == 1
    with pytest.raises(ValueError, match="another exercise is called 'sum'"):
        lesson.predict("sum", "When?", Choice(OPTIONS))


# -- results ------------------------------------------------------------------------------


def test_results_are_written_for_a_class(lesson, tmp_path):
    lesson.predict("when", "When?", Choice(OPTIONS)).give("later")
    lesson.reveal("when", "at once")
    lesson.quiz("q", "=1+1", Choice(OPTIONS), "later")
    path = lesson.to_csv(tmp_path / "results.csv", learner='Ada, the "first"')
    with path.open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert first == {
        "learner": 'Ada, the "first"', "lesson": "7", "name": "when", "kind": "prediction",
        "question": "When?", "answer": "later", "measured": "at once", "verdict": "wrong",
        "attempts": "1", "device": "NVIDIA H200 (simulated)",
    }  # fmt: skip
    assert second["question"] == "'=1+1", "no spreadsheet takes it for a formula"
    assert second["verdict"] == "not tried"


def test_a_lesson_shows_its_results(lesson):
    assert repr(lesson) == "Lesson(7, 'A <lesson>': nothing asked yet)"
    lesson.predict("when", "When?", Choice(OPTIONS))
    assert "1 not predicted" in repr(lesson)
    assert "A &lt;lesson&gt;" in lesson._repr_html_()
    assert "NVIDIA H200 (simulated)" in lesson._repr_html_()


# -- code that needs a GPU -----------------------------------------------------------------


def test_without_a_gpu_a_recording_is_replayed_and_says_so(gpu, capsys):
    called = []
    trace = learn.observe(gpu, "cupy", called.append)
    assert called == []
    said = capsys.readouterr().out
    assert said.startswith(
        "Not run: there is no GPU here. What follows was recorded on NVIDIA H200"
    )
    assert not trace.is_simulated
    assert learn.label(trace) == " (recorded on NVIDIA H200)"
    with pytest.raises(LookupError, match="no recording 'x'; there are \\['cupy', 'partition'"):
        learn.observe(gpu, "x", called.append)


def test_what_was_recorded_or_simulated_here_has_no_label(trace):
    assert learn.label(trace) == ""


@pytest.mark.parametrize("name", ["cupy", "torch", "partition"])
def test_a_recording_is_of_the_code_in_the_lesson_and_names_nobody(name):
    (source,) = [
        cell["source"] for cell in cells("10_your_own_code.ipynb") if cell["id"] == f"{name}-code"
    ]
    trace = learn.recording_of(name)
    note = next(note for note in trace.metadata.notes if note.startswith("recorded on"))
    day = note.split(", ")[1]
    path = NOTEBOOKS.parent / "scripts" / "make_lesson_recording.py"
    spec = importlib.util.spec_from_file_location("make_lesson_recording", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert note == script.note_of(trace, day, source), (
        "run scripts/make_lesson_recording.py on a GPU"
    )
    assert set(trace.texts("host")) == {None}
    assert set(trace.metadata.process_names.values()) <= {"python"}


# -- what lessons are made of -------------------------------------------------------------


def test_addresses_tell_arrays_apart(gpu):
    one, other = gpu.empty(8), gpu.empty(8)
    assert gs.device.address(one) == gs.device.address(one[:4])
    assert gs.device.address(one) != gs.device.address(other)
    assert gs.device.address(one[2:]) == gs.device.address(one) + 2 * 4


@pytest.mark.parametrize("name", "ABCD")
def test_a_case_is_the_same_every_time(name):
    first, second = learn.case(name), learn.case(name)
    columns = ["name", "category", "start_ns", "end_ns", "stream"]
    assert first.trace.spans.select(columns).equals(second.trace.spans.select(columns))
    assert first.trace.is_simulated
    assert first.cause in learn.CAUSES
    assert gs.telling.find(first.trace, first.culprit) >= 0
    assert first.culprit not in first.story
    assert first.cause not in first.story


def test_every_case_has_another_cause():
    causes = [learn.case(name).cause for name in "ABCD"]
    assert len(set(causes)) == 4
    assert len(learn.CAUSES) == 5
    with pytest.raises(LookupError, match="no case 'E'"):
        learn.case("E")


def asked_and_checked():
    """Return the forms of a lesson that is over, and weak references to its device and an array."""
    gpu = gs.open_device("sim:h200", quiet=True)
    lesson = learn.Lesson(0, "Again and again", gpu)
    step = gs.workloads.Step(gpu, 1_000, name="step")
    forms = [
        lesson.predict("sum", "What is 1 + 1?", Value()),
        lesson.quiz("product", "What is 2 · 3?", Value(), 6),
    ]
    lesson.check("it", "Do it", lambda _chance: lesson.watch(step.execute) is not None)
    return forms, [weakref.ref(gpu), weakref.ref(step.array)]


def test_forms_that_live_on_do_not_hold_the_device():
    """The front end's library keeps every widget: a lesson run again must free what it had."""
    (prediction, quiz), gone = asked_and_checked()
    gc.collect()
    assert [each() for each in gone] == [None, None]
    prediction.give(2)
    quiz.give(6)
    assert quiz.tone == "right"


def test_an_outcome_keeps_the_names_of_python_and_shortens_those_of_cpp():
    result = Result(1, "a", "prediction", "Why?", None, "1", "not predicted", 0, "a GPU")
    why = (
        "void cub::reduce<int, at<2>>(float*): 1 µs running.\n"
        "Launched at a.py:3 in <module>, from a.py:2 in f.<locals>.<lambda>."
    )
    told = unescape(Outcome(result, result, "", why, None).html())
    assert "reduce: 1 µs running." in told
    assert "Launched at a.py:3 in <module>, from a.py:2 in f.<locals>.<lambda>." in told
