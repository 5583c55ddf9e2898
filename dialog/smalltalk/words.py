"""Words of the built-in corpus: their classes, and the association between words.

An :class:`Options` is a distribution over phrases at one place of an utterance. Distributions over large word
classes come from :meth:`Lexicon.associate`, a mixture of softmaxes of random bilinear forms. The rank of its
log-probability matrix (contexts × words) exceeds that of any single softmax of small dimension.
"""

import math
from array import array
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import accumulate
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

Phrase = tuple[str, ...]
Vector = NDArray[np.float64]
Tables = Mapping[str, Any]  # corpus.toml, or a smaller corpus of the same layout

FACETS = 3  # softmaxes in the mixture of an association
FEATURES = 4  # per word and facet
PEOPLE = ("people_she", "people_he", "people_any")
NAME_LISTS = ("names_she", "names_he")


class Support:
    """Phrases of a distribution, indexed by their first token (``""``: the empty phrase)."""

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        self.phrases = tuple(phrases)
        self.index = {phrase: index for index, phrase in enumerate(self.phrases)}
        self._by_first: dict[str, list[int]] = {}
        for index, phrase in enumerate(self.phrases):
            self._by_first.setdefault(phrase[0] if phrase else "", []).append(index)

    def starting(self, token: str) -> Sequence[int]:
        """Indices of the phrases that begin with a token. ``""`` gives the empty phrase."""
        return self._by_first.get(token, ())


class Options:
    """A distribution over the phrases of a support, from weights (phrases,), not all 0."""

    def __init__(self, support: Support, weights: Vector) -> None:
        self.support = support
        # An array, because the garbage collector would traverse a list.
        self.probabilities = array("d", (weights / weights.sum()).tobytes())

    @cached_property
    def _cumulative(self) -> "array[float]":
        return array("d", accumulate(self.probabilities))

    def sample(self, random: Random) -> Phrase:
        """Draw a phrase."""
        return self.support.phrases[bisect(self._cumulative, random.random() * self._cumulative[-1])]

    def starting(self, token: str) -> Iterator[tuple[Phrase, float]]:
        """Phrases that begin with a token, with their probabilities."""
        for index in self.support.starting(token):
            yield self.support.phrases[index], self.probabilities[index]

    def items(self) -> Iterator[tuple[Phrase, float]]:
        """Phrases with their probabilities."""
        return zip(self.support.phrases, self.probabilities, strict=True)


class Lexicon:
    """Word classes and phrase lists, the class (``tag``), topic and group of every word, and associations.

    The name of a list is its class, plus the topic if the class depends on it: ``"place"``, ``"thing food"``.
    """

    def __init__(self, tables: Tables) -> None:
        self.topics: tuple[str, ...] = tuple(tables["topics"])
        self.tag: dict[str, str] = {}
        self.topic: dict[str, str] = {}
        self.group: dict[str, str] = {}
        self.lists: dict[str, Support] = {}
        self.label: dict[str, str] = dict(tables["labels"])
        words: Mapping[str, str] = tables["words"]
        self.negative = frozenset(words["negative"].split())
        self._targets: dict[str, Vector] = {}
        self._priors: dict[str, Vector] = {}
        for topic, table in tables["topics"].items():
            for number, group in enumerate(table["things"]):
                for thing in group.split():
                    self.topic[thing], self.group[thing] = topic, f"{topic} {number}"
            self._add("thing", topic, [thing for thing, where in self.topic.items() if where == topic])
            self._add("quality", topic, table["qualities"].split() + words["qualities"].split())
            self._add("doing", topic, table["doing"].split())
            self._add("did", topic, table["did"].split())
        self.topic |= {label: topic for topic, label in self.label.items()}
        self._add("label", "", [self.label[topic] for topic in self.topics])
        self._add("quality", "", words["qualities"].split())
        self.gender = {word: name for name in PEOPLE + NAME_LISTS for word in words[name].split()}
        self._add("who", "", [word for name in PEOPLE for word in words[name].split()])
        self._add("name", "", [word for name in NAME_LISTS for word in words[name].split()])
        for tag, name in (("place", "places"), ("job", "jobs"), ("number", "numbers")):
            self._add(tag, "", words[name].split())
        for name, phrases in tables["phrases"].items():
            self._add_phrases(name, [tuple(phrase.split()) for phrase in phrases.split("|")], tables["empty"])

    def _add(self, tag: str, topic: str, words: Sequence[str]) -> None:
        self.lists[f"{tag} {topic}".strip()] = support = Support([(word,) for word in dict.fromkeys(words)])
        self.tag |= {word: tag for (word,) in support.phrases}
        self._rank(f"{tag} {topic}".strip())

    def _add_phrases(self, name: str, phrases: list[Phrase], empty: Mapping[str, float]) -> None:
        self.lists[name] = Support(([()] if name in empty else []) + phrases)
        self._rank(name)
        if name in empty:
            average = float(np.exp(self._priors[name]).mean())
            self._priors[name][0] = math.log(empty[name] * average)

    def _rank(self, name: str) -> None:
        """Set a log prior that falls with a random rank, a little flatter than Zipf's law."""
        phrases = self.lists[name].phrases
        drawn = sorted(range(len(phrases)), key=lambda i: Random(f"{name}/{phrases[i]}").random())
        self._priors[name] = np.zeros(len(phrases))
        self._priors[name][drawn] = -0.7 * np.log(np.arange(len(phrases)) + 4.0)

    def features(self, word: str, side: str) -> Vector:
        """Features (FACETS, FEATURES) of a word as ``side``, "context" or "target".

        Words of a group have similar features. In the first facet both sides agree, so that words of a group
        attract each other.
        """
        group = self.group.get(word, word)
        found = 0.9 * _noise(f"{group}/{side}") + 0.4 * _noise(f"{word}/{side}.")
        if word in self.group:
            found[0] = 1.3 * (0.9 * _noise(group)[0] + 0.3 * _noise(f"{word}.")[0])
        return found

    def targets(self, name: str) -> Vector:
        """Target features of a list's phrases: (FACETS, phrases, FEATURES)."""
        if name not in self._targets:
            rows = [self.features(" ".join(phrase), "target") for phrase in self.lists[name].phrases]
            self._targets[name] = np.stack(rows, axis=1)
        return self._targets[name]

    def associate(self, context: str, name: str, strength: float) -> Vector:
        """P(phrase of list ``name`` | context): Σ_k π_k softmax(prior + strength · x_k · y_k), (phrases,)."""
        x = self.features(context, "context")
        # Rounding keeps the corpus independent of the processor's last digits.
        scores = self._priors[name] + strength * (self.targets(name) @ x[:, :, None])[:, :, 0]
        exponents = np.exp(np.round(scores - scores.max(1, keepdims=True), 6))
        shares = np.exp(np.round(1.5 * x[:, 0], 6))
        mixed: Vector = shares / shares.sum() @ (exponents / exponents.sum(1, keepdims=True))
        return mixed

    def affinity(self, context: str, other: str) -> float:
        """Fixed affinity of a pair of words, of about unit variance and higher for words that go together."""
        x, y = self.features(context, "context")[1], self.features(other, "target")[1]
        return round(float(x @ y) / math.sqrt(FEATURES), 6)


@cache
def _noise(key: str) -> Vector:
    """Fixed numbers (FACETS, FEATURES) of mean 0 and variance 1, the same on every machine."""
    random = Random(f"highrank/{key}")
    draws = [sum(random.random() for _ in range(3)) - 1.5 for _ in range(FACETS * FEATURES)]
    return 2.0 * np.array(draws).reshape(FACETS, FEATURES)
