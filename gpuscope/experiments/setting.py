"""A setting of an experiment: what is carved, made and launched, and whether that fits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from gpuscope.device.sizes import Rounding, Size, check_name
from gpuscope.experiments.refusals import listed, refuse
from gpuscope.workloads.builtin import CollectiveSpec, SmCountTarget
from gpuscope.workloads.registry import AnyWorkload
from gpuscope.workloads.requests import RequestsSpec
from gpuscope.workloads.spec import ExtendedModel, Model

Name = Annotated[str, Field(min_length=1)]
PartitionName = Annotated[str, BeforeValidator(check_name)]


class StreamSpec(ExtendedModel):
    """A stream to make.

    Attributes
    ----------
    partition
        The partition it is made in; ``None`` for the whole GPU.
    priority
        CUDA's: lower runs first.
    blocking
        Whether it knows the barrier of the legacy default stream; streams of partitions
        cannot.
    """

    _later = ("blocking",)

    partition: str | None = Field(default=None, title="Runs in")
    priority: int = Field(
        default=0,
        ge=-5,
        le=0,
        title="Priority",
        description="Lower numbers run first among blocks that wait for an SM; nothing is "
        "pre-empted",
    )
    blocking: bool = Field(
        default=False,
        title="Blocking",
        description="Waits for what was queued in the legacy default stream, and is waited for "
        "by it",
    )

    @model_validator(mode="after")
    def _blocking_is_of_the_whole_gpu(self) -> Self:
        if self.blocking and self.partition is not None:
            raise ValueError(
                "a partition's stream never blocks: leave out blocking, or partition for a "
                "stream of the whole GPU"
            )
        return self


PartitionSize = Annotated[int | str, PlainValidator(lambda value: Size.parse(value).plain)]
"""A :class:`~gpuscope.device.Size` as descriptions write it."""


class Setting(ExtendedModel):
    """A named variant: what differs from the experiment itself.

    Attributes
    ----------
    partitions
        Replaces the experiment's.
    streams
        Replaces the streams it names; the others stay.
    sm_count_target
        For every workload of the setting that has the field: every GEMM.
    rounding
        Replaces the experiment's.
    """

    _later = ("rounding",)

    partitions: dict[PartitionName, PartitionSize] | None = None
    streams: dict[str, StreamSpec] = Field(default_factory=dict)
    sm_count_target: SmCountTarget | None = None
    rounding: Rounding | None = None


class ResolvedSetting(Model):
    """One setting, complete: what is carved, made and launched."""

    name: str
    partitions: dict[str, PartitionSize]
    streams: dict[str, StreamSpec]
    workloads: dict[str, AnyWorkload]
    rounding: Rounding


def check_names(
    setting: ResolvedSetting, named: Setting | None, streams: Mapping[str, StreamSpec]
) -> None:
    """Check that streams name partitions, and workloads streams and workloads, that are there.

    Parameters
    ----------
    named
        The setting as it is described, if it is.
    streams
        Those of the experiment.

    Raises
    ------
    InvalidExperiment
        They do not; says where.
    """
    for name, stream in setting.streams.items():
        if stream.partition is not None and stream.partition not in setting.partitions:
            here = ("settings", setting.name) if named and name in named.streams else ()
            allowed = listed(setting.partitions, "none (this setting carves nothing)")
            words = f"{stream.partition!r} is no partition of setting {setting.name!r}"
            refuse((*here, "streams", name, "partition"), f"{words}; allowed: {allowed}")
    for name in named.streams if named else ():
        if name not in streams:
            words = f"no such stream; allowed: {listed(streams)}"
            refuse(("settings", setting.name, "streams", name), words)
    for name, workload in setting.workloads.items():
        if workload.launches and workload.stream not in setting.streams:
            words = f"{workload.stream!r} is no stream; allowed: {listed(setting.streams)}"
            refuse(("workloads", name, "stream"), words)
        other_workloads = [other for other in setting.workloads if other != name]
        for other in workload.waits_on:
            if other not in other_workloads:
                words = f"{other!r} is no other workload; allowed: {listed(other_workloads)}"
                refuse(("workloads", name, "waits_on"), words)
    _check_requests(setting)
    _check_collectives(setting)
    if all(workload.background for workload in setting.workloads.values()):
        refuse(
            ("workloads",),
            "every one is in the background, so nothing would end the run; set background = false "
            "for at least one",
        )


def _check_requests(setting: ResolvedSetting) -> None:
    """Check that requests name two workloads that launch, each of them theirs alone."""
    taken: dict[str, str] = {}
    for name, spec in setting.workloads.items():
        if not isinstance(spec, RequestsSpec):
            continue
        for part in ("prefill", "decode"):
            path, other = ("workloads", name, part), getattr(spec, part)
            if other not in setting.workloads or not setting.workloads[other].launches:
                launching = [
                    key for key, workload in setting.workloads.items() if workload.launches
                ]
                allowed = listed(launching, "none (describe one)")
                refuse(path, f"{other!r} is no workload that launches; allowed: {allowed}")
            if other in taken:
                refuse(path, f"{other!r} serves {taken[other]} already: describe another one")
            taken[other] = f"{name!r} as {part}"
            wrong = setting.workloads[other]
            if wrong.background or wrong.rate_hz is not None:
                words = "requests say when it runs: leave out background, arrival and rate_hz"
                refuse(("workloads", other), words)


def _check_collectives(setting: ResolvedSetting) -> None:
    """Check that no two collectives share SMs, on which their order may differ between ranks."""
    places: dict[str, str | None] = {
        name: setting.streams[spec.stream].partition
        for name, spec in setting.workloads.items()
        if isinstance(spec, CollectiveSpec)
    }
    for (other, theirs), (name, partition) in itertools.combinations(places.items(), 2):
        if theirs is None or partition in (None, theirs):
            refuse(
                ("workloads", name, "stream"),
                f"{other!r} is a collective that may use the same SMs: ranks that begin the two in "
                "different orders would wait for each other forever. Give each a partition of its "
                "own",
            )
