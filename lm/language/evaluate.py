"""Evaluation of a language model on a text: perplexity, losses by word frequency, and refinements.

Every token is scored once, in one stream, so the result depends on no window and no batch. Every evaluation
is stored in the run (:mod:`lm.runs.evaluations`), with sums over blocks of text. :mod:`lm.language.compare`
resamples these blocks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from lm.arrays import Floats
from lm.config.named_data import own_split, split_of_run
from lm.engine.device import flushed_denormals
from lm.errors import ConfigError, visible
from lm.heads.usage import use_in_sample
from lm.language.cache import cached_nll
from lm.language.config import LmConfig
from lm.language.corpora.corpus import load_split
from lm.language.corpora.split_files import unknown_ids
from lm.language.model import LanguageModel
from lm.language.refinements import Refinements, refined
from lm.language.results import (
    Compat,
    FrequencyBucket,
    Likelihood,
    Refined,
    RefinementChoice,
    StaticEvaluation,
)
from lm.language.scoring import token_nll
from lm.language.trained import READ_LENGTH, TrainedLm
from lm.language.windows import Ids
from lm.measures import guessing, more_unknown, perplexity, require_finite
from lm.parallel.group import process_group
from lm.results import as_json
from lm.runs.evaluations import (
    EvaluatedData,
    JsonObject,
    Subject,
    keep,
    loaded,
    members,
    require_keepable,
    setting_slug,
    slug,
    spread,
)
from lm.steps import OnProgress, Steps, no_progress
from lm.text.vocabulary import Codec, require_known

NONE = Refinements()
BLOCK = 1000  # tokens of a resampling unit of comparisons
BUCKETS = (0, 10, 100, 1_000, 10_000)  # the largest training count of each class of words except the last
PASSAGE, PASSAGES = 60, 4  # tokens of a passage for reports, and number of passages
_CHARACTERS = ("char", "byte")  # tokenizers whose tokens are characters


@dataclass(frozen=True)
class Text:
    """A text to evaluate, as tokens."""

    name: str
    source: str
    ids: Ids
    sha256: str  # of the whole split
    characters: int | None  # that its tokens spell, ends of lines included; None if one became ``<unk>``

    def name_at(self, checkpoint: str) -> str:
        """Its name in names of results, with that of the checkpoint unless it is the best."""
        return self.name if checkpoint == "best" else f"{self.name}.{slug(checkpoint)}"


@flushed_denormals()
def evaluate(
    run: Path,
    data: str | None = None,
    checkpoint: str = "best",
    wanted: Refinements = NONE,
    limit: int | None = None,
    compat: Compat | None = None,
    progress: OnProgress = no_progress,
    others: Sequence[Path] = (),
) -> StaticEvaluation:
    """Evaluate a run, or an ensemble of runs, on a text and keep the result in the run.

    Under torchrun, every process runs the trunk and scores its slice of the windows. Rank 0 writes.

    Args:
        data: a prepared split or a text file; by default the run's own test split.
        checkpoint: ``best``, ``last``, ``average-best`` or ``step-N``.
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
        text = group.every(lambda: load_text(trained, data or own_test(trained.config), limit))
        group.require_equal({"checkpoint": weights, "text": text.sha256})
        compat = compat or trained.config.train.compat
        group.every(lambda: wanted.require_searched(trained))
        joined = group.every(lambda: _members(trained, others, checkpoint, wanted))
        models = [model for model, _ in joined]
        measures = _measured(trained, models, text, compat, wanted, progress)
        name = text.name_at(checkpoint) + wanted.name
        name += "".join(f".with-{setting_slug(other.name)}" for other in others)
        subject = subject_of(trained, run, checkpoint, weights, text)
        more = sum(p.numel() for model in models for p in model.model.parameters())
        result = StaticEvaluation(
            subject=replace(subject, parameters=subject.parameters + more),
            components=trained.config.head.components,
            compat=compat,
            vocabulary=len(trained.codec.vocabulary),
            ensemble_with=members(others, [own for _, own in joined]),
            likelihood=measures.likelihood,
            near_guessing=guessing(measures.likelihood.nll, len(trained.codec.vocabulary)),
            buckets=frequency_buckets(measures.nll, trained, text),
            refined=measures.refined,
            name=name + (".paper" if compat == "paper" else ""),
        )

        def write() -> str:
            details = passages_and_use(trained, text.ids, measures.nll, alone=not others)
            return keep(run, result, measures.contexts, details).name

        return replace(result, name=group.share(write))


@dataclass(frozen=True)
class Measures:
    """Likelihoods of a text, sums over its blocks, and −log P of every token."""

    likelihood: Likelihood
    refined: Mapping[str, Refined]
    contexts: JsonObject
    nll: Floats

    @classmethod
    def of(
        cls,
        nll: Floats,
        refined: Mapping[str, tuple[RefinementChoice, Floats]],
        score: Callable[[Floats], Likelihood],
    ) -> "Measures":
        """Measures from −log P of every token, without and with each refinement."""
        return cls(
            score(nll),
            {key: Refined(choice, score(other)) for key, (choice, other) in refined.items()},
            blocks(nll) | {key: blocks(other)["nll"] for key, (_, other) in refined.items()},
            nll,
        )


def _measured(
    trained: TrainedLm,
    members: Sequence[TrainedLm],
    text: Text,
    compat: Compat,
    wanted: Refinements,
    progress: OnProgress,
) -> Measures:
    """Measures of a text by a model and the other ``members`` of its ensemble."""
    paper = compat == "paper"
    sampler = wanted.sampler(trained.model)
    advance = Steps(len(text.ids) * (wanted.passes + len(members)), progress).advance

    score = partial(token_nll, ids=text.ids, paper=paper, advance=advance)

    def scores(model: LanguageModel | None = None, temperature: float = 1.0) -> Floats:
        window = READ_LENGTH if model is None else trained.config.window.length
        return score(trained, temperature=temperature, model=model, window=window)

    nll = scores()
    if members:
        each = [score(model) for model in members]
        nll = math.log(1 + len(each)) - np.logaddexp.reduce([-nll, *(-other for other in each)])
    cached = partial(
        cached_nll,
        trained,
        text.ids,
        readings=partial(trained.readings, paper=paper),
        advance=advance,
        progress=progress,
    )
    found = refined(trained, wanted, sampler, scores, cached, paper=paper)
    return Measures.of(nll, found, lambda nll: likelihood(nll, trained, text))


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


def own_test(config: LmConfig) -> str:
    """The test text of a run. DataError if it is missing."""
    return split_of_run(config.data, "test", "name a text with --data")


def load_text(trained: TrainedLm, source: str, limit: int | None = None) -> Text:
    """Read a text in the tokens of a run.

    ConfigError for a bad limit. DataError if the text is unreadable, or if it is no split of the run and most
    of it is unknown.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit}: must be at least 1")
    split = load_split(source, trained.codec)
    ids, name = split.ids(), slug(Path(source).stem)
    if limit is not None and limit < len(ids):
        ids, name = ids[:limit], f"{name}.first-{limit}"
    characters = None if split.outside else _spelled(ids, trained.codec)  # P(<unk>) leaves out letters
    if not own_split(trained.config.data, source):
        require_known(unknown_share(trained, ids), source)
    return Text(name, source, ids, split.fingerprint, characters)


def _spelled(ids: Ids, codec: Codec) -> int:
    """Number of characters that tokens spell; bytes if they are bytes.

    A text may have more, such as a second blank between words, which tokens do not encode.
    """
    return len(ids) if codec.tokenizer.kind in _CHARACTERS else len(codec.decode(ids.tolist()))


def unknown_share(trained: TrainedLm, ids: Ids) -> float:
    """Share of the tokens, except ends of lines, that are ``<unk>``."""
    vocabulary = trained.codec.vocabulary
    tokens = len(ids) - np.count_nonzero(ids == vocabulary.eos)
    return unknown_ids(ids, trained.codec) / tokens if tokens and vocabulary.unk is not None else 0.0


def _own_share(trained: TrainedLm) -> float:
    """Share of the tokens of the run's own test split that are ``<unk>``. DataError without such a split."""
    return unknown_share(trained, load_split(own_test(trained.config), trained.codec).ids())


def subject_of(trained: TrainedLm, run: Path, checkpoint: str, weights: str | None, text: Text) -> Subject:
    """Model, weights and text of an evaluation."""
    share = unknown_share(trained, text.ids)
    other = text.source != trained.config.data.test
    own = more_unknown(share, partial(_own_share, trained)) if other else None
    data = EvaluatedData(text.name, text.source, text.sha256, share, own_unknown_share=own)
    return Subject.of(trained, run, checkpoint, weights, data)


def likelihood(nll: Floats, trained: TrainedLm, text: Text, divisor: int | None = None) -> Likelihood:
    """Likelihood of a text from −log P of its tokens; the ``divisor`` is by default their number in the text.

    DivergenceError if a number is not finite.
    """
    assert len(nll) in (len(text.ids), len(text.ids) - 1)  # every token once; all but the first for `paper`
    tokens = divisor or len(text.ids)
    total = math.fsum(nll) if np.isfinite(nll).all() else math.nan
    each = trained.codec.tokenizer.kind in _CHARACTERS and text.characters
    characters = tokens if each else text.characters
    return Likelihood(
        nll=total / tokens,
        perplexity=require_finite(perplexity(total / tokens), visible(text.source)),
        tokens=tokens,
        scored=len(nll),
        bits_per_character=total / math.log(2) / characters if characters else None,
    )


def frequency_buckets(nll: Floats, trained: TrainedLm, text: Text) -> list[FrequencyBucket]:
    """Losses by the frequency of the word in training: never, 1 to 10 times, … more than 10,000 times."""
    counts = np.asarray(trained.codec.vocabulary.counts)[text.ids[len(text.ids) - len(nll) :]]
    place = np.searchsorted(BUCKETS, counts)
    buckets = []
    for bucket, (below, most) in enumerate(zip((-1, *BUCKETS), (*BUCKETS, None), strict=True)):
        inside = nll[place == bucket]
        mean = math.fsum(inside) / len(inside) if len(inside) else None
        buckets.append(
            FrequencyBucket(
                least=below + 1,
                most=most,
                tokens=len(inside),
                share=len(inside) / max(1, len(nll)),
                nll=mean,
                perplexity=None if mean is None else require_finite(perplexity(mean), visible(text.source)),
            )
        )
    return buckets


def blocks(nll: Floats) -> dict[str, list[float]]:
    """Sums of nats, and tokens, over contiguous blocks of :data:`BLOCK` tokens."""
    starts = np.arange(0, len(nll), BLOCK)
    sums = np.add.reduceat(nll, starts) if len(nll) else nll
    return {"nll": sums.tolist(), "tokens": np.diff(np.append(starts, len(nll))).tolist()}


def passages_and_use(trained: TrainedLm, ids: Ids, nll: Floats, *, alone: bool) -> JsonObject:
    """``samples`` and ``components`` of an evaluation.

    A sample has the ``index`` of its first scored token, its ``words``, and the ``nll`` of each in nats.
    ``components`` is that of :func:`lm.heads.usage.use_in_sample`, and None for an ensemble, in which the
    model is not ``alone``.
    """
    scored, words = ids[len(ids) - len(nll) :], trained.codec.vocabulary
    passages = [
        {
            "index": start,
            "words": words.words(np.asarray(scored[start : start + PASSAGE]).tolist()),
            "nll": nll[start : start + PASSAGE].tolist(),
        }
        for start in (PASSAGE * number for number in spread(-(-len(nll) // PASSAGE), PASSAGES))
    ]
    states = ((hidden.map(lambda layer: layer[:, 0]), targets) for hidden, targets in trained.readings(ids))
    use = use_in_sample(trained.model.head, states, words.tokens) if alone else None
    return {"samples": passages, "components": use and as_json(use)}
