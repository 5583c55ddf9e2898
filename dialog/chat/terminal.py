"""``dialog chat``: the loop between a terminal, or a pipe, and a conversation."""

import io
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from dialog.chat.ctrl_c import CTRL_C, Press
from dialog.decoding.config import DecodeConfig
from lm.console.terminal import sanitize, unmarked
from lm.errors import visible
from lm.stop import deferred_signals

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from rich.console import Console

    from dialog.chat.conversation import Conversation
    from dialog.chat.repl import Repl

LONGEST_REMEMBERED = 10_000  # maximum characters of a line in the history


def chat(
    run: Path,
    *,
    others: Sequence[Path] = (),
    checkpoint: str = "best",
    decode: DecodeConfig | None = None,
    replay: Path | None = None,
    source: TextIO | None = None,
    output: TextIO | None = None,
) -> None:
    """Talk with the model of a run until the input ends.

    A terminal gets a prompt, history and completion. Ctrl-C stops a reply and Ctrl-D exits. Otherwise each
    line of ``source`` is answered by a line of ``output``. They default to the standard streams. ``others``
    are further runs of an ensemble. ``decode`` replaces the run's own decoding settings. ``replay`` replays
    the lines of a saved conversation instead.
    Raises the errors of ``TrainedModel.load`` and ``read_transcript``.
    """
    from dialog.chat.repl import Repl

    conversation = open_conversation(run, checkpoint, decode, others)
    conversation.model.require(conversation.decode)
    repl = Repl(conversation, lambda other: open_conversation(other, checkpoint, None))
    converse(repl, source or sys.stdin, output or sys.stdout, replay)


def open_conversation(
    run: Path, checkpoint: str, decode: DecodeConfig | None, others: Sequence[Path] = ()
) -> "Conversation":
    """A new conversation with the model of a run, or the ensemble with ``others``.

    Raises the errors of ``TrainedModel.load`` and ``TrainedModel.ensemble_of``.
    """
    from dialog.chat.conversation import Conversation
    from dialog.chat.transcript import ENSEMBLE, Source
    from dialog.trained import TrainedModel, require_forward
    from lm.runs.checkpoint import CheckpointStore
    from lm.runs.evaluations import loaded

    def load(one: Path, which: str) -> tuple[TrainedModel, list[int]]:
        return TrainedModel.load(one, which), CheckpointStore.of(one).steps(which)

    runs = (run, *others)
    opened = [loaded(one, checkpoint, load) for one in runs]
    model = TrainedModel.ensemble_of([model for (model, _), _ in opened], [visible(one) for one in runs])
    require_forward(model, run)
    steps = opened[0][0][1]
    step = steps[0] if len(runs) == len(steps) == 1 else None  # an average has several
    weights = "+".join(own for _, own in opened if own) or None
    return Conversation(
        model,
        decode,
        Source(run=ENSEMBLE.join(map(visible, runs)), checkpoint=checkpoint, step=step, weights=weights),
    )


def converse(repl: "Repl", source: TextIO, output: TextIO, replay: Path | None = None) -> None:
    """Run the conversation over two streams, with prompts on a terminal, else by lines."""
    for stream, errors in ((source, "surrogateescape"), (output, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors, newline="\n")
    try:
        if replay:
            _write(repl.replay(replay), output)
        elif source.isatty() and output.isatty():
            converse_on_terminal(repl, output)
        else:
            converse_by_lines(repl, source, output)
    except BrokenPipeError:  # closed pipe, as in `dialog chat RUN < lines | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())  # for the last flush


def converse_by_lines(repl: "Repl", source: TextIO, output: TextIO) -> None:
    """Answer every line at once, without prompts. Empty lines get no answer.

    Unknown words, loops and bytes that are not UTF-8 are reported on standard error.
    """
    for number, line in enumerate(source, 1):
        if any("\udc80" <= character <= "\udcff" for character in line):
            _remark(f"line {number}: not UTF-8; dropped the invalid bytes")
        _write(repl.answers(line), output)
        for note in repl.notes:
            _remark(f"line {number}: {sanitize(note)}")
        if repl.ended:
            return


def _remark(text: str) -> None:
    """Print a line on standard error. Ignore errors if that is closed or full."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(text, file=sys.stderr)


def _write(lines: Iterable[str], output: TextIO) -> None:
    for line in lines:
        output.write(f"{line}\n")
        output.flush()


def converse_on_terminal(repl: "Repl", output: TextIO) -> None:
    """Prompt until Ctrl-D or /quit. Ctrl-C clears the line, or stops the current reply."""
    from rich.console import Console

    console = Console(file=output, highlight=False, markup=False, emoji=False)
    settings = repl.conversation.decode
    _print(
        console,
        [f"{settings.method}, seed {settings.seed} · /help lists the commands · Ctrl-D leaves"],
        "dim",
    )
    session = prompt_session()
    with CTRL_C.held():
        while not repl.ended:
            try:
                line = typed_line(session)
            except Press:
                continue
            except EOFError:
                return
            CTRL_C.forget()
            try:
                _print(console, repl.answers(line), "dim" if line.lstrip().startswith("/") else "cyan")
            except Press:  # between the end of a reply and that of its section
                _print(console, ["(stopped)"], "dim")
            _print(console, repl.notes, "dim italic")


def typed_line(session: "PromptSession[str]") -> str:
    """A line typed at the prompt. EOFError after Ctrl-D, Press after Ctrl-C.

    Another signal ends the prompt by its event loop, because after an exception inside of asyncio a task may
    wait forever. A terminal without movements of the cursor has a prompt without such tasks.
    """
    from prompt_toolkit.utils import is_dumb_terminal

    app, came = session.app, False

    def wake() -> None:
        nonlocal came
        came = True
        if loop := app.loop:
            loop.call_soon_threadsafe(end_prompt)

    def end_prompt() -> None:
        if came and app.future and not app.future.done():
            app.exit(exception=EOFError)

    if is_dumb_terminal():
        return session.prompt("> ")
    with deferred_signals(wake):
        return session.prompt("> ", pre_run=end_prompt)  # for a signal that came before there was a loop


def _print(console: "Console", lines: Iterable[str], style: str) -> None:
    for line in lines:
        console.print(unmarked(line), style=style)


def history_file() -> Path:
    """The file of typed lines, in $XDG_STATE_HOME or ~/.local/state. The null device without a home."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base, "highrank", "chat_history") if os.path.isabs(base) else Path(os.devnull)


def prompt_session() -> "PromptSession[str]":
    """A prompt with completion of commands and, if writable, a history file."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory

    from dialog.chat.repl import COMMANDS

    class History(FileHistory):
        """History file that ignores disk errors, because they must not end a conversation."""

        def load_history_strings(self) -> Iterable[str]:
            with suppress(OSError):
                return list(super().load_history_strings())
            return []

        def store_string(self, string: str) -> None:
            with suppress(OSError):
                super().store_string(sanitize(string)[:LONGEST_REMEMBERED])

    path = history_file()
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = [f"/set {key}=" for key in DecodeConfig.model_fields]
    completer = WordCompleter([*(f"/{name}" for name in COMMANDS), *settings], sentence=True)
    return PromptSession(history=History(path), completer=completer, interrupt_exception=Press)
