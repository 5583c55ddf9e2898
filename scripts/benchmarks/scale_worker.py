"""One process of several that share a piece of work, which a line on its standard input asks for.

Started by benchmarks/scale.py with the environment variables of torchrun.
"""

import atexit
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import beam, load
from benchmarks.timing import Work
from dialog.config import DialogConfig
from dialog.task import DialogTask
from dialog.task import build_model as build_dialog_model
from dialog.utterance import Dialog, Utterance
from lm.config.load import load_config
from lm.engine.agreement import Agreement, Clock
from lm.engine.optim import build_optimizer
from lm.engine.sharded import ShardedUpdater
from lm.engine.update import Updater
from lm.language.config import LmConfig
from lm.language.corpora.corpus import TokenSplit
from lm.language.model import LanguageModel
from lm.language.task import LmTask
from lm.parallel.group import Group, process_group
from lm.parallel.reduction import ExactSum
from lm.parallel.shards import slice_of
from lm.stop import StopFlag
from lm.text.tokenizers import BOS, DIALOG, EOS, PAD, UNK, Whitespace
from lm.text.vocabulary import Codec, Vocabulary

WORDS = 10_000
TOKENS = 200_000  # of the made-up text of a language model
DIALOGS, TURNS = 40, 60


def ptb_task(shards: int) -> LmTask:
    """Training of ptb_mos: K = 15, 12 streams of 70 tokens."""
    settings = ["window.random=false", f"train.shards={shards}"]
    config = load_config("ptb_mos", LmConfig, family="lm", overrides=settings).config
    ids = np.random.default_rng(1).integers(0, WORDS, TOKENS).astype(np.uint16)
    split = TokenSplit((ids,), "", outside=0)
    torch.manual_seed(1)
    model = LanguageModel(config, WORDS, 0)
    return LmTask(config, 0, model, split, split, torch.device("cpu"))


def switchboard_task(shards: int) -> DialogTask:
    """Training of switchboard_small_mos on made-up dialogs with a vocabulary of Switchboard's size."""
    settings = [f"train.shards={shards}"]
    config = load_config("switchboard_small_mos", DialogConfig, family="dialog", overrides=settings).config
    words = [f"w{number}" for number in range(WORDS)]
    marks = (PAD, UNK, BOS, EOS, DIALOG)
    codec = Codec(Whitespace(), Vocabulary((*marks, *words), (1,) * (len(marks) + WORDS)))
    rng = random.Random(1)
    dialogs = [
        Dialog(str(number), "", tuple(_utterance(rng, words, turn) for turn in range(TURNS)))
        for number in range(DIALOGS)
    ]
    torch.manual_seed(1)
    model = build_dialog_model(config, codec)
    return DialogTask(config, codec, model, dialogs, dialogs, torch.device("cpu"))


def _utterance(rng: random.Random, words: list[str], turn: int) -> Utterance:
    return Utterance("AB"[turn % 2], " ".join(rng.choices(words, k=rng.randint(1, 22))))


def update(task_of: Callable[[int], Any], shards: int, group: Group) -> Work:
    """An update as the training engine does it: in shards only if there are several."""
    task, updater = _with_updater(task_of(shards))
    train = task.config.train
    agreement = Agreement(group, StopFlag(), Clock(train.checkpoint_minutes))
    sharded = ShardedUpdater(updater, task.shard, train, group, agreement)
    (batch, *_) = task.epoch(0, 0)
    numbers = count(1)

    def work() -> None:
        alone = shards == 1
        sums = updater.gradients([batch]) if alone else sharded.gradients([batch], next(numbers))
        updater.apply(sums, lr=1e-3)
        updater.clear()

    return work


def one_shard(task_of: Callable[[int], Any], shards: int, _: Group) -> Work:
    """An update from the first shard, without an exchange."""
    task, updater = _with_updater(task_of(shards))
    (batch, *_) = task.epoch(0, 0)
    shard = task.shard(batch, 0, shards)

    def work() -> None:
        updater.apply(updater.gradients([shard]), lr=1e-3)
        updater.clear()

    return work


def _with_updater(task: Any) -> tuple[Any, Updater[Any]]:
    model, config = task.model.train(), task.config
    optimizer = build_optimizer(config.optim, model, config.train.precision)
    return task, Updater(model, task.loss, optimizer, config.optim, config.train)


def decoding(group: Group) -> Work:
    """Beam 10 over 32 contexts, of which every process has a slice."""
    lengths = tuple(length for length in beam.SPREAD for _ in range(4))
    lengths = tuple(random.Random(1).sample(lengths, len(lengths)))
    search = beam.work_on(lengths[slice_of(len(lengths), group.rank, group.size)], beam.exact_step, beam.ours)

    def decode() -> None:
        group.gather(search())

    return decode


def preparation(processes: int, group: Group) -> Work:
    """The command ``lm prepare`` on a made-up text; each call writes another folder."""
    folder = Path(tempfile.mkdtemp(prefix="highrank-scale-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    numbers, text = count(), load.text_of(folder, 10_000_000)
    text.write_bytes(3 * text.read_bytes())
    command = [sys.executable, "-m", "lm", "prepare", str(text), "--processes", str(processes), "--out"]

    def work() -> None:
        subprocess.run([*command, str(folder / str(next(numbers)))], check=True, stdout=subprocess.DEVNULL)

    return work


def exchange(parameters: int, exact: int, group: Group) -> Work:
    """The sum of the gradients of two shards, one in each process."""
    flat = torch.zeros(parameters)
    return partial(ExactSum(group, group.size), [flat]) if exact else partial(group.sum_, flat)


WORKS: dict[str, Callable[..., Work]] = {
    "ptb": partial(update, ptb_task),
    "ptb-shard": partial(one_shard, ptb_task),
    "switchboard": partial(update, switchboard_task),
    "switchboard-shard": partial(one_shard, switchboard_task),
    "beam": decoding,
    "prepare": preparation,
    "exchange": exchange,
}


def main() -> None:
    name, *numbers = sys.argv[1:]
    with process_group(5) as group:
        work = WORKS[name](*map(int, numbers), group)
        print("ready", flush=True)
        for _ in sys.stdin:
            with torch.inference_mode(name == "beam"):
                work()
            print("done", flush=True)


if __name__ == "__main__":
    main()
