"""Run by HolisticTraceAnalysis's own Python: what it makes of a trace, as a line of JSON."""

import json
import sys
import warnings

warnings.simplefilter("ignore")

from hta.trace_analysis import TraceAnalysis  # noqa: E402

analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
frame = analysis.t.get_trace(0)
names = analysis.t.symbol_table.get_sym_table()
events = [
    [names[int(row.name_)], names[int(row.cat)], float(row.ts), float(row.dur), int(row.stream),
     int(row.correlation)]
    for row in frame.rename(columns={"name": "name_"}).itertuples()
]  # fmt: skip
_, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=1000)
launches = analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
temporal = analysis.get_temporal_breakdown(visualize=False)
sys.stdout.write(
    "\n"
    + json.dumps(
        {
            "events": events,
            "kernels": {row["name"]: row["sum (us)"] for _, row in kernels.iterrows()},
            "launches": launches.values.tolist(),
            "busy_us": float(temporal["compute_time(us)"][0] + temporal["non_compute_time(us)"][0]),
        }
    )
)
