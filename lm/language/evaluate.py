"""What a language model is worth on a text: perplexity, losses by word frequency, and two refinements.

Every token is scored once, in one stream, so that the result depends on no window and no batch. Every
evaluation is kept in the run (:mod:`lm.records`), with sums over blocks of text, which
:mod:`lm.language.compare` resamples.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lm.cells import Layer
from lm.errors import ConfigError, DataError
from lm.guard import require_finite
from lm.language.corpus import load_split
from lm.language.model import LanguageModel
from lm.language.scoring import Floats, hidden_nll, no_advance, token_nll
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.lines import visible
from lm.meter import perplexity
from lm.records import keep, plain
from lm.stop import Poll, Progress, Steps, no_poll, no_progress

Result = dict[str, Any]
Compat = Literal["none", "paper"]

BLOCK = 1000  # tokens of a unit that comparisons resample
BUCKETS = (0, 10, 100, 1_000, 10_000)  # the largest training count of each class of words but the last
MULTIPLIERS = tuple(round(1.06 - 0.02 * step, 2) for step in range(14))  # of logits (Melis et al. 2020)
SEARCHED = 50_000  # validation tokens that the temperature is chosen on
FORGIVEN = 2  # multipliers in a row that are no better, after which the search ends
_CHARACTERS = ("char", "byte")  # tokenizers whose tokens are characters
_FOREIGN = 0.5  # share of unknown tokens from which the data cannot be what the run was trained for
_RATES = (
    *("embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout", "state_dropout"),
    "weight_dropout",
)


@dataclass(frozen=True)
class Text:
    """The tokens that are evaluated."""

    name: str
    source: str
    ids: Ids
    sha256: str  # of the whole split
    characters: int | None  # of the text; None where only a part of it is read


def evaluate(
    run: Path,
    data: str | None = None,
    checkpoint: str = "best",
    temperature_search: bool = False,
    mc_samples: int = 0,
    mc_rate: float = 1.0,
    limit: int | None = None,
    compat: Compat | None = None,
    poll: Poll = no_poll,
    progress: Progress = no_progress,
) -> Result:
    """Evaluate a run on a text and keep the result in the run.

    Args:
        run: the folder that training wrote.
        data: a prepared split or a text file; the run's own test split if left out.
        checkpoint: ``best``, ``last``, ``average`` or ``step-N``.
        temperature_search: also report the result at the temperature that is best on validation.
        mc_samples: also report the mean probabilities of so many passes with dropout on; 0 for none.
        mc_rate: factor on all rates of dropout in those passes.
        limit: take the first so many tokens only.
        compat: ``paper`` scores as the authors' code does, see :mod:`lm.language.scoring`, and divides by N
            all the same; the run's own ``train.compat`` if left out.
        poll: called often; raises to interrupt. Nothing is written then.
        progress: told how many tokens of how many have been scored.

    Raises:
        ConfigError, DataError, StorageError: bad options; bad data; a bad run, a full disk.
        DivergenceError: the model's probabilities are not finite.
    """
    if mc_samples < 0:
        raise ConfigError(f"--mc-samples {mc_samples}: must be at least 0")
    trained = TrainedLm.load(run, checkpoint)
    text = load_text(trained, data or trained.config.data.test, limit, poll)
    compat = compat or trained.config.train.compat
    paper = compat == "paper"
    sampler = _with_dropout(trained.model, mc_rate) if mc_samples else None
    advance = Steps(len(text.ids) * (1 + temperature_search + mc_samples), poll, progress).advance

    nll = token_nll(trained, text.ids, paper=paper, advance=advance)
    result = facts(trained, run, checkpoint, text, compat) | {"method": "static"}
    result |= likelihood(nll, trained, text)
    result["buckets"] = frequency_buckets(nll, trained, text)
    contexts = blocks(nll)
    name = text.name if checkpoint == "best" else f"{text.name}.{plain(checkpoint)}"
    if temperature_search:
        chosen = search_temperature(trained, poll, paper=paper)
        tempered = token_nll(
            trained, text.ids, paper=paper, temperature=1 / chosen["multiplier"], advance=advance
        )
        result["temperature_search"] = chosen | likelihood(tempered, trained, text)
        contexts["temperature_search"] = blocks(tempered)["nll"]
        name += ".temperature"
    if sampler is not None:
        sampled = mc_nll(trained, sampler, text.ids, mc_samples, paper=paper, advance=advance)
        result["mc_dropout"] = {"samples": mc_samples, "rate": mc_rate, **likelihood(sampled, trained, text)}
        contexts["mc_dropout"] = blocks(sampled)["nll"]
        name += f".mc-{mc_samples}-rate-{mc_rate:g}"
    keep(run, f"{name}.paper" if paper else name, result, contexts)
    return result


def load_text(trained: TrainedLm, source: str, limit: int | None = None, poll: Poll = no_poll) -> Text:
    """Read a text in the tokens of a run.

    ConfigError for a bad limit, DataError where the text cannot be read or most of it is unknown.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit}: must be at least 1")
    split = load_split(source, trained.codec, poll)
    ids, characters, name = split.ids(), split.characters or None, plain(Path(source).stem)
    if limit is not None and limit < len(ids):
        ids, characters, name = ids[:limit], None, f"{name}.first-{limit}"
    share = unknown_share(trained, ids)
    if share > _FOREIGN:
        raise DataError(
            f"{visible(source)}: {share:.0%} of its tokens are unknown to the run;"
            " evaluate on the language and the spelling that the run was trained on"
        )
    return Text(name, source, ids, split.fingerprint, characters)


def unknown_share(trained: TrainedLm, ids: Ids) -> float:
    """Share of the tokens that are ``<unk>``."""
    unknown = trained.codec.vocabulary.unk
    return 0.0 if unknown is None or not len(ids) else float(np.mean(ids == unknown))


def facts(trained: TrainedLm, run: Path, checkpoint: str, text: Text, compat: Compat) -> Result:
    """What is measured, and on what."""
    vocabulary = trained.codec.vocabulary
    return {
        "run": str(run),
        "checkpoint": checkpoint,
        "head": trained.config.head.kind,
        "components": trained.config.head.components,
        "parameters": sum(p.numel() for p in trained.model.parameters()),
        "device": str(trained.device),
        "seed": trained.config.train.seed,
        "compat": compat,
        "data": {
            "name": text.name,
            "source": text.source,
            "sha256": text.sha256,
            "unknown_share": unknown_share(trained, text.ids),
        },
        "tokenizer": trained.codec.tokenizer.kind,
        "vocabulary": len(vocabulary),
        "vocabulary_sha256": trained.codec.fingerprint,
    }


def likelihood(nll: Floats, trained: TrainedLm, text: Text, divisor: int | None = None) -> Result:
    """Mean nats, perplexity, and bits per character where the characters are known.

    ``tokens`` is what the sum is divided by, those of the text where no ``divisor`` is given; ``scored`` how
    many are in it, one less than the text's for ``paper``. DivergenceError where a number is not finite.
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
    """Losses by how often training has the word: never, 1 to 10 times, … more than 10,000 times."""
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


def search_temperature(trained: TrainedLm, poll: Poll = no_poll, *, paper: bool = False) -> Result:
    """The factor on the logits that is best on the first tokens of the run's own validation split.

    Factors fall from 1.06 to .80; the search ends after two in a row that are no better (Melis et al. 2020).
    """
    source = trained.config.data.valid
    ids = load_split(source, trained.codec, poll).ids()[:SEARCHED]
    read = list(trained.readings(ids, paper=paper, poll=poll))
    tokens = sum(len(targets) for _, targets in read)
    searched: list[dict[str, float]] = []
    best, stale = 0, 0
    for multiplier in MULTIPLIERS:
        total = 0.0
        for hidden, targets in read:
            poll()
            total += float(hidden_nll(trained.model, hidden, targets, 1 / multiplier).sum())
        searched.append({"multiplier": multiplier, "nll": total / tokens})
        if searched[-1]["nll"] < searched[best]["nll"]:
            best, stale = len(searched) - 1, 0
        elif len(searched) > 1:
            stale += 1
        if stale == FORGIVEN:
            break
    multiplier = searched[best]["multiplier"]
    return {
        "multiplier": multiplier,
        "temperature": 1 / multiplier,
        "searched": searched,
        "searched_on": source,
        "searched_tokens": tokens,
    }


def mc_nll(
    trained: TrainedLm,
    sampler: LanguageModel,
    ids: Ids,
    samples: int,
    *,
    paper: bool = False,
    advance: Callable[[int], None] = no_advance,
) -> Floats:
    """−log of the mean probability of every token over passes with dropout on (Melis et al. 2020).

    Each pass carries its own state and draws new masks for each window, as training does, from a seed of its
    own that follows from the run's.
    """
    seed, window = trained.config.train.seed, trained.config.window.length
    devices = range(torch.cuda.device_count()) if trained.device.type == "cuda" else ()
    total: Floats = np.full(0, 0.0)
    with torch.random.fork_rng(devices=devices):
        for sample in range(samples):
            torch.manual_seed(int(np.random.default_rng((seed, sample)).integers(2**63)))
            nll = token_nll(trained, ids, paper=paper, model=sampler, window=window, advance=advance)
            total = np.logaddexp(total, -nll) if sample else -nll
    return math.log(samples) - total


def _with_dropout(model: LanguageModel, factor: float) -> LanguageModel:
    """A copy of the model that drops, at its own rates times a factor; ConfigError where one reaches 1."""
    rates = {name: factor * getattr(model.config, name) for name in _RATES}
    latent = factor * model.head.config.latent_dropout
    if not (factor >= 0 and max(*rates.values(), latent) < 1):
        raise ConfigError(f"--mc-rate {factor:g}: must be at least 0 and leave every dropout below 1")
    sampler = copy.deepcopy(model)
    sampler.config = model.config.model_copy(update=rates)
    sampler.head.config = model.head.config.model_copy(update={"latent_dropout": latent})
    for layer in sampler.layers:
        assert isinstance(layer, Layer)
        layer.weight_dropout = rates["weight_dropout"]
    return sampler.train()
