"""The program ``lm``, also ``python -m lm``: signals end it with 75 from its first moment on."""

from lm.ending import begin


def main() -> None:
    """Run ``lm`` with the arguments of the process; raises SystemExit with the exit code."""
    begin()
    from lm.cli import main as run

    run()


if __name__ == "__main__":
    main()
