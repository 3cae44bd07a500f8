"""Findings for a medium: plain text, HTML, Markdown, and JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from gpuscope._checks import door, require_kind
from gpuscope._text import clean, safe, shown
from gpuscope.telling.finding import Finding
from gpuscope.telling.rules import RULES, fill

_MARKUP = re.compile(r"([\\`*_<>#|\[\]])")
_LONGEST = 500
"""Characters of a name in a card."""


@door("finding", "about")
def to_text(finding: Finding, about: str = "") -> str:
    """Return a finding for a terminal, what to do in a second line; on each, foreign text is clean.

    Parameters
    ----------
    about
        The settings that it is about.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gs.telling.to_text(gs.telling.Finding("confined.uncarved", "note"), "“shared”")
    '“shared”: Nothing was carved, so there is no partition to stay in.'
    """
    text = clean(f"{about}: {finding.text}" if about else finding.text)
    return f"{text}\n→ {clean(finding.advice)}" if finding.advice else text


def to_html(findings: Sequence[Finding | tuple[str, Finding]]) -> str:
    """Return findings as a list, with what to do about each; nothing of none.

    Parameters
    ----------
    findings
        Each by itself, or with the settings that it is about before it.

    Examples
    --------
    >>> import gpuscope as gs
    >>> "<li class=" in gs.telling.to_html([gs.telling.Finding("confined.uncarved", "note")])
    True
    """
    lines = []
    for about, finding in _with_settings(findings):
        prefix = f"<b>{safe(about)}:</b> " if about else ""
        advice = f"<br>→ {safe(finding.advice)}" if finding.advice else ""
        text = f"{prefix}{unbroken(finding.text)}{advice}"
        lines.append(f'<li class="{safe(finding.family)} {finding.severity}">{text}</li>')
    return f'<ul class="findings">{"".join(lines)}</ul>' if lines else ""


def rich(finding: Finding) -> str:
    """Return a finding's sentence for HTML in a notebook, its quantities bold."""
    names = {role: shown(name, _LONGEST) for role, name in finding.names.items()}
    names |= {quantity.name: f"<b>{shown(quantity)}</b>" for quantity in finding.values}
    rule = RULES.get(finding.rule)
    return f"{fill(shown(rule.text), names)}." if rule else shown(finding.text, _LONGEST)


def unbroken(text: object) -> str:
    """Return plain text for HTML, its numbers on one line with their units."""
    return re.sub(r"(?<=\d) (?=%|→|[nµm]?s\b)", "\N{NO-BREAK SPACE}", safe(text))


def to_markdown(findings: Sequence[Finding | tuple[str, Finding]]) -> str:
    """Return findings as a list in Markdown, for a comment on a change or a summary of CI.

    Parameters
    ----------
    findings
        Each by itself, or with the settings that it is about before it.

    Examples
    --------
    >>> import gpuscope as gs
    >>> mend = gs.telling.Mend("b.wait(a.record())")
    >>> print(gs.telling.to_markdown([gs.telling.Finding("mine", "error", mend=mend)]))
    - **error** mine.
      → b.wait(a.record())
    """
    lines = []
    for about, finding in _with_settings(findings):
        text = to_text(finding, about).replace("\n", "\n  ")
        lines.append(f"- **{finding.severity}** {unmarked(text)}")
    return "\n".join(lines)


def unmarked(text: str) -> str:
    """Return plain text without what Markdown would take for its own."""
    return _MARKUP.sub(r"\\\1", text)


@door("finding")
def to_json(finding: Finding) -> dict[str, Any]:
    """Return a finding for programs: its data, and its words.

    Examples
    --------
    >>> import gpuscope as gs
    >>> gpu = gs.open_device("sim:h200", quiet=True)
    >>> norm = gs.workloads.spin_kernel(gpu, "norm")
    >>> with gpu.carve({"decode": 16}) as parts, gpu.create_stream() as other:
    ...     guard = gs.CallerStreamGuard(parts["decode"].create_stream())
    ...     with gs.profile(gpu) as recording, guard:
    ...         other.launch(norm, 90_000, grid=16, block=32)
    >>> finding = gs.telling.findings(recording.trace).findings[0]
    >>> gs.telling.to_json(finding)["subject"]["partition"]
    'decode'
    """
    facts: dict[str, Any] = msgspec.to_builtins(finding)
    return {**facts, "text": finding.text, "advice": finding.advice}


def _with_settings(findings: Sequence[Finding | tuple[str, Finding]]) -> list[tuple[str, Finding]]:
    require_kind("findings", findings, list, tuple)
    pairs = []
    for number, entry in enumerate(findings):
        about, finding = entry if isinstance(entry, tuple) and len(entry) == 2 else ("", entry)
        require_kind(f"findings[{number}]", finding, Finding)
        require_kind(f"the settings of findings[{number}]", about, str)
        pairs.append((about, finding))
    return pairs
