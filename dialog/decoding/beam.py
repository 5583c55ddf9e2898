"""Batched beam search over any step function, plain or in diverse groups.

Each source's result depends only on its own rows, not on the batch size or order.

S active sources · W live rows of each · V words · t tokens so far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from dialog.decoding.config import DecodeConfig
from dialog.decoding.rules import Rules
from dialog.decoding.steps import NO_TEXTS, Hypothesis, Marks, StateT, StepFunction, Texts
from dialog.decoding.trace import BeamTrace
from lm.heads.sampling import ranked


@dataclass(frozen=True, slots=True)
class BestHypotheses:
    """N places for hypotheses of each of S sources. The log-probability of an empty place is -inf."""

    tokens: Tensor  # (S, N, T)
    lengths: Tensor  # (S, N), </s> not counted
    log_probs: Tensor  # (S, N), float64: sums of many steps, compared exactly
    scores: Tensor  # (S, N), float64

    def rows(self, sources: Tensor) -> "BestHypotheses":
        """Hypotheses of some sources."""
        parts = (self.tokens, self.lengths, self.log_probs, self.scores)
        return BestHypotheses(*(part[sources] for part in parts))

    def best(self, other: "BestHypotheses", count: int) -> "BestHypotheses":
        """Best ``count`` hypotheses of both. On equal scores ``self`` and earlier places come first."""
        scores, order = torch.cat([self.scores, other.scores], 1).sort(dim=1, descending=True, stable=True)
        scores, order = scores[:, :count], order[:, :count]
        steps = order.unsqueeze(-1).expand(-1, -1, self.tokens.shape[-1])
        tokens = torch.cat([self.tokens, other.tokens], 1).gather(1, steps)
        lengths = torch.cat([self.lengths, other.lengths], 1).gather(1, order)
        log_probs = torch.cat([self.log_probs, other.log_probs], 1).gather(1, order)
        return BestHypotheses(tokens, lengths, log_probs, scores)

    def listed(self, source: int, *, finished: bool) -> list[Hypothesis]:
        """Hypotheses of one source, without empty places."""
        parts = (self.tokens, self.lengths, self.log_probs, self.scores)
        places = zip(*(part[source].tolist() for part in parts), strict=True)
        return [
            Hypothesis(tuple(tokens[:length]), log_prob, score, finished)
            for tokens, length, log_prob, score in places
            if log_prob > -math.inf
        ]


class _Search:
    """Live and finished hypotheses of the S active sources, with W live rows each."""

    def __init__(
        self,
        sources: int,
        config: DecodeConfig,
        rules: Rules,
        *,
        eos: int,
        device: torch.device,
        trace: BeamTrace | None = None,
    ) -> None:
        self.config, self.rules, self.eos, self.trace = config, rules, eos, trace
        self.found: list[list[Hypothesis]] = [[] for _ in range(sources)]
        self.sources = torch.arange(sources, device=device)  # (S,) their numbers in the batch
        self.history = torch.zeros(sources, 1, 0, dtype=torch.long, device=device)  # (S, W, t)
        self.live = torch.zeros(sources, 1, dtype=torch.float64, device=device)  # (S, W) log-probabilities
        self.merits = self.live  # (S, W) log-probabilities less penalties, which rank
        self.parents = torch.zeros(sources, 1, dtype=torch.long, device=device)  # (S, W) places one step ago
        self.width = 1  # W one step ago
        self.over = False
        empty = torch.full((sources, config.nbest), -math.inf, dtype=torch.float64, device=device)
        tokens = torch.full((sources, config.nbest, config.max_length), eos, device=device)
        self.finished = BestHypotheses(tokens, torch.zeros_like(empty, dtype=torch.long), empty, empty)

    @property
    def length(self) -> int:
        return self.history.shape[2]

    def extend(self, log_probs: Tensor, penalty: Tensor | None = None) -> None:
        """Rank the continuations, given the model's ``log_probs`` (S·W, V) of the next token.

        A ``penalty`` (S, V) lowers the rank of tokens, but not the log-probability of hypotheses.
        """
        count, self.width = self.live.shape
        beam, vocab = self.config.beam, log_probs.shape[1]
        histories = self.history.flatten(0, 1)
        log_probs = self.rules.apply(log_probs, histories, self.sources.repeat_interleave(self.width))
        steered = log_probs
        if penalty is not None:
            steered = log_probs - penalty.repeat_interleave(self.width, 0).to(log_probs.dtype)
        # The best 2·beam of a source are among the best 2·beam of each of its rows.
        best, tokens = ranked(steered, min(2 * beam, vocab))  # (S·W, k)
        if self.rules.required:
            best, tokens = self.rules.required.offered(steered, tokens, best, histories)
        merits, order = self._ordered(best, tokens)
        parents = order // best.shape[1]
        totals = merits
        if penalty is not None:
            gained = log_probs.gather(1, tokens).double()
            totals = (self.live.view(-1, 1) + gained).view(count, -1).gather(1, order)
            totals = totals.masked_fill(merits == -math.inf, -math.inf)
        tokens = tokens.view(count, -1).gather(1, order)
        ends = tokens == self.eos
        self._finish(parents[:, :beam], totals[:, :beam].masked_fill(~ends[:, :beam], -math.inf))
        # Each of at most beam rows has one </s>, so beam other candidates remain, or all there are.
        width = 0 if self.over else min(beam, self.width * (vocab - 1))
        going = ends.int().argsort(dim=1, stable=True)[:, :width]
        if self.trace:
            self._record(self.trace, parents, tokens, totals, going)
        if not self.over:
            self.parents, self.live = parents.gather(1, going), totals.gather(1, going)
            self.merits = self.live if penalty is None else merits.gather(1, going)
            tokens = tokens.gather(1, going)
            if self.rules.required:  # which offers </s> a second time, as impossible
                self.live = self.live.masked_fill(tokens == self.eos, -math.inf)
                self.merits = self.merits.masked_fill(tokens == self.eos, -math.inf)
            self.history = torch.cat([self._histories(self.parents), tokens.unsqueeze(-1)], 2)

    def _ordered(self, best: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Merits (S, 2·beam) of the best continuations, and their places among the W·k of a source."""
        count, most = len(self.live), 2 * self.config.beam
        merits = (self.merits.view(-1, 1) + best.double()).view(count, -1)  # (S, W·k)
        merits, order = merits.sort(dim=1, descending=True, stable=True)
        if self.rules.required:
            histories = self._histories(order // best.shape[1])
            candidates = tokens.view(count, -1).gather(1, order)
            turns = self.rules.required.in_turn(merits, torch.cat([histories, candidates.unsqueeze(-1)], 2))
            merits, order = merits.gather(1, turns), order.gather(1, turns)
        return merits[:, :most], order[:, :most]

    def _record(
        self, trace: BeamTrace, parents: Tensor, tokens: Tensor, totals: Tensor, going: Tensor
    ) -> None:
        """Record the ranked continuations (1, 2·beam) of the only source; ``going`` are kept."""
        continuations = torch.cat([self._histories(parents), tokens.unsqueeze(-1)], 2)
        ends = tokens == self.eos
        lives = torch.zeros_like(ends).scatter(1, going, True) & ~ends
        lives[:, : self.config.beam] |= ends[:, : self.config.beam]
        trace.add(continuations[0], totals[0], ends[0], lives[0])

    def _histories(self, places: Tensor) -> Tensor:
        return self.history.gather(1, places.unsqueeze(-1).expand(-1, -1, self.length))

    def _finish(self, parents: Tensor, log_probs: Tensor) -> None:
        """Keep hypotheses that end at ``parents`` (S, beam). At full length the others stay unfinished."""
        source, place = (log_probs > -math.inf).nonzero(as_tuple=True)
        if len(source):
            ended = self._as_hypotheses(self._histories(parents), log_probs, self.length + 1)
            self.finished = self.finished.best(ended, self.config.nbest)
        if self.length == self.config.max_length:
            self.over = True
            self.live[source, parents[source, place]] = -math.inf
            if self.rules.required:
                complete = self.rules.required.complete(self.history.flatten(0, 1)).view_as(self.live)
                self.live = self.live.masked_fill(~complete, -math.inf)

    def _as_hypotheses(self, history: Tensor, log_probs: Tensor, length: int) -> BestHypotheses:
        tokens = torch.nn.functional.pad(history, (0, self.config.max_length - self.length), value=self.eos)
        lengths = torch.full_like(log_probs, self.length, dtype=torch.long)
        return BestHypotheses(tokens, lengths, log_probs, log_probs / length**self.config.length_penalty)

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

    def retire(self) -> Tensor:
        """Store the hypotheses of settled sources, and drop these. Returns the rows (S'·W,) of the others.

        The rows are those before the selection.
        """
        done = self.settled()
        for source in done.nonzero().flatten().tolist():
            self.found[int(self.sources[source])] = self.collect(source)
        going = (~done).nonzero().flatten()
        rows = (going.unsqueeze(1) * self.width + self.parents[going]).flatten()
        self.sources, self.history, self.live = self.sources[going], self.history[going], self.live[going]
        self.merits, self.parents = self.merits[going], self.parents[going]
        self.finished = self.finished.rows(going)
        return rows


@torch.no_grad()
def beam_search(
    step: StepFunction[StateT],
    state: StateT,
    sources: int,
    config: DecodeConfig,
    marks: Marks,
    texts: Texts = NO_TEXTS,
    trace: BeamTrace | None = None,
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

    With ``config.groups`` G, G searches with beam / G each advance together. In each step, every group ranks
    a token lower by ``config.diversity`` for each hypothesis of an earlier group that has just taken it
    (Vijayakumar et al. 2016, Hamming diversity). The groups give their responses in turn, without repetition,
    up to nbest. Log-probabilities and scores contain no penalty.

    A ``trace`` records the search of the only source.
    """
    if not sources:
        return []
    log_probs, state = step(torch.full((sources,), marks.bos), state)
    rules = Rules(config, marks, texts, deadline=False)
    part = config.model_copy(update={"beam": config.beam // config.groups}) if config.groups > 1 else config
    groups = [
        _Search(sources, part, rules, eos=marks.eos, device=log_probs.device, trace=trace)
        for _ in range(config.groups)
    ]
    active = groups
    parts, starts = [log_probs] * len(groups), [0] * len(groups)  # the groups share the first step
    while True:
        if trace:
            trace.begin_step()
        _extend(active, parts, config)
        rows = [start + search.retire() for start, search in zip(starts, active, strict=True)]
        active = [search for search in active if len(search.sources)]
        if not active:
            return groups_in_turn([search.found for search in groups], config.nbest)
        state = state.select(torch.cat(rows))
        log_probs, state = step(torch.cat([search.history[:, :, -1].flatten() for search in active]), state)
        sizes = [search.live.numel() for search in active]
        parts, starts = list(log_probs.split(sizes)), [sum(sizes[:place]) for place in range(len(sizes))]


def _extend(groups: Sequence[_Search], parts: Sequence[Tensor], config: DecodeConfig) -> None:
    """Advance the searches, each with its rows of log-probabilities and the penalty of the groups before."""
    taken: Tensor | None = None  # (S, V) hypotheses of earlier groups that take a token now
    if config.groups > 1:
        taken = parts[0].new_zeros(len(groups[0].found), parts[0].shape[1], dtype=torch.float64)
    for search, log_probs in zip(groups, parts, strict=True):
        search.extend(log_probs, None if taken is None else config.diversity * taken[search.sources])
        if taken is not None and not search.over:
            source, place = (search.live > -math.inf).nonzero(as_tuple=True)
            chosen = search.sources[source], search.history[source, place, -1]
            taken.index_put_(chosen, taken.new_ones(len(source)), accumulate=True)


def groups_in_turn(groups: Sequence[list[list[Hypothesis]]], nbest: int) -> list[list[Hypothesis]]:
    """The hypotheses of each source: those of the groups in turn, without repetition, best first."""
    if len(groups) == 1:
        return groups[0]
    found = []
    for lists in zip(*groups, strict=True):
        in_turn = [one for turn in zip_longest(*lists) for one in turn if one is not None]
        chosen: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
        for one in in_turn:
            chosen.setdefault((one.tokens, one.finished), one)
        first = sorted([*chosen.values()][:nbest], key=lambda one: one.order)
        found.append(first)
    return found
