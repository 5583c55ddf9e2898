"""Entry point of ``lm`` and ``python -m lm``; a signal ends it with 75 from its first import."""

import lm.begun  # noqa: F401
from lm.ending import begin


def main() -> None:
    """Run ``lm`` with the arguments of the process. Raises SystemExit with the exit code."""
    begin()
    from lm.cli import main as run

    run()


if __name__ == "__main__":
    main()
