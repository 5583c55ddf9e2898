"""What training shows: the numbers are right, the right form is chosen, and nothing shown ends a training."""

import io
import itertools
import math
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

import lm.engine.progress
from lm.console.output import counting
from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.events import Ended, Goal, Note, Reporter, Started, Update, Validated, Validating, no_report
from lm.engine.limits import goal_of
from lm.engine.loop import fit
from lm.engine.progress import (
    Meter,
    PlainReporter,
    RichReporter,
    TensorboardReporter,
    TimeLeft,
    clock,
    make_reporter,
    together,
)
from lm.measures import perplexity
from tests.support.tiny_task import Notes, TinyTask, open_run, run_folder


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def update(step: int, nll: float = 2.0, tokens: int = 10) -> Update:
    return Update(step, 1, nll, 0.001, 0.5, tokens)


def drive(reporter: Reporter, first: int = 0, goal: Goal = Goal(20, 0.0)) -> None:  # noqa: B008 (frozen)
    """A whole training, as the engine reports it."""
    reporter(Started(first, goal))
    for step in range(first + 1, 21):
        reporter(update(step, math.nan if step == 3 else 2.0))
    reporter(Note("warning: [red]step 3[/foo] is skipped"))
    reporter(Validating())
    reporter(Validated(20, {"nll": 1.5, "perplexity": math.exp(1.5)}, best=True))
    reporter(Ended())
    reporter(Ended())


def test_the_meter_averages_over_tokens_and_time() -> None:
    time = Clock()
    meter = Meter(time)
    meter.start(0, Goal(10, 0.0))
    assert math.isnan(meter.nll)
    assert meter.remaining is None
    for step, (nll, tokens) in enumerate([(1.0, 10), (3.0, 30), (math.nan, 99)], 1):
        time.now += 2.0
        meter.step(update(step, nll, tokens))
    assert meter.nll == 2.5
    assert meter.tokens_per_second == 10.0
    assert meter.done == 0.3
    assert meter.remaining == pytest.approx(14.0)
    assert meter.line() == "step 3/10 · ppl 12.18 · nll 2.5000 · 10 tokens/s · epoch 1 · lr 0.001"
    assert meter.line(40) == "step 3/10 · ppl 12.18 · nll 2.5000"
    assert meter.line(3) == ""
    meter.validate()
    time.now += 12.0
    assert meter.line(40) == "step 3/10 · validating 0:00:12"
    meter.pause()
    assert meter.line(40) == "step 3/10 · ppl 12.18 · nll 2.5000"


def test_the_meter_is_read_by_another_thread() -> None:
    """As rich does, whose thread would end with the bar when the updates change while it adds them up."""
    meter, ended = Meter(), threading.Event()
    meter.start(0, Goal(0, 0.0))

    def count() -> None:
        for step in itertools.count(1):
            meter.step(update(step))
            if ended.is_set():
                return

    interval, thread = sys.getswitchinterval(), threading.Thread(target=count)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(3000):
            assert not meter.nll < 0
            assert meter.tokens_per_second >= 0
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_validations_are_not_counted_as_updates() -> None:
    time = Clock()
    meter = Meter(time)
    meter.start(0, Goal(4, 0.0))
    time.now += 30.0
    meter.pause()
    time.now += 2.0
    meter.step(update(1))
    assert (meter.tokens_per_second, meter.remaining) == (5.0, 6.0)
    time.now += 10.0
    meter.pause()
    time.now += 2.0
    meter.step(update(2))
    assert (meter.tokens_per_second, meter.remaining) == (5.0, 14.0)


@pytest.mark.parametrize(
    ("goal", "done", "remaining"),
    [
        (Goal(10, 0.0), 0.6, 16.0),
        (Goal(0, 8.0), 0.5, 4.0),
        (Goal(10, 5.0), 0.8, 1.0),
        (Goal(0, 0.0), None, None),
    ],
)
def test_the_nearest_limit_decides_after_a_resume(
    goal: Goal, done: float | None, remaining: float | None
) -> None:
    time = Clock()
    meter = Meter(time)
    meter.start(5, goal)
    time.now += 4.0
    meter.step(update(6))
    assert meter.done == done
    assert meter.remaining == remaining


def test_plain_lines_are_rate_limited_but_never_withheld() -> None:
    stream = io.StringIO()
    drive(PlainReporter(stream, seconds=1e9))
    assert stream.getvalue().splitlines() == [
        "warning: [red]step 3[/foo] is skipped",
        "validation at step 20 · nll 1.5000 · ppl 4.48 · best so far",
    ]
    stream = io.StringIO()
    drive(PlainReporter(stream, seconds=0.0))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 22
    assert all(" · ETA 0:00:0" in line for line in lines[:20])
    assert "\x1b" not in stream.getvalue()


class Broken(io.StringIO):
    """Takes two lines; refuses the others, and counts them."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error, self.refused = error, 0

    def write(self, text: str) -> int:
        if self.getvalue().count("\n") == 2:
            self.refused += 1
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("error", [BrokenPipeError, ValueError])
def test_a_closed_stream_ends_the_lines_and_not_the_training(error: type[Exception]) -> None:
    """A pipe that nobody reads any more, or a stream that was closed: 20 more lines are not even tried."""
    stream = Broken(error)
    drive(PlainReporter(stream, seconds=0.0))
    assert stream.refused == 1
    assert len(stream.getvalue().splitlines()) == 2


@pytest.mark.parametrize("goal", [Goal(20, 0.0), Goal(0, 60.0), Goal(0, 0.0)])
def test_the_bar_shows_numbers_and_text_as_it_is(goal: Goal) -> None:
    stream = io.StringIO()
    drive(RichReporter(Console(file=stream, force_terminal=True, width=120)), goal=goal)
    shown = stream.getvalue()
    assert "[red]step 3[/foo]" in shown
    assert "ppl 7.39 · nll 2.0000" in shown
    assert "best so far" in shown


@pytest.mark.parametrize("width", [20, 30, 60, 80, 120])
def test_the_line_fits_and_time_left_goes_last(width: int) -> None:
    reporter = RichReporter(Console(file=io.StringIO(), force_terminal=True, width=width))
    reporter(Started(0, Goal(998, 0.0)))
    for step in range(1, 500):
        reporter(update(step, 5.7595, 700))
    reporter(Ended())
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(reporter._line())
    (line,) = console.export_text().splitlines()
    assert len(line.rstrip()) <= width
    assert line.startswith("ETA ") == (width >= 30)
    assert line.removeprefix("ETA ").split()[0].count(":") == 2
    assert {"━", "╸"} & set(line)
    assert ("step 499/998 · ppl 317.19" in line) == (width >= 60)
    assert ("lr" in line) == (width >= 120)


def test_the_time_left_of_a_loop_is_that_of_its_mean_pace() -> None:
    progress = Progress(TimeLeft(), get_time=lambda: now[0])
    now = [0.0]
    task = progress.add_task("responding", total=100)
    assert str(TimeLeft().render(progress.tasks[0])) == ""
    progress.update(task, completed=89)
    now[0] = 89.0
    assert str(TimeLeft().render(progress.tasks[0])) == "ETA 0:00:11"
    now[0] = 178.0  # nothing has come since: it is slower than it seemed, and not at its end
    assert str(TimeLeft().render(progress.tasks[0])) == "ETA 0:00:22"


def test_every_part_has_a_pace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that begins with what is done already, as a resumed sweep does."""
    bars: list[Progress] = []

    class Seen(Progress):
        def __init__(self, *columns: Any, **options: Any) -> None:
            super().__init__(*columns, get_time=lambda: now[0], **options)
            bars.append(self)

    monkeypatch.setattr("rich.progress.Progress", Seen)
    now = [0.0]

    def left() -> str:
        return str(TimeLeft().render(bars[0].tasks[0]))

    with counting("reading") as progress:
        for done, seconds in ((0, 0.0), (4, 100.0), (0, 100.0), (2, 102.0)):
            now[0] = seconds
            progress(done, 4)
        assert left() == "ETA 0:00:02"
        progress(4, 4)
        for done, seconds in ((70, 200.0), (80, 210.0)):
            now[0] = seconds
            progress(done, 100)
        assert left() == "ETA 0:00:20"


class Writer:
    """Stands for TensorBoard's SummaryWriter; fails after so many scalars."""

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step = folder, purge_step
        self.scalars: list[tuple[str, float, int]] = []
        self.limit = 10**9
        self.closed = 0

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        if len(self.scalars) >= self.limit:
            raise RuntimeError("no [space]")
        self.scalars.append((tag, value, step))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    made: list[Writer] = []

    def make(folder: str, purge_step: int) -> Writer:
        made.append(Writer(folder, purge_step))
        return made[-1]

    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = make
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return made


def test_a_terminal_gets_a_bar_and_a_pipe_gets_lines(
    writers: list[Writer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_reporter(Terminal()), RichReporter)
    assert isinstance(make_reporter(io.StringIO()), PlainReporter)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_reporter(Terminal()), PlainReporter)
    monkeypatch.setattr(lm.engine.progress.importlib.util, "find_spec", lambda name: None)
    assert isinstance(make_reporter(io.StringIO(), tmp_path), PlainReporter)
    monkeypatch.setattr(lm.engine.progress.importlib.util, "find_spec", lambda name: object())
    drive(make_reporter(stream := io.StringIO(), tmp_path))
    assert writers[0].scalars
    assert "best so far" in stream.getvalue()


def test_tensorboard_gets_every_finite_number(writers: list[Writer], tmp_path: Path) -> None:
    drive(TensorboardReporter(tmp_path, pytest.fail), first=10)
    (writer,) = writers
    assert (writer.folder, writer.purge_step, writer.closed) == (str(tmp_path), 11, 1)
    assert ("train/nll", 2.0, 11) in writer.scalars
    assert ("valid/nll", 1.5, 20) in writer.scalars
    assert len(writer.scalars) == 10 * 3 + 2


def test_a_failing_tensorboard_is_noted_once_and_switched_off(writers: list[Writer], tmp_path: Path) -> None:
    notes = Notes()
    reporter = TensorboardReporter(tmp_path, notes)
    reporter(Started(0, Goal(20, 0.0)))
    writers[0].limit = 4
    for step in range(1, 9):
        reporter(update(step))
    reporter(Ended())
    assert notes.lines == ["TensorBoard is switched off: RuntimeError('no [space]')"]
    assert len(writers[0].scalars) == 4


def test_a_missing_tensorboard_is_noted_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    notes = Notes()
    drive(TensorboardReporter(tmp_path, notes))
    assert len(notes.lines) == 1


def test_several_reporters_hear_the_same() -> None:
    streams = [io.StringIO(), io.StringIO()]
    drive(together([no_report, *(PlainReporter(stream, seconds=0.0) for stream in streams)]))
    first, second = (stream.getvalue().replace(",", "").splitlines() for stream in streams)
    assert len(first) == len(second) == 22


def test_numbers_are_written_for_people() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 3723)] == ["0:00:00", "0:01:00", "1:02:03"]
    assert perplexity(0.0) == 1.0
    assert perplexity(1e4) == math.inf
    assert perplexity(705.0) == math.exp(705.0)
    assert math.isnan(perplexity(math.nan))
    assert Validated(3, {"nll": 2.0}, best=False).line() == "validation at step 3 · nll 2.0000"
    averaged = Validated(3, {"nll": 2.0}, best=True, averaged=True).line()
    assert averaged == "validation at step 3 (averaged) · nll 2.0000 · best so far"


@pytest.mark.parametrize(("average", "expected"), [("none", [False] * 3), ("uniform", [False, True, True])])
def test_a_validation_says_whose_weights_it_measures(average: str, expected: list[bool]) -> None:
    """The average begins after update 2: a validation before that is of the weights themselves."""
    stream = io.StringIO()
    limits = TrainConfig(max_steps=6, validate_every=2)
    optim = OptimConfig.model_validate({"average": average, "average_start": 2})
    with run_folder() as folder, open_run(folder) as run:
        fit(TinyTask(), limits, optim, run, PlainReporter(stream))
    said = [line for line in stream.getvalue().splitlines() if line.startswith("validation at")]
    assert ["(averaged)" in line for line in said] == expected


@pytest.mark.parametrize(
    ("limits", "seconds", "goal"),
    [
        ({"max_steps": 40, "max_epochs": 2}, 0.0, Goal(14, 0.0)),
        ({"max_steps": 10, "max_epochs": 2}, 9.0, Goal(10, 0.0)),
        ({"max_minutes": 2.0}, 90.0, Goal(0, 30.0)),
        ({"max_minutes": 2.0}, 900.0, Goal(0, 1.0)),
    ],
)
def test_the_goal_is_the_first_limit_and_the_minutes_that_are_left(
    limits: dict[str, Any], seconds: float, goal: Goal
) -> None:
    assert goal_of(TrainConfig(accumulate=3, **limits), 20, seconds) == goal
