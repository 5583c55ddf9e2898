"""Entry point of ``dialog`` and ``python -m dialog``; a signal ends it with 75 from its first import."""

import lm.begun  # noqa: F401
from lm.ending import begin


def main() -> None:
    """Run ``dialog`` with the arguments of the process; raises SystemExit with the exit code."""
    begin()
    from dialog.cli import main as run

    run()


if __name__ == "__main__":
    main()
