"""Rules on responses, as masks of the next token's log-probabilities.

A :data:`Rule` lowers the log-probabilities (R, V) of the next token in place, given the history (R, t) and
the sources (R,) of the rows. Rules that are off do not exist.

R rows · t tokens so far · V words · P phrases.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from dialog.decoding.config import DecodeConfig
from dialog.decoding.phrases import RequiredPhrases, no_phrase_
from dialog.decoding.steps import Marks, Texts
from lm.errors import DivergenceError

Rule = Callable[[Tensor, Tensor, Tensor], None]


class Rules:
    """All rules of a config: forbidden ids, lengths, repetition, and texts that must or must not occur.

    While the forced beginning lasts, it is the only rule.
    """

    def __init__(self, config: DecodeConfig, marks: Marks, texts: Texts, *, deadline: bool) -> None:
        words = [phrase[0] for phrase in texts.forbid if len(phrase) == 1]
        self._eos, self._forbidden = marks.eos, [*marks.forbidden, *words]
        self._min_length, self._begin = config.min_length, texts.begin
        self._or_warmer = " or a higher temperature" if config.method == "sample" else ""
        self.required = RequiredPhrases(texts.require, marks.eos) if texts.require else None
        self._rules: list[Rule] = []
        if config.no_repeat_ngram:
            self._rules.append(partial(no_repeated_ngram_, config.no_repeat_ngram))
        if config.block_context_ngram:
            self._rules.append(ContextNgrams(config.block_context_ngram, texts.contexts).restrict_)
        for phrase in texts.forbid:
            if len(phrase) > 1:
                self._rules.append(partial(no_phrase_, torch.tensor(phrase)))
        if self.required:
            in_time = partial(self.required.restrict_in_time_, config.max_length)
            self._rules.append(in_time if deadline else self.required.restrict_)

    def apply(self, log_probs: Tensor, history: Tensor, sources: Tensor) -> Tensor:
        """A copy of ``log_probs`` (R, V), -inf at tokens that are excluded after the history (R, t).

        ``sources`` (R,) are places in ``Texts.contexts``.
        """
        if bool(log_probs.sum().isnan()):
            raise DivergenceError(
                f"the model's probabilities are not numbers; choose another checkpoint{self._or_warmer}"
            )
        length = history.shape[1]
        if length < len(self._begin):
            only = torch.full_like(log_probs, -math.inf)
            only[:, self._begin[length]] = log_probs[:, self._begin[length]]
            return only
        blocked = [*self._forbidden, self._eos] if length < self._min_length else self._forbidden
        ids = torch.tensor(blocked, dtype=torch.long, device=log_probs.device)
        log_probs = log_probs.index_fill(1, ids, -math.inf)
        for rule in self._rules:
            rule(log_probs, history, sources)
        return log_probs


def no_repeated_ngram_(size: int, log_probs: Tensor, history: Tensor, sources: Tensor) -> None:
    """Exclude tokens that would complete an n-gram of the history, so that none occurs twice."""
    length = history.shape[1]
    if size > length:
        return
    windows = history.unfold(1, size, 1)  # (R, t - n + 1, n)
    tail = history[:, length - size + 1 :]  # (R, n - 1)
    row, place = (windows[..., :-1] == tail.unsqueeze(1)).all(-1).nonzero(as_tuple=True)
    log_probs[row, windows[row, place, -1]] = -math.inf


class ContextNgrams:
    """No n-gram of an utterance of the context occurs in the response."""

    def __init__(self, size: int, contexts: Sequence[Sequence[Sequence[int]]]) -> None:
        self._size = size
        grams = [
            sorted({tuple(said[i : i + size]) for said in context for i in range(len(said) - size + 1)})
            for context in contexts
        ]
        most = max(map(len, grams), default=0)
        none = (-1,) * size
        rows = [[*found, *[none] * (most - len(found))] for found in grams]
        self._grams = torch.tensor(rows, dtype=torch.long).view(len(contexts), most, size)

    def restrict_(self, log_probs: Tensor, history: Tensor, sources: Tensor) -> None:
        """Exclude tokens that would complete an n-gram of the context."""
        start = history.shape[1] - self._size + 1
        if start < 0:
            return
        self._grams = self._grams.to(history.device)
        grams = self._grams[sources]  # (R, M, n)
        same = (grams[..., :-1] == history[:, None, start:]).all(-1) & (grams[..., -1] >= 0)
        row, place = same.nonzero(as_tuple=True)
        log_probs[row, grams[row, place, -1]] = -math.inf
