"""The built-in corpus: seeded two-party telephone small talk with a known true distribution.

An utterance is drawn in steps: an act given the situation, one of its templates, then a phrase for each slot
from left to right. Every step depends only on a state parsed from the text of the last nine utterances. So
a model with these as input can attain the true perplexity. Several derivations may give the same words. The
forward algorithm sums over them, which makes the probability of every next token exact.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from random import Random
from tomllib import loads
from typing import TypeVar

from dialog.smalltalk.grammar import Act, DialogState, Grammar, Template
from dialog.smalltalk.slots import Said, Slots
from dialog.smalltalk.words import Lexicon, Phrase, Tables
from dialog.utterance import Dialog, Utterance
from lm.errors import DataError
from lm.text.tokenizers import EOS, WordPunct

LONG_ENOUGH = 9  # utterances before a conversation may end
SPLIT_SIZES = {"train": 800, "valid": 100, "test": 100}  # dialogs by default

Choice = TypeVar("Choice")
# Act, template, position in the template, remaining tokens of the present phrase, class words so far.
Derivation = tuple[Act, Template, int, Phrase, Said]
Frontier = dict[Derivation, float]

_SPLIT, _JOIN = WordPunct().split, WordPunct().join


class Process:
    """Stochastic process that generates the corpus from the word lists and templates of ``tables``."""

    def __init__(self, tables: Tables) -> None:
        self.lexicon = Lexicon(tables)
        self.grammar = Grammar(tables, self.lexicon)
        self.slots = Slots(self.lexicon)
        self._customs: dict[tuple[str, str], list[tuple[Act, float]]] = {}
        self._templates: dict[tuple[str, str, frozenset[str]], list[tuple[Template, float]]] = {}

    def acts(self, state: DialogState) -> list[tuple[Act, float]]:
        """Possible acts in a state, with their probabilities."""
        weights = [(act, base * self._tendency(act, state)) for act, base in self._customary(state)]
        total = math.fsum(weight for _, weight in weights)
        return [(act, weight / total) for act, weight in weights if weight]

    def _customary(self, state: DialogState) -> list[tuple[Act, float]]:
        """Acts of a situation, with weights that depend on the group of the focus, or the topic."""
        group = self.lexicon.group.get(state.focus, state.topic)
        key = (state.situation, group)
        if key not in self._customs:
            acts = [(self.grammar.acts[name], w) for name, w in self.grammar.situations[key[0]].items()]
            affinity = self.lexicon.affinity
            self._customs[key] = [(act, w * math.exp(0.7 * affinity(group, act.name))) for act, w in acts]
        return self._customs[key]

    def _tendency(self, act: Act, state: DialogState) -> float:
        """Factor of an act's weight, given the conversation so far. 0 = impossible."""
        if (
            (act.name == "close" and state.spoken < LONG_ENOUGH)
            or (act.name == "repair" and "heard" not in state.offers)
            or (act.name == "backchannel" and state.hush)
            or (act.name == "ask_home" and "town" in state.offers)
            or (act.name == "ask_job" and "samejob" in state.offers)
            or not any(template.needs <= state.offers for template in act.templates)
        ):
            return 0.0
        if state.situation == "asked_like":
            return math.exp(act.likes * (1.5 * state.stance + 0.4 * state.mood))
        return math.exp(0.35 * (state.stale - 3)) if act.name.startswith("shift") else 1.0

    def templates(self, act: Act, state: DialogState) -> list[tuple[Template, float]]:
        """Usable templates of an act in a state, with their probabilities."""
        key = (act.name, state.topic, state.offers)
        if key not in self._templates:
            usable = [template for template in act.templates if template.needs <= state.offers]
            weights = [math.exp(0.6 * self.lexicon.affinity(state.topic, t.text)) for t in usable]
            total = math.fsum(weights)
            self._templates[key] = [(t, w / total) for t, w in zip(usable, weights, strict=True)]
        return self._templates[key]

    def speak(self, state: DialogState, random: Random) -> tuple[Act, list[str]]:
        """Draw an utterance: its act and its tokens."""
        act = _draw(self.acts(state), random)
        template = _draw(self.templates(act, state), random)
        tokens: list[str] = []
        said: Said = ()
        for element in template.elements:
            if element.startswith("{"):
                phrase = self.slots.options(element[1:-1], act, state, said).sample(random)
                tokens += phrase
                said += tuple(word for word in phrase if word in self.lexicon.tag)
            else:
                tokens.append(element)
        return act, tokens

    def frontier(self, state: DialogState) -> Frontier:
        """Derivations before the first token, with their probabilities."""
        return {
            (act, template, 0, (), ()): probability * share
            for act, probability in self.acts(state)
            for template, share in self.templates(act, state)
        }

    def advance(self, state: DialogState, frontier: Frontier, token: str) -> tuple[float, Frontier]:
        """P(token | tokens so far), and the remaining derivations with probabilities that sum to 1.

        0 and no derivation for a token that cannot follow.
        """
        reached: Frontier = defaultdict(float)
        for derivation, weight in frontier.items():
            for _, probability, following in self._expand(state, derivation, token):
                reached[following] += weight * probability
        total = math.fsum(reached.values())
        return total, {derivation: weight / total for derivation, weight in reached.items() if weight}

    def distribution(self, state: DialogState, frontier: Frontier) -> dict[str, float]:
        """P(next token) for every possible next token, including ``</s>``."""
        shares: dict[str, list[float]] = defaultdict(list)
        for derivation, weight in frontier.items():
            for token, probability, _ in self._expand(state, derivation, None):
                shares[token].append(weight * probability)
        return {token: total for token, parts in shares.items() if (total := math.fsum(parts)) > 0.0}

    def _expand(
        self, state: DialogState, derivation: Derivation, token: str | None
    ) -> Iterator[tuple[str, float, Derivation]]:
        """Yield (token, probability, derivation) for each possible next token, or only for ``token``."""
        act, template, at, rest, said = derivation
        if rest:
            if token in (None, rest[0]):
                yield rest[0], 1.0, (act, template, at, rest[1:], said)
        elif at == len(template.elements):
            if token in (None, EOS):
                yield EOS, 1.0, (act, template, at + 1, (), said)
        elif not (element := template.elements[at]).startswith("{"):
            if token in (None, element):
                yield element, 1.0, (act, template, at + 1, (), said)
        else:
            options = self.slots.options(element[1:-1], act, state, said)
            for phrase, probability in options.items() if token is None else options.starting(token):
                if phrase:
                    more = tuple(word for word in phrase if word in self.lexicon.tag)
                    yield phrase[0], probability, (act, template, at + 1, phrase[1:], said + more)
            for _, probability in options.starting(""):
                for following, share, derived in self._expand(
                    state, (act, template, at + 1, (), said), token
                ):
                    yield following, probability * share, derived

    def topic(self, text: str) -> str:
        """Topic of an utterance's last thing or label, or ""."""
        return self.lexicon.topic.get(self.grammar.read(text).last.get("focus", ""), "")

    def converse(self, random: Random) -> tuple[Utterance, ...]:
        """Draw a whole conversation. The next speaker and the end depend on the utterances before."""
        speaker = random.choice("AB")
        spoken: list[Utterance] = []
        while True:
            state = self.grammar.state(spoken, speaker)
            act, tokens = self.speak(state, random)
            spoken.append(Utterance(speaker, _JOIN(tokens), act.name))
            if state.situation == "last":
                return tuple(spoken)
            if random.random() >= act.stays:
                speaker = "B" if speaker == "A" else "A"

    def log_prob(self, context: Sequence[Utterance], utterance: Utterance) -> float:
        """ln P(utterance and its end | the utterances before it), -inf if it cannot occur."""
        state = self.grammar.state(context, utterance.speaker)
        frontier, log_prob = self.frontier(state), 0.0
        for token in (*_SPLIT(utterance.text), EOS):
            probability, frontier = self.advance(state, frontier, token)
            if not probability:
                return -math.inf
            log_prob += math.log(probability)
        return log_prob


def generate_dialogs(split: str, *, dialogs: int | None = None, seed: int = 0) -> list[Dialog]:
    """Generate the dialogs of a split ("train", "valid" or "test"), the same on every machine.

    ``dialogs`` is their number, None = the default of the split. A smaller number gives the first of them.
    Another ``seed`` gives other dialogs of the same distribution. Raises DataError for an unknown split.
    """
    if split not in SPLIT_SIZES:
        raise DataError(f"smalltalk:{split}: no such split; use {', '.join(SPLIT_SIZES)}")
    count = SPLIT_SIZES[split] if dialogs is None else dialogs
    return [_dialog(split, seed, number) for number in range(count)]


@cache  # the demo generates every split for each of its models
def _dialog(split: str, seed: int, number: int) -> Dialog:
    name = f"smalltalk/{split}/{seed}/{number}"
    process = default_process()
    utterances = process.converse(Random(name))  # Random seeds with the SHA-512 of a string
    topics = Counter(topic for utterance in utterances if (topic := process.topic(utterance.text)))
    return Dialog(name, topics.most_common(1)[0][0] if topics else "", utterances)


def _draw(choices: Sequence[tuple[Choice, float]], random: Random) -> Choice:
    at = random.random()
    for choice, probability in choices:
        at -= probability
        if at < 0.0:
            return choice
    return choices[-1][0]


def log_prob(dialog: Dialog) -> list[float]:
    """True ln P of each utterance with its ``</s>``, given all earlier ones, -inf if it cannot occur."""
    said = dialog.utterances
    return [default_process().log_prob(said[:turn], utterance) for turn, utterance in enumerate(said)]


def true_nll(dialogs: Sequence[Dialog]) -> tuple[float, int]:
    """-Σ ln P (nats) and the number of tokens of all utterances except each dialog's last, ``</s>`` included.

    These are the targets of ``dialog.batches.list_examples``, so exp(nll / tokens) is the perplexity of a
    perfect model. Raises DataError for dialogs of another corpus.
    """
    parts: list[float] = []
    tokens = 0
    for dialog in dialogs:
        parts += log_prob(dialog)[:-1]
        tokens += sum(len(_SPLIT(u.text)) + 1 for u in dialog.utterances[:-1])
        if -math.inf in parts:
            raise DataError(
                f"{dialog.id}: not a dialog of the built-in corpus; its true perplexity is unknown"
            )
    return -math.fsum(parts), tokens


@cache
def default_process() -> Process:
    """Process of the corpus in the package."""
    return Process(load_word_tables())


def load_word_tables() -> Tables:
    """Load the word lists, templates and acts of the corpus."""
    return loads(files("dialog.smalltalk").joinpath("corpus.toml").read_text("utf-8"))
