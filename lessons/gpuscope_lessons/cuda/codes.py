"""CUDA's numbers of errors."""

from __future__ import annotations

import re

from gpuscope.errors import GpuscopeError, StreamError

INVALID_VALUE, INVALID_HANDLE, NOT_READY = 1, 400, 600
_CODES = {
    "InvalidValue": INVALID_VALUE,
    "MemoryAllocation": 2,
    "InvalidConfiguration": 9,
    "MissingConfiguration": 52,
    "InvalidDeviceFunction": 98,
    "IllegalState": 401,
    "NotReady": NOT_READY,
    "NotSupported": 801,
    "StreamCaptureUnsupported": 900,
    "StreamCaptureInvalidated": 901,
    "StreamCaptureMerge": 902,
    "StreamCaptureUnmatched": 903,
    "StreamCaptureUnjoined": 904,
    "StreamCaptureIsolation": 905,
    "StreamCaptureImplicit": 906,
    "CapturedEvent": 907,
}


def code_of(error: GpuscopeError) -> int:
    """Return CUDA's number of an error."""
    name = re.search(r"cudaError(\w+)", str(error))
    default = INVALID_HANDLE if isinstance(error, StreamError) else INVALID_VALUE
    return _CODES.get(name[1], default) if name is not None else default
