"""Acts and templates of the built-in corpus, and parsing of utterances and conversations.

The act of an utterance is parsed from its text only. So the state of a conversation is a function of the
input of a dialog model. The regular expression of each act is matched against *tagged* text, in which the
class of a word replaces the word: ``i really like <thing> .``
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dialog.smalltalk.words import Lexicon, Tables
from dialog.utterance import Utterance
from lm.text.tokenizers import DIALOG, WordPunct

UTTERANCES_BACK = 9  # utterances that a conversation remembers
MENTIONS_KEPT = 4  # earlier things that may be mentioned again
_ELEMENT = re.compile(r"\{\w+\}|\w+|[^\w\s{]+")
# _SLOT_TAGS: word class of a slot whose name differs. _NEEDS: entry of `State.offers` that a slot requires.
_THINGS = ("new", "far", "it", "old", "theirs", "heard", "misheard")
_SLOT_TAGS = {"newlabel": "label", "kin": "who", "echo": "quality", "caller": "name", "town": "place"}
_SLOT_TAGS |= {"samejob": "job"} | dict.fromkeys(_THINGS, "thing")
_NEEDS = {"misheard": "heard", "new": "topic", "doing": "topic", "did": "topic", "label": "topic"}
_NEEDS |= {s: s for s in ("it", "old", "theirs", "heard", "echo", "kin", "caller", "town", "samejob")}


class Template(NamedTuple):
    """A phrasing of an act: tokens, and slots in braces."""

    text: str
    elements: tuple[str, ...]
    needs: frozenset[str]  # required entries of `State.offers`


class Act(NamedTuple):
    """A dialog act, as documented in corpus.toml."""

    name: str
    templates: tuple[Template, ...]
    opener: str = ""
    other: str = ""
    own: str = ""
    stays: float = 0.0
    likes: int = 0
    flips: bool = False


class Parse(NamedTuple):
    """Parse of an utterance: its act ("" if unknown) and its words by class."""

    act: str
    opener: str
    last: dict[str, str]  # the last word of every class, and of thing or label as "focus"
    mood: int  # +1 for praise, -1 for criticism


@dataclass(frozen=True, slots=True)
class DialogState:
    """State that determines the distribution of the next utterance. Empty strings: none in the window."""

    situation: str
    spoken: int = 0  # utterances in the window
    hush: bool = False  # the last utterance was a backchannel
    topic: str = ""
    focus: str = ""  # the last thing or label
    mood: int = 0  # of the utterance to respond to
    stance: int = 0  # of the responder, towards `it`
    stale: int = 0  # utterances on the topic
    names: Mapping[str, str] = field(default_factory=dict)  # referents of slots: it, heard, echo, kin, …
    old: tuple[str, ...] = ()  # earlier things, the latest first
    theirs: tuple[str, ...] = ()  # earlier things of the other speaker
    who: str = ""  # the responder's last person, then last place and job, and openers used
    place: str = ""
    job: str = ""
    openers: tuple[str, ...] = ()
    offers: frozenset[str] = frozenset()  # names available to templates


class Grammar:
    """Acts, the situations in which they follow, and a parser of utterances and conversations."""

    def __init__(self, tables: Tables, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self.situations: dict[str, dict[str, float]] = tables["situations"]
        self.acts = {name: _act(name, table) for name, table in tables["acts"].items()}
        self._split = WordPunct().split
        self._pattern = re.compile("|".join(map(self._alternative, self.acts.values())))
        openers = {act.opener for act in self.acts.values()} - {""}
        phrases = {self._tagged(p) for name in openers for p in lexicon.lists[name].phrases if p}
        self._openers = sorted(phrases, key=lambda phrase: (-len(phrase), phrase))
        self._read: dict[str, Parse] = {}

    def _alternative(self, act: Act) -> str:
        templates = ("".join(self._element(e, act) for e in t.elements) for t in act.templates)
        return f"(?P<{act.name}>" + "|".join(templates) + ")"

    def _element(self, element: str, act: Act) -> str:
        if not element.startswith("{"):
            return re.escape(self._tagged((element,)))
        slot = element[1:-1]
        support = self.lexicon.lists.get(act.opener if slot == "opener" else slot)
        tag = _SLOT_TAGS.get(slot, slot)
        if tag in self.lexicon.tag.values() or support is None:
            return f"<{tag}> "
        return "(?:" + "|".join(re.escape(self._tagged(p)) for p in support.phrases) + ")"

    def _tagged(self, tokens: Sequence[str]) -> str:
        tags = self.lexicon.tag
        return "".join(f"<{tags[token]}> " if token in tags else f"{token} " for token in tokens)

    def read(self, text: str) -> Parse:
        """Parse one utterance."""
        reading = self._read.get(text)
        if reading is None:
            tokens = self._split(text)
            tags, tagged = self.lexicon.tag, self._tagged(tokens)
            match = self._pattern.fullmatch(tagged)
            act = (match.lastgroup if match else None) or ""
            opener = next((phrase for phrase in self._openers if tagged.startswith(phrase)), "")
            last = {tags[token]: token for token in tokens if token in tags}
            focus = next((token for token in reversed(tokens) if tags.get(token) in ("thing", "label")), "")
            if focus:
                last["focus"] = focus
            mood = (-1 if last["quality"] in self.lexicon.negative else 1) if "quality" in last else 0
            likes = self.acts[act].likes if act else 0
            self._read[text] = reading = Parse(act, opener, last, likes or mood)
        return reading

    def state(self, context: Sequence[Utterance], responder: str) -> DialogState:
        """State for the next speaker after the last ``UTTERANCES_BACK`` utterances, ``<d>`` not counted."""
        heard = [
            (u.speaker == responder, self.read(u.text))
            for u in context[-UTTERANCES_BACK:]
            if u.text != DIALOG
        ]
        if not heard:
            return DialogState("start")
        # Backchannels and repairs are skipped, so that an earlier question still waits for its answer.
        told = [(mine, r) for mine, r in heard if not r.act or self.acts[r.act].other][::-1] or heard[::-1]
        mine, last = told[0]
        ours = [r for m, r in told if m]
        theirs = [r for m, r in told if not m]
        everyone = [r for _, r in told]
        thing, focus = _first(everyone, "thing"), _first(everyone, "focus")
        topic = self.lexicon.topic.get(focus, "")
        earlier = [(m, word) for m, r in told[1:] if (word := r.last.get("thing")) and word != thing]
        old = tuple(dict.fromkeys(word for _, word in earlier))[:MENTIONS_KEPT]
        their_old = tuple(dict.fromkeys(word for m, word in earlier if not m))[:MENTIONS_KEPT]
        names = {
            "it": thing,
            "heard": last.last.get("thing", ""),
            "echo": last.last.get("quality", ""),
            "kin": _first(theirs, "who"),
            "caller": next((r.last["name"] for r in theirs if r.act.startswith("hello")), ""),
            "town": _first(theirs, "place"),
            "samejob": _first(theirs, "job"),
        }
        offers = {name for name, word in names.items() if word}
        offers |= {name for name, there in (("topic", topic), ("old", old), ("theirs", their_old)) if there}
        return DialogState(
            self._situation(heard[-1], mine, last),
            spoken=len(heard),
            hush=heard[-1][1].act == "backchannel",
            topic=topic,
            focus=focus,
            mood=last.mood,
            stance=next((r.mood for r in ours if thing and r.mood and r.last.get("thing") == thing), 0),
            stale=sum(self.lexicon.topic[r.last["focus"]] == topic for r in everyone if "focus" in r.last),
            names=names,
            old=old,
            theirs=their_old,
            who=_first(ours, "who"),
            place=_first(ours, "place"),
            job=_first(ours, "job"),
            openers=tuple(dict.fromkeys(r.opener for r in ours if r.opener)),
            offers=frozenset(offers),
        )

    def _situation(self, latest: tuple[bool, Parse], mine: bool, last: Parse) -> str:
        if latest[1].act == "repair" and not latest[0] and "thing" in last.last:
            return "asked_repeat"
        act = self.acts.get(last.act)
        if mine:
            return (act.own if act else "") or "telling"
        return (act.other if act else "") or "told"


def _first(readings: Sequence[Parse], tag: str) -> str:
    return next((reading.last[tag] for reading in readings if tag in reading.last), "")


def _act(name: str, table: Tables) -> Act:
    templates = tuple(_template(text, "opener" in table) for text in table["templates"])
    return Act(name, **{**table, "templates": templates})


def _template(text: str, opened: bool) -> Template:
    elements = (["{opener}"] if opened else []) + _ELEMENT.findall(text)
    needs = {_NEEDS[slot] for element in elements if (slot := element.strip("{}")) in _NEEDS}
    return Template(text, tuple(elements), frozenset(needs))
