"""``python -m lm``."""

from lm.cli import main

main()
