"""Words that no context can make the most probable one (Demeter et al. 2020, Grivas et al. 2022).

A word is *unargmaxable* if no context vector c of the head's output layer W c + b gives it the largest logit.
Links except relu are increasing, so the largest logit has the largest probability. Two sets of contexts are
asked about:

    bounded    contexts that the head can have: those of a mixture are in [−s, s]^E for its factor s, and the
               states of a trunk within its bound, which is 1 for one recurrent layer
    free       all real contexts

A mixture of such components changes nothing. By duality of linear programs, an unargmaxable word v has shares
α_u of other words with z_v(c) ≤ Σ_u α_u z_u(c) at every context of the set. For an increasing convex g, as of
softmax and sigsoftmax, g(z_v) ≤ Σ_u α_u g(z_u) in each component. Divided by normalisers and averaged by
priors, P(v) ≤ Σ_u α_u P(u), so some other word is at least as probable. Conversely, a word that one context
prefers is preferred by the mixture whose contexts are all that one.

A word is *undecided* if a linear program ends without a solution: that proves nothing.

V words · D numbers that determine the logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lm.arrays import Floats, Ints
from lm.console.tables import Table
from lm.errors import ConfigError, DivergenceError
from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.heads.precision import precise
from lm.heads.registry import HEADS
from lm.language.trained import TrainedLm
from lm.steps import OnProgress, Steps, no_progress

WITNESS_ROUNDS = 60  # of the search for a witness before linear programs
RIVALS = 40  # words that a linear program starts with, and that it gets in each round
CLOSE = 1e-7  # logits this close count as equal, where the largest weight is 1
WORDS_SHOWN = 10


@dataclass(frozen=True)
class Logits:
    """Logits W x + b over x in [−bound, bound]^D; ``bound`` may be infinite."""

    weight: Floats  # (V, D)
    bias: Floats  # (V,)
    bound: float

    def without_witness(self, words: Ints) -> tuple[Ints, Floats]:
        """Words for which a quick search finds no x that prefers them, and its last x of each, (n, D).

        The search moves x along w_v − w_u for the strongest rival u, as a perceptron does.
        """
        offset = self.weight - self.weight.mean(0)
        reach = (
            self.bound
            if np.isfinite(self.bound)
            else 100 / max(float(np.linalg.norm(offset, axis=1).mean()), 1e-30)
        )
        x = reach * (np.sign(offset[words]) if np.isfinite(self.bound) else offset[words])
        for round_ in range(WITNESS_ROUNDS):
            margins, rivals = self.margins(x, words)
            open_ = margins <= CLOSE
            words, x, rivals = words[open_], x[open_], rivals[open_]
            if not len(words) or round_ == WITNESS_ROUNDS - 1:
                break
            step = self.weight[words] - self.weight[rivals]
            step /= np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-30)
            x = np.clip(x + reach * step / np.sqrt(1 + round_ / 4), -self.bound, self.bound)
        return words, x

    def margins(self, x: Floats, words: Ints) -> tuple[Floats, Ints]:
        """Logit of each word minus that of its strongest rival at its x (n, D), and the rivals."""
        margins, rivals = np.empty(len(words)), np.empty(len(words), np.int64)
        for start in range(0, len(words), 512):
            part = slice(start, start + 512)
            logits = x[part] @ self.weight.T + self.bias
            rows = np.arange(len(logits))
            own = logits[rows, words[part]]
            logits[rows, words[part]] = -np.inf
            rivals[part] = logits.argmax(1)
            margins[part] = own - logits.max(1)
        return margins, rivals

    def can_win(self, word: int, start: Floats) -> bool | None:
        """True if some x prefers the word, False if none does, None if the word stays undecided.

        Linear programs have more and more rivals. Each finds x with the largest margin over some rivals. A
        margin of 0 or less is a proof for all rivals. Otherwise the strongest rivals at x join, until there
        is none.
        """
        from scipy.optimize import linprog

        rivals: set[int] = set()
        x = start
        while True:
            logits = self.weight @ x + self.bias
            own = logits[word]
            logits[word] = -np.inf
            new = set(np.argpartition(-logits, min(RIVALS, len(logits) - 2))[:RIVALS].tolist()) - {word}
            if float(logits.max()) < own - CLOSE:
                return True
            if new <= rivals:
                return None  # x has the margin within the tolerance of the program only
            rivals |= new
            chosen = sorted(rivals)
            difference = self.weight[chosen] - self.weight[word]
            found = linprog(
                np.append(np.zeros(self.weight.shape[1]), -1.0),
                A_ub=np.column_stack([difference, np.ones(len(chosen))]),
                b_ub=self.bias[word] - self.bias[chosen],
                bounds=[(-self.bound, self.bound)] * self.weight.shape[1] + [(None, 1.0)],
                method="highs",
            )
            if found.status != 0:
                return None  # such as an iteration limit or numerical trouble
            if -found.fun <= CLOSE:
                return False
            x = found.x[:-1]


class LostWords(NamedTuple):
    """The unargmaxable words, and the undecided ones."""

    proved: list[int]
    undecided: list[int]


def unargmaxable_words(
    logits: Logits, progress: OnProgress = no_progress, among: Sequence[int] | None = None
) -> LostWords:
    """The words ``among`` all for which no x is found: those with a proof, and those without."""
    largest = float(np.abs(logits.weight).max(initial=0.0)) or 1.0
    logits = replace(logits, weight=logits.weight / largest, bias=logits.bias / largest)
    asked = np.arange(len(logits.bias)) if among is None else np.asarray(among, np.int64)
    words, x = logits.without_witness(asked)
    steps = Steps(len(words), progress)
    lost = LostWords([], [])
    for word, start in zip(words.tolist(), x, strict=True):
        won = logits.can_win(word, start)
        if won is None:
            lost.undecided.append(word)
        elif not won:
            lost.proved.append(word)
        steps.advance(1)
    return lost


def require_one_matrix(config: HeadConfig) -> None:
    """Raise ConfigError for heads whose logits are no product of one matrix and a context, or tie."""
    gated = HEADS[config.kind].mixes == "logits" and config.components > 1
    if gated or config.temperature not in ("none", "constant") or config.own_contexts:
        raise ConfigError(
            f"head.kind = {config.kind!r}, head.temperature = {config.temperature!r}: logits are not one"
            " matrix times a context; name runs without temperature and of other kinds than mixtape, mfs"
            " and cpr"
        )
    if HEADS[config.kind].link == "relu":
        raise ConfigError(
            "head.kind = 'relu': negative logits have one probability, so words tie; name runs of other kinds"
        )


def logits_of_head(head: Head, state_bound: float) -> tuple[Logits, Logits]:
    """Logits of one component over the contexts that it can have, and over all contexts, in float64.

    ConfigError as :func:`require_one_matrix`. DivergenceError for an output matrix that is not finite.
    """
    require_one_matrix(head.config)
    weight = precise(head.weight.detach()).double().cpu().numpy()
    bias = np.zeros(len(weight)) if head.bias is None else head.bias.detach().double().cpu().numpy()
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise DivergenceError(
            "the output matrix is not finite, as the model diverged; choose another checkpoint"
        )
    free = Logits(weight, bias, float("inf"))
    if head.latent is not None:
        tanh = head.config.context_activation == "tanh"
        return replace(free, bound=abs(float(head.scale)) if tanh else float("inf")), free
    if head.projection is not None:
        weight = weight @ head.projection.weight.detach().double().cpu().numpy()
    return Logits(weight, bias, state_bound), free


@dataclass(frozen=True)
class Unargmaxable:
    """Numbers of unargmaxable words over ``bounded`` contexts, [−bound, bound]^D, and over free ones.

    ``undecided`` words are no part of them. ``largest_count`` is that of an unargmaxable word in training,
    and ``token_share`` their share of its tokens.
    """

    head: str
    components: int
    context_scale: float
    embedding_size: int
    vocabulary: int
    bound: float
    unargmaxable: int
    unargmaxable_free: int
    undecided: int
    undecided_free: int
    largest_count: int
    token_share: float
    examples: Sequence[str]


def unargmaxable_of_run(trained: TrainedLm, progress: OnProgress = no_progress) -> Unargmaxable:
    """Unargmaxable words of a run. Raises ConfigError as :func:`logits_of_head`."""
    head = trained.model.head
    bounded, free = logits_of_head(head, trained.model.layers.state_bound)
    found = unargmaxable_words(bounded, progress)
    # a word that a bounded context prefers is preferred by a free one
    of_free = unargmaxable_words(free, among=found.proved + found.undecided)
    words = sorted({*found.proved, *of_free.proved})  # a proof for all contexts is one for the bounded ones
    vocabulary = trained.codec.vocabulary
    counts = np.asarray(vocabulary.counts)[words] if words else np.empty(0)
    return Unargmaxable(
        head=head.config.kind,
        components=head.config.components,
        context_scale=float(head.scale),
        embedding_size=head.size,
        vocabulary=len(vocabulary),
        bound=bounded.bound,
        unargmaxable=len(words),
        unargmaxable_free=len(of_free.proved),
        undecided=len({*found.undecided}.difference(words)),
        undecided_free=len(of_free.undecided),
        largest_count=int(counts.max(initial=0)),
        token_share=float(counts.sum() / max(1, np.sum(vocabulary.counts))),
        examples=[vocabulary.tokens[word] for word in words[:WORDS_SHOWN]],
    )


def unargmaxable_tables(results: Mapping[str, Unargmaxable]) -> list[Table | str]:
    """Table with a row per run, by name, and a line for each run with undecided words."""
    rows = [
        {
            "run": name,
            "head": found.head,
            "K": found.components,
            "factor": found.context_scale,
            "words": found.vocabulary,
            "bounded contexts": found.unargmaxable,
            "free contexts": found.unargmaxable_free,
            "share of training": found.token_share,
            "such as": " ".join(found.examples),
        }
        for name, found in results.items()
    ]
    undecided = [
        f"{name}: linear programs left {found.undecided:,} words with bounded contexts and"
        f" {found.undecided_free:,} with free ones undecided, which are not counted"
        for name, found in results.items()
        if found.undecided or found.undecided_free
    ]
    return [
        Table("Words that no context can make the most probable", rows),
        "bounded: contexts that the head can have; free: all contexts; share of training: of its tokens",
        *undecided,
    ]
