"""Work to launch: reusable handles that own no stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.simulator.recorded import RecordedWork as RecordedWork
    from gpuscope.workloads.collective import Collective as Collective
    from gpuscope.workloads.copy import Copy as Copy
    from gpuscope.workloads.function import FunctionHandle as FunctionHandle
    from gpuscope.workloads.function import Workload as Workload
    from gpuscope.workloads.function import workload as workload
    from gpuscope.workloads.gemm import Gemm as Gemm
    from gpuscope.workloads.handle import Completion as Completion
    from gpuscope.workloads.handle import Handle as Handle
    from gpuscope.workloads.product import mm_out as mm_out
    from gpuscope.workloads.registry import kinds as kinds
    from gpuscope.workloads.softmax import Softmax as Softmax
    from gpuscope.workloads.spec import WorkloadSpec as WorkloadSpec
    from gpuscope.workloads.spin import Spin as Spin
    from gpuscope.workloads.spin import spin_kernel as spin_kernel
    from gpuscope.workloads.step import Step as Step
    from gpuscope.workloads.torch_module import TorchModule as TorchModule
    from gpuscope.workloads.traced import TracedCopy as TracedCopy
    from gpuscope.workloads.traced import TracedGemm as TracedGemm

__getattr__, __dir__, __all__ = public(__name__)
