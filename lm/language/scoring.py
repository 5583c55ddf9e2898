"""Log-probabilities of the tokens of a text of any length.

A text is one stream: each token is predicted from all before it, the first one from ``<eos>``. In the
authors' code (``paper``) the stream begins with the first token, which is not scored.

N tokens · H hidden size.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm.disk.storage import require_writable, write_atomic
from lm.errors import visible
from lm.heads.states import Layers
from lm.language.corpus import text_part
from lm.language.model import LanguageModel
from lm.language.shards import line_ids
from lm.language.survey import read_tokens
from lm.language.trained import READ_LENGTH, Reader, TrainedLm
from lm.language.windows import Ids
from lm.measures import perplexity, require_finite
from lm.runs.evaluations import Result
from lm.runs.outputs import require_apart
from lm.text.lines import InputLog

Floats = NDArray[np.float64]

TOKENS_TOGETHER = 4096  # tokens of consecutive lines in a batch


def no_advance(tokens: int) -> None:
    """No-op callback."""


def token_nll(
    trained: TrainedLm,
    ids: Ids,
    *,
    paper: bool = False,
    temperature: float = 1.0,
    model: LanguageModel | None = None,
    window: int = READ_LENGTH,
    advance: Callable[[int], None] = no_advance,
) -> Floats:
    """−log P of every token that is scored, in nats: (N,), or (N − 1,) for ``paper``.

    Args:
        temperature: divides the logits of every component.
        model: the model to use instead of the trained one, in its current mode.
        window: tokens read at once. With active dropout they share a mask.
        advance: called with the number of tokens of every window.
    """
    model = model or trained.model
    pieces = [np.empty(0)]
    for hidden, targets in trained.readings(ids, paper=paper, model=model, window=window):
        pieces.append(hidden_nll(model, hidden, targets, temperature))
        advance(len(targets))
    return np.concatenate(pieces)


def hidden_nll(model: LanguageModel, hidden: Layers, targets: Tensor, temperature: float = 1.0) -> Floats:
    """−log P in nats, (n,), of the targets of one window of :meth:`TrainedLm.readings`."""
    with torch.no_grad():
        nll = model.head.nll(model.for_head(hidden), targets[:, None], component_temperature=temperature)
    return nll[:, 0].double().cpu().numpy()


def score_lines(trained: TrainedLm, path: Path, *, independent: bool = False) -> Iterator[Result]:
    """Log-probabilities of every token of every line of a text file, read like ``data.test``.

    Each line ends in ``<eos>``, which is also scored. Each line is conditioned on all lines before it, unless
    lines are ``independent``. If tokens are bytes, an unfinished last line has no ``<eos>``. A line of more
    than a MiB then comes in pieces with the same number. A line yields ``{"line", "tokens", "log_probs",
    "nll", "perplexity"}`` in nats, where ``nll`` is the mean over its tokens. DataError if the file is
    unreadable.
    """
    vocabulary = trained.codec.vocabulary
    eos = torch.tensor([vocabulary.eos], device=trained.device)
    reader = Reader(trained.model, eos)
    last = 0
    for lines in _groups(trained, path, 1 if independent else TOKENS_TOGETHER):
        if independent and lines[0][0] != last:
            reader = Reader(trained.model, eos)
        last = lines[-1][0]
        tokens = torch.tensor([token for _, ids in lines for token in ids], device=trained.device)
        pieces = [hidden_nll(trained.model, *reading) for reading in reader.readings(tokens)]
        ends = np.cumsum([len(ids) for _, ids in lines])[:-1]
        for (number, ids), scores in zip(lines, np.split(-np.concatenate(pieces), ends), strict=True):
            nll = -float(scores.mean())
            yield {
                "line": number,
                "tokens": vocabulary.words(ids),
                "log_probs": scores.tolist(),
                "nll": nll,
                "perplexity": require_finite(perplexity(nll), f"{visible(path)}:{number}"),
            }


def score_file(
    run: Path, path: Path, output: Path, *, checkpoint: str = "best", independent: bool = False
) -> Result:
    """Write the results of :func:`score_lines` to ``output`` as JSONL. Return the sums.

    Raises DataError, StorageError, DivergenceError, and ConfigError if ``output`` is ``path``. After an error
    or a signal nothing is written.
    """
    require_apart([output], [path])
    require_writable(output)
    trained = TrainedLm.load(run, checkpoint)
    lines, tokens, total = 0, 0, 0.0

    def write(target: Path) -> None:
        nonlocal lines, tokens, total
        with target.open("w", encoding="utf-8") as file:
            for row in score_lines(trained, path, independent=independent):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                lines, tokens = lines + 1, tokens + len(row["tokens"])
                total -= math.fsum(row["log_probs"])

    write_atomic(output, write)
    nll = total / tokens
    return {
        "run": str(run),
        "checkpoint": checkpoint,
        "file": str(path),
        "output": str(output),
        "independent": independent,
        "lines": lines,
        "tokens": tokens,
        "nll": nll,
        "perplexity": require_finite(perplexity(nll), visible(path)),
    }


def _groups(trained: TrainedLm, path: Path, size: int) -> Iterator[list[tuple[int, list[int]]]]:
    """Numbers and tokens of consecutive lines, in groups of at least ``size`` tokens except for the last."""
    group: list[tuple[int, list[int]]] = []
    held, codec = 0, trained.codec
    log = InputLog(command=None)
    for line in read_tokens([text_part(path, codec.tokenizer.kind)], codec.tokenizer, log):
        group.append((line.line.number, line_ids(line, codec)))
        held += len(group[-1][1])
        if held >= size:
            yield group
            group, held = [], 0
    if group:
        yield group
