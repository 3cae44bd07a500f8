"""Run by HolisticTraceAnalysis's own Python: what it makes of a folder, as a line of JSON."""

import json
import sys
import warnings

warnings.simplefilter("ignore")

from hta.trace_analysis import TraceAnalysis  # noqa: E402

analysis = TraceAnalysis(trace_dir=sys.argv[1])
overlap = analysis.get_comm_comp_overlap(visualize=False)
temporal = analysis.get_temporal_breakdown(visualize=False)
sys.stdout.write(
    "\n"
    + json.dumps(
        {
            "ranks": sorted(analysis.t.get_all_traces()),
            "overlap_pctg": dict(zip(overlap["rank"], overlap["comp_comm_overlap_pctg"])),  # noqa: B905
            "temporal": {
                int(row["rank"]): row.drop("rank").to_dict() for _, row in temporal.iterrows()
            },
        }
    )
)
