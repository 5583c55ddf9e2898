"""Log-probabilities of the tokens of a text of any length.

A text is one stream: each token is predicted from all before it, the first one from ``<eos>``. In the
authors' code (``paper``) the stream begins with the first token, which is not scored.

N tokens · H hidden size.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lm.arrays import Floats
from lm.config.named_data import split_of_run
from lm.disk.storage import write_atomic
from lm.engine.device import flushed_denormals
from lm.errors import DivergenceError, visible
from lm.heads.head import Head
from lm.heads.states import Layers
from lm.language.corpora.corpus import load_split, text_piece
from lm.language.corpora.split_files import line_ids
from lm.language.corpora.survey import read_tokens
from lm.language.model import LanguageModel
from lm.language.trained import READ_LENGTH, Reader, TrainedLm
from lm.language.windows import Ids
from lm.measures import perplexity, require_finite
from lm.parallel.group import ALONE, process_group
from lm.parallel.slices import joined, joined_rows
from lm.results import as_json
from lm.runs.evaluations import loaded
from lm.runs.outputs import require_output
from lm.steps import OnAdvance, no_advance
from lm.text.lines import InputLog

SEARCHED = 50_000  # validation tokens for the choice of a temperature or of a cache
_ROUNDING = 1e-4  # largest deviation of a sum of probabilities from 1, of a head in float32
TOKENS_TOGETHER = 4096  # tokens of consecutive lines in a batch


class Line(NamedTuple):
    """The tokens of a line, or of a part of one."""

    number: int
    ids: list[int]
    ends: bool  # the line ends here


@dataclass(frozen=True)
class ScoredLine:
    """Log-probabilities of the tokens of a line in nats, their negative mean, and the perplexity."""

    line: int
    tokens: Sequence[str]
    log_probs: Sequence[float]
    nll: float
    perplexity: float


@dataclass(frozen=True)
class ScoredFile:
    """Sums over a file that was scored by line."""

    run: str
    checkpoint: str
    file: str
    output: str
    independent: bool
    lines: int
    tokens: int
    nll: float
    perplexity: float


def token_nll(
    trained: TrainedLm,
    ids: Ids,
    *,
    paper: bool = False,
    temperature: float = 1.0,
    model: LanguageModel | None = None,
    window: int = READ_LENGTH,
    advance: OnAdvance = no_advance,
) -> Floats:
    """−log P of every token that is scored, in nats: (N,), or (N − 1,) for ``paper``.

    Args:
        temperature: divides the logits of every component.
        model: the model to use instead of the trained one, in its current mode.
        window: tokens read at once. With active dropout they share a mask.
        advance: called with the number of tokens of every window.
    """
    group = trained.group if model is None else ALONE  # of a model with dropout, whole passes are shared
    model = model or trained.model

    def scored(own: range) -> Tensor:
        pieces = [np.empty(0)]
        for hidden, targets in trained.readings(ids, paper=paper, model=model, window=window, only=own):
            pieces.append(hidden_nll(model, hidden, targets, temperature))
            advance(len(targets) * trained.group.size)
        return torch.from_numpy(np.concatenate(pieces))

    return joined_rows(group, windows_of(ids, window, paper=paper), scored).numpy()


def windows_of(ids: Ids, window: int = READ_LENGTH, *, paper: bool = False) -> int:
    """Number of windows of :meth:`TrainedLm.readings`."""
    return math.ceil((len(ids) - paper) / window)


def searched_text(trained: TrainedLm) -> tuple[str, Ids]:
    """Name of the run's validation split, and its tokens for the choice of an evaluation's parameters."""
    source = split_of_run(trained.config.data, "valid")
    return source, load_split(source, trained.codec).ids()[:SEARCHED]


def hidden_nll(model: LanguageModel, hidden: Layers, targets: Tensor, temperature: float = 1.0) -> Floats:
    """−log P in nats, (n,), of the targets of one window of :meth:`TrainedLm.readings`.

    DivergenceError if the probabilities for the first target do not sum to one.
    """
    states = model.for_head(hidden)
    with torch.no_grad():
        nll = model.head.nll(states, targets[:, None], component_temperature=temperature)[:, 0]
    if not model.training:  # dropout would differ
        require_distribution(model.head, states, targets, nll, temperature)
    return nll.double().cpu().numpy()


@torch.no_grad()
def require_distribution(
    head: Head, states: Layers, targets: Tensor, nll: Tensor, temperature: float = 1.0
) -> None:
    """Raise DivergenceError unless P = exp(−``nll``) of the first target and P of all other words sum to one.

    states: (n, ...), the input of the head. targets and nll: (n,).
    """
    first = states.map(lambda layer: layer[:1])
    probs = head.log_probs(first, temperature).flatten().double().exp()
    probs[targets[0]] = nll[0].double().neg().exp()
    require_sums(probs.sum()[None])


def require_sums(sums: Tensor) -> None:
    """Raise DivergenceError unless the sums of distributions are one."""
    if sums.numel() and not (sums - 1).abs().max() < _ROUNDING:
        worst = float(sums[(sums - 1).abs().argmax()])
        raise DivergenceError(
            f"probabilities sum to {worst:.6f} instead of 1: the model has diverged; choose another"
            " checkpoint"
        )


def score_lines(trained: TrainedLm, path: Path, *, independent: bool = False) -> Iterator[ScoredLine]:
    """Log-probabilities of every token of every line of a text file, read like ``data.test``.

    Each line ends in ``<eos>``, which is also scored. Each line is conditioned on all lines before it, unless
    lines are ``independent``. If tokens are bytes, an unfinished last line has no ``<eos>``. A line of more
    than a MiB then comes in pieces with the same number. DataError if the file is unreadable.
    """
    vocabulary, group = trained.codec.vocabulary, trained.group
    read = _LineReader(trained, independent)
    lines = _groups(trained, path)
    while together := [*islice(lines, group.size)]:
        stretches = [[line] for each in together for line in each] if independent else together
        scored = joined(group, len(stretches), partial(read.scores, stretches))
        for line, scores in zip(chain.from_iterable(stretches), scored, strict=True):
            nll = -float(np.mean(scores))
            yield ScoredLine(
                line=line.number,
                tokens=vocabulary.words(line.ids),
                log_probs=scores,
                nll=nll,
                perplexity=require_finite(perplexity(nll), f"{visible(path)}:{line.number}"),
            )


class _LineReader:
    """A position in a text of which the processes of a group score slices."""

    def __init__(self, trained: TrainedLm, independent: bool) -> None:
        self._trained, self._independent = trained, independent
        self._reader = self._begin()

    def scores(self, stretches: Sequence[Sequence[Line]], own: range) -> Iterator[list[float]]:
        """Yield log-probabilities of the tokens of each line of ``own`` of the next stretches of a text.

        The trunk reads all stretches. Of independent lines, it reads others only where a line goes on in the
        next stretch.
        """
        model = self._trained.model
        for index, lines in enumerate(stretches):
            tokens = torch.tensor(
                [token for line in lines for token in line.ids], device=self._trained.device
            )
            forgotten = self._independent and lines[-1].ends
            if index in own:
                pieces = [hidden_nll(model, *reading) for reading in self._reader.readings(tokens)]
                ends = np.cumsum([len(line.ids) for line in lines])[:-1]
                yield from (scores.tolist() for scores in np.split(-np.concatenate(pieces), ends))
            elif not forgotten:
                for _ in self._reader.readings(tokens):
                    pass
            if forgotten:
                self._reader = self._begin()

    def _begin(self) -> Reader:
        begin = self._trained.codec.vocabulary.bos
        return Reader(self._trained.model, torch.tensor([begin], device=self._trained.device))


@flushed_denormals()
def score_file(
    run: Path, path: Path, output: Path, *, checkpoint: str = "best", independent: bool = False
) -> ScoredFile:
    """Write the results of :func:`score_lines` to ``output`` as JSONL. Return the sums.

    Raises DataError, StorageError, DivergenceError, and ConfigError if ``output`` is ``path``. After an error
    or a signal nothing is written.
    """
    lines, tokens, total = 0, 0, 0.0
    with process_group() as group:
        group.share(lambda: require_output(output, [path]))
        trained, weights = group.every(lambda: loaded(run, checkpoint, TrainedLm.load))
        group.require_equal({"checkpoint": weights})
        rows = score_lines(replace(trained, group=group), path, independent=independent)

        def write(target: Path) -> None:
            nonlocal lines, tokens, total
            with target.open("w", encoding="utf-8") as file:
                for row in rows:
                    file.write(json.dumps(as_json(row), ensure_ascii=False) + "\n")
                    lines, tokens = lines + 1, tokens + len(row.tokens)
                    total -= math.fsum(row.log_probs)

        if group.rank == 0:
            write_atomic(output, write)
        else:
            write(Path(os.devnull))
    nll = total / tokens
    return ScoredFile(
        run=str(run),
        checkpoint=checkpoint,
        file=str(path),
        output=str(output),
        independent=independent,
        lines=lines,
        tokens=tokens,
        nll=nll,
        perplexity=require_finite(perplexity(nll), visible(path)),
    )


def _groups(trained: TrainedLm, path: Path) -> Iterator[list[Line]]:
    """Consecutive lines, in groups of at least :data:`TOKENS_TOGETHER` tokens except for the last."""
    group: list[Line] = []
    held, codec = 0, trained.codec
    log = InputLog(command=None)
    for line in read_tokens([text_piece(path, codec.tokenizer.kind)], codec.tokenizer, log):
        group.append(Line(line.line.number, line_ids(line, codec), line.line.ends))
        held += len(group[-1].ids)
        if held >= TOKENS_TOGETHER:
            yield group
            group, held = [], 0
    if group:
        yield group
