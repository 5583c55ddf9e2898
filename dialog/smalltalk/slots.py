"""Distributions of phrases for the slots of templates, given the state of the conversation."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from dialog.smalltalk.grammar import Act, DialogState
from dialog.smalltalk.words import Lexicon, Options, Phrase, Support, Vector

Said = tuple[str, ...]  # words with a class in the utterance so far
Fill = Callable[[Act, DialogState, Said], Options]


class Slots:
    """Distributions for slots, cached."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self._known: dict[tuple[object, ...], Options] = {}
        self._supports: dict[str, Support] = {}  # of {far}, by the excluded topic
        self._associate = cache(lexicon.associate)
        self._fill: dict[str, Fill] = {
            "new": self._new,
            "far": self._far,
            "misheard": self._misheard,
            "newlabel": self._newlabel,
            "quality": self._quality,
            "who": self._who,
            "name": self._name,
            "place": self._place,
            "job": self._job,
            "opener": self._opener,
        }

    def options(self, slot: str, act: Act, state: DialogState, said: Said) -> Options:
        """Distribution for a slot, given the state and the class words before it in the utterance."""
        if slot in state.names:
            return self._only(state.names[slot])
        if slot in ("old", "theirs"):
            return self._earlier(state.old if slot == "old" else state.theirs, state.focus)
        if slot == "label":
            return self._only(self.lexicon.label[state.topic])
        fill = self._fill.get(slot)
        if fill is not None:
            return fill(act, state, said)
        about = self._about(state, said)
        context = act.name if slot == "tag" else self.lexicon.group.get(about, about)
        name = f"{slot} {self._topic(state, said)}" if slot in ("doing", "did") else slot
        return self._blend(name, context, 0.4)

    def _about(self, state: DialogState, said: Said) -> str:
        """Thing that is talked about: the last one of the utterance, else the focus of the conversation."""
        return next((word for word in reversed(said) if word in self.lexicon.topic), state.focus)

    def _topic(self, state: DialogState, said: Said) -> str:
        return self.lexicon.topic.get(self._about(state, said), "")

    def _new(self, act: Act, state: DialogState, said: Said) -> Options:
        about = self._about(state, said)
        verb = next((word for word in said if self.lexicon.tag[word] in ("did", "doing")), "")
        return self._blend(
            f"thing {self._topic(state, said)}", about, 0.7, without=(about, *said), second=verb
        )

    def _far(self, act: Act, state: DialogState, said: Said) -> Options:
        lexicon = self.lexicon
        group = lexicon.group.get(state.focus, state.topic)
        key = ("far", group)
        if key not in self._known:
            phrases: list[Phrase] = []
            weights: list[Vector] = []
            for topic in lexicon.topics:
                if topic != state.topic:
                    likely = math.exp(0.9 * lexicon.affinity(group, topic))
                    weights.append(likely * self._associate(group, f"thing {topic}", 0.5))
                    phrases += lexicon.lists[f"thing {topic}"].phrases
            if state.topic not in self._supports:
                self._supports[state.topic] = Support(phrases)
            self._known[key] = Options(self._supports[state.topic], np.concatenate(weights))
        return self._known[key]

    def _misheard(self, act: Act, state: DialogState, said: Said) -> Options:
        heard = state.names["heard"]
        copy = () if heard in said else (heard,)
        return self._blend(f"thing {self.lexicon.topic[heard]}", heard, 0.6, copy, 0.5, without=said)

    def _newlabel(self, act: Act, state: DialogState, said: Said) -> Options:
        return self._blend("label", state.focus, 0.4, without=(self.lexicon.label.get(state.topic, ""),))

    def _quality(self, act: Act, state: DialogState, said: Said) -> Options:
        about = next((w for w in reversed(said) if self.lexicon.tag[w] in ("place", "job")), "")
        about = about or self._about(state, said)
        name = f"quality {self.lexicon.topic.get(about, '')}".strip()
        mood = act.likes or (-state.mood if act.flips else state.stance or state.mood)
        return self._blend(name, about, 0.5, without=said, bias=("mood", mood))

    def _who(self, act: Act, state: DialogState, said: Said) -> Options:
        copy = (state.who,) if state.who and state.who not in said else ()
        return self._blend("who", self._about(state, said), 0.4, copy, 0.4, without=said)

    def _name(self, act: Act, state: DialogState, said: Said) -> Options:
        who = next((word for word in reversed(said) if self.lexicon.tag[word] == "who"), "")
        return self._blend("name", who or act.name, 0.4, bias=("gender", self.lexicon.gender.get(who, "")))

    def _place(self, act: Act, state: DialogState, said: Said) -> Options:
        copy = (state.place,) if state.place and state.place not in said else ()
        return self._blend("place", state.names.get("town", ""), 0.4, copy, 0.5, without=said)

    def _job(self, act: Act, state: DialogState, said: Said) -> Options:
        copy = (state.job,) if state.job and state.job not in said else ()
        return self._blend("job", state.names.get("samejob", ""), 0.4, copy, 0.5, without=said)

    def _opener(self, act: Act, state: DialogState, said: Said) -> Options:
        return self._blend(act.opener, act.name, 0.35, state.openers, 0.25)

    def _only(self, word: str) -> Options:
        """A single word with probability 1."""
        return Options(Support([(word,)]), np.ones(1))

    def _earlier(self, things: tuple[str, ...], focus: str) -> Options:
        """One of the earlier things, with more weight on recent ones and on affinity to the focus."""
        key = ("earlier", things, focus)
        if key not in self._known:
            weights = [
                math.exp(0.8 * self.lexicon.affinity(focus, thing)) / (1 + rank)
                for rank, thing in enumerate(things)
            ]
            self._known[key] = Options(Support([(thing,) for thing in things]), np.array(weights))
        return self._known[key]

    def _blend(
        self,
        name: str,
        context: str,
        strength: float,
        copy: Said = (),
        share: float = 0.0,
        *,
        without: Said = (),
        second: str = "",
        bias: tuple[str, str | int] = ("", 0),
    ) -> Options:
        """Phrases of list ``name`` given a context word. ``copy`` gets the probability ``share``.

        ``without`` is excluded, ``second`` is another context word, and ``bias`` is a mood or a gender.
        """
        support = self.lexicon.lists[name]
        if without:
            without = tuple(sorted({word for word in without if (word,) in support.index}))
        key = (name, context, strength, copy, share, without, second, bias)
        if key not in self._known:
            weights = self._associate(context, name, strength) * self._bias(name, *bias)
            if second:
                attraction = self.lexicon.targets(name)[1] @ self.lexicon.features(second, "context")[1]
                weights *= np.exp(np.round(0.4 * attraction, 6))
            weights[[support.index[word,] for word in without]] = 0.0
            weights /= weights.sum()
            copied = [
                index for words in copy if (index := support.index.get(tuple(words.split()))) is not None
            ]
            if copied:
                weights *= 1.0 - share
                weights[copied] += share / len(copied)
            self._known[key] = Options(support, weights)
        return self._known[key]

    def _bias(self, name: str, kind: str, value: str | int) -> Vector:
        """Factors for the words of a list: positive words in a good mood, women's names for women."""
        words = [" ".join(phrase) for phrase in self.lexicon.lists[name].phrases]
        if kind == "mood" and isinstance(value, int):
            signs = np.array([-1 if word in self.lexicon.negative else 1 for word in words])
            return np.exp(0.9 * value * signs)
        if kind == "gender" and value in ("people_she", "people_he"):
            suits = "names_she" if value == "people_she" else "names_he"
            return np.array([1.0 if self.lexicon.gender[word] == suits else 0.02 for word in words])
        return np.ones(len(words))
