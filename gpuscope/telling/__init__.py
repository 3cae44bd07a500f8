"""Telling: what results come to, as findings, and the words for them.

Findings are data. Their words are made in :mod:`gpuscope.telling.rules`, and written for a medium
in :mod:`gpuscope.telling.media`; nothing else builds a sentence about a result, or reads one.
"""

from typing import TYPE_CHECKING

from gpuscope import _lazy
from gpuscope.telling.described import describe_settings as describe_settings
from gpuscope.telling.explanation import Explanation as Explanation
from gpuscope.telling.explanation import explain as explain
from gpuscope.telling.finding import Finding as Finding
from gpuscope.telling.finding import FindingsResult as FindingsResult
from gpuscope.telling.finding import Mend as Mend
from gpuscope.telling.finding import Quantity as Quantity
from gpuscope.telling.finding import Shown as Shown
from gpuscope.telling.media import to_html as to_html
from gpuscope.telling.media import to_json as to_json
from gpuscope.telling.media import to_markdown as to_markdown
from gpuscope.telling.media import to_text as to_text
from gpuscope.telling.of_trace import confinement_verdict as confinement_verdict
from gpuscope.telling.rows import find as find
from gpuscope.telling.rules import RULES as RULES
from gpuscope.telling.rules import Rule as Rule

if TYPE_CHECKING:  # what stands on this room
    from gpuscope.analyses.registry import findings as findings
    from gpuscope.analyses.registry import findings_by_setting as findings_by_setting
    from gpuscope.comparing.of_run import compared as compared
    from gpuscope.comparing.of_run import outcome as outcome
    from gpuscope.comparing.tunings import TunedWords as TunedWords
    from gpuscope.comparing.tunings import tuned as tuned

__getattr__, __dir__, _ = _lazy.public(__name__)
