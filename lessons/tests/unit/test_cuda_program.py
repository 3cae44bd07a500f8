"""Learners' CUDA C++ on the simulated GPU: each call of the header, crashes, and races."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from patience import PATIENCE_S
from playing import COMPILES

import gpuscope as gs
import gpuscope_lessons as learn
from gpuscope.device.api import KernelCost, KernelModel
from gpuscope.errors import CapabilityError, InvalidArgument
from gpuscope_lessons.attempt import Unmet
from gpuscope_lessons.cuda import compiling
from gpuscope_lessons.cuda.program import _WORDS as WORDS

pytestmark = pytest.mark.skipif(not COMPILES, reason="no C++ compiler")
INSIDE = pytest.mark.skipif(not any(map(shutil.which, compiling._NVCC)), reason="no nvcc")
WHERE = ["separate", pytest.param("inside", marks=INSIDE)]
"""As on a simulated GPU; and as on a GPU: by nvcc, and in this process."""
MS = 1_000_000


@pytest.fixture
def gpu():
    device = gs.open_device("sim:h200", quiet=True)
    yield device
    device.close()


@pytest.fixture
def where(request, monkeypatch):
    """Have programs run there."""
    monkeypatch.setattr(
        "gpuscope_lessons.cuda.program.runs_inside", lambda _device: request.param == "inside"
    )


@pytest.fixture
def run(gpu):
    """Return a function: code, a declaration, kernels and arguments → an attempt."""
    lesson, programs = learn.Lesson(0, "An example", gpu), []
    lesson.patience_s = PATIENCE_S

    def attempt(code, *arguments, signature="void run(cudaStream_t s)", kernels=None, **options):
        options = {"seconds": PATIENCE_S, **options}
        program = learn.CudaProgram(gpu, code, signature, kernels or {}, **options)
        programs.append(program)
        given = [each(program) if callable(each) else each for each in arguments]
        return lesson.watch(program, *given)

    yield attempt
    for program in programs:
        program.close()


def body(text, before=""):
    return f"{before}\nvoid run(cudaStream_t s) {{ {text} }}"


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_streams_events_and_time(gpu, run):
    a = gs.workloads.Step(gpu, 2 * MS, name="a")
    code = """
float run(cudaStream_t s) {
  cudaStream_t t, u;
  cudaStreamCreate(&t);
  cudaStreamCreateWithFlags(&u, cudaStreamNonBlocking);
  cudaEvent_t begin, end, quick;
  cudaEventCreate(&begin); cudaEventCreate(&end);
  cudaEventCreateWithFlags(&quick, cudaEventDisableTiming);
  cudaEventRecord(begin, s);
  a<<<1, 32, 0, s>>>();
  cudaEventRecord(end, s);
  if (cudaEventQuery(end) != cudaErrorNotReady) return -1;
  if (cudaStreamQuery(s) != cudaErrorNotReady) return -2;
  cudaStreamWaitEvent(t, end);
  cudaEventRecord(quick, t);
  cudaEventSynchronize(quick);
  float ms = 0;
  cudaEventElapsedTime(&ms, begin, end);
  cudaEventDestroy(begin); cudaEventDestroy(end); cudaEventDestroy(quick);
  cudaStreamDestroy(t); cudaStreamDestroy(u);
  cudaDeviceSynchronize();
  return ms;
}"""
    with gpu.create_stream() as s:
        done = run(code, s, signature="float run(cudaStream_t s)", kernels={"void a()": a})
    assert 2.0 <= done.value < 2.1


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_memory_copies_and_kernels_with_arguments(gpu, run):
    device_out = gpu.asarray(np.zeros(1024, "float32"))

    def cost(_profile, grid, args, _sm_count):
        seen.append((grid, args[0].size, args[1].size, args[2]))
        return KernelCost(grid, 1_000)

    seen = []
    model = KernelModel(
        cost, reads=lambda args: [args[1]], writes=lambda args: args[0], compute=lambda x: x
    )
    scale = gpu.compile("", "scale", model=model)
    code = """
void run(cudaStream_t s, float* out, float* page, float factor) {
  float *on_gpu, *mine;
  cudaMalloc(&on_gpu, 4096);
  cudaMallocHost(&mine, 4096);
  for (int i = 0; i < 1024; ++i) mine[i] = i;
  cudaMemcpyAsync(on_gpu, mine, 4096, cudaMemcpyHostToDevice, s);
  scale<<<4, 256, 0, s>>>(out, on_gpu, factor);
  cudaMemcpyAsync(page, out, 4096, cudaMemcpyDeviceToHost, s);
  cudaStreamSynchronize(s);
  float read[4];
  cudaMemcpy(read, page == nullptr ? nullptr : out + 1, sizeof read, cudaMemcpyDeviceToHost);
  page[0] = read[2];
  float* numbers[] = {out, on_gpu};
  void* arguments[] = {&numbers[0], &numbers[1], &factor};
  cudaLaunchKernel(scale, dim3(4), dim3(256), arguments, 0, s);
  cudaStreamSynchronize(s);
  cudaFreeHost(mine);
  cudaFree(on_gpu);
}"""
    pages = []
    with gpu.create_stream() as s:
        run(
            code, s, device_out, lambda program: pages.append(program.pinned(1024)) or pages[0], 2.5,
            signature="void run(cudaStream_t s, float* out, float* page, float factor)",
            kernels={"void scale(float* out, const float* source, float factor)": scale},
        )  # fmt: skip
    assert set(seen) == {(4, 1024, 1024, 2.5)}
    assert [float(value) for value in pages[0][:4]] == [3, 1, 2, 3]


def test_a_copy_of_the_default_kind_goes_where_the_pointers_say(gpu, run):
    out = gpu.asarray(np.zeros(4, "float32"))
    code = """
float run(cudaStream_t s, float* out) {
  float *page, plain[4], twice[4] = {};
  cudaMallocHost(&page, sizeof plain);
  for (int i = 0; i < 4; ++i) page[i] = i + 1;
  cudaMemcpyAsync(out, page, sizeof plain, cudaMemcpyDefault, s);
  cudaMemcpyAsync(out + 2, out, 8, cudaMemcpyDefault, s);
  cudaMemcpyAsync(plain, out, sizeof plain, cudaMemcpyDefault, s);
  cudaStreamSynchronize(s);
  for (int i = 0; i < 4; ++i) plain[i] *= 10;
  cudaMemcpy(out, plain, sizeof plain, cudaMemcpyDefault);
  cudaMemcpy(twice, out, sizeof plain, cudaMemcpyDefault);
  return twice[0] + 100 * twice[3];
}"""
    with gpu.create_stream() as s:
        done = run(code, s, out, signature="float run(cudaStream_t s, float* out)")
    assert done.value == 10 + 100 * 20
    kinds = done.trace.where(kind="memcpy").texts("copy_kind")
    assert kinds == ["HtoD", "DtoD", "DtoH", "HtoD", "DtoH"]


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_threads_of_a_program_launch_and_wait_each_for_itself(gpu, run):
    a, b = (gs.workloads.Step(gpu, 2 * MS, name=name) for name in "ab")
    code = """
#include <thread>
int run(cudaStream_t s, cudaStream_t t) {
  std::thread one([&] { a<<<1, 32, 0, s>>>(); cudaStreamSynchronize(s); });
  std::thread two([&] { b<<<1, 32, 0, t>>>(); cudaStreamSynchronize(t); });
  one.join(); two.join();
  return 1;
}"""
    with gpu.create_stream() as s, gpu.create_stream() as t:
        done = run(
            code, s, t, kernels={"void a()": a, "void b()": b},
            signature="int run(cudaStream_t s, cudaStream_t t)",
        )  # fmt: skip
    done.ran(a, b)
    done.in_stream("a", s)
    done.in_stream("b", t)
    done.returned_after("a")
    done.returned_after("b")


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_a_host_function_runs_in_the_order_of_its_stream(gpu, run):
    a = gs.workloads.Step(gpu, MS, name="a")
    before = "static int count; void note(void* at) { *(int*)at += 10; }"
    code = (
        before
        + """
int run(cudaStream_t s) {
  count = 1;
  a<<<1, 32, 0, s>>>();
  cudaLaunchHostFunc(s, note, &count);
  int early = count;
  cudaStreamSynchronize(s);
  return 100 * early + count;
}"""
    )
    with gpu.create_stream() as s:
        done = run(code, s, signature="int run(cudaStream_t s)", kernels={"void a()": a})
    assert done.value == 111


GRAPH = """
cudaGraphExec_t run(cudaStream_t s, cudaStream_t t) {
  cudaGraph_t graph; cudaGraphExec_t made = nullptr; cudaEvent_t fork, join;
  cudaEventCreate(&fork); cudaEventCreate(&join);
  cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
  cudaEventRecord(fork, s); cudaStreamWaitEvent(t, fork);
  a<<<1, 32, 0, s>>>(); b<<<1, 32, 0, t>>>();
  JOIN
  cudaStreamEndCapture(s, &graph);
  cudaGraphInstantiate(&made, graph); cudaGraphLaunch(made, s); cudaStreamSynchronize(s);
  return made;
}"""
JOIN = "cudaEventRecord(join, t); cudaStreamWaitEvent(s, join);"


def graph_run(gpu, run, join):
    a, b = (gs.workloads.Step(gpu, 2 * MS, name=name) for name in "ab")
    with gpu.create_stream() as s, gpu.create_stream() as t:
        return run(
            GRAPH.replace("JOIN", join), s, t, kernels={"void a()": a, "void b()": b},
            signature="cudaGraphExec_t run(cudaStream_t s, cudaStream_t t)",
        )  # fmt: skip


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_a_captured_fork_is_launched_as_a_graph(gpu, run):
    done = graph_run(gpu, run, JOIN)
    done.together("a", "b")
    assert done.trace.kind_counts()["kernel"] == 2


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_a_capture_without_its_join_is_refused_with_its_line(gpu, run):
    with pytest.raises(Unmet, match=r"^Line 9: cudaStreamEndCapture.*Unjoined"):
        graph_run(gpu, run, "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("volatile int* at = nullptr; *at = 1;", "segmentation fault"),
        ("abort();", "signal: Aborted"),
        ("_exit(3);", "exit status 3"),
        ("float* x; cudaMalloc(&x, 64); x[0] = 1;", "memory of the GPU"),
        ("cudaEvent_t e = (cudaEvent_t)0x77; cudaEventSynchronize(e);", "no such event"),
        ("cudaStreamSynchronize((cudaStream_t)0x77);", "no such stream"),
        ("cudaGraphLaunch((cudaGraphExec_t)0x77, s);", "no such executable graph"),
        ("float x[2]; cudaMemcpy(x, x, 8, cudaMemcpyHostToDevice);", "no memory of the GPU"),
    ],
)
def test_what_goes_wrong_is_told_and_ends_its_process_only(gpu, run, text, says):
    with gpu.create_stream() as s, pytest.raises(Unmet) as told:
        run(body(text), s)
    assert says in str(told.value)


def test_memory_of_the_gpu_is_told_however_much_was_made_before(gpu, run):
    """Simulated arrays have addresses that no program can have: a program gets its own."""
    kept = [gpu.empty(4) for _ in range(200)]
    with gpu.create_stream() as s, pytest.raises(Unmet, match="memory of the GPU"):
        run(
            "void run(cudaStream_t s, float* x) { x[2] = 1; }", s, kept[-1],
            signature="void run(cudaStream_t s, float* x)",
        )  # fmt: skip


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_an_endless_loop_is_stopped(gpu, run):
    with gpu.create_stream() as s, pytest.raises(Unmet, match="was stopped"):
        run(body("for (;;) { usleep(1000); cudaGetLastError(); }"), s, seconds=0.2)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("for (;;) usleep(1000);", "A host function was running. It did not end within 0.3 s"),
        ("while (!*(volatile int*)flag) {}", "A host function was running. It did not end within"),
        ("abort();", "A host function was running. It ended by a signal: Aborted."),
    ],
)
@pytest.mark.parametrize(
    "wait",
    ["cudaStreamSynchronize(s);", "cudaDeviceSynchronize();", "while (cudaStreamQuery(s)) {}", ""],
)
def test_a_host_function_that_does_not_end_is_told_and_ends_its_process_only(
    gpu, run, function, says, wait
):
    a = gs.workloads.Step(gpu, MS, name="a")
    before = f"static int flag; void f(void* flag) {{ {function} }}"
    text = f"cudaLaunchHostFunc(s, f, &flag); a<<<1, 32, 0, s>>>(); cudaLaunchHostFunc(s, f, &flag); {wait}"
    with gpu.create_stream() as s:
        with pytest.raises(Unmet) as told:
            run(body(text, before), s, kernels={"void a()": a}, seconds=0.3)
        text = "a<<<1, 32, 0, s>>>(); cudaStreamSynchronize(s);"
        run(body(text), s, kernels={"void a()": a}).ran(a)
    assert str(told.value).startswith(says)


def test_a_host_function_of_a_program_that_crashed_is_not_called(gpu, run):
    a = gs.workloads.Step(gpu, MS, name="a")
    text = "a<<<1, 32, 0, s>>>(); cudaLaunchHostFunc(s, f, 0); abort();"
    with gpu.create_stream() as s:
        with pytest.raises(Unmet, match="signal: Aborted"):
            run(body(text, "void f(void*) {}"), s, kernels={"void a()": a})
        text = "a<<<1, 32, 0, s>>>(); cudaStreamSynchronize(s);"
        run(body(text), s, kernels={"void a()": a}).ran(a)


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_a_host_function_must_not_call_cuda(gpu, run):
    before = "void f(void*) { cudaDeviceSynchronize(); }"
    with gpu.create_stream() as s, pytest.raises(Unmet, match="cudaErrorNotPermitted"):
        run(body("cudaLaunchHostFunc(s, f, 0); cudaStreamSynchronize(s);", before), s)


def test_errors_have_names_and_texts(gpu, run):
    text = """
  cudaError_t error = cudaStreamSynchronize((cudaStream_t)0x77);
  cudaGetLastError();
  printf("%s, %s, %s", cudaGetErrorName(error), cudaGetErrorString(error), cudaGetErrorName(cudaSuccess));
  printf(", %s", cudaGetErrorName((cudaError_t)12345));"""
    with (
        gpu.create_stream() as s,
        learn.CudaProgram(gpu, body(text), "void run(cudaStream_t s)", {}) as program,
    ):
        program(s)
    assert program.printed == (
        "cudaErrorInvalidResourceHandle, invalid resource handle, cudaSuccess, "
        "unrecognized error code"
    )


LAUNCHES = {
    "a name": "a<<<1, 32, 0, s>>>(); b<<<dim3(1), dim3(32), 0, t>>>();",
    "a comment": "// a<<<grid, block>>> launches one kernel\n"
    "/* so does a<<<grid,\nblock>>> */ a<<<1, 32, 0, s>>>(); // don't\nb<<<1, 32, 0, t>>>(); // it's",
    "a text": 'puts("a<<<grid, block>>> launches \\"it\\""); puts(R"=(" a<<<1, 1>>>)=");'
    'static_assert(sizeof("a<<<1, 1>>>()") == 14, "");'
    "a<<<1, 32, 0, s>>>(); putchar('\"'); int n = 1'000; b<<<1, 32, 0, t>>>(); putchar('\"');",
    "an array": "void (*kernels[])() = {a, b}; cudaStream_t streams[] = {s, t};"
    "for (int i = 0; i < 2; ++i) kernels[i]<<<1, 32, 0, streams[i]>>>();",
    "brackets": "void (*c)() = b; (a)<<<1, 32, 0, s>>>(); (*c)<<<1, 32, 0, t>>>();",
    "a statement before brackets": "if (s != t) (a)<<<1, 32, 0, s>>>(); else (b)<<<1, 32, 0, s>>>();"
    "for (int i = 0; i < 1; ++i) (b)<<<1, 32, 0, t>>>();",
    "a member": "struct Job { void (*kernel)(); cudaStream_t stream; } job = {a, s}, other = {b, t}, *p = &other;"
    "job.kernel<<<1, 32, 0, job.stream>>>(); p->kernel<<<1, 32, 0, p->stream>>>();",
    "a namespace": "mine::a<<<1, 32, 0, s>>>(); ::b<<<1, 32, 0, t>>>();",
    "a template": "Of<int, 3>::kernel<<<1, 32, 0, s>>>(); Of<Of<int, 3>, 4>::other<<<1, 32, 0, t>>>();",
    "a choice": "for (int i = 0; i < 2; ++i) i ? a<<<1, 32, 0, s>>>() : b<<<1, 32, 0, t>>>();",
    "several lines": "a // first\n<<<1, // block\n 32, 0, s>>> (\n); b<<<\n1, 32, 0,\nt\n>>>\n();",
    "a lambda": "auto both = [&] { a<<<1, 32, 0, s>>>(); b<<<1, 32, 0, t>>>(); }; both();",
    "a macro": "\n#define LAUNCH(k, s) k<<<1, 32, \\\n 0, s>>>()\nLAUNCH(a, s); LAUNCH(b, t);",
}


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize(
    ("where", "names"),
    [*(("separate", [name]) for name in LAUNCHES), pytest.param("inside", LAUNCHES, marks=INSIDE)],
    ids=[*LAUNCHES, "all, by nvcc"],
    indirect=["where"],
)
def test_whatever_stands_before_its_brackets_is_launched(gpu, run, names):
    a, b = (gs.workloads.Step(gpu, 2 * MS, name=name) for name in "ab")
    before = """
namespace mine { using ::a; }
template <class, int> struct Of {
  static constexpr void (*kernel)() = a, (*other)() = b;
};
void run(cudaStream_t s, cudaStream_t t) {
"""
    text = "".join(f"{{ {LAUNCHES[name]}\n}}" for name in names)
    with gpu.create_stream() as s, gpu.create_stream() as t:
        done = run(
            f"{before}{text}}}", s, t, kernels={"void a()": a, "void b()": b},
            signature="void run(cudaStream_t s, cudaStream_t t)",
        )  # fmt: skip
    done.ran(*[a, b] * len(names))
    done.in_stream("a", *[s] * len(names))
    done.in_stream("b", *[t] * len(names))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("// a<<<g, b>>>(\na<<<1,\n32>>>\n();\nnothing;", "Line 5: 'nothing' was not declared"),
        ("a<<<1, 32>>>();\nnothing<<<1, 32>>>(\n1\n);", "Line 2: 'nothing' was not declared"),
        ("\na<<<1, 32>>>(1);", "Line 2: too many arguments to function"),
        ("\na<<<1, 32>>>;", "Line 2: expected primary-expression"),
        ("\na<<<1, 32;\na<<<1, 32>>>();", "Line 2: expected primary-expression"),
    ],
)
def test_errors_around_launches_have_the_learner_s_lines(gpu, text, says):
    a = gs.workloads.Step(gpu, MS, name="a")
    with pytest.raises(Unmet) as told:
        learn.CudaProgram(gpu, f"void run() {{ {text}\n}}", "void run()", {"void a()": a})
    quoted = str(told.value).replace("‘", "'").replace("’", "'")
    assert says in quoted.replace(
        "use of undeclared identifier 'nothing'", "'nothing' was not declared"
    )


REFUSED_BY_COMPILERS = {
    "a kernel is called": ("a();", "must be configured"),
    "a kernel with arguments is called": ("b(1);", "must be configured"),
    "what is no function is launched": ("auto f = [] {}; f<<<1, 32>>>();", "match"),
    "a fifth size": ("a<<<1, 32, 0, s, 4>>>();", "match"),
    "no threads": ("a<<<>>>();", "match"),
    "one argument too many": ("cudaStreamSynchronize(s, 4);", "Line 2: "),
    "an empty argument too many": ("cudaDeviceSynchronize({});", "Line 2: "),
    "one argument too few": ("float* x; cudaHostAlloc(&x, 4);", "match"),
    "the header's namespace": (
        "\ngpuscope::configuring()(1, 32);",
        "Line 3: gpuscope is none of CUDA's",
    ),
    "the header's macros": ("GPUSCOPE_ASK(0);", "Line 2: GPUSCOPE_ASK is none of CUDA's"),
    "the header's names for a GPU": ("gpuscope_cudaFree(0);", "is none of CUDA's"),
    "a kernel of one's own": ("} __global__ void mine() {", "kernels come with the exercise"),
}


@pytest.mark.parametrize(("text", "says"), REFUSED_BY_COMPILERS.values(), ids=REFUSED_BY_COMPILERS)
def test_what_cuda_s_compiler_refuses_does_not_compile(gpu, text, says):
    a, b = (gs.workloads.Step(gpu, MS, name=name) for name in "ab")
    kernels = {"void a()": a, "void b(int n)": b}
    with pytest.raises(Unmet) as told:
        learn.CudaProgram(gpu, body(text), "void run(cudaStream_t s)", kernels)
    assert says in str(told.value)
    assert "Line " in str(told.value)


def test_comments_and_texts_may_name_what_programs_may_not(gpu, run):
    text = '// gpuscope, __global__\nprintf("__global__ %s", "gpuscope"); int cpugpuscope = 0;'
    with gpu.create_stream() as s:
        run(body(text), s)


CODES = {
    "a<<<1, 2000, 0, s>>>();": 9,
    "a<<<1, dim3(32, 33), 0, s>>>();": 9,
    "a<<<1, dim3(1, 1, 65), 0, s>>>();": 9,
    "a<<<1, 0, 0, s>>>();": 9,
    "a<<<dim3(1, 0), 32, 0, s>>>();": 9,
    "a<<<dim3(1, 65536), 32, 0, s>>>();": 9,
    "a<<<-1, 32, 0, s>>>();": 9,
    "cudaLaunchKernel((void*)a, 1, 1025, nullptr, 0, s);": 9,
    "a<<<1, 32, 49153, s>>>();": 1,
    "a<<<1, 32, 1 << 30, s>>>();": 1,
    "void (*kernel)() = a; kernel();": 52,
    "a<<<1, 32, 0, s>>>(); void (*kernel)() = a; kernel();": 52,
    "host<<<1, 32, 0, s>>>();": 98,
    "cudaLaunchKernel((void*)host, 1, 1, nullptr, 0, s);": 98,
    "a<<<dim3(1, 2), 32, 0, s>>>();": 801,
    "cudaStreamCreateWithFlags(&t, 6);": 1,
    "cudaStreamDestroy(0);": 400,
    "cudaEventCreate(&e, 8);": 1,
    "cudaEventCreate(&e); cudaStreamWaitEvent(s, e, 2);": 1,
    "cudaEventCreate(&e); cudaEventElapsedTime(&ms, e, e);": 400,
    "cudaEventCreate(&e, cudaEventDisableTiming); cudaEventElapsedTime(&ms, e, e);": 400,
    "cudaMalloc(&x, 1ull << 50);": 2,
    "cudaMallocHost(&x, 1ull << 50);": 2,
    "cudaHostAlloc(&x, 4, 64);": 1,
    "cudaFree(&ms);": 1,
    "cudaMalloc(&x, 8); cudaFree(x); cudaFree(x);": 1,
    "cudaFreeHost(&ms);": 1,
    "cudaMallocHost(&x, 8); cudaFreeHost(x); cudaFreeHost(x);": 1,
    "cudaMalloc(&x, 4); cudaMemcpy(x, many, 64, cudaMemcpyHostToDevice);": 1,
    "cudaMalloc(&x, 64); cudaMemcpy(x, many, 64, cudaMemcpyDeviceToHost);": 1,
    "cudaLaunchHostFunc(s, nullptr, nullptr);": 1,
    "BEGIN(Global) cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal); cudaStreamEndCapture(s, &g);": 401,
    "BEGIN(Global) cudaMalloc(&x, 4); cudaGetLastError(); cudaStreamEndCapture(s, &g);": 901,
    "BEGIN(ThreadLocal) if (cudaMallocHost(&x, 4) == 900) cudaStreamEndCapture(s, &g);": 901,
    "BEGIN(Relaxed) cudaMalloc(&x, 4); cudaStreamEndCapture(s, &g);": 0,
    "BEGIN(Global) cudaStreamEndCapture(s, &g); cudaGraphDestroy(g); cudaGraphDestroy(g);": 1,
    "BEGIN(Global) cudaStreamEndCapture(s, &g); cudaGraphDestroy(g); cudaGraphInstantiate(&made, g);": 1,
    "a<<<2147483647, 1024, 49152, s>>>();": 0,
    "a<<<dim3(1), dim3(32), 0, s>>>(); (*&a)<<<1, 32, 0, s>>>();": 0,
    "cudaMalloc(&x, 0); cudaFree(x); cudaFree(nullptr); cudaFreeHost(nullptr);": 0,
}
"""What a program does → the error that cudaGetLastError tells then."""
REFUSING = """
#define BEGIN(mode) cudaStreamBeginCapture(s, cudaStreamCaptureMode##mode);
void host() { abort(); }
int run(cudaStream_t s, int which) {
  cudaStream_t t; cudaEvent_t e; cudaGraph_t g; cudaGraphExec_t made; float ms, *x, many[16];
  switch (which) {
CASES
  }
  int peeked = cudaPeekAtLastError(), code = cudaGetLastError();
  return peeked == code && cudaGetLastError() == cudaSuccess ? code : -1;
}"""


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_what_cuda_refuses_at_run_time_has_its_error_until_it_is_asked_for(gpu):
    """The codes are those of CUDA's documentation; 801 is ours: kernels here have one dimension."""
    a = gs.workloads.Step(gpu, MS, name="a")
    cases = "\n".join(
        f"    case {number}: {{ {text} break; }}" for number, text in enumerate(CODES)
    )
    signature = "int run(cudaStream_t s, int which)"
    code = REFUSING.replace("CASES", cases)
    found = {}
    with learn.CudaProgram(gpu, code, signature, {"void a()": a}) as program:
        for number, text in enumerate(CODES):
            with gpu.create_stream() as s:
                found[text] = program(s, number)
    assert found == CODES


def test_what_is_refused_at_run_time_and_not_asked_for_is_told_with_its_line(gpu, run):
    a = gs.workloads.Step(gpu, MS, name="a")
    with gpu.create_stream() as s:
        with pytest.raises(Unmet, match=r"^Line 3: a launch failed: .*2,000 × 1 × 1 threads"):
            run(body("\na<<<1, 2000, 0, s>>>();"), s, kernels={"void a()": a})
        text = "cudaEvent_t e; cudaEventCreate(&e); a<<<1, 32, 0, s>>>(); cudaEventRecord(e, s);"
        asks = "float ms; ASK (cudaEventElapsedTime(&ms, e, e) == cudaErrorNotReady) {}"
        with pytest.raises(Unmet, match="cudaErrorNotReady"):
            run(body(text + asks.replace("ASK", "if")), s, kernels={"void a()": a})
        run(body(text + asks.replace("ASK", "while")), s, kernels={"void a()": a})


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_a_program_leaves_no_children(gpu, run):
    code = """
#include <thread>
int run() {
  int threads = 0;
  std::thread([&] { threads += fork() < 0; }).join();
  pid_t forked = fork();
  if (forked == 0) for (;;) pause();
  pid_t copied = vfork();
  if (copied == 0) _exit(0);
  return threads + 10 * (forked < 0) + 100 * (copied < 0) + 1000 * (system("exit 0") != 0);
}"""
    assert run(code, signature="int run()").value == 1111


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("float* x; cudaMallocAsync(&x, 64, 0);", "cudaMallocAsync"),
        ("cudaStreamAddCallback(0, 0, 0, 0);", "cudaStreamAddCallback"),
        ("cudaMemPool_t pool;", "cudaMemPool_t"),
        ("} cudaMemPool_t pool() {", "cudaMemPool_t"),
    ],
)
def test_what_there_is_not_of_cuda_is_told_with_what_there_is(gpu, text, lacks):
    with pytest.raises(Unmet) as told:
        learn.CudaProgram(gpu, f"void run() {{ {text} }}", "void run()", {})
    error, _, has = str(told.value).partition(
        "Of CUDA there is only the part that the lessons teach: "
    )
    assert lacks in error
    has = has.removesuffix(".").split(", ")
    known = set(WORDS) - {"launch", "touched"}
    assert known < set(has)
    assert {"cudaStreamCreate", "cudaLaunchKernel", "cudaGetErrorName"} < set(has)
    assert len(has) == len(set(has))


def test_a_name_of_the_learner_s_own_is_told_without_what_there_is_of_cuda(gpu):
    with pytest.raises(Unmet) as told:
        learn.CudaProgram(gpu, "void run() { cudaFree(nothing); cudaFree(1); }", "void run()", {})
    assert "nothing" in str(told.value)
    assert "lessons" not in str(told.value)


DEFAULT = """
void run(cudaStream_t s) {
  cudaStream_t t;
  cudaStreamCreateWithFlags(&t, FLAG);
  a<<<1, 32, 0, t>>>();
  b<<<1, 32>>>();
  a<<<1, 32, 0, t>>>();
  b<<<1, 32, 0, cudaStreamLegacy>>>();
  cudaDeviceSynchronize();
}"""


@pytest.mark.parametrize(("flag", "together"), [("Default", 0), ("NonBlocking", 2)])
def test_who_names_no_stream_gets_the_legacy_default_stream(gpu, run, flag, together):
    a, b = (gs.workloads.Step(gpu, 2 * MS, name=name) for name in "ab")
    with gpu.create_stream() as s:
        done = run(
            DEFAULT.replace("FLAG", f"cudaStream{flag}"), s, kernels={"void a()": a, "void b()": b}
        )
    kernels = done.trace.where(kind="kernel").spans.sort_by("start_ns").to_pylist()
    overlaps = sum(
        min(one["end_ns"], other["end_ns"]) - max(one["start_ns"], other["start_ns"]) > MS
        for one in kernels if one["category"] == "a"
        for other in kernels if other["category"] == "b"
    )  # fmt: skip
    assert len(kernels) == 4
    assert overlaps == together


def test_the_default_stream_of_a_thread_is_blocking_and_no_other_waits(gpu, run):
    a, b = (gs.workloads.Step(gpu, 2 * MS, name=name) for name in "ab")
    text = "a<<<1, 32, 0, s>>>(); b<<<1, 32, 0, cudaStreamPerThread>>>(); cudaDeviceSynchronize();"
    with gpu.create_stream(blocking=True) as s:
        run(body(text), s, kernels={"void a()": a, "void b()": b}).together("a", "b")
    text = "a<<<1, 32, 0, cudaStreamPerThread>>>(); b<<<1, 32>>>(); cudaDeviceSynchronize();"
    with gpu.create_stream() as s:
        run(body(text), s, kernels={"void a()": a, "void b()": b}).order("a", "b")


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_a_capture_that_is_not_ended_is_told(gpu, run):
    a = gs.workloads.Step(gpu, MS, name="a")
    text = "cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal); a<<<1, 32, 0, s>>>();"
    with gpu.create_stream() as s:
        with pytest.raises(Unmet, match="cudaStreamEndCapture"):
            run(body(text), s, kernels={"void a()": a})
        run(body("a<<<1, 32, 0, s>>>();"), s, kernels={"void a()": a}).ran(a)


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_an_error_that_the_program_asks_for_is_no_failure(gpu, run):
    text = "cudaStreamSynchronize((cudaStream_t)0x77); cudaGetLastError();"
    with gpu.create_stream() as s:
        run(body(text), s)


READS = """
float run(cudaStream_t s, float* page, const float* ones, size_t bytes) {
  cudaMemcpyAsync(page, ones, bytes, cudaMemcpyDeviceToHost, s);
  WAIT
  return page[0];
}"""


@pytest.mark.parametrize(("wait", "kinds"), [("cudaStreamSynchronize(s);", 0), ("", 1)])
def test_the_host_s_reads_of_pinned_memory_count(gpu, run, wait, kinds):
    ones = gpu.asarray(np.ones(1 << 20, "float32"))
    with gpu.create_stream() as s:
        done = run(
            READS.replace("WAIT", wait), s, lambda program: program.pinned(1 << 20), ones, 1 << 22,
            signature="float run(cudaStream_t s, float* page, const float* ones, size_t bytes)",
        )  # fmt: skip
    assert len(gs.analysis.hazards(done.trace).facts.found) == kinds
    assert done.value == (1.0 if wait else 0.0)


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_a_pageable_copy_holds_the_host(gpu, run):
    ones = gpu.asarray(np.ones(1 << 20, "float32"))
    code = READS.replace("WAIT", "").replace("(page, ones", "(malloc(bytes), ones")
    with gpu.create_stream() as s:
        done = run(
            code, s, lambda program: program.pinned(1 << 20), ones, 1 << 22,
            signature="float run(cudaStream_t s, float* page, const float* ones, size_t bytes)",
        )  # fmt: skip
    done.returned_after("copy")


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("where", WHERE, indirect=True)
def test_the_compiler_s_errors_have_the_learner_s_lines(gpu):
    with pytest.raises(Unmet, match=r"Line 3: "):
        learn.CudaProgram(gpu, "\n\nvoid run() { nothing; }", "void run()", {})
    with pytest.raises(Unmet, match="keep it as void run"):
        learn.CudaProgram(gpu, "void run(int n) {}", "void run()", {})


def test_a_compiler_takes_no_more_memory_than_it_may(gpu, monkeypatch):
    less = [each.replace("-v 4000000", "-v 300000") for each in compiling._BOUNDED]
    assert less != compiling._BOUNDED
    monkeypatch.setattr(compiling, "_BOUNDED", less)
    with pytest.raises(Unmet, match="memory"):
        learn.CudaProgram(gpu, '#include "/dev/zero"\nvoid run() {}', "void run()", {})


def test_where_nothing_compiles_an_exercise_is_not_available_and_counts_no_attempt(
    gpu, monkeypatch
):
    lesson = learn.Lesson(0, "An example", gpu)

    def check():
        needs = learn.CudaProgram.require
        return lesson.check("c", "Write it.", lambda _: False, ["Think."], rule="So.", needs=needs)

    with monkeypatch.context() as patch:
        patch.setattr(compiling.shutil, "which", lambda _: None)
        told = check()
    assert (told.result.verdict, told.hint, told.rule) == ("not available", "", "")
    assert "g++" in told.found
    assert [(kept.verdict, kept.attempts) for kept in lesson.results] == [("not available", 0)]
    assert check().result.verdict == "not solved"
    assert [(kept.verdict, kept.attempts) for kept in lesson.results] == [("not solved", 1)]


BROKEN = {
    "it lacks its parts": "echo 'cannot execute cc1plus: No such file' >&2; exit 1",
    "it says nothing": "exit 127",
    "what it makes does not run": 'while [ "$1" != -o ]; do shift; done; printf "exit 3" > "$2"',
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_where_the_compiler_is_broken_an_exercise_is_not_available_and_counts_no_attempt(
    gpu, monkeypatch, tmp_path, broken
):
    lesson, path = learn.Lesson(0, "An example", gpu), tmp_path / "g++"
    path.write_text(f"#!/bin/sh\n{broken}\n")
    path.chmod(0o755)

    def check():
        needs = learn.CudaProgram.require
        return lesson.check("c", "Write it.", lambda _: False, ["Think."], rule="So.", needs=needs)

    usual = compiling.shutil.which
    with monkeypatch.context() as patch:
        patch.setattr(compiling.shutil, "which", lambda name: str(path) if name == "g++" else None)
        told = check()
        assert (told.result.verdict, told.result.attempts) == ("not available", 0)
        assert str(path) in told.found
        patch.setattr(
            compiling.shutil,
            "which",
            {"g++": str(path), "clang++": usual("g++")}.get,
        )
        assert compiling.compiler(is_inside=False) == usual("g++"), "the next one works"
    assert check().result.verdict == "not solved"


def test_what_cannot_be_is_refused(gpu, monkeypatch):
    with pytest.raises(InvalidArgument, match="declares no function"):
        learn.CudaProgram(gpu, "", "run", {})
    monkeypatch.setattr(compiling.shutil, "which", lambda _: None)
    with pytest.raises(CapabilityError, match=r"C\+\+ compiler"):
        learn.CudaProgram(gpu, "void run() { int unseen; }", "void run()", {})
