"""Devices: one interface to real and simulated GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuscope._lazy import public

if TYPE_CHECKING:
    from gpuscope.device.accesses import Access as Access
    from gpuscope.device.accesses import address as address
    from gpuscope.device.accesses import byte_ranges as byte_ranges
    from gpuscope.device.api import Capabilities as Capabilities
    from gpuscope.device.api import DeviceInfo as DeviceInfo
    from gpuscope.device.api import Kernel as Kernel
    from gpuscope.device.api import KernelCost as KernelCost
    from gpuscope.device.api import KernelModel as KernelModel
    from gpuscope.device.api import NativeArray as NativeArray
    from gpuscope.device.caller import CallerStreamGuard as CallerStreamGuard
    from gpuscope.device.caller import get_caller_stream as get_caller_stream
    from gpuscope.device.carve import CarvePlan as CarvePlan
    from gpuscope.device.carve import PlannedPartition as PlannedPartition
    from gpuscope.device.carve import SmLayout as SmLayout
    from gpuscope.device.carve import plan_carve as plan_carve
    from gpuscope.device.device import Device as Device
    from gpuscope.device.event import Event as Event
    from gpuscope.device.families import DeviceFamily as DeviceFamily
    from gpuscope.device.foreign import name_partition as name_partition
    from gpuscope.device.graph import Graph as Graph
    from gpuscope.device.native import CAPSULE_NAME as CAPSULE_NAME
    from gpuscope.device.native import caller_stream_capsule as caller_stream_capsule
    from gpuscope.device.partition import Partition as Partition
    from gpuscope.device.partition import Partitions as Partitions
    from gpuscope.device.pinned import PinnedArray as PinnedArray
    from gpuscope.device.scratch import Scratch as Scratch
    from gpuscope.device.scratch import WorkloadContext as WorkloadContext
    from gpuscope.device.select import handing_over as handing_over
    from gpuscope.device.select import open_device as open_device
    from gpuscope.device.sizes import Size as Size
    from gpuscope.device.stream import Stream as Stream

__getattr__, __dir__, __all__ = public(__name__)
