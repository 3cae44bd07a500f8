"""What a timeline shows of a trace, as plain columns: computed once, drawn by every painter."""

from gpuscope import _plotly as _plotly
