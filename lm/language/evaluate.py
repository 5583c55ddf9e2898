"""Evaluation of a language model on a text: perplexity, losses by word frequency, and refinements.

Every token is scored once, in one stream, so the result depends on no window and no batch. Every evaluation
is stored in the run (:mod:`lm.runs.evaluations`), with sums over blocks of text. :mod:`lm.language.compare`
resamples these blocks.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from lm.errors import ConfigError, visible
from lm.language.cache import cached_nll
from lm.language.corpus import load_split
from lm.language.details import passages_and_use
from lm.language.model import LanguageModel
from lm.language.refinements import Refinements, refined
from lm.language.scoring import Floats, token_nll
from lm.language.trained import READ_LENGTH, TrainedLm
from lm.language.windows import Ids
from lm.measures import guessing, perplexity, require_finite
from lm.parallel.group import process_group
from lm.runs.evaluations import Result, Subject, keep, loaded, require_keepable, slug
from lm.steps import OnProgress, Steps, no_progress
from lm.text.vocabulary import require_known

Compat = Literal["none", "paper"]

NONE = Refinements()
BLOCK = 1000  # tokens of a resampling unit of comparisons
BUCKETS = (0, 10, 100, 1_000, 10_000)  # the largest training count of each class of words except the last
_CHARACTERS = ("char", "byte")  # tokenizers whose tokens are characters


@dataclass(frozen=True)
class Text:
    """A text to evaluate, as tokens."""

    name: str
    source: str
    ids: Ids
    sha256: str  # of the whole split
    characters: int | None  # of the text; None if only a part of it is read


def evaluate(
    run: Path,
    data: str | None = None,
    checkpoint: str = "best",
    wanted: Refinements = NONE,
    limit: int | None = None,
    compat: Compat | None = None,
    progress: OnProgress = no_progress,
    others: Sequence[Path] = (),
) -> Result:
    """Evaluate a run, or an ensemble of runs, on a text and keep the result in the run.

    Under torchrun, every process runs the trunk and scores its slice of the windows. Rank 0 writes.

    Args:
        run: the folder that training wrote.
        data: a prepared split or a text file; by default the run's own test split.
        checkpoint: ``best``, ``last``, ``average-best`` or ``step-N``.
        wanted: refinements to report.
        limit: score only the first ``limit`` tokens.
        compat: ``paper`` scores like the authors' code (see :mod:`lm.language.scoring`), and also divides by
            N. Default: the run's own ``train.compat``.
        progress: called with the number of scored tokens and their total.
        others: further runs of the same vocabulary. The probabilities of all are averaged at every token.

    Raises:
        ConfigError: bad options, or another vocabulary.
        DataError: bad data.
        StorageError: a bad run, or a full disk.
        DivergenceError: the model's probabilities are not finite.
    """
    with process_group() as group:
        trained, weights = group.every(lambda: loaded(run, checkpoint, TrainedLm.load))
        group.share(lambda: require_keepable(run))
        trained = replace(trained, group=group)
        text = group.every(lambda: load_text(trained, data or trained.config.data.test, limit))
        group.require_equal({"checkpoint": weights, "text": text.sha256})
        compat = compat or trained.config.train.compat
        members = group.every(lambda: _members(trained, others, checkpoint, wanted))
        models = [member for member, _ in members]
        result: Result = facts(trained, run, checkpoint, weights, text, compat) | {"method": "static"}
        if members:
            result["ensemble_with"] = [
                {"run": str(other), "weights": own} for other, (_, own) in zip(others, members, strict=True)
            ]
            result["parameters"] += sum(p.numel() for model in models for p in model.model.parameters())
        measures, contexts, nll = _measured(trained, models, text, compat, wanted, progress)
        result |= measures
        name = text.name if checkpoint == "best" else f"{text.name}.{slug(checkpoint)}"
        name += wanted.name + "".join(f".with-{slug(other.name)}" for other in others)
        name += ".paper" if compat == "paper" else ""
        words = [*wanted.options, *compat_option(compat, trained.config.train.compat)]
        command = command_line("evaluate", [run, *others], data, checkpoint, limit, words)

        def write() -> str:
            details = passages_and_use(trained, text.ids, nll, whole=not others)
            return keep(run, name, result, contexts, details | {"command": command})

        result["name"] = group.share(write)
        return result


def _measured(
    trained: TrainedLm,
    members: Sequence[TrainedLm],
    text: Text,
    compat: Compat,
    wanted: Refinements,
    progress: OnProgress,
) -> tuple[Result, Result, Floats]:
    """Measures of a text, sums over its blocks, and −log P of every token; ``members`` join the model."""
    paper = compat == "paper"
    sampler = wanted.sampler(trained.model)
    advance = Steps(len(text.ids) * (wanted.passes + len(members)), progress).advance

    def scores(model: LanguageModel | None = None, temperature: float = 1.0) -> Floats:
        window = READ_LENGTH if model is None else trained.config.window.length
        return token_nll(
            trained,
            text.ids,
            paper=paper,
            temperature=temperature,
            model=model,
            window=window,
            advance=advance,
        )

    nll = scores()
    if members:
        each = [token_nll(model, text.ids, paper=paper, advance=advance) for model in members]
        nll = math.log(1 + len(each)) - np.logaddexp.reduce([-nll, *(-other for other in each)])
    result = likelihood(nll, trained, text)
    result["near_guessing"] = guessing(result["nll"], len(trained.codec.vocabulary))
    result["buckets"] = frequency_buckets(nll, trained, text)
    contexts = blocks(nll)
    for key, (about, refined_nll) in refined(trained, wanted, sampler, scores, paper=paper).items():
        result[key] = about | likelihood(refined_nll, trained, text)
        contexts[key] = blocks(refined_nll)["nll"]
    if wanted.cache:
        about, cached = cached_nll(trained, text.ids, wanted.cache, paper=paper, advance=advance)
        result["cache"] = about | likelihood(cached, trained, text)
        contexts["cache"] = blocks(cached)["nll"]
    return result, contexts, nll


def _members(
    trained: TrainedLm, others: Sequence[Path], checkpoint: str, wanted: Refinements
) -> list[tuple[TrainedLm, str | None]]:
    """The other models of an ensemble, and the fingerprints of their weights. ConfigError if unfit."""
    if others and wanted != NONE:
        raise ConfigError(
            "an ensemble is scored as it is; leave out --temperature-search, --mc-samples and --cache"
        )
    members = [loaded(other, checkpoint, TrainedLm.load) for other in others]
    for other, (member, _) in zip(others, members, strict=True):
        if member.codec.fingerprint != trained.codec.fingerprint:
            raise ConfigError(
                f"{visible(other)}: has another vocabulary than the first run; an ensemble needs runs of one"
                " training text and tokenizer"
            )
    return [(replace(member, group=trained.group), weights) for member, weights in members]


def command_line(
    way: Literal["evaluate", "dynamic"],
    runs: Sequence[Path],
    data: str | None,
    checkpoint: str,
    limit: int | None,
    words: Sequence[str],
) -> str:
    """The command of an evaluation, with options that differ from their defaults, and further ``words``."""
    given = {
        "--data": data,
        "--checkpoint": None if checkpoint == "best" else checkpoint,
        "--limit": limit,
    }
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return shlex.join(["lm", way, *map(str, runs), *options, *words])


def compat_option(compat: Compat, usual: Compat) -> list[str]:
    """The option ``--compat``, unless it is that of the run."""
    return [] if compat == usual else ["--compat", compat]


def load_text(trained: TrainedLm, source: str, limit: int | None = None) -> Text:
    """Read a text in the tokens of a run.

    ConfigError for a bad limit. DataError if the text is unreadable or most of it is unknown.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit}: must be at least 1")
    split = load_split(source, trained.codec)
    ids, characters, name = split.ids(), split.characters or None, slug(Path(source).stem)
    if limit is not None and limit < len(ids):
        ids, characters, name = ids[:limit], None, f"{name}.first-{limit}"
    require_known(unknown_share(trained, ids), source)
    return Text(name, source, ids, split.fingerprint, characters)


def unknown_share(trained: TrainedLm, ids: Ids) -> float:
    """Share of the tokens that are ``<unk>``."""
    unknown = trained.codec.vocabulary.unk
    return 0.0 if unknown is None or not len(ids) else float(np.mean(ids == unknown))


def facts(
    trained: TrainedLm, run: Path, checkpoint: str, weights: str | None, text: Text, compat: Compat
) -> Result:
    """Facts about a measurement: model, weights, text."""
    data = {
        "name": text.name,
        "source": text.source,
        "sha256": text.sha256,
        "unknown_share": unknown_share(trained, text.ids),
    }
    return Subject.of(trained, run, checkpoint, weights, data).json() | {
        "components": trained.config.head.components,
        "compat": compat,
        "vocabulary": len(trained.codec.vocabulary),
    }


def likelihood(nll: Floats, trained: TrainedLm, text: Text, divisor: int | None = None) -> Result:
    """Mean nats, perplexity, and bits per character if the characters are known.

    ``tokens`` is the divisor of the sum, by default the tokens of the text. ``scored`` is the number of
    terms, one less than the tokens of the text for ``paper``. DivergenceError if a number is not finite.
    """
    tokens = divisor or len(text.ids)
    total = math.fsum(nll) if np.isfinite(nll).all() else math.nan
    result: Result = {
        "nll": total / tokens,
        "perplexity": require_finite(perplexity(total / tokens), visible(text.source)),
        "tokens": tokens,
        "scored": len(nll),
    }
    characters = tokens if trained.codec.tokenizer.kind in _CHARACTERS else text.characters
    if characters:
        result["bits_per_character"] = total / math.log(2) / characters
    return result


def frequency_buckets(nll: Floats, trained: TrainedLm, text: Text) -> list[Result]:
    """Losses by the frequency of the word in training: never, 1 to 10 times, … more than 10,000 times."""
    counts = np.asarray(trained.codec.vocabulary.counts)[text.ids[len(text.ids) - len(nll) :]]
    place = np.searchsorted(BUCKETS, counts)
    rows = []
    for bucket in range(len(BUCKETS) + 1):
        inside = nll[place == bucket]
        mean = math.fsum(inside) / len(inside) if len(inside) else None
        rows.append(
            {
                "least": BUCKETS[bucket - 1] + 1 if bucket else 0,
                "most": BUCKETS[bucket] if bucket < len(BUCKETS) else None,
                "tokens": len(inside),
                "share": len(inside) / max(1, len(nll)),
                "nll": mean,
                "perplexity": None
                if mean is None
                else require_finite(perplexity(mean), visible(text.source)),
            }
        )
    return rows


def blocks(nll: Floats) -> Result:
    """Sums of nats, and tokens, over contiguous blocks of :data:`BLOCK` tokens."""
    starts = np.arange(0, len(nll), BLOCK)
    sums = np.add.reduceat(nll, starts) if len(nll) else nll
    return {"nll": sums.tolist(), "tokens": np.diff(np.append(starts, len(nll))).tolist()}
