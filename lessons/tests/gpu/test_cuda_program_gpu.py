"""Learners' CUDA C++ on a GPU: compiled by nvcc, run in this process, recorded by CUPTI."""

from __future__ import annotations

import numpy as np
import pytest
from lesson_programs import ENDS_ITS_PROCESS, RIGHT, WRONG
from playing import LESSONS, cells, judge, prepared, program, solutions

import gpuscope as gs
import gpuscope_lessons as learn
from gpuscope.errors import CapabilityError
from gpuscope_lessons.attempt import Unmet
from gpuscope_lessons.cuda import compiling

try:
    compiling.compiler(is_inside=True)
    LACKS = ""
except CapabilityError as error:
    LACKS = str(error)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(LACKS), reason=LACKS),
]
MS = 1_000_000
NAMES = [name for name in LESSONS if "cuda" in WRONG.get(name[:2], {})]


@pytest.fixture(scope="module")
def gpu():
    device = gs.open_device("cuda:0", quiet=True)
    yield device
    device.close()


def attempt(gpu, code, signature, *arguments, kernels=None):
    """Run a program once; returns what was recorded of it."""
    lesson = learn.Lesson(0, "An example", gpu)
    with learn.CudaProgram(gpu, code, signature, kernels or {}) as run:
        given = [each(run) if callable(each) else each for each in arguments]
        return lesson.watch(run, *given)


@pytest.mark.gpu_alone("exercises are judged by what ran together, and how long")
@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_in_cuda_is_judged_on_a_gpu_as_on_the_simulated_one(name):
    mistaken, number = [], name[:2]
    as_given = next(cell["source"] for cell in cells(name) if cell["id"] == "task-cuda")
    tried = [("the solution", solutions(name)["task-cuda"], True), ("as given", as_given, False)]
    for answers, is_right in ((RIGHT, True), (WRONG, False)):
        tried += [
            (why, program(name, "cuda", changes), is_right)
            for why, *changes in answers[number]["cuda"]
            if why not in ENDS_ITS_PROCESS
        ]
    with prepared("cuda:0") as prepare:
        names = prepare(name)
        names["lesson"].patience_s = 100.0
        for why, source, is_right in tried:
            told = judge(name, names, "cuda", source)
            if told.result.verdict != ("solved" if is_right else "not solved"):
                mistaken.append((why, told.result.verdict, told.found))
    assert not mistaken, "\n".join(map(str, mistaken))


@pytest.mark.gpu_alone("measures a kernel's time")
def test_kernels_events_and_copies_are_those_of_the_gpu(gpu):
    ones = gpu.asarray(np.ones(1024, "float32"))
    a = gs.workloads.Step(gpu, 2 * MS, name="a")
    code = """
float run(cudaStream_t s, float* page, const float* ones) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin); cudaEventCreate(&end);
  cudaEventRecord(begin, s);
  a<<<1, 32, 0, s>>>();
  cudaEventRecord(end, s);
  cudaMemcpyAsync(page, ones, 4096, cudaMemcpyDeviceToHost, s);
  cudaStreamSynchronize(s);
  float ms = 0, ordinary[2];
  cudaEventElapsedTime(&ms, begin, end);
  cudaMemcpy(ordinary, ones + 4, sizeof ordinary, cudaMemcpyDeviceToHost);
  page[1] = ordinary[1] + 1;
  return ms;
}"""
    pages = []
    with gpu.create_stream(name="s") as s:
        done = attempt(
            gpu, code, "float run(cudaStream_t s, float* page, const float* ones)", s,
            lambda run: pages.append(run.pinned(1024)) or pages[0], ones,
            kernels={"void a()": a},
        )  # fmt: skip
        assert 2.0 <= done.value < 4.0
        assert pages[0][:3].tolist() == [1, 2, 1]
        assert set(done.trace.where(kind="kernel").texts("source")) == {"cupti"}
        done.ran(a, copies=2)
        done.in_stream("a", s)


def test_a_host_function_runs_in_the_order_of_its_stream(gpu):
    a = gs.workloads.Step(gpu, 2 * MS, name="a")
    code = """
static int count;
void note(void* at) { *(int*)at += 10; }
int run(cudaStream_t s) {
  count = 1;
  a<<<1, 32, 0, s>>>();
  cudaLaunchHostFunc(s, note, &count);
  int early = count;
  cudaStreamSynchronize(s);
  return 100 * early + count;
}"""
    with gpu.create_stream() as s:
        assert (
            attempt(gpu, code, "int run(cudaStream_t s)", s, kernels={"void a()": a}).value == 111
        )


def test_errors_are_told_with_their_lines(gpu):
    with gpu.create_stream() as s, pytest.raises(Unmet, match=r"^Line 2: cudaEventRecord failed"):
        attempt(
            gpu, "\nvoid run(cudaStream_t s) { cudaEventRecord((cudaEvent_t)0x77, s); }",
            "void run(cudaStream_t s)", s,
        )  # fmt: skip
    with pytest.raises(Unmet, match=r"Line 1: "):
        learn.CudaProgram(gpu, "void run() { nothing; }", "void run()", {})


def test_a_program_whose_time_is_over_is_left(gpu):
    code = "void run() { for (;;) { usleep(1000); cudaGetLastError(); } }"
    with (
        learn.CudaProgram(gpu, code, "void run()", {}, seconds=0.5) as run,
        pytest.raises(Unmet, match="did not end"),
    ):
        run()
