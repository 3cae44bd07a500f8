"""PartitionCarver: a GPU's SMs, carved by hand."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Mapping
from typing import Any

import traitlets

from gpuscope._checks import MappingOf, door, require_kind
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition, Partitions, sm_ranges
from gpuscope.device.select import open_device
from gpuscope.device.sizes import REST, Sizes, named_sizes
from gpuscope.errors import GpuscopeError, InvalidPartition
from gpuscope.timeline.style import OKABE_ITO, colours_of
from gpuscope.widgets.base import Control, script
from gpuscope.widgets.proposal import (
    check,
    fresh_name,
    new_row,
    problems_of,
    size_of,
    strip_of,
    wanted,
    warning_of,
)

SIZES: Mapping[str, int | str] = {"small": 16, "load": "rest"}
"""What a carver starts from."""


class PartitionCarver(Control):
    """A widget to divide a GPU's SMs among partitions.

    Drag a boundary, move it with the arrow keys, or type a count. Boundaries snap to counts that
    this GPU can grant. Only Apply touches the device: it closes the partitions of the previous
    Apply and carves again.

    Parameters
    ----------
    device
        An open device or a name for :func:`~gpuscope.open_device`; ``"auto"`` if not given. The
        name of a simulated GPU opens a new one each time: pass the open device that you use.
    sizes
        Name → SM count, percentage (``"25%"``) or, for one of them, ``"rest"``; or a list of
        these, to start from; 16 SMs and the rest if not given, ``{}`` for a GPU that is whole.
    lock
        Lock for the widget's state; several widgets may share one.

    Attributes
    ----------
    partitions
        The partitions that Apply created, open until the next Apply or :meth:`close`; ``None``
        before.

    Raises
    ------
    DeviceUnavailable
        The device is not available.
    InvalidPartition
        ``sizes`` is not a valid request for partitions.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> carver = gs.widgets.PartitionCarver(gpu, {"a": 64, "b": 64})
    >>> carver.proposal
    {'a': 64, 'b': 68}
    >>> carver.apply()
    >>> carver.partitions["b"].sm_count
    68
    >>> carver.close()
    """

    _esm = script("carver.js")

    sizes = traitlets.Dict(
        help="What was applied last: name → size, as carve() takes it. Observe it to follow Apply."
    )
    rows = traitlets.List(
        traitlets.Dict(),
        help="The proposal, a dict a partition: id, name, color, asked, granted, sm_ids, and "
        "name_error, count_error and count_warning, which are empty if all is well.",
    )
    strip = traitlets.Dict(
        help="The SMs: total, quantum, remainder, and groups, each with sm_count, owner (a row's "
        "id, 0 for nobody, -1 for a live partition that is not this widget's) and kind."
    )
    error = traitlets.Unicode(help="Why the proposal cannot be granted; empty if it can.")
    refused = traitlets.Unicode(
        help="Why the last Apply failed; empty once something is asked for again."
    )
    pending = traitlets.Bool(help="Whether the proposal differs from what was applied.")
    asking = traitlets.Dict(
        help="What the page asks for while a boundary moves or a count is typed: counts (row id → "
        "size), settle (whether what is granted becomes what is asked), serial."
    )

    def __init__(
        self,
        device: Device | str | None = None,
        sizes: Sizes | None = None,
        *,
        lock: threading.RLock | None = None,
    ) -> None:
        super().__init__(lock=lock)
        self.partitions: Partitions | None = None
        require_kind("device", device, Device, str, None)
        self._device = "auto" if device is None else device
        self._ids = itertools.count(1)
        self._applied: dict[int, str] = {}
        self._renamed: dict[str, str] = {}
        self.set_sizes(SIZES if sizes is None else sizes)
        self.observe(self._asked, names="asking")

    @property
    def device(self) -> Device:
        """The device that it carves, opened at first use."""
        with self.lock:
            if not isinstance(self._device, Device):
                self._device = open_device(self._device, quiet=True)
            return self._device

    # -- what Apply does; a dashboard has other ideas -----------------------------------
    def _target(self) -> Device:
        """Return the device on which a carving is planned."""
        return self.device

    def _adopt(self, sizes: Mapping[str, int | str]) -> None:
        """Carve the device as proposed."""
        self._release()
        if sizes:
            self.partitions = self.device.carve(sizes)

    def _release(self) -> None:
        partitions, self.partitions = self.partitions, None
        if partitions is not None:
            partitions.close()

    # -- for programs -------------------------------------------------------------------
    @property
    def is_valid(self) -> bool:
        """Whether the proposal can be granted."""
        return not any(self._problems())

    @property
    def proposal(self) -> dict[str, int]:
        """Name → SM count that Apply would be granted.

        Raises
        ------
        InvalidPartition
            It cannot be granted; says why.
        """
        with self.lock:
            if problems := self._problems():
                raise InvalidPartition("; ".join(problems))
            return {row["name"]: row["granted"] for row in self.rows}

    @property
    def colors(self) -> dict[str, str]:
        """Name of each applied partition → its colour."""
        with self.lock:
            color_of_id = {row["id"]: row["color"] for row in self.rows}
            return {
                name: color_of_id[key] for key, name in self._applied.items() if key in color_of_id
            }

    @property
    def renamed(self) -> dict[str, str]:
        """Former → new name of the partitions that the last Apply renamed."""
        return dict(self._renamed)

    @door(colors=(MappingOf(str), None))
    def set_sizes(self, sizes: Sizes, *, colors: Mapping[str, str] | None = None) -> None:
        """Start again from ``sizes``, as if they had been applied. The device is not touched.

        Counts that cannot be granted are marked.

        Parameters
        ----------
        sizes
            As the class takes them.
        colors
            Name → ``"#RRGGBB"``; the others have one by their place.

        Raises
        ------
        InvalidPartition
            They are no request for partitions.
        """
        is_whole = isinstance(sizes, Mapping | list | tuple) and not sizes
        checked = {} if is_whole else named_sizes(sizes)
        named = {name: size.plain for name, size in checked.items()}
        with self.lock:
            rows = [new_row(next(self._ids), name, size) for name, size in named.items()]
            chosen = colours_of(named) | dict(colors or {})
            for row in rows:
                row["color"] = chosen[row["name"]]
            self._applied = {row["id"]: row["name"] for row in rows}
            self._renamed = {}
            self.sizes = named
            self._plan(rows, active=[row["id"] for row in rows])

    @door(sizes=MappingOf(object))
    def propose(self, sizes: Mapping[str, int | str]) -> None:
        """Propose other counts for existing partitions, by name.

        Raises
        ------
        InvalidPartition
            There is none of a name.
        """
        with self.lock:
            counts = {self._id_of(name): size for name, size in sizes.items()}
            for name, size in sizes.items():
                require_kind(f"sizes[{name!r}]", size, int, str)
            self._ask(counts, settle=False)

    @door(name=(str, None))
    def add(self, name: str | None = None) -> None:
        """Add a partition of one quantum, taken from the rest, else from the largest one."""
        with self.lock:
            rows = [dict(row) for row in self.rows]
            quantum = int(self.strip["quantum"])
            names, used = [row["name"] for row in rows], [row["color"] for row in rows]
            added = new_row(next(self._ids), name or fresh_name(names), quantum)
            names.append(added["name"])
            wanted = colours_of(names)[added["name"]]
            added["color"] = next(
                (color for color in (wanted, *OKABE_ITO) if color not in used), wanted
            )
            active = [added["id"]]
            free = sum(g["sm_count"] for g in self.strip["groups"] if g["owner"] == 0)
            resting = any(row["asked"] == REST and (row["granted"] or 0) > quantum for row in rows)
            counted = [row for row in rows if row["asked"] != REST and row["granted"]]
            if not free and not resting and counted:
                largest = max(counted, key=lambda row: int(row["granted"]))
                largest["asked"] = max(1, int(largest["granted"]) - quantum)
                active.append(largest["id"])
            self._plan([*rows, added], active=active, settle=True)

    @door(name=str)
    def remove(self, name: str) -> None:
        """Take a partition out of the proposal.

        Raises
        ------
        InvalidPartition
            There is none of that name.
        """
        with self.lock:
            self._do_remove(self._id_of(name))

    def _id_of(self, name: str) -> int:
        ids = {row["name"]: int(row["id"]) for row in reversed(self.rows)}
        if name not in ids:
            names = ", ".join(row["name"] for row in self.rows)
            raise InvalidPartition(f"no partition {name!r}; there are {names}")
        return ids[name]

    def revert(self) -> None:
        """Go back to what was applied."""
        with self.lock:
            self.set_sizes(self.sizes, colors=self.colors)

    def apply(self) -> None:
        """Carve as proposed. The previous partitions are closed first.

        Raises
        ------
        InvalidPartition
            It cannot be granted, or no longer. The message says why. Nothing is changed.
        GpuscopeError
            The driver refuses. The previous partitions are closed in this case.
        """
        with self.lock:
            shown = self.proposal
            self._plan([dict(row) for row in self.rows], active=[])
            if self.proposal != shown:
                raise InvalidPartition(
                    "SMs were taken or given back since this was proposed: look at what would be "
                    "granted now, and apply again"
                )
            rows = [dict(row) for row in self.rows]
            sizes = {row["name"]: size_of(row) for row in rows}
            self._adopt(sizes)
            now = {row["id"]: row["name"] for row in rows}
            self._renamed = {
                was: now[key]
                for key, was in self._applied.items()
                if key in now and now[key] != was
            }
            self._applied = now
            self.sizes = sizes
            self._plan(rows, active=[], settle=True)

    def refresh(self) -> None:
        """Plan the proposal anew: the device, or what is live on it, is another."""
        with self.lock:
            rows = [dict(row) for row in self.rows]
            self._plan(rows, active=[row["id"] for row in rows])

    def close(self) -> None:
        """Close the partitions and the widget."""
        with self.lock:
            self._release()
        super().close()

    def _problems(self) -> list[str]:
        return [*filter(None, [self.error]), *problems_of(self.rows)]

    # -- what the page sends ------------------------------------------------------------
    def _asked(self, change: Mapping[str, Any]) -> None:
        with self.lock:
            if self.disabled:
                return
            asking = change["new"]
            counts = {int(key): size for key, size in asking.get("counts", {}).items()}
            self._ask(counts, settle=bool(asking.get("settle")))

    def _ask(self, counts: Mapping[int, Any], *, settle: bool) -> None:
        rows = [dict(row) for row in self.rows]
        active = list(counts)
        for row in rows:
            if row["id"] in counts:
                row["asked"] = counts[row["id"]]
            elif row["asked"] == REST and REST in counts.values():
                row["asked"] = row["granted"] or int(self.strip["quantum"])
                active.append(row["id"])
        self._plan(rows, active=active, settle=settle)

    def _do_rename(self, id: int, name: str) -> None:  # noqa: A002 - the page's word
        rows = [{**row, "name": name} if row["id"] == id else dict(row) for row in self.rows]
        self._plan(rows, active=[])

    def _do_color(self, id: int, color: str) -> None:  # noqa: A002 - the page's word
        if not re.fullmatch("#[0-9A-Fa-f]{6}", str(color)):
            return
        self.rows = [{**row, "color": color} if row["id"] == id else row for row in self.rows]

    def _do_remove(self, id: int) -> None:  # noqa: A002 - the page's word
        self._plan([dict(row) for row in self.rows if row["id"] != id], active=[])

    _do_add, _do_revert = add, revert

    def _do_apply(self) -> None:
        try:
            self.apply()
        except GpuscopeError as error:
            self.refused = str(error)

    # -- planning -----------------------------------------------------------------------
    def _plan(self, rows: list[dict[str, Any]], *, active: list[int], settle: bool = False) -> None:
        """Ask what would be granted, and show it.

        What is not ``active`` keeps what it was granted, if that is possible.
        """
        plan, error = None, ""
        labels, sizes = check(rows)
        if rows and len(sizes) == len(rows):
            try:
                plan = self._target().plan_carve(
                    {labels[row["id"]]: wanted(row, sizes[row["id"]], active) for row in rows},
                    rounding="nearest",
                    keep=[labels[row["id"]] for row in rows if row["id"] not in active],
                    instead_of=tuple(self.partitions.values()) if self.partitions else (),
                )
            except GpuscopeError as refusal:
                error = str(refusal)
        for row in rows:
            if plan is not None:
                row["granted"] = plan.granted()[labels[row["id"]]]
                if settle and row["asked"] != REST:
                    row["asked"] = row["granted"]
            row["sm_ids"] = self._sm_ids(row)
            row["count_warning"] = warning_of(row, plan.layout) if plan is not None else ""
        with self.hold_sync():
            self.error, self.refused = error, ""
            if plan is not None or not rows or not self.strip:
                layout = plan.layout if plan is not None else self._target().layout
                self.strip = strip_of(layout, plan, [row["id"] for row in rows])
            self.rows = rows
            proposed = {row["id"]: (row["name"], size_of(row)) for row in rows}
            self.pending = list(proposed.items()) != [
                (key, (name, self.sizes[name])) for key, name in self._applied.items()
            ]

    def _sm_ids(self, row: Mapping[str, Any]) -> str:
        """Return the SM ids that a probe saw behind a partition, if it was carved as it stands."""
        live: Mapping[str, Partition] = self.partitions or {}
        carved = live.get(self._applied.get(row["id"], ""))
        if carved is None or carved.sm_count != row["granted"]:
            return ""
        return sm_ranges(carved.sm_ids)
