"""Recording: each source turns what it observes into rows of a trace."""
