"""Analyses as they are declared: reports, the command line and findings are made of these."""

from gpuscope.analyses.builtin import FIRST as FIRST
from gpuscope.analyses.declared import Analysis as Analysis
from gpuscope.analyses.registry import cards as cards
from gpuscope.analyses.registry import findings as findings
from gpuscope.analyses.registry import findings_by_setting as findings_by_setting
from gpuscope.analyses.registry import forget_plugins as forget_plugins
from gpuscope.analyses.registry import known_analyses as known_analyses
from gpuscope.analyses.registry import problems as problems
