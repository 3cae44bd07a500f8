"""Write the simulated GPU's table of softmax times from what benchmarks/softmax.py measured.

python scripts/softmax_table.py
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "benchmarks" / "results" / "softmax.json"
TABLE = ROOT / "gpuscope" / "simulator" / "models" / "softmax.json"


def main() -> None:
    measured = json.loads(MEASURED.read_text("utf-8"))
    us = {
        (row["rows"] // row["sm_count"], row["columns"], row["sm_count"]): row["us"]
        for row in measured["rows"]
    }
    blocks_per_sm, columns, sm_counts = (sorted({key[axis] for key in us}) for axis in range(3))
    table = {
        "measured": {name: measured[name] for name in ("date", "machine", "driver", "command")},
        "blocks_per_sm": blocks_per_sm,
        "columns": columns,
        "sm_counts": sm_counts,
        "us": [[[us[b, c, s] for s in sm_counts] for c in columns] for b in blocks_per_sm],
    }
    TABLE.write_text(json.dumps(table) + "\n", "utf-8")


if __name__ == "__main__":
    main()
