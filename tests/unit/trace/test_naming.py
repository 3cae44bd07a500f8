"""Names that a person knows: kernels as recordings name them, threads, streams and ranges."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope.trace import Trace
from gpuscope.trace.metadata import TraceMetadata
from gpuscope.trace.naming import kernel_name, named, range_label, stream_names, thread_names

NAMES = Path(__file__).parents[2] / "data" / "kernel_names.tsv"
"""What a person says, and the name as CUPTI told it in recordings on an H100 and an H200."""


@pytest.mark.parametrize("line", NAMES.read_text("utf-8").splitlines())
def test_kernels_of_recordings_have_plain_names(line):
    plain, name = line.split("\t")
    assert kernel_name(name) == plain


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", "NCCL all reduce (sum, bf16)"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "NCCL send recv"),
        ("triton_per_fused_native_layer_norm_add_3", "fused layer norm, add (Triton)"),
        (
            (
                "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized"
                "<c10::BFloat16, float, false>(c10::BFloat16 const*, int)"
            ),
            "layer norm backward (bf16)",
        ),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", "GEMM 128×64 bf16"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize32x32x64_stage4", "GEMM 32×32 tf32"),
        ("my_softmax_kernel", "my_softmax_kernel"),
        ("gemm_128x128", "gemm_128x128"),
        ("relu, then add", "relu, then add"),
        ("void app::(anonymous namespace)::step<Grid<3>, 4>(Grid<3>, int)", "step"),
        ("_ZN3app4stepILi4EEEvi", "step"),
        ("void kernel<lu_params_<float, 0>>(lu_params_<float, 0>)", "kernel<lu_params_>"),
        ("__main__::step[abi:v1][abi:cw51cXT](Array<float, 2, C>, float)", "step"),
        ("a<<<b", "a<<<b"),
        ("<", "<"),
        ("_Z99999", "_Z99999"),
        ("", ""),
    ],
)
def test_names_of_users_stay_but_for_what_cpp_adds(name, plain):
    assert kernel_name(name) == plain


@pytest.mark.parametrize(
    ("name", "label"),
    [("step 12", "step"), ("ProfilerStep#3", "ProfilerStep"), ("iter_7", "iter"), ("3", "3"),
     ("layer[2]", "layer"), ("forward", "forward")],
)  # fmt: skip
def test_labels_of_ranges_have_no_number(name, label):
    assert range_label(name) == label


def launched(works, ranges=(), streams=(), threads=(), process=70):
    """Build a trace of (thread, stream, kind, name) launched at 10, 20, …, in ranges."""
    rows, edges = [], []
    for number, (thread, stream, kind, name) in enumerate(works, 1):
        at = 10 * number
        edges.append((len(rows) + 1, len(rows) + 2))
        rows.append({"kind": "api", "name": "launch", "thread": thread, "start_ns": at})
        rows.append({"kind": kind, "name": name, "stream": stream, "start_ns": at + 4})
    for name, thread, start, end in ranges:
        rows.append({"kind": "range", "name": name, "thread": thread, "start_ns": start,
                     "end_ns": end})  # fmt: skip
    rows = [
        {"id": number, "source": "cupti", "process": process, "end_ns": row["start_ns"] + 3, **row}
        for number, row in enumerate(rows, 1)
    ]
    for row in rows:
        if row["kind"] == "memcpy":
            row["copy_kind"] = row["name"].split()[0]
    columns = {name: [row.get(name) for row in rows] for name in {n for row in rows for n in row}}
    facts = {str(number): {"name": name, **more} for number, name, more in streams}
    return Trace.from_columns(
        columns,
        {
            "from": [a for a, _ in edges],
            "to": [b for _, b in edges],
            "kind": ["launch"] * len(edges),
        },
        TraceMetadata(streams=facts, thread_names=dict(threads)),
    )


def test_a_stream_is_called_by_the_first_thing_that_is_known_of_it():
    kernel = "void at::native::add<float>(int)"
    works = [
        *((1, 1, "kernel", kernel) for _ in range(10)),
        *((1, 2, "kernel", kernel) for _ in range(2)),
        *((1, 3, "kernel", kernel) for _ in range(2)),
        *((1, 4, "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL") for _ in range(9)),
        (1, 4, "kernel", kernel),
        *((1, 5, "memcpy", "HtoD copy") for _ in range(3)),
        *((2, 6, "kernel", kernel) for _ in range(10)),
        *((1, 8, "kernel", kernel) for _ in range(2)),
    ]  # fmt: skip
    six = [at for at, work in enumerate(works, 1) if work[1] == 6]
    ranges = [("all", 2, 10 * six[0], 10 * six[-1] + 9)]
    ranges += [(f"encode {at}", 2, 10 * at, 10 * at + 8) for at in six[1:]]
    unnamed = [(number, f"stream {number + 10} of context 1", {}) for number in (3, 4, 5, 6, 8)]
    unnamed[0] = (3, "stream 7 of context 1", {})
    unnamed[4] = (8, "stream 18 of context 1", {"partition": "small"})
    streams = [(1, "mine", {}), (2, "stream 9 of context 2", {"partition": "small"}), *unnamed]
    trace = launched(works, ranges, streams)
    assert stream_names(trace) == {
        1: "mine", 2: "small (stream 9 of context 2)", 3: "PyTorch's default stream", 4: "NCCL",
        5: "copies to the GPU", 6: "encode", 8: "small (stream 18 of context 1)",
    }  # fmt: skip
    two = launched(
        [(1, 1, "kernel", "k"), (1, 2, "kernel", "k")],
        streams=[(1, "small", {}), (2, "stream 9 of context 2", {"partition": "small"})],
    )
    assert stream_names(two) == {1: "small", 2: "small (stream 9 of context 2)"}
    nobody = launched([(1, 5, "kernel", "k")], streams=[(5, "stream 13 of context 1", {})])
    assert stream_names(nobody) == {5: "stream 13"}


def test_a_range_names_what_holds_nine_tenths_of_its_launches_only():
    works = [(3, 5, "kernel", "k")] * 10
    held = [("rank", 3, 10 * at, 10 * at + 8) for at in range(1, 10)]
    streams = [(5, "stream 13 of context 1", {})]
    assert stream_names(launched(works, held, streams)) == {5: "rank"}
    assert stream_names(launched(works, held[1:], streams)) == {5: "stream 13"}
    assert thread_names(launched(works, held)) == {3: "rank thread"}
    assert thread_names(launched(works, held[1:])) == {3: "thread 1 of 1"}


def test_threads_have_names_of_libraries_else_of_what_they_do():
    works = [(number, 5, "kernel", "k") for number in range(1, 8)]
    names = {"1": "MainThread", "2": "Thread-4 (_pin_memory_loop)", "3": "pt_autograd_0",
             "4": "Thread-5 (serve)", "5": "Thread-6", "6": "loader"}  # fmt: skip
    assert thread_names(launched(works, threads=names)) == {
        1: "main thread", 2: "pin-memory thread", 3: "autograd thread", 4: "serve thread",
        5: "thread 5 of 7", 6: "loader", 7: "thread 7 of 7",
    }  # fmt: skip
    assert thread_names(launched(works[:2], process=2))[2] == "main thread"


def test_parts_of_a_named_trace_keep_their_names():
    trace = gs.load_trace(NAMES.parent / "recordings" / "pytorch_h100.parquet")
    work = named(trace).where(kind=("kernel", "memcpy"))
    assert named(trace) is named(trace)
    assert named(named(trace)) is named(trace)
    assert {work.stream_name(number) for number in work.array("stream").tolist()} == {
        "s", "PyTorch's default stream", "copies to the host",
    }  # fmt: skip
    assert trace.stream_name(1001000007) == "stream 7 of context 1"
