"""Batched beam search over any step function.

A step function maps the last token and the state of each of R rows to normalised log-probabilities (R, V) and
the next state. ``state.select(rows)`` reorders, repeats or drops rows. The search needs no more of the model.
Each source's result depends only on its own rows, not on the batch size or order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from dialog.config import DecodeConfig
from lm.errors import DivergenceError
from lm.heads.sampling import INFINITY, ranked


class StepState(Protocol):
    """Interface of a decoder's state between tokens, for R rows."""

    def select(self, rows: Tensor) -> Self:
        """State whose row i is row ``rows[i]`` of the present one. Rows may repeat or be dropped."""
        ...


StateT = TypeVar("StateT", bound=StepState)
StepFunction = Callable[[Tensor, StateT], tuple[Tensor, StateT]]


class Marks(NamedTuple):
    """Special ids: start and end of every response, and ids forbidden in responses."""

    bos: int
    eos: int
    forbidden: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A decoded response: ``tokens`` without <s> and </s>, ``log_prob`` in nats, with </s> if finished.

    ``score`` is ``log_prob / length ** length_penalty``. The length counts the </s> of a finished response.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool


class Constraints:
    """Constraints on responses: no forbidden ids, no </s> before the minimum length, no repeated n-grams."""

    def __init__(self, config: DecodeConfig, marks: Marks) -> None:
        self._eos, self._forbidden = marks.eos, list(marks.forbidden)
        self._min_length, self._ngram = config.min_length, config.no_repeat_ngram

    def apply(self, log_probs: Tensor, history: Tensor) -> Tensor:
        """Set ``log_probs`` (R, V) of tokens that the history (R, t) excludes to -inf."""
        if bool(log_probs.sum().isnan()):
            raise DivergenceError("the model's probabilities are not numbers; choose another checkpoint")
        length = history.shape[1]
        blocked = [*self._forbidden, self._eos] if length < self._min_length else self._forbidden
        ids = torch.tensor(blocked, dtype=torch.long, device=log_probs.device)
        log_probs = log_probs.index_fill(1, ids, -INFINITY)
        if 0 < self._ngram <= length:
            windows = history.unfold(1, self._ngram, 1)  # (R, t - n + 1, n)
            tail = history[:, length - self._ngram + 1 :]  # (R, n - 1)
            row, place = (windows[..., :-1] == tail.unsqueeze(1)).all(-1).nonzero(as_tuple=True)
            log_probs[row, windows[row, place, -1]] = -INFINITY
        return log_probs


@dataclass(frozen=True, slots=True)
class _Hypotheses:
    """N places for hypotheses of each of S sources. The log-probability of an empty place is -inf."""

    tokens: Tensor  # (S, N, T)
    lengths: Tensor  # (S, N), </s> not counted
    log_probs: Tensor  # (S, N), float64: sums of many steps, compared exactly
    scores: Tensor  # (S, N), float64

    def rows(self, sources: Tensor) -> "_Hypotheses":
        """Hypotheses of some sources."""
        parts = (self.tokens, self.lengths, self.log_probs, self.scores)
        return _Hypotheses(*(part[sources] for part in parts))

    def best(self, other: "_Hypotheses", count: int) -> "_Hypotheses":
        """Best ``count`` hypotheses of both. On equal scores ``self`` and earlier places come first."""
        scores, order = torch.cat([self.scores, other.scores], 1).sort(dim=1, descending=True, stable=True)
        scores, order = scores[:, :count], order[:, :count]
        steps = order.unsqueeze(-1).expand(-1, -1, self.tokens.shape[-1])
        tokens = torch.cat([self.tokens, other.tokens], 1).gather(1, steps)
        lengths = torch.cat([self.lengths, other.lengths], 1).gather(1, order)
        log_probs = torch.cat([self.log_probs, other.log_probs], 1).gather(1, order)
        return _Hypotheses(tokens, lengths, log_probs, scores)

    def listed(self, source: int, *, finished: bool) -> list[Hypothesis]:
        """Hypotheses of one source, without empty places."""
        parts = (self.tokens, self.lengths, self.log_probs, self.scores)
        places = zip(*(part[source].tolist() for part in parts), strict=True)
        return [
            Hypothesis(tuple(tokens[:length]), log_prob, score, finished)
            for tokens, length, log_prob, score in places
            if log_prob > -INFINITY
        ]


class _Search:
    """Live and finished hypotheses of the S active sources, with W live rows each."""

    def __init__(self, sources: int, config: DecodeConfig, *, eos: int, device: torch.device) -> None:
        self.config, self.eos = config, eos
        self.sources = torch.arange(sources, device=device)  # (S,) their numbers in the batch
        self.history = torch.zeros(sources, 1, 0, dtype=torch.long, device=device)  # (S, W, t)
        self.live = torch.zeros(sources, 1, dtype=torch.float64, device=device)  # (S, W) log-probabilities
        self.parents = torch.zeros(sources, 1, dtype=torch.long, device=device)  # (S, W) places one step ago
        self.width = 1  # W one step ago
        self.over = False
        empty = torch.full((sources, config.nbest), -INFINITY, dtype=torch.float64, device=device)
        tokens = torch.full((sources, config.nbest, config.max_length), eos, device=device)
        self.finished = _Hypotheses(tokens, torch.zeros_like(empty, dtype=torch.long), empty, empty)

    @property
    def length(self) -> int:
        return self.history.shape[2]

    def extend(self, log_probs: Tensor) -> None:
        """Rank the continuations, given the constrained ``log_probs`` (S·W, V) of the next token."""
        count, self.width = self.live.shape
        beam, vocab = self.config.beam, log_probs.shape[1]
        # The best 2·beam of a source are among the best 2·beam of each of its rows.
        best, tokens = ranked(log_probs, min(2 * beam, vocab))  # (S·W, k)
        totals = (self.live.view(-1, 1) + best.double()).view(count, -1)  # (S, W·k)
        totals, order = totals.sort(dim=1, descending=True, stable=True)
        totals, order = totals[:, : 2 * beam], order[:, : 2 * beam]  # (S, 2·beam)
        parents = order // best.shape[1]
        tokens = tokens.view(count, -1).gather(1, order)
        ends = tokens == self.eos
        self._finish(parents[:, :beam], totals[:, :beam].masked_fill(~ends[:, :beam], -INFINITY))
        if not self.over:
            # A row has one </s>, so beam other candidates remain, or all there are.
            width = min(beam, self.width * (vocab - 1))
            going = ends.int().argsort(dim=1, stable=True)[:, :width]
            self.parents, self.live = parents.gather(1, going), totals.gather(1, going)
            tokens = tokens.gather(1, going)
            self.history = torch.cat([self._histories(self.parents), tokens.unsqueeze(-1)], 2)

    def _histories(self, places: Tensor) -> Tensor:
        return self.history.gather(1, places.unsqueeze(-1).expand(-1, -1, self.length))

    def _finish(self, parents: Tensor, log_probs: Tensor) -> None:
        """Keep hypotheses that end at ``parents`` (S, beam). At full length the others stay unfinished."""
        source, place = (log_probs > -INFINITY).nonzero(as_tuple=True)
        if len(source):
            ended = self._as_hypotheses(self._histories(parents), log_probs, self.length + 1)
            self.finished = self.finished.best(ended, self.config.nbest)
        if self.length == self.config.max_length:
            self.over = True
            self.live[source, parents[source, place]] = -INFINITY

    def _as_hypotheses(self, history: Tensor, log_probs: Tensor, length: int) -> _Hypotheses:
        tokens = torch.nn.functional.pad(history, (0, self.config.max_length - self.length), value=self.eos)
        lengths = torch.full_like(log_probs, self.length, dtype=torch.long)
        return _Hypotheses(tokens, lengths, log_probs, log_probs / length**self.config.length_penalty)

    def settled(self) -> Tensor:
        """(S,) true if no live hypothesis can still enter the finished ones.

        Log-probabilities only fall, so a live one of log-probability s ends with a score of at most
        s / (max_length + 1) ** length_penalty. On equal scores the earlier hypothesis wins.
        """
        longest = self.config.max_length + 1
        attainable: Tensor = self.live.max(1).values / longest**self.config.length_penalty
        return (attainable <= self.finished.scores[:, -1]) | self.over

    def collect(self, source: int) -> list[Hypothesis]:
        """Hypotheses of row ``source``: the finished ones, then the unfinished ones of full length."""
        found = self.finished.listed(source, finished=True)
        if self.over:
            found += self._as_hypotheses(self.history, self.live, self.length).listed(source, finished=False)
        return found[: self.config.nbest]

    def keep(self, going: Tensor) -> Tensor:
        """Keep only the sources ``going`` (S',). Returns their rows (S'·W,) before the selection."""
        rows = (going.unsqueeze(1) * self.width + self.parents[going]).flatten()
        self.sources, self.history, self.live = self.sources[going], self.history[going], self.live[going]
        self.parents, self.finished = self.parents[going], self.finished.rows(going)
        return rows


@torch.no_grad()
def beam_search(
    step: StepFunction[StateT], state: StateT, sources: int, config: DecodeConfig, marks: Marks
) -> list[list[Hypothesis]]:
    """Search at most ``config.nbest`` responses per source, best first, from a ``state`` of ``sources`` rows.

    Each step ranks all continuations of a source's ``beam`` live hypotheses by log-probability and keeps the
    best 2·beam. </s> ends a hypothesis if it ranks within the first beam, so beam = 1 is greedy search. The
    best beam others stay live. A source is done, and its rows are dropped, when no live hypothesis can reach
    the nbest finished ones. At ``max_length`` tokens without </s>, a hypothesis may only end. Unfinished ones
    of that length come after the finished ones. The result has fewer than nbest, or no, responses if the
    search found no more. ``marks.forbidden`` ids are never produced. Equal scores are ordered by parent, then
    by token id. The first tokens that the step function gets are on the CPU, all others where its
    log-probabilities are.
    """
    if not sources:
        return []
    found: list[list[Hypothesis]] = [[] for _ in range(sources)]
    constraints = Constraints(config, marks)
    log_probs, state = step(torch.full((sources,), marks.bos), state)
    search = _Search(sources, config, eos=marks.eos, device=log_probs.device)
    while True:
        search.extend(constraints.apply(log_probs, search.history.flatten(0, 1)))
        done = search.settled()
        for source in done.nonzero().flatten().tolist():
            found[int(search.sources[source])] = search.collect(source)
        if bool(done.all()):
            return found
        state = state.select(search.keep((~done).nonzero().flatten()))
        log_probs, state = step(search.history[:, :, -1].flatten(), state)
