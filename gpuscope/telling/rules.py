"""The rules of findings, the most urgent first, each with its words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from gpuscope.trace.facts import HazardKind

_OPTIONAL = re.compile(r"\[([^][]*)\]")
_NAME = re.compile(r"\{(\w+)\}")
_EVIDENCE = {
    "resident": "by the SM of every thread block",
    "allocated": "by the green context of every kernel",
    "simulated": "simulated: by construction, no evidence about a GPU",
}


@dataclass(frozen=True)
class Rule:
    """The words of a rule: ``{name}`` stands for a name or value of its findings.

    What is in brackets is left out where a finding lacks one of its names.

    Attributes
    ----------
    text
        What was found, without the full stop.
    advice
        What to do about it.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.telling.RULES["confined.uncarved"].text
    'Nothing was carved, so there is no partition to stay in'
    """

    text: str
    advice: str = ""


def fill(template: str, names: Mapping[str, str]) -> str:
    """Put names into a template; what is foreign in them is not read as one."""

    def kept(match: re.Match[str]) -> str:
        return match[1] if all(names.get(name) for name in _NAME.findall(match[1])) else ""

    return _NAME.sub(lambda match: names.get(match[1], ""), _OPTIONAL.sub(kept, template))


def names_listed(role: str, names: str | Sequence[str]) -> str:
    """List names as a sentence does."""
    if isinstance(names, str):
        return names
    if role == "evidence":
        return "; ".join(_EVIDENCE.get(name, name) for name in names)
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


_ESCAPED = (
    "ESCAPED: {kernels} of {given} kernels {kernel}, given to {partition}, ran ",
    "{where}: {time}, {share} of the time of the work given to {partition}",
)
_STREAM = (
    "give it a stream of {partition}. A library takes the one that get_caller_stream() returns "
    "as an argument, or as its current stream."
)
_WHO = "{load} ({track})"
_EXPLAIN = "Click {after}{both} in the timeline, or call {mend}: it says what that waited for."
_IDLE = (
    "idle for {idle} of the time from its first work to its last ({gaps} gaps; the "
    "longest {longest}[, between {before} and {after}][, between two of {both}])"
)
_IDLE_SMS = (
    "{kernel} left {idle} of the time of its {sms} SMs[ in {partition}] idle: {unheld} without a "
    "thread block[ ({empty} SMs never had one)], {between} in blocks outside any scope"
)
_UNFINISHED = "[; {unfinished} unfinished kernels are not judged]"
_UNUSED = "[. Nothing was given to {unused}]"
DOES = {
    "launch call": "is in the launch call",
    "on the way": "is on the way to the GPU",
    "stream order": "waits behind its stream",
    "event wait": "waits for an event[ behind {holder}][ behind {holders}]",
    "graph order": "waits behind its graph",
    "legacy default stream": "waits behind the legacy default stream",
    "SMs held": "waits for SMs[ that {holder} holds][ that {holders} hold]",
    "priority": "waits for SMs[ that {holder} holds][ that {holders} hold] by priority",
    "copy engine": "waits for the copy engine",
    "request queue": "waits in the queue of requests",
    "collective": "waits for another rank",
    "running": "runs",
    "not looking": "waits for the host to look",
    "host": "is in the host's program",
    "unexplained": "waits for something that the trace does not show",
}
"""Kind of a part of a call's time → what the call does meanwhile."""
_TOGETHER = "gain {gain}[, overlap {overlap}][, in “{setting}”]"
_MARKS = "[p50 {p50}][, p90 {p90}][, p99 {p99}]"
_WORK = "{kernels} kernels, {time}"
_PROVEN = "[its {sms} SMs][{it}]. Evidence: {evidence}[. {notes}]"
_ESCAPES = "Escaped: [all {all}][{n} of {given}] kernels of {workload} ran "
_OF_SMS = "[, not on its {sms} SMs]"
_MARK = "[its p99 is {p99}][its p50 is {p50}]"
_NEVER = (
    "{workload} never waited for SMs[ in {judged} of its {n} calls]. "
    "[Its p99, {p99}][Its p50, {p50}], is {part} {largest} time"
)
_WAITS = (
    "{workload} waits {each} a call for SMs[ that {holder} holds][ that {holders} hold]"
    "[ (mean of {judged} of its {n} calls)]"
)
_LOOKED_AT = "[ in {judged} of them]"
_SO_FAR = "So far, {done} of {total} calls: "
_PART_OF = "[ (of {summed} of {calls} {each}s)]"
_RULED_OUT = (
    "at {confidence} confidence {out} settings are ruled out by measurements"
    "[ and {unlikely} by corrected forecasts]"
)
_BEHIND = (
    "[; at {confidence} confidence, no other of these is better than {choice} by more than "
    "{behind} ({share})]"
)
RULES = {
    "verdict.before": Rule("Nothing has run yet: press Run[ (about {time})]"),
    "planned": Rule("{workload}: {plan}"),
    "of-before": Rule("This is of the run before; the controls have changed since: press Run"),
    "verdict.started": Rule("Starting: the first verdict comes with the first calls"),
    "verdict.escape-partition": Rule(f"{_ESCAPES}in {{where}}{_OF_SMS}"),
    "verdict.escape-outside": Rule(f"{_ESCAPES}on the whole GPU{_OF_SMS}"),
    "verdict.escape-sms": Rule(f"{_ESCAPES}on {{where}}{_OF_SMS}"),
    "verdict.waits": Rule(f"{_WAITS}; {_MARK}"),
    "verdict.apart": Rule(f"Kept apart: {_NEVER}"),
    "verdict.shared": Rule(_NEVER),
    "so-far.escape": Rule(
        f"{_SO_FAR}[all {{all}}][{{n}} of {{given}}] kernels of {{workload}} escaped"
    ),
    "so-far.waits": Rule(f"{_SO_FAR}{_WAITS}, p99 {{p99}}"),
    "so-far.apart": Rule(f"{_SO_FAR}no wait for SMs{_LOOKED_AT}, p99 {{p99}}, nothing escaped"),
    "so-far.shared": Rule(f"{_SO_FAR}no wait for SMs{_LOOKED_AT}, p99 {{p99}}"),
    "so-far.other": Rule(f"{_SO_FAR}{{clause}}"),
    "so-far.unseen": Rule("So far, {done} of {total} calls"),
    "unguarded": Rule(
        "Guard is off for {workload}, so it launched in the legacy default stream",
        "Turn Guard on and run again",
    ),
    "misplaced": Rule("{workload} was launched outside {partition}: give it a stream of that"),
    "tail": Rule("In the slowest {slowest} of {n} calls, {share} is spent {kinds}"),
    "provisional": Rule("The p99 is provisional until {calls} calls"),
    "live": Rule("Live drawing costs host time: switch it off for figures to quote"),
    "not-live": Rule("Live is off: the verdict comes when the run has ended"),
    "answer.overlap": Rule("Yes, {overlap} overlap"),
    "answer.no-overlap": Rule("No, {overlap} overlap"),
    "gain.won": Rule("Gain {gain}: throughput won"),
    "gain.lost": Rule("Gain {gain}: little or no throughput won"),
    "answer.waited": Rule("{waited} of {judged} calls[, chosen from {n},] waited for SMs"),
    "answer.untold": Rule("The trace does not tell what the calls waited for"),
    "answer.stayed": Rule(
        "Yes: all {given}[ {recorded}] inside[; {unfinished} did not end]"
        "[; by counters at most {most} of the {sms} SMs of {counted} were busy]"
    ),
    "answer.strayed": Rule("No: {inside} of {given} given to {partition} inside"),
    "escape.partition": Rule(
        f"{_ESCAPED[0]}in {_ESCAPED[1]}",
        f"{{kernel}} was launched on a stream of {{where}}: {_STREAM}",
    ),
    "escape.outside": Rule(
        "".join(_ESCAPED), f"{{kernel}} was launched outside any partition: {_STREAM}"
    ),
    "escape.sms": Rule(
        f"{_ESCAPED[0]}on {_ESCAPED[1]}",
        "Thread blocks of {kernel} were seen on SMs that {partition} does not have: "
        "figures.sm_map shows when. Carve again, and record once more.",
    ),
    "escape.more": Rule("ESCAPED: {more} more kernels or places of work given to {partition}"),
    **{
        f"hazard.{kind.replace(' ', '-')}": Rule(
            f"HAZARD[ ({{status}})], {kind}: nothing orders {{second}} after {{first}}"
            "[, {times} times]",
            "[Missing: {mend}]",
        )
        for kind in get_args(HazardKind)
    },
    "hazard.more": Rule("{more} more kinds of hazards, {hazards} hazards in all"),
    "plugin": Rule("{failure}"),
    "incomplete": Rule("incomplete: {missing}", "Read all else with that in mind."),
    "waits": Rule(
        f"{_WAITS}: {{share}} of the time of its calls, in {{waited}} of {{judged}}",
        "On SMs of its own {workload} would not: gs.what_if forecasts that, gpuscope tune finds "
        "how many.",
    ),
    "program.compiles": Rule(
        "Code is compiled for {compiled}, all that is repeated takes {time}",
        "Compile what runs long enough to pay for it, for few shapes, or ahead of time, such as by "
        "torch.export or with a cache that stays.",
    ),
    "program.straggler": Rule(
        "Rank {rank} came last to {last} collectives, and others waited {waited} for it"
        "[: it spends more time at {line}]"
    ),
    "program.slow": Rule(
        "[Nothing ran on the GPU for {idle} of {time}][In {whole}][, behind {warm_up} of warm-up]"
        "[{colon} ]{fault}, {times} times"
        "[, {each} each][ instead of {usual}][: {took}][, {share} of the time]"
    ),
    "program.one-rank": Rule(
        "Collectives take {share} of the critical path of rank {rank} of {ranks}: who came late to "
        "them, only the traces of all ranks tell",
        "gpuscope why of the folder that has them all, or gs.merge(…).",
    ),
    "program.limit": Rule(
        "No change was found that would gain more than {least}[, but a faster {kernel}]"
    ),
    "program.idle": Rule(
        "Nothing ran on the GPU for {idle} of {time}[, behind {warm_up} of warm-up][, the mean of "
        "{gpus} GPUs], for {of_it} of "
        "that: {cause}[ in {range}][ at {line}][ ({thread})][; of that {seen} in {function}, by "
        "{samples} samples][: {who} {state}]"
    ),
    "program.busy": Rule(
        "Something ran on the GPU for {busy} of the time[, kernels for {kernels}][; {share} of the "
        "critical path is {kernel}][, launched at {line}]"
    ),
    "throttled": Rule("Throttled[ in {slowed} of {rounds} rounds][, at {clock}]: {why}"),
    "program.help": Rule(
        "Try first: {change}[ ({about})]: {gain} sooner, {share} of the time",
        "[{how}]",
    ),
    "program.may-help": Rule(
        "Try first: {change}[ ({about})]: at most {most} sooner, {share} of the time",
        "[{how}]",
    ),
    "program.then": Rule(
        "Behind that: {change}[ ({about})], {gain} more, {share} of the time[, {bound}]"
    ),
    "program.warm-up": Rule(
        "Warm-up takes {warm_up} before {time}, {share} of it in {function}, by {samples} samples",
        "Keep what is compiled or loaded there from run to run, or let one process do many runs.",
    ),
    "program.no-help": Rule("Not worth trying here: {changes}"),
    "dry-queue.calls": Rule(
        "{idle} of {calls} calls of {workload} began while no kernel of {load} was queued or "
        "running",
        "Raise max_queued (it is {queued}): {mend}; or make the kernels longer.",
    ),
    "dry-queue.load": Rule(
        f"{_WHO} waited for launches: {_IDLE}, mostly since the host had not "
        "launched the next work yet",
        "Raise max_queued (it is {queued}): {mend}; or make the kernels longer.",
    ),
    "gap": Rule(f"{_WHO} stood still: {_IDLE}", _EXPLAIN),
    "gap.launched": Rule(
        f"{_WHO} stood still: {_IDLE}, mostly with the next work launched already", _EXPLAIN
    ),
    "sms": Rule(
        _IDLE_SMS, "Where its last blocks leave SMs, make blocks shorter, or of equal work."
    ),
    "sms.at-once": Rule(
        f"{_IDLE_SMS}, and all its blocks were there at once: where one ends, none follows",
        "Launch a block for each SM and let each take the next tile when it is done with one, or "
        "give the kernel fewer SMs.",
    ),
    "counters.unused": Rule(
        "Granted and not used: {kernel} used {used} of the {sms} SMs of {partition}"
        "[ (at most {most})][: {blocks} thread blocks take {waves} waves on {enough} SMs, too]",
        "[Grant {enough} SMs: gpuscope tune checks it.]",
    ),
    "counters.memory": Rule(
        "Bound by memory: {kernel}[ of {partition}] moves {moved} of the {peak} GB/s that "
        "gpuscope calibrate measured of such a GPU",
        "More SMs will not help it, and fewer may do: move fewer bytes, or run it beside work "
        "that needs little memory.",
    ),
    "counters.pipes": Rule(
        "{kernel}[ in {partition}] is a matrix product that left tensor pipes idle ({pipes} busy)",
        "Compute it in TF32, bfloat16 or float16.",
    ),
    "counters.beside": Rule(
        "Beside other partitions {kernel}[ of {partition}] takes {slower} times as long, {beside} "
        "instead of {alone}, while the GPU moves {moved}[ of {peak}] GB/s instead of {moved_alone}",
        "Memory is shared whatever the SMs: run them at other times, or let one move less.",
    ),
    "confined": Rule(
        "Confined: all work given to {partitions} ran inside ({evidence})"
        f"{_UNFINISHED}{_UNUSED}"
    ),
    "confined.open": Rule(
        f"No escape was recorded from {{partitions}}; incomplete: {{missing}}{_UNFINISHED}{_UNUSED}"
    ),
    "confined.unknown": Rule("Confinement cannot be judged: {reason}"),
    "confined.no-kernel": Rule("No kernel was recorded, so there is no confinement to judge"),
    "confined.uncarved": Rule("Nothing was carved, so there is no partition to stay in"),
    "ordered": Rule(
        "No hazard was found among {accesses} accesses, {unseen} unseen[, {undecided} undecided]"
    ),
    **dict.fromkeys(
        ("change.better", "change.worse"),
        Rule(
            "{change}, {workload}'s {quantity}[ ({slo})] is {after} instead of {before}"
            "[ ({against})][: {cause}]"
        ),
    ),
    "change.unsure": Rule("Too few calls to see a difference: {by} of {workload}'s {quantity}"),
    "change.equal": Rule(
        "Equal within {reach}: {workload}'s {quantity} is {after} instead of {before}"
    ),
    "change.open": Rule(
        "Cannot tell: {workload}'s {quantity} changes by {by}[; {needed} pairs of rounds "
        "would tell whether they are equal within {within}][; {more} would tell more]"
    ),
    "change.few": Rule("Cannot tell: three pairs of rounds are needed, and there are {pairs}"),
    "change.captures": Rule(
        "{workload}'s {quantity} is {after} instead of {before}; one capture of each cannot tell "
        "whether that is more than noise"
    ),
    "change.pays": Rule("{workload} pays {cost} of its rate"),
    "change.may-pay": Rule("{workload} may pay {cost} of its rate, which noise hides[: {between}]"),
    "change.costs": Rule("Worse: {workload}'s {quantity} is {after} instead of {before}"),
    "change.gains": Rule("{workload} gains {cost} of its rate"),
    "change.calls": Rule(
        "{faster} of {calls} {each}s of {workload} are faster in {setting}, {slower} slower"
        "[; {unpaired} are in one of both alone]"
    ),
    "part.gone": Rule(f"no longer {{does}}{_PART_OF}"),
    "part.less": Rule(f"{{does}} {{by}} less a {{each}}{_PART_OF}"),
    "part.more": Rule(f"{{does}} {{by}} more a {{each}}{_PART_OF}"),
    **{
        f"split.{change}": Rule(
            f"{{what}}[ ({{range}})][ at {{line}}] {words} {{by}}[ ({{counted}})][; {{others}}]"
        )
        for change, words in {
            "new": "is new and takes",
            "gone": "is gone, which took",
            "slower": "takes longer by",
            "faster": "is shorter by",
            "longer": "is longer by",
            "shorter": "is shorter by",
            "more": "comes more often and takes longer by",
            "fewer": "comes less often and is shorter by",
        }.items()
    },
    "priority": Rule(
        "Stream priority alone: {difference}; it chooses among blocks that wait, and takes no SM "
        "from those that run"
    ),
    "target": Rule("cuBLAS not told how many SMs its partition has: {difference}"),
    "forecast": Rule("{forecast}"),
    "forecast.number": Rule("Forecast: {workload}'s {quantity} is {forecast}; it was {other}"),
    **{
        f"checked.{where}": Rule(
            "Forecast: {workload}'s {quantity} {forecast}. Checked: the run gave {other}" + end
        )
        for where, end in {
            "outside": ", outside the band",
            "inside": ", inside the band",
            "unsure": "; too few calls for a band",
        }.items()
    },
    "no-slo": Rule("state an slo to compare goodput", "{mend}"),
    "above-alone": Rule(
        "above 100 %: alone it is measured afterwards, when the power cap may slow a GPU more"
    ),
    "latency": Rule("{quantity} of {workload} is {latency}[ {where}]"),
    "load.share": Rule("{workload} keeps {share} of its rate alone"),
    "served": Rule("{workload}: {rate}[, goodput {goodput}][ ({slo})][, {met} meet the SLO]"),
    "tokens": Rule(f"{{times}} {_MARKS} (n = {{n}})"),
    "together.won": Rule(f"Running together won throughput: {_TOGETHER}"),
    "together.lost": Rule(f"Running together won little or no throughput: {_TOGETHER}"),
    "together.latency": Rule(
        f"Running together won little or no throughput: {_TOGETHER}; a partition can still win "
        "latency"
    ),
    "together.unknown": Rule(
        "Overlap {overlap}; the gain is unknown: not every workload was timed alone"
    ),
    "together.alone": Rule("Fewer than two workloads ran kernels on the GPU"),
    "inside": Rule(f"✓ {{partition}}: all of its work ({_WORK}) ran inside {_PROVEN}"),
    "inside.recorded": Rule(
        f"{{partition}}: what was recorded of its work ({_WORK}) ran inside {_PROVEN}"
    ),
    "outside": Rule(
        f"✗ {{partition}}: {{share}} of the time of its work ({_WORK}) ran outside {_PROVEN}"
    ),
    "untimed": Rule("No timed call was recorded"),
    "tuned.best": Rule(f"{{sought}}: best: {{settings}}; {_RULED_OUT}"),
    "tuned.equal": Rule(f"{{sought}}: noise does not tell these apart: {{settings}}{_BEHIND}"),
    "tuned.nothing": Rule("{sought}: nothing was measured"),
    "tuned.hopeless": Rule(
        f"{{sought}}: no setting is likely to meet the SLO: {_RULED_OUT}; the nearest is "
        "{nearest}, where {missed}"
    ),
    "tuned.open": Rule(
        "{sought}: not decided between {settings}[; and {more} more]"
        f"[; {{unseen}} settings are neither measured nor ruled out]{_BEHIND}"
    ),
    "take": Rule("Take {choice}: {objective} {mean}[, against {reference} {changes}][, {cost}]"),
    "take.none": Rule(
        "Noise tells no setting from the others by {objective}: best is {best} with {mean}"
        "[, against {reference} {changes}]; rounds = {rounds} would tell more"
    ),
    "take.hidden": Rule(
        "Noise does not tell {choice} from {reference} by {objective}[: {changes}]; more "
        "measurements of each (repeats) would tell more"
    ),
    "tuned.left": Rule(
        "{choice} leaves {left} SMs ({share} of the GPU) to others than {workloads}: {where}"
        "[; there {kept}]"
    ),
    "take.ties": Rule("Noise does not tell {choice} from {equals}: {ties}"),
    "tuned.method": Rule(
        "{measurements} measurements of {measured} of {settings} settings in turns, at most "
        "{repeats} of each; compared within turns by t-intervals with pooled noise (successive "
        "elimination, Bonferroni over all comparisons, {confidence} together); limits and ±: "
        "{confidence} t-interval of each mean; equal below {close}; {ties}"
    ),
    "forecast-error": Rule("measured over forecast: {goal} {error}"),
    "swept.refused": Rule(
        "Points that cannot be run: {refused}; the first: {reason}",
        "Their numbers are missing below; vary among what gpuscope devices says is granted",
    ),
    "swept.unmeasured": Rule(
        "Points that were not measured, or not to their end: {unmeasured}[; of the first: "
        "{reason}]",
        "The same call with the same folder measures these and no others",
    ),
    "swept": Rule(
        "{quantity} of {workload} is best at {best}: {good}; and worst at {worst}: {bad}. How "
        "sure that is, is not known of these points: gpuscope tune tells differences from noise"
    ),
    "interferes": Rule(
        "Kernels of {workload} take {longer} longer while {given} runs, the most of {told} pairs"
        "[; {untold} more cannot be told][; {forecast} more are forecast: those of {other} take "
        "≈ {likely} longer while {beside} runs, the most]"
    ),
    "interferes.unknown": Rule("Of {untold} pairs none can be told"),
    "interferes.forecast": Rule(
        "Nothing was measured: of {forecast} forecasts, kernels of {other} take ≈ {likely} longer "
        "while {beside} runs, the most[; {untold} more pairs cannot be told]"
    ),
    "unused": Rule("{partition}: no work was given to it"),
    "unjudged": Rule("{partition}: none of the {unfinished} kernels given to it ended"),
}
"""Rule → its words. A package that makes findings of its own adds its rules."""
