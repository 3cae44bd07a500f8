"""Reports: a run or a trace in one HTML file that opens without a network."""

from gpuscope.report.run import html_report as html_report
from gpuscope.report.run import prediction_report as prediction_report
from gpuscope.report.series import interference_report as interference_report
from gpuscope.report.series import sweep_report as sweep_report
from gpuscope.report.series import tune_report as tune_report
from gpuscope.report.trace import trace_report as trace_report
