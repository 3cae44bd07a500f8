"""Judging a trace: each function takes a Trace and returns a frozen result.

Definitions, used everywhere. *busy(X)* is the union of the kernel spans of X.
*overlap(A, B)* = |busy(A) ∩ busy(B)| / min(|busy(A)|, |busy(B)|). *gain* = sum of the
solo busy times / makespan: two kernels that overlap fully and each take twice as long
have overlap 1 and gain 1.
"""

from gpuscope.analysis.compare import compare as compare
from gpuscope.analysis.concurrency import ConcurrencyResult as ConcurrencyResult
from gpuscope.analysis.concurrency import concurrency as concurrency
from gpuscope.analysis.latency import HandleLatency as HandleLatency
from gpuscope.analysis.latency import LatencyResult as LatencyResult
from gpuscope.analysis.latency import QueueDepth as QueueDepth
from gpuscope.analysis.latency import latency as latency
from gpuscope.analysis.latency import queue_depth as queue_depth
from gpuscope.analysis.overlap import OverlapResult as OverlapResult
from gpuscope.analysis.overlap import PairOverlap as PairOverlap
from gpuscope.analysis.overlap import overlap as overlap
from gpuscope.analysis.summary import SummaryResult as SummaryResult
from gpuscope.analysis.summary import SummaryRow as SummaryRow
from gpuscope.analysis.summary import summary as summary
