"""An update of an encoder-decoder, beside joeynmt's of the same sizes in an interpreter of its own."""

import os
import subprocess
from functools import partial
from pathlib import Path

import torch

from benchmarks import joeynmt
from benchmarks.joeynmt import SIZES
from benchmarks.timing import Case, Ceiling, Variant, Work
from dialog.batches import Batch, Item, collate
from dialog.config import DialogConfig
from dialog.seq2seq import Seq2Seq
from lm.engine.optim import build_optimizer
from lm.engine.update import StepLoss, Updater

PEER = "HIGHRANK_JOEYNMT"  # environment variable: the interpreter that bench.py --joeynmt names
ATTENTIONS = {"dot": "luong", "additive": "bahdanau"}  # ours and theirs
PAD, BOS, EOS = 1, 2, 3


def cases(_: Ceiling) -> list[Case]:
    """A flat LSTM with either attention and softmax, in both; ours with a MoS of five besides."""
    batch = _batch()
    return [_case(ours, theirs, batch) for ours, theirs in ATTENTIONS.items()]


def _case(attention: str, theirs: str, batch: Batch) -> Case:
    heads = {"softmax": {}, "MoS, K = 5": {"kind": "mos", "components": 5}}
    variants = [
        Variant(f"ours, {name}", partial(_work, _config(attention, head), batch))
        for name, head in heads.items()
    ]
    if PEER in os.environ:
        variants.insert(0, Variant("joeynmt, softmax", partial(_peer, theirs)))
    name = f"update of an encoder-decoder of {SIZES.hidden}, {attention} attention"
    return Case(name, variants, ("tokens", int(batch.lengths.sum())), memory=False)


def _config(attention: str, head: dict[str, object]) -> DialogConfig:
    return DialogConfig.model_validate(
        {
            "model": {"embedding_size": SIZES.embedding},
            "encoder": {"kind": "flat", "cell": "lstm", "context_size": SIZES.hidden},
            "decoder": {"hidden_size": SIZES.hidden, "attention": attention},
            "head": head,
            "optim": {"clip_norm": 1.0},
        }
    )


def _batch() -> Batch:
    items = [Item(((*source, EOS),), (0,), (BOS, *target, EOS)) for source, target in joeynmt.conversations()]
    return collate(items, PAD)


def _work(config: DialogConfig, batch: Batch) -> Work:
    torch.manual_seed(1)
    model = Seq2Seq(config, SIZES.vocab).train()
    tokens = int(batch.lengths.sum())

    def step_loss(batch: Batch) -> StepLoss:
        objective, nll = model.objective(batch)
        return StepLoss(objective, nll.detach(), tokens)

    optimizer = build_optimizer(config.optim, model, config.train.precision)
    updater = Updater(model, step_loss, optimizer, config.optim, config.train)

    def update() -> None:
        updater.apply(updater.gradients([batch]), lr=1e-3)
        updater.clear()

    return update


def _peer(attention: str) -> Work:
    """Updates of joeynmt, each asked for by a line; the process ends with this one's end of the pipe."""
    command = [os.environ[PEER], str(Path(joeynmt.__file__)), attention, str(torch.get_num_threads())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    asked, answered = process.stdin, process.stdout

    def update() -> None:
        asked.write("update\n")
        asked.flush()
        if answered.readline() != "done\n":
            process.communicate()  # what is left of it
            raise RuntimeError(f"{os.environ[PEER]}: joeynmt does not answer, see above")

    return update
