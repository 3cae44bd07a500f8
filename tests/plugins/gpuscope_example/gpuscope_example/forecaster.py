"""A forecaster: an H100 whose forecasts are as good as any, if it is asked for."""

from __future__ import annotations

from typing import Any

import gpuscope as gs
from gpuscope.errors import MissingEvidence


class Oracle:
    """Forecasts for who asks for the profile ``oracle``."""

    words = "forecasts: by the oracle"

    def __init__(self, experiment: Any, device: Any, parameters: Any, gpu_profile: str) -> None:
        if gpu_profile != "oracle":
            raise MissingEvidence("nobody asked the oracle")
        self.device = gs.open_device("sim:h100", jitter=False, quiet=True)

    def prepare(self, folder: Any, stop: Any) -> dict[str, Any]:
        return {}
