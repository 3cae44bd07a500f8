"""A workload kind: a kernel that fills an array with one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, PositiveInt

from gpuscope.workloads import WorkloadSpec

if TYPE_CHECKING:
    from gpuscope.device import Device
    from gpuscope.workloads import Handle


class FillSpec(WorkloadSpec):
    """A kernel that fills ``elements`` float32 elements with ``value``."""

    kind: Literal["fill"]
    elements: PositiveInt = Field(
        title="Elements", examples=[4096], json_schema_extra={"unit": "float32"}
    )
    value: float = Field(1.0, title="Value", description="What is written to every element")

    def make(self, device: Device, *, name: str, seed: int) -> Handle:
        from gpuscope_example.handle import Fill

        return Fill(device, elements=self.elements, value=self.value, name=name)
