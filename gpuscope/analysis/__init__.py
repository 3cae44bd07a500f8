"""Analyses of a trace: each function takes a Trace and returns an immutable result.

Definitions, used everywhere. *busy(X)* is the union of the kernel spans of X.
*overlap(A, B)* = ``|busy(A) ∩ busy(B)| / min(|busy(A)|, |busy(B)|)``. *gain* = sum of the
solo busy times / makespan: two kernels that overlap fully and each take twice as long
have overlap 1 and gain 1. *Work given to P* is every kernel launched while a stream of partition
P was selected, whichever stream ran it; *confinement(P)* = its time inside P / its total time.
"""

from typing import TYPE_CHECKING

from gpuscope import _lazy
from gpuscope.analysis.busy_analysis import ConcurrencyResult as ConcurrencyResult
from gpuscope.analysis.busy_analysis import OverlapResult as OverlapResult
from gpuscope.analysis.busy_analysis import PairOverlap as PairOverlap
from gpuscope.analysis.busy_analysis import SummaryResult as SummaryResult
from gpuscope.analysis.busy_analysis import SummaryRow as SummaryRow
from gpuscope.analysis.busy_analysis import concurrency as concurrency
from gpuscope.analysis.busy_analysis import overlap as overlap
from gpuscope.analysis.busy_analysis import summary as summary
from gpuscope.analysis.clocks_analysis import ClocksResult as ClocksResult
from gpuscope.analysis.clocks_analysis import clocks as clocks
from gpuscope.analysis.collectives_analysis import Collective as Collective
from gpuscope.analysis.collectives_analysis import CollectiveGroup as CollectiveGroup
from gpuscope.analysis.collectives_analysis import CollectivesResult as CollectivesResult
from gpuscope.analysis.collectives_analysis import collectives as collectives
from gpuscope.analysis.confinement_analysis import ConfinementResult as ConfinementResult
from gpuscope.analysis.confinement_analysis import Evidence as Evidence
from gpuscope.analysis.confinement_analysis import PartitionConfinement as PartitionConfinement
from gpuscope.analysis.confinement_analysis import confinement as confinement
from gpuscope.analysis.counters_analysis import KernelUse as KernelUse
from gpuscope.analysis.counters_analysis import PartitionUse as PartitionUse
from gpuscope.analysis.counters_analysis import PartitionUseResult as PartitionUseResult
from gpuscope.analysis.counters_analysis import partition_use as partition_use
from gpuscope.analysis.critical_path_analysis import CriticalPathResult as CriticalPathResult
from gpuscope.analysis.critical_path_analysis import PathPart as PathPart
from gpuscope.analysis.critical_path_analysis import critical_path as critical_path
from gpuscope.analysis.escapes import Escape as Escape
from gpuscope.analysis.gaps_analysis import Gap as Gap
from gpuscope.analysis.gaps_analysis import GapsResult as GapsResult
from gpuscope.analysis.gaps_analysis import TrackGaps as TrackGaps
from gpuscope.analysis.gaps_analysis import gaps as gaps
from gpuscope.analysis.hazards_analysis import HazardsResult as HazardsResult
from gpuscope.analysis.hazards_analysis import hazards as hazards
from gpuscope.analysis.help_analysis import Change as Change
from gpuscope.analysis.help_analysis import HelpResult as HelpResult
from gpuscope.analysis.help_analysis import what_would_help as what_would_help
from gpuscope.analysis.host_times_analysis import HostTime as HostTime
from gpuscope.analysis.host_times_analysis import HostTimesResult as HostTimesResult
from gpuscope.analysis.host_times_analysis import StackTime as StackTime
from gpuscope.analysis.host_times_analysis import host_times as host_times
from gpuscope.analysis.idle_analysis import IdleCause as IdleCause
from gpuscope.analysis.idle_analysis import IdleResult as IdleResult
from gpuscope.analysis.idle_analysis import idle_causes as idle_causes
from gpuscope.analysis.interference_analysis import Interference as Interference
from gpuscope.analysis.interference_analysis import InterferenceResult as InterferenceResult
from gpuscope.analysis.interference_analysis import interference as interference
from gpuscope.analysis.kernels_analysis import KernelsResult as KernelsResult
from gpuscope.analysis.kernels_analysis import KernelTime as KernelTime
from gpuscope.analysis.kernels_analysis import top_kernels as top_kernels
from gpuscope.analysis.latency_analysis import HandleLatency as HandleLatency
from gpuscope.analysis.latency_analysis import LatencyResult as LatencyResult
from gpuscope.analysis.latency_analysis import LaunchLatency as LaunchLatency
from gpuscope.analysis.latency_analysis import LaunchLatencyResult as LaunchLatencyResult
from gpuscope.analysis.latency_analysis import latency as latency
from gpuscope.analysis.latency_analysis import launch_latency as launch_latency
from gpuscope.analysis.launch_sites_analysis import LaunchSite as LaunchSite
from gpuscope.analysis.launch_sites_analysis import LaunchSitesResult as LaunchSitesResult
from gpuscope.analysis.launch_sites_analysis import launch_sites as launch_sites
from gpuscope.analysis.mechanisms import HelpCase as HelpCase
from gpuscope.analysis.part import Part as Part
from gpuscope.analysis.projection import NamedProjection as NamedProjection
from gpuscope.analysis.projection import ProjectionResult as ProjectionResult
from gpuscope.analysis.projection import range_projection as range_projection
from gpuscope.analysis.queue_analysis import QueueDepth as QueueDepth
from gpuscope.analysis.queue_analysis import QueueDepthsResult as QueueDepthsResult
from gpuscope.analysis.queue_analysis import queue_depth as queue_depth
from gpuscope.analysis.queue_analysis import queue_depths as queue_depths
from gpuscope.analysis.ranks_analysis import RanksResult as RanksResult
from gpuscope.analysis.ranks_analysis import RankTimes as RankTimes
from gpuscope.analysis.ranks_analysis import ranks as ranks
from gpuscope.analysis.requests_analysis import RequestsResult as RequestsResult
from gpuscope.analysis.requests_analysis import Served as Served
from gpuscope.analysis.requests_analysis import requests as requests
from gpuscope.analysis.result import Result as Result
from gpuscope.analysis.samples_analysis import SeenFunction as SeenFunction
from gpuscope.analysis.settings import Speed as Speed
from gpuscope.analysis.settings import SweepResult as SweepResult
from gpuscope.analysis.settings import settings_table as settings_table
from gpuscope.analysis.sms_analysis import IdleSmsResult as IdleSmsResult
from gpuscope.analysis.sms_analysis import KernelSms as KernelSms
from gpuscope.analysis.sms_analysis import idle_sms as idle_sms
from gpuscope.analysis.steps_analysis import Step as Step
from gpuscope.analysis.steps_analysis import StepsResult as StepsResult
from gpuscope.analysis.steps_analysis import steps as steps
from gpuscope.analysis.trace_parts import parts as parts

if TYPE_CHECKING:  # what stands on this room
    from gpuscope.comparing.tunings import TunedSetting as TunedSetting
    from gpuscope.comparing.tunings import Tuning as Tuning

_TOLD = frozenset(["confinement_verdict", "explain", "findings", "findings_by_setting", "outcome"])


_resolved, __dir__, _ = _lazy.public(__name__)


def __getattr__(name: str) -> object:
    if name in _TOLD:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: it is in gpuscope.telling, as "
            f"gs.telling.{name}"
        )
    return _resolved(name)
