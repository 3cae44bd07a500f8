"""Turn measured GEMM, copy and latency rows into the simulator's profile.

    python scripts/make_profile.py MEASUREMENTS_FOLDER gpuscope/device/sim/profiles/h200.json

The folder holds gemm_solo.json, gemm_random_cal.json, sm_count_target.json and copy.json
as `benchmarks/` of this project and its predecessors wrote them. Nothing is fitted here:
the profile is the measurements, in a compact form, and constants with their source.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

CONSTANTS = {
    "launch_call_ns": [3000, "host cost of one launch: cuda.core.launch of an empty kernel"],
    "gemm_call_ns": [9000, "host cost of one mm_out through cuBLAS"],
    "event_record_call_ns": [1000, "host cost of one event record"],
    "stream_wait_call_ns": [200, "host cost of one stream wait"],
    "query_call_ns": [
        1000,
        "host cost of asking whether an event is done, with the loop around it",
    ],
    "synchronize_return_ns": [4000, "from completion to the host's return from a wait"],
    "launch_latency_ns": [4000, "from the launch call's end to the first block, idle stream"],
    "kernel_gap_ns": [2300, "between two queued kernels of one stream, from pairs.json"],
    "create_stream_call_ns": [15000, "host cost of making a stream in a green context"],
    "create_partition_call_ns": [1000000, "host cost of making one green context"],
    "pinned_copy_bytes_per_us": [55000, "pinned copies, each way"],
    "device_copy_bytes_per_us": [4300000, "device to device, read and write counted"],
}


def main(folder: Path, target: Path) -> None:
    def load(name: str) -> object:
        return json.loads((folder / name).read_text())

    gemms: dict[tuple[str, int, int, int], dict[int, list[float]]] = defaultdict(dict)
    for row in load("gemm_solo.json"):
        key = (row["dtype"], row["m"], row["n"], row["k"])
        gemms[key][row["sms"]] = [row["us"], max(kernel[1] for kernel in row["kernels"])]
    for dtype, m, n, k, sms, median_us, _, kernels in load("gemm_random_cal.json")["rows"]:
        gemms[dtype, m, n, k].setdefault(sms, [median_us, max(kernel[1] for kernel in kernels)])
    for row in load("sm_count_target.json"):
        key = ("float16", row["n"], row["n"], row["n"])
        gemms[key].setdefault(row["sms"], [row["default_us"], row["grid"]])
    profile = {
        "schema": 1,
        "name": "h200",
        "device": {
            "name": "NVIDIA H200",
            "sm_count": 132,
            "quantum_sm_count": 8,
            "quanta": 15,
            "remainder_sm_count": 12,
            "compute_capability": [9, 0],
            "memory_bytes": 150_754_820_096,
        },
        "measured": {
            "driver": "580.159 (CUDA 13.0)",
            "software": "CuPy 14.2.0 (cuda13x), cuda-core 1.2.0",
            "source": "kernel durations by CUPTI, one NVIDIA H200",
        },
        "constants": {name: value for name, (value, _) in CONSTANTS.items()},
        "constants_source": {name: source for name, (_, source) in CONSTANTS.items()},
        # dtype, m, n, k, [[SMs, µs, blocks], …]
        "gemm": [
            [*key, [[sms, round(us, 3), blocks] for sms, (us, blocks) in sorted(rows.items())]]
            for key, rows in sorted(gemms.items())
        ],
        # n of an n³ float16 GEMM, SMs, µs by default, µs with the SM-count target
        "sm_count_target": [
            [row["n"], row["sms"], row["default_us"], row["target_us"]]
            for row in load("sm_count_target.json")
        ],
        # MB, SMs, µs of an element-wise float32 copy kernel
        "copy": [[row["mb"], row["sms"], row["us"]] for row in load("copy.json")["copy"]],
    }
    lines = json.dumps(profile, separators=(",", ":")).replace('],["', '],\n["')
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(lines + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
