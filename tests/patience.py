"""How long a test waits for what may be slow."""

PATIENCE_S = 900
"""Nothing takes that long, however busy the machine is: what does hangs."""
