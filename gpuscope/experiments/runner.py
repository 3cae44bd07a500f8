"""One run of an experiment: its rounds, its recordings, and its way to stop."""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial

from gpuscope import _interrupts
from gpuscope.analysis.settings import settings_table
from gpuscope.device.device import Device
from gpuscope.device.partition import Partition, Partitions
from gpuscope.device.ranks import ranks_of_process
from gpuscope.device.stream import Stream
from gpuscope.device.unique import close_all
from gpuscope.errors import InvalidPartition, NothingRecorded
from gpuscope.experiments.driving import LOOK_NS, Driving, no_collection
from gpuscope.experiments.energy import Meter
from gpuscope.experiments.experiment import Experiment
from gpuscope.experiments.serving import Feed, Request, Serving, draws, share
from gpuscope.experiments.setting import ResolvedSetting
from gpuscope.experiments.whole import whole
from gpuscope.experiments.workers import QUEUED_NS, Worker
from gpuscope.record.annotate import annotate
from gpuscope.record.counters import EVERY_NS
from gpuscope.record.recorder import Recording
from gpuscope.record.source import Options
from gpuscope.trace.model import Trace
from gpuscope.trace.run import Run
from gpuscope.workloads.handle import Handle
from gpuscope.workloads.requests import RequestsSpec
from gpuscope.workloads.spec import WorkloadSpec

_LEGACY_STREAM = 1  # cudaStreamLegacy


@dataclass(frozen=True)
class Progress:
    """The progress of a run, passed to viewers.

    Attributes
    ----------
    done, total
        Foreground calls completed and planned, over all settings and rounds; with an executor,
        jobs of its workers.
    recording
        The current recording, for its batches; ``None`` between recordings.
    phase
        ``"together"``, or the workload that is measured alone.
    """

    setting: str
    round: int
    done: int
    total: int
    recording: Recording | None
    phase: str = "together"


Viewer = Callable[[Progress], None]


@dataclass(eq=False)
class Runner:
    """One run: its handles, its traces so far, its way to stop.

    Where a tool outside records, ``records`` is false: nothing is recorded here, nothing is run
    alone, and ranges name the settings. ``before_round`` is called before each round of a setting
    and before its workloads run alone, and may set ``stop``. ``ends`` is asked before each call of
    the foreground whether a workload, which has so many calls left, makes no more.
    """

    experiment: Experiment
    device: Device
    viewer: Viewer | None
    stop: threading.Event
    _: KW_ONLY
    records: bool = True
    before_round: Callable[[], None] = lambda: None
    ends: Callable[[str, int], bool] | None = None

    def __post_init__(self) -> None:
        self.settings = self.experiment.resolve()
        self.total = foreground_calls(self.experiment) * len(self.settings)
        self.done = self.round = 0
        self.recordings: dict[str, list[Recording]] = {
            setting.name: [] for setting in self.settings
        }
        self.alone: dict[tuple[str, str], list[Recording]] = {}
        self._meter: Meter | None = None
        self.handles: dict[tuple[str, object], Handle] = {}
        self.stream_ids: dict[tuple[str, str], int] = {}
        self.recording: Recording | None = None
        # What follows is of this round; streams and partitions are to be closed.
        self._open: list[Stream] = []
        self._carved: list[Partitions] = []
        self._workers: list[Worker] = []
        self._driving: Driving | None = None
        self._finished = 0
        self._servings: list[Serving] = []

    def run(self) -> Run:
        """Perform, and return what was recorded, also until an interrupt."""
        _interrupts.install()
        try:
            self.perform()
        except KeyboardInterrupt:
            run = self._result(stopped=True)
        else:
            return self._result(stopped=self.stop.is_set())
        warnings.warn(
            "the run was interrupted: it returns what was recorded until then", stacklevel=3
        )
        return run

    def _result(self, *, stopped: bool) -> Run:
        traces = {
            name: trace for name in self.recordings if (trace := self._whole(name)) is not None
        }
        comparison = settings_table(traces)
        if not traces or (stopped and not comparison.num_rows):  # no kernel ended, and no call
            raise NothingRecorded("the run was stopped before anything was recorded: run it again")
        return Run(traces, comparison, self.experiment.to_dict(), stopped)

    def _whole(self, setting: str) -> Trace | None:
        """Return a setting's trace, if anything was recorded."""
        rounds = _traces(self.recordings[setting])
        alone = {key: _traces(recordings) for key, recordings in self.alone.items()}
        energy = self._meter.of[setting] if self._meter is not None else ()
        return whole(rounds, setting, self.experiment, alone, energy) if rounds else None

    def perform(self) -> None:
        """Do every round, every other one backwards; closes all that was made, also on an error.

        Under a power cap a setting is slower behind one that draws much.
        """
        with self.ready():
            for number in range(self.experiment.rounds):
                for setting in self.settings[:: -1 if number % 2 else 1]:
                    self.before_round()
                    if self.stop.is_set():
                        break
                    with contextlib.nullcontext() if self.records else annotate(setting.name):
                        self._round(setting, number)

    def one_round(self, setting: ResolvedSetting, number: int) -> Trace | None:
        """Do one round, and return what was recorded of it; ``None`` if nothing was.

        Rounds of one number draw the same arrivals, and the same jitter of a simulated host.
        """
        self.device.backend.seed(self.experiment.seed + number)
        self.recordings[setting.name].clear()
        if self._meter is not None:
            self._meter.of.clear()
        self._round(setting, number)
        return self._whole(setting.name)

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Refuse what cannot be carved; inside, rounds are done. Closes all that was made."""
        for setting in self.settings:
            if setting.partitions:
                try:
                    self.device.plan_carve(setting.partitions, rounding=setting.rounding)
                except InvalidPartition as error:
                    where = " (in an experiment: rounding, at the top or in the setting)"
                    raise InvalidPartition(
                        f"setting {setting.name!r}: {error}{where * error.may_round}"
                    ) from error
        if self.experiment.energy and self.records:
            self._meter = Meter(self.device)
        ranks = ranks_of_process()  # whose hosts do not take the same time for each call
        self.device.backend.seed(self.experiment.seed + (ranks.rank if ranks else 0))
        try:
            yield
        except BaseException:
            self._end()
            raise
        self._close()

    def _end(self) -> None:
        """End what launches, stop what records, and close all that was made."""
        try:
            if self._driving is not None:
                self._driving.end()
            for recording in itertools.chain(*self.recordings.values(), *self.alone.values()):
                if recording.has_begun:
                    recording.stop()
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._close_made()
        finally:
            close_all(list(self.handles.values()))

    def _close_made(self) -> None:
        """Close what a round made; again closes what is left."""
        if self._driving is not None:
            self._driving.end()
            self._driving = None
        parts = [part for carving in self._carved for part in carving.values()]
        close_all([*self._open, *parts, *self._carved])
        self._open.clear()
        self._carved.clear()

    # -- one round of one setting -----------------------------------------------------
    def _round(self, setting: ResolvedSetting, number: int) -> None:
        self.round = number
        self._finished = 0
        self._workers = self._make_workers(setting, self._make_streams(setting), number)
        tell = partial(self._count_finished, setting.name, number)
        around = [] if self.records else [setting.name]
        driven = (self.device, self._workers, self.stop, tell, [f"round {number}"], around)
        self._driving = driving = Driving(*driven)
        driving.warm_up()
        if not self.stop.is_set():
            options = Options(
                detail=self.experiment.detail,
                hazards=self.experiment.hazards,
                counters_ns=EVERY_NS if self.experiment.counters else 0,
            )
            if self._meter is not None:
                self._meter.rest()
            with self._recorded(self.recordings[setting.name], options), no_collection():
                for serving in self._servings:
                    serving.begin(self.device.now_ns())
                began_ns = self.device.now_ns()
                if self._meter is not None:
                    self._meter.begin(began_ns)
                driving.drive()
                ended_ns = self.device.now_ns()
            if self._meter is not None and not self.stop.is_set():
                self._meter.end(setting.name, ended_ns)
            self.before_round()
            if self.records and self.experiment.alone_repeats and not self.stop.is_set():
                self._measure_alone(setting, number, driving.launched_ns - began_ns)
        self._close_made()

    def _make_streams(self, setting: ResolvedSetting) -> dict[str, Stream]:
        partitions: Mapping[str, Partition] = {}
        if setting.partitions:
            self._carved.append(self.device.carve(setting.partitions, rounding=setting.rounding))
            partitions = self._carved[-1]
        for name, color in self.experiment.colors.items():
            if name in partitions:
                partitions[name].color = color
        streams: dict[str, Stream] = {}
        for name, spec in setting.streams.items():
            home = self.device if spec.partition is None else partitions[spec.partition]
            only_devices = {"blocking": True} if spec.blocking else {}
            self._open.append(home.create_stream(name=name, priority=spec.priority, **only_devices))
            stream = streams[name] = self._open[-1]
            # The same stream in every round, as far as the trace is concerned.
            stream.id = self.stream_ids.setdefault((setting.name, name), stream.id)
        return streams

    def _make_workers(
        self, setting: ResolvedSetting, streams: Mapping[str, Stream], number: int
    ) -> list[Worker]:
        launching = {name: spec for name, spec in setting.workloads.items() if spec.launches}
        handles = {name: self._handle(name, spec) for name, spec in launching.items()}
        feeds = self._serve(setting, number)
        meter = None if self.ends else self._meter
        return [
            Worker(
                handles[name],
                streams[spec.stream],
                spec,
                len(self._share(spec, number)) + (meter.more if meter else 0),
                draws(self.experiment.seed, name, number),
                queued_ns=QUEUED_NS // len(handles),
                waits_on=[handles[other] for other in spec.waits_on],
                unguarded=None if spec.guard else self._legacy,
                feed=feeds.get(name),
                ends=meter.is_enough if meter else self.ends and partial(self.ends, name),
            )
            for name, spec in launching.items()
        ]

    def _share(self, spec: WorkloadSpec, number: int) -> range:
        """Return which repeats of a workload are in a round; later rounds are as the first ones."""
        return share(spec.repeats, self.experiment.rounds, number % self.experiment.rounds)

    def _serve(self, setting: ResolvedSetting, number: int) -> dict[str, Feed]:
        """Return what feeds the workloads that requests drive, by name."""
        self._servings = []
        feeds: dict[str, Feed] = {}
        for name, spec in setting.workloads.items():
            if isinstance(spec, RequestsSpec):
                numbers = self._share(spec, number)
                rng = draws(self.experiment.seed, name, number)
                serving = Serving(spec, numbers, rng, partial(self._note_request, name))
                self._servings.append(serving)
                feeds |= {spec.prefill: serving.prefill, spec.decode: serving.decode}
        return feeds

    def _note_request(self, workload: str, request: Request) -> None:
        """Record a request that has its last token."""
        if self.recording is None:
            return
        name, payload = f"request {request.number}", request.facts.to_json()
        times_ns = request.arrival_ns, request.tokens_ns[-1]
        self.recording.ranges.note(name, *times_ns, workload, payload)

    @cached_property
    def _legacy(self) -> Stream:
        """CUDA's legacy default stream, where work goes that nobody guards."""
        return self.device.wrap_stream(_LEGACY_STREAM, name="legacy default")

    def _handle(self, name: str, spec: WorkloadSpec) -> Handle:
        key = (name, getattr(spec, "sm_count_target", None))  # what a setting may change of it
        if key not in self.handles:
            self.handles[key] = spec.make(self.device, name=name, seed=self.experiment.seed)
        return self.handles[key]

    @contextlib.contextmanager
    def _recorded(self, kept: list[Recording], options: Options | None = None) -> Iterator[None]:
        """Record; what is kept before it begins is there whatever happens."""
        if not self.records:
            yield
            return
        self.recording = Recording((self.device,), options)
        kept.append(self.recording)
        self.recording.start()
        yield
        kept[-1].stop()
        self.recording = None

    def _count_finished(self, setting: str, number: int) -> None:
        """Tell the viewer of foreground calls and requests that finished since."""
        finished = sum(serving.finished for serving in self._servings)
        for worker in self._workers:
            if worker.feed is None and not worker.spec.background:
                finished += min(worker.finished, len(self._share(worker.spec, number)))
        if finished != self._finished:
            self.done += finished - self._finished
            self._finished = finished
            self._report(setting, number)

    def _report(self, setting: str, number: int, phase: str = "together") -> None:
        if self.viewer is not None:
            progress = Progress(setting, number, self.done, self.total, self.recording, phase)
            _interrupts.let_in(self.viewer, progress)

    # -- alone ------------------------------------------------------------------------
    def _measure_alone(self, setting: ResolvedSetting, number: int, took_ns: int) -> None:
        """Record each workload alone: in its place, and once a round on the whole GPU."""
        for worker in self._workers:
            if self._driving is not None and self._driving.has_threads:  # new to this thread
                worker.warm_up(self.device.now_ns, self.stop)
            self._alone(setting.name, worker, took_ns)
        if setting is not self.settings[0]:
            return
        self._open.append(self.device.create_stream(name="alone"))
        with self._open[-1] as stream:
            for name, spec in self.experiment.workloads.items():
                if not spec.launches:
                    continue
                rng = draws(self.experiment.seed, name, number)  # of arrivals, of which it has none
                worker = Worker(self._handle(name, spec), stream, spec, 0, rng)
                worker.warm_up(self.device.now_ns, self.stop)
                self._alone("", worker, took_ns)

    def _alone(self, setting: str, worker: Worker, took_ns: int) -> None:
        """Record one workload alone; a background for as long as it ran with the others.

        A GPU under a power cap slows down while it is busy: a shorter run would be too fast a
        reference, a longer one too slow. Ranks call a collective equally often.
        """
        if self.stop.is_set():
            return
        phase = f"{worker.handle.name} alone"
        self._report(setting, self.round, phase)
        with self._recorded(self.alone.setdefault((setting, worker.handle.name), [])):
            reported_ns = self.device.now_ns()  # only now: a recording takes time to begin
            until_ns = reported_ns + (took_ns if worker.spec.background else 0)
            for launched in itertools.count():
                now_ns = self.device.now_ns()
                is_enough = launched >= self.experiment.alone_repeats and now_ns >= until_ns
                if is_enough or self.stop.is_set():
                    break
                if not worker.has_room:
                    worker.wait_one()
                worker.issue()
                if now_ns - reported_ns > LOOK_NS:
                    reported_ns = now_ns
                    self._report(setting, self.round, phase)
            worker.finish()


def foreground_calls(experiment: Experiment) -> int:
    """Return the foreground calls of a setting, as its progress counts them."""
    driven = experiment.driven
    specs = [spec for name, spec in experiment.workloads.items() if name not in driven]
    return sum(spec.repeats for spec in specs if not spec.background)


def _traces(recordings: Iterable[Recording]) -> list[Trace]:
    """Return the traces of those that recorded anything; they have ended."""
    traces = [recording.trace for recording in recordings if recording.has_begun]
    return [trace for trace in traces if len(trace)]
