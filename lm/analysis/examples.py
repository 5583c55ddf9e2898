"""Examples that one model predicts better than another: context, target and best guesses of both."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lm.console.tables import Table
from lm.errors import DataError, DivergenceError
from lm.heads.sampling import ranked
from lm.language.trained import TrainedLm
from lm.language.windows import Ids

ROWS = 256  # tokens per block of both models


@dataclass(frozen=True)
class Wanted:
    """Selection of examples: the ``count`` largest gains of at least ``margin`` nats."""

    count: int = 10
    margin: float = 1.0
    context: int = 30  # number of words shown before the target
    guesses: int = 5  # number per model


@dataclass(frozen=True)
class Guess:
    """A word and its probability, with its temperature if the model has temperatures of words."""

    word: str
    probability: float
    temperature: float | None = None


@dataclass(frozen=True)
class BetterToken:
    """A token that model B predicts better than model A.

    ``gain`` is in nats. Log-probabilities of the target, best guesses and temperatures of the target are by
    model, ``a`` and ``b``.
    """

    position: int
    context: Sequence[str]
    target: str
    gain: float
    log_prob: Mapping[str, float]
    guesses: Mapping[str, Sequence[Guess]]
    temperature: Mapping[str, float] | None = None


@dataclass(frozen=True)
class BetterTokens:
    """The largest gains of model B over A, of at least ``margin`` nats.

    ``mean_gain`` in nats a token and ``share_better``, the share of tokens to which B gives more
    probability, are over the whole text.
    """

    tokens: int
    margin: float
    mean_gain: float
    share_better: float
    examples: Sequence[BetterToken]


def find_examples(
    first: Iterator[Tensor], second: Iterator[Tensor], ids: Ids, words: Sequence[str], wanted: Wanted
) -> BetterTokens:
    """Find the largest gains in log-probability of the target of model B over model A.

    The largest gains come first. Of equal gains the earlier position is preferred. Log-probabilities come in
    blocks (n, V) that cover the targets ``ids`` (T,) in order. DivergenceError for NaN. ValueError if the
    blocks of the models differ in shape or do not cover the text.
    """
    best = list[BetterToken]()
    start, gain_sum, better = 0, 0.0, 0
    for block_a, block_b in zip(first, second, strict=True):
        if block_a.shape != block_b.shape:
            raise ValueError(f"blocks of {tuple(block_a.shape)} and {tuple(block_b.shape)} do not match")
        targets = torch.as_tensor(ids[start : start + len(block_a)].astype("int64"), device=block_a.device)
        log_a = block_a.gather(1, targets[:, None])[:, 0].double().cpu()
        log_b = block_b.gather(1, targets[:, None].to(block_b.device))[:, 0].double().cpu()
        gains = log_b - log_a
        if bool(gains.isnan().any()):
            raise DivergenceError(
                "probabilities are not finite: a model has diverged; choose another checkpoint"
            )
        gain_sum += float(gains.sum())
        better += int((gains > 0).sum())
        least = best[-1].gain if len(best) == wanted.count > 0 else -math.inf
        for row in torch.sort(gains, descending=True, stable=True).indices[: wanted.count].tolist():
            at, gain = start + row, float(gains[row])
            if gain < wanted.margin or gain <= least:
                break
            example = BetterToken(
                position=at,
                context=[words[index] for index in ids[max(0, at - wanted.context) : at].tolist()],
                target=words[int(ids[at])],
                gain=gain,
                log_prob={"a": float(log_a[row]), "b": float(log_b[row])},
                guesses={
                    "a": _guesses(block_a[row], words, wanted.guesses),
                    "b": _guesses(block_b[row], words, wanted.guesses),
                },
            )
            best.append(example)
        best = sorted(best, key=lambda one: one.gain, reverse=True)[: wanted.count]
        start += len(block_a)
    if start != len(ids):
        raise ValueError(f"got {start} rows for {len(ids)} tokens")
    return BetterTokens(
        tokens=start,
        margin=wanted.margin,
        mean_gain=gain_sum / max(1, start),
        share_better=better / max(1, start),
        examples=best,
    )


def _guesses(logs: Tensor, words: Sequence[str], count: int) -> list[Guess]:
    """Likeliest words with their probabilities. Ties go to the smaller id."""
    values, indices = ranked(logs[None], min(count, len(logs)))
    best = zip(indices[0].tolist(), values[0].exp().tolist(), strict=True)
    return [Guess(words[index], probability) for index, probability in best]


def compare_runs(first: TrainedLm, second: TrainedLm, ids: Ids, wanted: Wanted) -> BetterTokens:
    """Apply :func:`find_examples` to two runs of one vocabulary. Raises DataError without a token.

    Guesses of a model with temperatures of words include the temperatures (Tables 5 and 8 of Contextual
    Temperature for Language Modeling).
    """
    words = first.codec.vocabulary.tokens
    if not len(ids):
        raise DataError("the text has no tokens for examples; name a longer text")
    rows = max(1, min(ROWS, (8 << 20) // len(words)))  # of a block of at most 64 MB in float64
    result = find_examples(
        first.log_probs(ids, rows=rows), second.log_probs(ids, rows=rows), ids, words, wanted
    )
    for key, trained in (("a", first), ("b", second)):
        if trained.model.head.temperature is not None:
            result = replace(result, examples=_with_temperatures(result.examples, key, trained, ids))
    return result


def _with_temperatures(
    examples: Sequence[BetterToken], key: str, trained: TrainedLm, ids: Ids
) -> list[BetterToken]:
    """The examples with the model's temperature of each target and guess."""
    found = {example.position: example for example in examples}
    words = {word: index for index, word in enumerate(trained.codec.vocabulary.tokens)}
    start = 0
    for hidden, targets in trained.readings(ids):
        for row in range(len(targets)):
            if (example := found.get(start + row)) is None:
                continue
            with torch.no_grad():
                tau = trained.model.head.temperatures(hidden.last[row])[0].tolist()
            guesses = [replace(guess, temperature=tau[words[guess.word]]) for guess in example.guesses[key]]
            found[start + row] = replace(
                example,
                guesses={**example.guesses, key: guesses},
                temperature={**(example.temperature or {}), key: tau[words[example.target]]},
            )
        start += len(targets)
    return [*found.values()]


def _guess_text(guess: Guess) -> str:
    tau = "" if guess.temperature is None else f" τ {guess.temperature:.4f}"
    return f"{guess.word} {guess.probability:.2f}{tau}"


def example_tables(name_a: str, name_b: str, result: BetterTokens) -> list[Table | str]:
    """Table per example, and a summary over all tokens."""
    summary = (
        f"over {result.tokens:,} tokens {name_b} gains {result.mean_gain:.4f} nats a token "
        f"and is better at {100 * result.share_better:.1f}%"
    )
    if not result.examples:
        return [summary, f"no token where it gains {result.margin} nats"]
    tables: list[Table | str] = [summary]
    for example in result.examples:
        title = f"{' '.join(example.context)} [{example.target}]  (token {example.position + 1:,})"
        rows = [
            {
                "model": name,
                "log P(target)": example.log_prob[key],
                "guesses": "  ".join(map(_guess_text, example.guesses[key])),
            }
            for key, name in (("a", name_a), ("b", name_b))
        ]
        tables.append(Table(title, rows))
    return tables
