"""What Python imports when it starts, where ``gpuscope record`` put this folder on PYTHONPATH.

It begins the recording of this process, takes the folder off ``sys.path``, and gives way to the
``sitecustomize`` that would have been imported without it.
"""

import os
import sys


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - imports nothing
    home = os.path.dirname(os.path.dirname(os.path.dirname(here)))  # noqa: PTH120 - as above
    sys.path[:] = [path for path in sys.path if path != here]
    if "GPUSCOPE_RECORD" not in os.environ:
        return
    sys.path.append(home)  # at the end: where gpuscope is found already, this changes nothing
    try:
        from gpuscope.experiments.processes import begin  # noqa: PLC0415 - only where it is asked for

        begin()
    except Exception as error:  # noqa: BLE001 - the program runs all the same
        import contextlib  # noqa: PLC0415 - only where something is wrong

        words = f"gpuscope: this process is not recorded: {error}\n"
        # Not by sys.stderr: what stays in its buffer fails as the program ends, with status 120.
        with contextlib.suppress(OSError):  # it is full, or there is none
            os.write(2, words.encode("utf-8", "backslashreplace"))
    finally:
        sys.path.pop()


_begin()
del sys.modules[__name__]
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401 - none: no harm
