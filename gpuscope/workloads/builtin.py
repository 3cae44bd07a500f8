"""The workload kinds of gpuscope itself, each declared once: its fields and its handle."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from gpuscope import workloads
from gpuscope.device.dtypes import Dtype, element_type
from gpuscope.workloads.python_kind import PythonSpec
from gpuscope.workloads.requests import RequestsSpec
from gpuscope.workloads.spec import RARE, WorkloadSpec

if TYPE_CHECKING:  # describing work loads no NumPy
    from gpuscope.device.device import Device
    from gpuscope.trace.facts import CollectiveKind
    from gpuscope.workloads.handle import Handle

RECORDINGS = Path(__file__).parent / "recordings"
"""Recordings of steps of a PyTorch decoder of hidden size 4096 on an H200: decode in a batch of 16,
and prefill. ``benchmarks/what_if.py --recordings`` makes them."""


def _in_bytes(value: object) -> object:
    """Read a text such as "256 MiB"; what is none is left to be refused as a number."""
    with suppress(ValidationError):
        if isinstance(value, str):
            return int(TypeAdapter(ByteSize).validate_python(value))
    return value


Side = Annotated[PositiveInt, Field(examples=[1024])]
Bytes = Annotated[
    PositiveInt,
    Field(title="Bytes", description="A number, or with a unit: 256 MiB", examples=[1 << 24]),
    BeforeValidator(_in_bytes),
]
NamedDtype = Annotated[Dtype, BeforeValidator(lambda dtype: element_type(dtype).name)]
SmCountTarget = Literal["auto", "off"] | PositiveInt


class GemmSpec(WorkloadSpec):
    """A matrix product ``out[m, n] = a[m, k] @ b[k, n]``."""

    kind: Literal["gemm"]
    m: Side
    n: Side
    k: Side
    dtype: NamedDtype = Field("float16", title="Data type")
    sm_count_target: SmCountTarget = Field(
        "auto",
        title="SMs told",
        description="The SM count that cuBLAS is told: auto (the partition's), off, or a count",
        json_schema_extra=RARE,
    )

    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        """Make a :class:`~gpuscope.workloads.gemm.Gemm`."""
        target = None if self.sm_count_target == "off" else self.sm_count_target
        sizes = self.model_dump(include={"m", "n", "k", "dtype"})
        return workloads.Gemm(device, **sizes, sm_count_target=target, name=name, seed=seed)


class CopySpec(WorkloadSpec):
    """An element-wise copy kernel, which reads and writes ``nbytes``."""

    kind: Literal["copy"]
    nbytes: Bytes

    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        """Make a :class:`~gpuscope.workloads.copy.Copy`."""
        return workloads.Copy(device, nbytes=self.nbytes, name=name, seed=seed)


class SpinSpec(WorkloadSpec):
    """A kernel of ``blocks`` thread blocks that spin for ``duration_us``."""

    kind: Literal["spin"]
    duration_us: float = Field(
        gt=0, le=10_000_000, title="Duration", examples=[100], json_schema_extra={"unit": "µs"}
    )
    blocks: PositiveInt = Field(1, title="Thread blocks")

    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        """Make a :class:`~gpuscope.workloads.spin.Spin`."""
        del seed
        duration_ns = round(self.duration_us * 1000)
        return workloads.Spin(device, duration_ns=duration_ns, blocks=self.blocks, name=name)


class SoftmaxSpec(WorkloadSpec):
    """A softmax over each of ``rows`` rows of ``columns`` float32 elements."""

    kind: Literal["softmax"]
    rows: Side
    columns: Side

    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        """Make a :class:`~gpuscope.workloads.softmax.Softmax`."""
        return workloads.Softmax(device, rows=self.rows, columns=self.columns, name=name, seed=seed)


class CollectiveSpec(WorkloadSpec):
    """Base of the collectives, which the GPUs of all ranks do together.

    Attributes
    ----------
    nbytes
        The size as nccl-tests states it: see :class:`~gpuscope.workloads.collective.Collective`.
    """

    _later = ("guard", "waits_on", "dtype")

    nbytes: Bytes
    dtype: NamedDtype = Field("float32", title="Data type")

    @field_validator("background")
    @classmethod
    def _counted(cls, background: bool) -> bool:  # noqa: FBT001 - pydantic's form of a check
        if background:
            raise ValueError(
                "a collective needs a number of calls, the same on every rank: give repeats, and "
                "let other workloads run in the background"
            )
        return background

    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        """Make a :class:`~gpuscope.workloads.collective.Collective`."""
        kind = cast("CollectiveKind", self.kind)
        return workloads.Collective(
            device, kind, nbytes=self.nbytes, dtype=self.dtype, name=name, seed=seed
        )


class AllReduceSpec(CollectiveSpec):
    """A sum over all ranks of ``nbytes`` on each, left on each (NCCL)."""

    kind: Literal["all_reduce"]


class AllGatherSpec(CollectiveSpec):
    """Parts of all ranks, ``nbytes`` together, gathered on each (NCCL)."""

    kind: Literal["all_gather"]


class ReduceScatterSpec(CollectiveSpec):
    """A sum over all ranks of ``nbytes`` on each, of which each is left a part (NCCL)."""

    kind: Literal["reduce_scatter"]


class AllToAllSpec(CollectiveSpec):
    """Parts of ``nbytes`` on each rank, one sent to each (NCCL)."""

    kind: Literal["all_to_all"]


class TracedGemmSpec(WorkloadSpec):
    """A float16 product by a kernel that records when and on which SM its thread blocks ran."""

    kind: Literal["traced_gemm"]
    m: Side
    n: Side
    k: Side

    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        """Make a :class:`~gpuscope.workloads.traced.TracedGemm`."""
        return workloads.TracedGemm(device, m=self.m, n=self.n, k=self.k, name=name, seed=seed)


class TracedCopySpec(WorkloadSpec):
    """A copy of ``nbytes`` by a kernel that records when and on which SM its thread blocks ran."""

    kind: Literal["traced_copy"]
    nbytes: Bytes

    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        """Make a :class:`~gpuscope.workloads.traced.TracedCopy`."""
        return workloads.TracedCopy(device, nbytes=self.nbytes, name=name, seed=seed)


class TraceSpec(WorkloadSpec):
    """A recording's kernels, on a simulated GPU: each call runs all of them.

    Attributes
    ----------
    path
        A trace of any format that gpuscope reads, or the name of one in :data:`RECORDINGS`:
        ``decode_h200``, ``prefill_h200``, and on 24 SMs ``decode_h200_24``, ``prefill_h200_24``.
    second
        The same work recorded on fewer SMs: makes times elsewhere more accurate.
    of_stream
        Only the kernels of the stream of that name.
    graph
        Launch them all at once, as a captured step is launched.
    """

    kind: Literal["trace"]
    path: str = Field(title="Trace", examples=["model.parquet"])
    second: str | None = Field(None, title="On fewer SMs", json_schema_extra=RARE)
    of_stream: str | None = Field(None, title="Only of stream", json_schema_extra=RARE)
    graph: bool = Field(default=False, title="As one graph", json_schema_extra=RARE)

    _later = ("guard", "waits_on", "graph")

    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        """Make a :class:`~gpuscope.simulator.recorded.RecordedWork`."""
        from gpuscope.formats.reading import load_trace  # noqa: PLC0415 - only this kind reads

        del seed
        shipped = {recording.stem: recording for recording in RECORDINGS.glob("*.parquet")}
        paths = [self.path] if self.second is None else [self.path, self.second]
        trace, *fewer = [load_trace(shipped.get(path, path)) for path in paths]
        options = self.model_dump(include={"of_stream", "graph"})
        return workloads.RecordedWork(
            device, trace, second=fewer[0] if fewer else None, name=name, **options
        )


BUILT_IN: Mapping[str, type[WorkloadSpec]] = {
    spec.kind_name(): spec
    for spec in (
        GemmSpec,
        CopySpec,
        SpinSpec,
        SoftmaxSpec,
        AllReduceSpec,
        AllGatherSpec,
        ReduceScatterSpec,
        AllToAllSpec,
        TracedGemmSpec,
        TracedCopySpec,
        TraceSpec,
        RequestsSpec,
        PythonSpec,
    )
}
"""Name → kind."""
