"""Phrases that responses must, or must not, contain, in token ids.

R rows · t tokens so far · V words · P phrases · L tokens of a phrase.

Functions with ``_`` at the end write −∞ into ``log_probs`` (R, V), given the ``history`` (R, t) of token ids
and the number of the context of each row, ``sources`` (R,).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def no_phrase_(phrase: Tensor, log_probs: Tensor, history: Tensor, sources: Tensor) -> None:
    """Exclude the token that would complete a phrase of two tokens or more."""
    start = history.shape[1] - len(phrase) + 1
    if start >= 0:
        rows = (history[:, start:] == phrase[:-1].to(history.device)).all(1)
        log_probs[rows, phrase[-1]] = -math.inf


class RequiredPhrases:
    """Phrases that every response contains.

    Beam search shares its places among *banks* of hypotheses, which hold equally many tokens of the phrases
    (Post and Vilar 2018). The tokens that a hypothesis holds follow from its history, so phrases may overlap.
    """

    def __init__(self, phrases: Sequence[Sequence[int]], eos: int) -> None:
        self._phrases = [torch.tensor(phrase) for phrase in phrases]
        self._eos = eos
        self._lengths = torch.tensor([len(phrase) for phrase in phrases])
        self.tokens = sum(map(len, phrases))
        self.next_tokens = torch.tensor(sorted({token for phrase in phrases for token in phrase}))

    def progress(self, history: Tensor) -> Tensor:
        """Tokens of every phrase in the history (R, t): L, or those of a beginning at its end; (R, P)."""
        time, found = history.shape[1], []
        for phrase in self._phrases:
            here = phrase.to(history.device)
            held = history.new_zeros(len(history))
            for size in range(1, min(len(phrase), time + 1)):
                held = held.masked_fill((history[:, time - size :] == here[:size]).all(1), size)
            if time >= len(phrase):
                windows = history.unfold(1, len(phrase), 1)  # (R, t - L + 1, L)
                held = held.masked_fill((windows == here).all(-1).any(1), len(phrase))
            found.append(held)
        return torch.stack(found, 1)

    def held(self, history: Tensor) -> Tensor:
        """(R,) tokens of the phrases in the history (R, t): those of complete ones and the longest beginning.

        Of phrases that begin alike, the next tokens can complete only one, so beginnings do not add up.
        """
        progress = self.progress(history)
        whole = progress == self._lengths.to(history.device)
        done: Tensor = progress.masked_fill(~whole, 0).sum(1) + progress.masked_fill(whole, 0).amax(1)
        return done

    def complete(self, history: Tensor) -> Tensor:
        """(R,) true if the history (R, t) contains every phrase."""
        return (self.progress(history) == self._lengths.to(history.device)).all(1)

    def restrict_(self, log_probs: Tensor, history: Tensor, sources: Tensor) -> None:
        """Exclude </s> before all phrases have occurred."""
        log_probs[~self.complete(history), self._eos] = -math.inf

    def restrict_in_time_(self, max_length: int, log_probs: Tensor, history: Tensor, sources: Tensor) -> None:
        """Exclude </s> before all phrases have occurred, and tokens after which the rest has no room.

        For decoding without banks: as soon as the room up to ``max_length`` is needed, the phrases follow.
        """
        self.restrict_(log_probs, history, sources)
        left = max_length - history.shape[1] - 1  # after the next token
        progress = self.progress(history)
        lengths = self._lengths.to(history.device)
        needed = lengths.masked_fill(progress == lengths, 0).sum(1)  # after any token of no phrase
        late = ((needed > left) & (needed > 0)).nonzero()[:, 0]
        if not len(late):
            return
        only = torch.full_like(log_probs[late], -math.inf)
        for token in self.next_tokens.to(history.device):
            after = torch.cat([history[late], token.expand(len(late), 1)], 1)
            fits = self.tokens - self.held(after) <= left
            only[fits, token] = log_probs[late[fits], token]
        log_probs[late] = only

    def offered(self, values: Tensor, tokens: Tensor, best: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates ``best``, ``tokens`` (R, k), and those that go on with a phrase: twice (R, k + P).

        ``values`` (R, V) are those of all tokens. A token that is there already has -inf.
        """
        progress = self.progress(history)
        ends = [torch.cat([p, p.new_tensor([self._eos])]).to(tokens.device) for p in self._phrases]
        more = torch.stack([end[held] for end, held in zip(ends, progress.T, strict=True)], 1)  # (R, P)
        every = torch.cat([tokens, more], 1)
        same = (more[:, :, None] == every[:, None, :]).cumsum(2)  # times seen, up to each place
        place = torch.arange(tokens.shape[1], every.shape[1], device=tokens.device)
        again = same[:, torch.arange(more.shape[1], device=tokens.device), place] > 1
        added = values.gather(1, more).masked_fill(again, -math.inf)
        return torch.cat([best, added], 1), every

    def in_turn(self, merits: Tensor, histories: Tensor) -> Tensor:
        """Order (S, C) of candidates in which the banks take turns, the one with most tokens first.

        Args:
            merits: (S, C), highest first in each row.
            histories: (S, C, t) with the candidates' tokens; </s> follows only complete phrases.
        """
        banks = self.held(histories.flatten(0, 1)).view_as(merits)
        count = self.tokens + 1
        rank = torch.nn.functional.one_hot(banks, count).cumsum(1).gather(2, banks[..., None])[..., 0] - 1
        rank = rank.masked_fill(merits == -math.inf, merits.shape[1])
        return (rank * count + self.tokens - banks).argsort(dim=1, stable=True)
