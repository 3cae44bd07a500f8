"""The sources of one recording: which there are, and what is done to all of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gpuscope.device.calls import Call
from gpuscope.device.device import Device
from gpuscope.errors import CapabilityError, GpuscopeError, MissingDependency
from gpuscope.record.activity import ActivitySource
from gpuscope.record.cupti.source import CuptiSource
from gpuscope.record.events import EventSource
from gpuscope.record.rows import ROWS_AT_ONCE, Rows, together
from gpuscope.record.source import Calibration, Source, SourceFacts

MEMORY_LIMIT = 2 << 30
"""Bytes of buffers that CUPTI may fill between two readings, unless asked otherwise."""


@dataclass(frozen=True)
class Options:
    """What a recording was asked for; see :class:`~gpuscope.record.recorder.Recording`.

    Raises
    ------
    GpuscopeError
        A value is none that it can have.
    """

    source: Literal["auto", "cupti", "events"] = "auto"
    detail: Literal["launches", "full"] = "launches"
    launch_ids: bool | Literal["runtime"] = True
    memory_limit: int = MEMORY_LIMIT

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("source", self.source, ("auto", "cupti", "events")),
            ("detail", self.detail, ("launches", "full")),
            ("launch_ids", self.launch_ids, (True, False, "runtime")),
        ):
            if value not in allowed:
                raise GpuscopeError(
                    f"{name} is {value!r}; it can be {' or '.join(map(str, allowed))}"
                )


class Sources:
    """Chooses sources for some devices, and holds them from before they start.

    Attributes
    ----------
    of_device
        Device key → the source that times that device's work.
    """

    def __init__(self, devices: tuple[Device, ...], options: Options) -> None:
        self._devices = devices
        self._options = options
        self.of_device: dict[str, Source] = {}
        self._every: list[Source] = []
        self._clocks: dict[int, Mapping[str, Calibration]] = {}
        """Place of a source that is closed → its clocks."""

    def __iter__(self) -> Iterator[Source]:
        return iter(self._every)

    # -- which ------------------------------------------------------------------------
    def start(self) -> list[str]:
        """Begin to record; returns notes on what could not be used.

        A source is held before it starts: whatever interrupts this, :meth:`finish` ends it.
        """
        notes = []
        keys = [device.info.key for device in self._devices if device.info.kind == "cuda"]
        if self._wants_cupti(keys):
            try:
                self._start_cupti(keys)
            except (MissingDependency, CapabilityError) as error:
                if self._options.source == "cupti":
                    raise
                self._every.clear()
                self.of_device.clear()
                notes.append(f"CUPTI is not used: {error}")
        for device in self._devices:
            key = device.info.key
            if key not in self.of_device:
                source = EventSource(device) if key in keys else ActivitySource(device)
                self._start(source, [key])
        return notes

    def _wants_cupti(self, cuda: list[str]) -> bool:
        asked = self._options.source
        if asked == "events" or (self._devices and not cuda):
            return False
        return asked == "cupti" or importlib.util.find_spec("cupti") is not None

    def _start_cupti(self, keys: Iterable[str]) -> None:
        options = self._options
        source = CuptiSource(
            self._devices,
            detail=options.detail,
            launch_ids=options.launch_ids,
            memory_limit=options.memory_limit,
        )
        self._start(source, keys)

    def _start(self, source: Source, keys: Iterable[str]) -> None:
        self._every.insert(0, source)  # CUPTI, which starts first, is drained last
        self.of_device.update(dict.fromkeys(keys, source))
        source.start()

    # -- what they are ----------------------------------------------------------------
    @property
    def see_ranges(self) -> bool:
        """Whether one of them records NVTX ranges."""
        return any(source.sees_ranges for source in self)

    @property
    def compare_clocks(self) -> bool:
        """Whether one of them notes that the system's clock was set."""
        return any(source.compares_clocks for source in self)

    @property
    def may_lack_work(self) -> bool:
        """Whether edges may lead to work that left no record."""
        return any(source.may_lack_work for source in self)

    @property
    def foreign_streams(self) -> set[int]:
        """Handles of other libraries' streams to wait for at the end."""
        return {handle for source in self for handle in source.foreign_streams}

    def unfinished(self) -> Iterator[tuple[Source, Call]]:
        """Yield the calls whose work no source has seen the end of."""
        for source in self:
            for call in source.unfinished:
                yield source, call

    def facts(self) -> list[SourceFacts]:
        """Return what each of them knows."""
        return [source.facts() for source in self]

    # -- what they do together --------------------------------------------------------
    def new_rows(self, *, over: bool, now_ns: int) -> Rows:
        """Return what one reading fills."""
        at_once = max((source.rows_at_once for source in self), default=ROWS_AT_ONCE)
        return Rows(at_once=at_once, over=over, open_since_ns=now_ns)

    def begin_reading(self) -> Callable[[], None]:
        """Take in what has come; returns what undoes all that reading does next."""
        return together(*(source.begin_reading() for source in self))

    def drain(self, rows: Rows) -> None:
        """Add what is complete to ``rows``, which hold the host's rows of this reading."""
        for source in self:
            source.drain(rows)

    def settle(self) -> None:
        """Forget what was handed out."""
        for source in self:
            source.settle()

    def finish(self, *, wait: bool) -> None:
        """Record no more; where that failed, again does what is left."""
        for source in self:
            source.finish(wait=wait)

    def close(self) -> dict[str, Calibration]:
        """Release everything; returns clock → calibration."""
        for place, source in enumerate(self):
            if place not in self._clocks:
                self._clocks[place] = source.close()
        return {name: facts for clocks in self._clocks.values() for name, facts in clocks.items()}
