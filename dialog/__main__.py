"""The program ``dialog``, also ``python -m dialog``: signals end it with 75 from its first moment on."""

from lm.ending import begin


def main() -> None:
    """Run ``dialog`` with the arguments of the process; raises SystemExit with the exit code."""
    begin()
    from dialog.cli import main as run

    run()


if __name__ == "__main__":
    main()
