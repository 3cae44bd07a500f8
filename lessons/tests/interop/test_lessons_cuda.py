"""The lessons' C++ compiles against CUDA's own headers."""

from __future__ import annotations

import re
import subprocess

import pytest
from playing import LESSONS, NOTEBOOKS, mended, real_code, solutions

HEADERS = NOTEBOOKS.parent / ".cache" / "readers" / "cuda" / "nvidia" / "cu13" / "include"
KERNELS = (
    "a", "ask", "attention", "b", "backward", "c", "count", "draft", "first", "histogram", "job",
    "join", "kernel", "large_work", "layer", "prefill", "last", "late", "later", "left", "load_block", "one",
    "process", "product", "right", "small_work", "two", "work", "write_kv",
)  # fmt: skip
"""Of the lessons' C++, with any arguments."""
BEFORE = """
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <cuda.h>
#include <cuda_runtime.h>
void configured(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr);
dim3 grid, block;
size_t bytes;
int n;
float *x, *y, *out, *buffer, *kv, *saved;
cudaStream_t s, t, stream, compute, load;
cudaEvent_t done, loaded, copied;
"""
STATEMENTS = {
    "06": """
CUdevice device;
cudaStream_t urgent;
cudaEvent_t begin, end;
float together_ms, alone_a_ms, alone_b_ms;
""",
    "07": """
float *scratch, *again;
cudaStream_t u, v;
cudaEvent_t point;
""",
    "08": """
float *input, *array;
int another_argument;
cudaEvent_t fork, join;
cudaGraph_t graph, changed, parent;
cudaGraphExec_t executable, first, second;
""",
    "09": """
int layers;
float ms[9];
cudaEvent_t before[9], after[9];
namespace at::cuda { cudaStream_t getCurrentCUDAStream(); }
struct cublasContext* handle;
enum Operation { CUBLAS_OP_N };
int cublasSetStream(cublasContext*, cudaStream_t);
int cublasSgemm(cublasContext*, Operation, Operation, int, int, int, const float*, const float*,
                int, const float*, int, const float*, float*, int);
""",
    "10": "",
    "11": """
float *prompt, *gradient, *staging, *staging_2, *keys, *values, *k, *v, *halves, *bins, *first;
void use(float*);
cudaStream_t store, queue, left, right, both, side, main_stream;
cudaEvent_t written, was_read, ready;
cudaGraphExec_t step;
""",
    "12": """
float *staging[2], *chunks[9], *on_gpu[9], *out[9];
float *batch[9], *result[9];
cudaStream_t up, down;
cudaEvent_t uploaded[9], computed[9];
""",
    "13": """
float *answer, *question, *ordinary, *page, *text, *in;
void (*steps[3])(float*, float*);
""",
    "14": """
float *x, *source, *kv, *state, *token, *prompt, *page[2], *counts;
int b, layers, device;
unsigned int least;
struct library* handle;
void library_set_stream(library*, cudaStream_t);
void library_count(library*, float*, float*);
void admit(float*);
cudaStream_t copies;
CUstream chat, batch, decode;
cudaEvent_t x_read, x_written, read[2];
cudaGraph_t graph;
cudaGraphExec_t step;
CUdevResource all, decode_sms, rest;
CUdevResourceDesc described;
CUgreenCtx partition, prefill_partition;
""",
}
"""Lesson whose code is made of statements → what they use besides."""
OWN = {
    ("07", 0): "cudaStream_t stream[2]; float* buffer[2];",
    ("09", 1): "float one, zero, *a, *b, *c;",
    ("11", 7): "float* block;",
    ("14", 6): "float* page;",
}
"""Lesson and piece of code → what is of another type there."""


@pytest.fixture(scope="session")
def cuda_headers():
    """Return the folder of CUDA's headers."""
    assert HEADERS.exists(), "run scripts/readers.sh, as `make test` does"
    return HEADERS


@pytest.mark.parametrize("name", LESSONS)
def test_the_cuda_code_of_a_lesson_compiles(name, tmp_path, cuda_headers):
    """By any C++ compiler: a launch becomes a check of its configuration, and a call."""
    code = [
        re.sub(r"(\w+)<<<(.*?)>>>\(", r"configured(\2), \1(", mended(piece))
        for piece in real_code(name, "cpp")
    ]
    includes = [line for piece in code for line in piece.splitlines() if line[:8] == "#include"]
    kernels = [f"template <class... A> void {kernel}(A...);" for kernel in KERNELS]
    lesson = [STATEMENTS.get(name[:2], "")]
    for number, piece in enumerate(code):
        body = re.sub(r"^#include .*", "", piece, flags=re.MULTILINE)
        if name[:2] in STATEMENTS and "void step()" not in body:
            body = f"void piece_{number}() {{ {OWN.get((name[:2], number), '')}\n{body}\n}}"
        lesson.append(body)
    source = tmp_path / "lesson.cpp"
    text = [*includes, BEFORE, *kernels, "namespace lesson {", *lesson, "}"]
    source.write_text("\n".join(text), "utf-8")
    command = ["c++", "-std=c++17", "-fsyntax-only", "-I", str(cuda_headers), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name in LESSONS if "task-cuda" in solutions(name)])
def test_the_solution_of_an_exercise_in_cuda_compiles(name, tmp_path, cuda_headers):
    names: dict[str, str] = {}
    exec(solutions(name)["task-cuda"], names)  # noqa: S102 - our own notebooks
    (code,) = (text for variable, text in names.items() if variable.isupper())
    kernels = [f"template <class... A> void {kernel}(A...);" for kernel in KERNELS]
    source = tmp_path / "solution.cpp"
    launched = re.sub(r"(\w+)<<<(.*?)>>>\(", r"configured(\2), \1(", code)
    source.write_text("\n".join([BEFORE, *kernels, "namespace lesson {", launched, "}"]), "utf-8")
    command = ["c++", "-std=c++17", "-fsyntax-only", "-I", str(cuda_headers), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
