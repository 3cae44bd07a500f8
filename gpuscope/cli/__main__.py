"""``python -m gpuscope.cli``."""

from gpuscope.cli import main

main()
