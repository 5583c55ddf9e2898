"""Temperatures of words in contexts: by word, by place in the sentence, over training.

The data of Figures 1 and 3 of Contextual Temperature for Language Modeling. A place in a sentence has the
temperature of its word, and the mean over all words. The published formula keeps the mean constant
(:mod:`lm.heads.temperature`).

N tokens · V words.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lm.bootstrap import Interval, mean_intervals
from lm.console.options import RESAMPLES
from lm.console.pictures import save_figure
from lm.console.tables import Table
from lm.errors import DataError, require
from lm.language.evaluate import BLOCK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lm.language.trained import TrainedLm
    from lm.language.windows import Ids

SHOWN = 10  # number of hottest and of coldest words
MOST_OCCURRENCES = 20  # occurrences of one word in a table
SHORTEST_SENTENCE, LONGEST_SENTENCE = 15, 25  # words of a sentence of Figure 1 (b)
PART = 5  # words of each of its three parts
_ENTRIES = 1 << 22  # of a block (n, V)


@dataclass(frozen=True)
class Profile:
    """Temperatures of a model on a text."""

    by_word: np.ndarray  # (V,) mean over the contexts
    spread: np.ndarray  # (V,) standard deviation over the contexts
    at_words: np.ndarray  # (N,) of the target words
    of_contexts: np.ndarray  # (N,) mean over all words
    places: np.ndarray  # (S, 15) positions in sentences, see :func:`places`

    @cached_property
    def intervals(self) -> list[Interval | None]:
        """Means of the temperatures of words by place, with 95 % intervals; [] without a sentence.

        The bootstrap resamples blocks of text, because neighbouring sentences share words. None below 5
        blocks.
        """
        if not len(self.places):
            return []
        return mean_intervals(self.at_words[self.places], self.places[:, 0] // BLOCK, RESAMPLES, seed=1)


def profile(trained: "TrainedLm", ids: "Ids") -> Profile:
    """Compute the temperatures at every position of a text, in float64. Memory is O(N + V).

    ConfigError for a head whose temperature is one number, DataError without a token.
    """
    head = copy.deepcopy(trained.model.head).double()
    require(
        head.temperature is not None,
        f"head.temperature = {head.config.temperature!r} is the same for every word; name runs with"
        " contextual, exponential, additive or sigmoid",
    )
    vocab = head.vocab_size
    sums, squares = torch.zeros(2, vocab, dtype=torch.float64)
    near: Tensor | None = None  # (V,) temperatures that sums are relative to, so that squares do not cancel
    at_words, of_contexts = [], []
    window = max(1, min(256, _ENTRIES // vocab))
    for hidden, targets in trained.readings(ids, window=window):
        with torch.no_grad():
            tau = head.temperatures(hidden.last[:, 0].double()).cpu()
        near = tau.mean(0) if near is None else near
        sums += (tau - near).sum(0)
        squares += (tau - near).square().sum(0)
        at_words.append(tau.gather(1, targets.cpu()[:, None])[:, 0].numpy())
        of_contexts.append(tau.mean(1).numpy())
    mean = sums / len(ids)
    spread = (squares / len(ids) - mean.square()).clamp_min(0).sqrt()
    mean += near
    at = places(ids, trained.codec.vocabulary.eos)
    return Profile(mean.numpy(), spread.numpy(), np.concatenate(at_words), np.concatenate(of_contexts), at)


def places(ids: "Ids", eos: int) -> np.ndarray:
    """Positions (S, 15) of the first, middle and last five words of every sentence of 15 to 25 words.

    A sentence ends before ``<eos>``. Words after the last ``<eos>`` are ignored.
    """
    found, start = [], 0
    for end in np.flatnonzero(np.asarray(ids) == eos):
        if SHORTEST_SENTENCE <= end - start <= LONGEST_SENTENCE:
            middle = start + (end - start - PART) // 2
            found.append(np.concatenate([np.arange(at, at + PART) for at in (start, middle, end - PART)]))
        start = int(end) + 1
    return np.array(found, dtype=np.int64).reshape(-1, 3 * PART)


@dataclass(frozen=True)
class WordTemperatures:
    """Mean and standard deviation of a word's temperatures over contexts."""

    word: str
    mean: float
    std: float


@dataclass(frozen=True)
class PlaceTemperature:
    """A place in a sentence, counted from 1 in its ``part``, as in Figure 1 (b).

    It has the mean temperature of its words, the 95 % interval by blocks of text, None below 5 blocks, and
    the mean over the vocabulary.
    """

    part: str
    place: int
    mean: float
    interval: Interval | None
    mean_of_words: float


@dataclass(frozen=True)
class Occurrence:
    """An occurrence of a word: the words before it, its temperature, and the mean over the vocabulary."""

    position: int
    context: Sequence[str]
    temperature: float
    mean_of_words: float


@dataclass(frozen=True)
class TemperatureReport:
    """Summary of the temperatures of a model over a number of ``tokens``.

    ``word_std`` is the standard deviation of the words' means. ``context_std`` is the mean over words of the
    standard deviation over contexts. ``hottest`` and ``coldest`` are the words with the extreme means.
    ``positions`` are 15 places in the measured ``sentences``.
    """

    tokens: int
    mean: float
    word_std: float
    context_std: float
    hottest: Sequence[WordTemperatures]
    coldest: Sequence[WordTemperatures]
    sentences: int
    positions: Sequence[PlaceTemperature]
    word: str | None = None
    occurrences: Sequence[Occurrence] | None = None


def temperature_report(found: Profile, words: Sequence[str]) -> TemperatureReport:
    """Summarise a profile."""
    order = np.argsort(found.by_word, kind="stable")

    def listed(ids: np.ndarray) -> list[WordTemperatures]:
        numbers = zip(found.by_word[ids].tolist(), found.spread[ids].tolist(), strict=True)
        return [WordTemperatures(words[index], *both) for index, both in zip(ids, numbers, strict=True)]

    positions = [
        PlaceTemperature(
            part=("first", "middle", "last")[index // PART],
            place=index % PART + 1,
            mean=float(found.at_words[column].mean()),
            interval=interval,
            mean_of_words=float(found.of_contexts[column].mean()),
        )
        for index, (column, interval) in enumerate(zip(found.places.T, found.intervals, strict=False))
    ]
    return TemperatureReport(
        tokens=len(found.at_words),
        mean=float(found.of_contexts.mean()),
        word_std=float(found.by_word.std()),
        context_std=float(found.spread.mean()),
        hottest=listed(order[::-1][:SHOWN]),
        coldest=listed(order[:SHOWN]),
        sentences=len(found.places),
        positions=positions,
    )


def positions(ids: "Ids", words: Sequence[str], word: str) -> np.ndarray:
    """Positions of a word in a text. Raises DataError if the text does not contain the word."""
    at = np.flatnonzero(np.asarray(ids) == words.index(word)) if word in words else np.empty(0, np.int64)
    if not len(at):
        raise DataError(f"--word {word}: not in the text; use the spelling of the corpus")
    return at


def occurrences(found: Profile, ids: "Ids", words: Sequence[str], at: np.ndarray) -> list[Occurrence]:
    """Occurrences of a word ``at`` its :func:`positions`, after eight words each, as in Table 6."""
    return [
        Occurrence(
            position=int(place),
            context=[words[index] for index in ids[max(0, place - 8) : place].tolist()],
            temperature=float(found.at_words[place]),
            mean_of_words=float(found.of_contexts[place]),
        )
        for place in at
    ]


def temperature_tables(results: Mapping[str, TemperatureReport]) -> list[Table | str]:
    """Table with a row per model, then tables of the places in a sentence."""
    models = [
        {
            "model": name,
            "mean τ": found.mean,
            "std by word": found.word_std,
            "std by context": found.context_std,
            "hottest": " ".join(word.word for word in found.hottest[:5]),
            "coldest": " ".join(word.word for word in found.coldest[:5]),
        }
        for name, found in results.items()
    ]
    rows = [
        {
            "place": f"{place.part} {place.place}",
            "model": name,
            "τ of the word": place.mean,
            "95 % from τ": place.interval and place.interval.low,
            "to τ": place.interval and place.interval.high,
            "mean τ": place.mean_of_words,
        }
        for name, found in results.items()
        for place in found.positions
    ]
    tables: list[Table | str] = [Table("Temperatures", models)]
    sentences = f"{SHORTEST_SENTENCE} to {LONGEST_SENTENCE} words"
    tables.append(Table(f"In sentences of {sentences}", rows) if rows else f"no sentence has {sentences}")
    for name, found in results.items():
        if found.occurrences is not None:
            places = [
                {
                    "before": " ".join(place.context),
                    "τ": place.temperature,
                    "mean τ": place.mean_of_words,
                }
                for place in found.occurrences[:MOST_OCCURRENCES]
            ]
            more = len(found.occurrences) - len(places)
            title = f'"{found.word}" in its contexts, by {name}' + (f" ({more:,} more)" if more else "")
            tables.append(Table(title, places))
    return tables


def draw_temperatures(profiles: Mapping[str, Profile], counts: Sequence[int], paths: Sequence[Path]) -> None:
    """Draw τ by word, by place in the sentence, and times the word's frequency, for every model by name.

    Words are ordered by falling ``counts`` (V,), their frequency in training. Models in the order of training
    show the development of τ. The same profiles give the same bytes.

    Raises:
        ConfigError: a suffix that is neither .png nor .svg.
        StorageError: a file cannot be written.
    """
    save_figure(paths, partial(_draw, profiles, np.array(counts)), size=(12, 4))


def _draw(profiles: Mapping[str, Profile], counts: np.ndarray, figure: "Figure") -> None:
    by_word, by_place, weighted = figure.subplots(1, 3)
    order = np.argsort(-counts, kind="stable")
    ranks = np.arange(1, len(order) + 1)
    for index, (name, found) in enumerate(profiles.items()):
        style = {"color": f"C{index % 10}", "label": name}
        by_word.plot(ranks, found.by_word[order], ".", markersize=2, **style)
        weighted.plot(ranks, (found.by_word * counts)[order], ".", markersize=2, **style)
        if len(found.places):
            values = found.at_words[found.places]  # (S, 15)
            ends = [(one.low, one.high) for one in found.intervals if one]  # none below 5 blocks
            error = np.abs(np.transpose(ends) - values.mean(0)) if ends else None
            by_place.errorbar(range(1, 3 * PART + 1), values.mean(0), error, capsize=2, **style)
    by_word.set(xscale="log", xlabel="rank of the word by frequency", ylabel="mean temperature")
    by_place.set(xlabel="place: first, middle, last five words", ylabel="temperature of the word")
    weighted.set(xscale="log", yscale="log", xlabel="rank of the word by frequency")
    weighted.set_ylabel("temperature × count in training")
    for axes in (by_word, by_place, weighted):
        axes.grid(alpha=0.3)
    by_word.legend(fontsize="small")
