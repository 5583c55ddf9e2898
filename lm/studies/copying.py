"""The reverse copy task of Melis et al. (2020, §4.3), which measures the memory of a cell.

An encoder reads random tokens, and a decoder outputs them backwards from only the encoder's last state. Both
have their own cell and embedding. Longer sequences are harder, and the task needs nothing except memory.
Every cell has the largest H within the same number of parameters, and the same number of updates. Several
learning rates are tried. The result is the test loss of the rate with the best validation loss.

Differences from the paper: sequences are drawn anew for every update, unless a corpus of ``lm prepare
reverse-copy`` gives 500,000 as in the paper. The learning rate follows a cosine, instead of averaged weights.

L length · B sequences · V symbols · E embedding size · H hidden size.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from lm.cells.config import CellConfig
from lm.cells.layers import recurrent_layer
from lm.config.section import MAX_LAYERS, MAX_SEED, MAX_SIZE
from lm.engine.config import OptimConfig
from lm.engine.shapes import shapes_only
from lm.errors import DivergenceError, require
from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.language.corpora.pieces import MAX_COPY
from lm.measures import learnt
from lm.steps import OnProgress, no_progress
from lm.studies.copying_data import Corpus, Drawn
from lm.studies.options import require_positive
from lm.studies.sweep import Sweep, descend

AT_ONCE = 512  # sequences per batch of the evaluation
CLIP = 10.0  # norm of the gradient of a loss summed over time, as in the authors' code
POINTS, RESULT = "points.jsonl", "reverse-copy.json"
MEASURES: dict[str, type] = {"parameters": int, "valid_nll": float, "test_nll": float, "exact": float}


@dataclass(frozen=True)
class CopyOptions:
    """Options of the sweep and sizes of models. Raises a one-line ConfigError for invalid values."""

    lengths: tuple[int, ...] = (10, 20, 30, 40)
    vocab: int = 32
    cells: tuple[str, ...] = ("lstm", "mogrifier")
    rounds: int = 5  # of the Mogrifier; below, the rank of its gates
    rank: int = 16
    embedding_size: int = 32
    parameters: int = 120_000
    steps: int = 1500
    lrs: tuple[float, ...] = (0.002, 0.004)
    seeds: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        for name in ("lengths", "cells", "lrs", "seeds"):
            values: tuple[object, ...] = getattr(self, name)
            require(len(values) > 0, f"--{name}: name at least one")
            require(len(set(values)) == len(values), f"--{name}: repeated value; name each once")
        kinds = get_args(CellConfig.model_fields["kind"].annotation)
        for cell in self.cells:
            require(cell in kinds, f"--cells {cell!r}: unknown cell; choose from {', '.join(kinds)}")
        for option in ("vocab", "rounds", "rank", "embedding_size", "parameters", "steps"):
            value = getattr(self, option)
            least = {"vocab": 2, "rounds": 0, "rank": 0}.get(option, 1)
            most = {"rounds": MAX_LAYERS, "parameters": MAX_SEED}.get(option, MAX_SIZE)
            require(
                least <= value <= most,
                f"--{option.replace('_', '-')} {value}: must be from {least} to {most}",
            )
        for length in self.lengths:
            require(1 <= length <= MAX_COPY, f"--lengths {length}: must be from 1 to {MAX_COPY:,}")
        for lr in self.lrs:
            require_positive("--lrs", lr)
        for seed in self.seeds:
            require(0 <= seed <= MAX_SEED, f"--seeds {seed}: must be between 0 and {MAX_SEED}")
        _ = self.hidden_sizes  # raises the error of too few parameters

    @property
    def mogrifies(self) -> bool:
        """True if one of the cells has rounds."""
        return any(self.cell(kind).mogrifies for kind in self.cells)

    def cell(self, kind: str) -> CellConfig:
        """Config of a cell."""
        cell = CellConfig.model_validate({"kind": kind})
        gates = {"rounds": self.rounds, "rank": self.rank} if cell.mogrifies else {}
        return cell.model_copy(update=gates)

    @cached_property
    def hidden_sizes(self) -> dict[str, int]:
        """Largest H of each cell for which the model has at most ``parameters``."""
        most, found = self.parameters, {}
        for kind in self.cells:
            sizes = range(1, min(most, MAX_SIZE))
            found[kind] = bisect_right(sizes, most, key=partial(self._parameters, kind))
            require(found[kind] > 0, f"--parameters {most}: too few for any {kind}; raise it")
        return found

    def settings(self, seed: int, length: int, kind: str, lr: float) -> dict[str, Any]:
        """Settings that determine the result of one training."""
        return {
            "seed": seed, "length": length, "vocab": self.vocab, "cell": self.cell(kind).model_dump(),
            "embedding_size": self.embedding_size, "hidden_size": self.hidden_sizes[kind],
            "steps": self.steps, "lr": lr,
        }  # fmt: skip

    def _parameters(self, kind: str, hidden_size: int) -> int:
        with shapes_only():
            model = Copier(self.cell(kind), self.vocab, self.embedding_size, hidden_size)
        return sum(parameter.numel() for parameter in model.parameters())


class Copier(nn.Module):
    """An encoder and a decoder of one layer each, for V symbols and an end of the sequence."""

    def __init__(self, cell: CellConfig, vocab: int, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        self.end, self.hidden_size = vocab, hidden_size
        self.words, self.said = (nn.Embedding(vocab + 1, embedding_size) for _ in range(2))
        self.encoder, self.decoder = (
            recurrent_layer(cell, embedding_size, hidden_size, 0.0) for _ in range(2)
        )
        config = HeadConfig(kind="softmax", embedding_size=embedding_size)
        self.head = Head(config, hidden_size, vocab + 1)
        for embedding in (self.words, self.said):
            nn.init.normal_(embedding.weight, std=embedding_size**-0.5)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens (L, B) → the decoder's states (L + 1, B, H) and their targets (L + 1, B)."""
        end = torch.full_like(tokens[:1], self.end)
        zero = self.words.weight.new_zeros(tokens.shape[1], self.hidden_size)
        _, state = self.encoder(self.words(torch.cat((tokens, end))), (zero, zero))
        targets = torch.cat((tokens.flip(0), end))
        states, _ = self.decoder(self.said(torch.cat((end, targets[:-1]))), state)
        return states, targets


def copying(
    options: CopyOptions, out: Path, progress: OnProgress = no_progress, corpora: Sequence[Corpus] = ()
) -> dict[str, Any]:
    """Train every cell at every length and rate, and save each result to ``out`` at once.

    ``out/points.jsonl`` holds every training that ended without divergence, so the same command resumes an
    interrupted sweep.
    ``out/reverse-copy.json`` is the returned result, with a row for every seed, length and cell. ``corpora``
    have sequences of every length over V symbols; empty = drawn at random. StorageError if ``out`` cannot be
    written, or its points cannot be read. DivergenceError if a cell's trainings diverged at every rate.
    """
    of_length = {corpus.length: corpus for corpus in corpora}
    if corpora:
        fit = set(of_length) == set(options.lengths) and {c.vocab for c in corpora} == {options.vocab}
        require(fit, "lengths or symbols of the corpora differ from the options; give the same")
    places = list(product(options.seeds, options.lengths, options.cells))
    sweep = Sweep(out, POINTS, MEASURES, len(places) * len(options.lrs), progress)
    rows: list[dict[str, Any]] = []
    for seed, length, cell in places:
        found: list[dict[str, Any]] = []
        for lr in options.lrs:
            settings, corpus = options.settings(seed, length, cell, lr), of_length.get(length)
            if corpus:
                settings["corpus"] = list(corpus.fingerprints)
            train = partial(train_point, options, seed, length, cell, lr, corpus)
            try:
                found.append({"lr": lr} | sweep.measured(settings, train))
            except DivergenceError:
                if lr == options.lrs[-1] and not found:
                    raise
        best = min(found, key=lambda point: float(point["valid_nll"]))
        where = {"seed": seed, "length": length, "cell": cell}
        rows.append(where | {"hidden_size": options.hidden_sizes[cell]} | best)
    result: dict[str, Any] = {"settings": asdict(options), "rows": rows}
    if corpora:
        result["corpora"] = {corpus.folder: list(corpus.fingerprints) for corpus in corpora}
    return sweep.finished(RESULT, result)


def train_point(
    options: CopyOptions, seed: int, length: int, kind: str, lr: float, corpus: Corpus | None = None
) -> dict[str, Any]:
    """Train one model, and measure it.

    Returns:
        ``parameters``: their number. ``valid_nll`` and ``test_nll``: nats per token.
        ``exact``: share of the test sequences in which every token is the likeliest, given the true ones
        before it.
    """
    random = torch.Generator().manual_seed(seed)
    data = corpus or Drawn(options.vocab, length, random)
    batches = data.batches(random)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Copier(options.cell(kind), options.vocab, options.embedding_size, options.hidden_sizes[kind])
    optim = OptimConfig(
        lr=lr, betas=(0.0, 0.999), schedule="cosine", decay_steps=options.steps, clip_norm=CLIP / (length + 1)
    )

    def loss_of() -> Tensor:
        states, targets = model(next(batches))
        loss: Tensor = model.head.loss(states, targets) / targets.numel()
        return loss

    descend(model, loss_of, optim)
    (valid_nll, _), (test_nll, exact) = _measured(model, data.valid), _measured(model, data.test)
    if not (learnt(valid_nll, options.vocab + 1) and learnt(test_nll, options.vocab + 1)):
        raise DivergenceError(f"{kind} at length {length} diverged at rate {lr}; lower --lrs")
    count = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": count, "valid_nll": valid_nll, "test_nll": test_nll, "exact": exact}


@torch.no_grad()
def _measured(model: Copier, tokens: Tensor) -> tuple[float, float]:
    """Nats per token, and the share of completely correct sequences."""
    nll, exact = 0.0, 0
    for part in tokens.split(AT_ONCE, 1):
        states, targets = model(part.long())
        log_probs = model.head.log_probs(states)  # (L + 1, B, V + 1)
        nll -= log_probs.gather(2, targets[..., None]).sum().item()
        exact += int((log_probs.argmax(2) == targets).all(0).sum())
    length, count = tokens.shape
    return nll / (count * (length + 1)), exact / count
