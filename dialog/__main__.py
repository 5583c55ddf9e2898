"""``python -m dialog``."""

from dialog.cli import main

main()
