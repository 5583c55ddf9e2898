"""Sampling of responses, with the step interface of beam search."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dialog.decoding.config import DecodeConfig
from dialog.decoding.rules import Rules
from dialog.decoding.steps import NO_TEXTS, Hypothesis, Marks, StateT, StepFunction, Texts
from lm.heads.sampling import draw_tokens


def uniforms(seeds: Sequence[int], samples: int, steps: int) -> Tensor:
    """Uniform numbers in [0, 1), (S, samples, steps), from one generator per source."""
    drawn = torch.empty(len(seeds), samples, steps, dtype=torch.float64)
    for source, seed in enumerate(seeds):
        # Drawn on the CPU for every device, and for all steps at once, so that batch mates have no influence.
        drawn[source] = torch.rand(
            samples, steps, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
    return drawn


@torch.no_grad()
def sample(
    step: StepFunction[StateT],
    state: StateT,
    sources: int,
    config: DecodeConfig,
    marks: Marks,
    seeds: Sequence[int],
    texts: Texts = NO_TEXTS,
) -> list[list[Hypothesis]]:
    """Draw ``config.nbest`` independent samples per source, the best first, duplicates kept.

    ``state`` has ``sources`` rows. The samples of a source depend only on its seed in ``seeds``, not on batch
    mates. The temperature applies to the step's distribution. For ``temperature_on = "components"`` it is not
    applied here, and the caller builds the step function with
    ``head.log_probs(hidden, component_temperature=config.temperature)``.

    ``log_prob`` is under the distribution of the step function, before mixture temperature, top-k, top-p and
    rules. A sample that reaches ``max_length``, or has no possible next token, is unfinished. In the latter
    case it may be shorter than ``max_length``, and is dropped if it is shorter than ``min_length``, or lacks
    a required phrase or a part of the beginning. A source may so have fewer samples, or none.
    """
    if not sources:
        return []
    rules = Rules(config, marks, texts, deadline=True)
    samples, length = config.nbest, config.max_length
    log_probs, state = step(torch.full((sources,), marks.bos), state)
    device = log_probs.device
    going = torch.arange(sources * samples, device=device)  # active samples, one row of the state each
    log_probs, state = log_probs[going // samples], state.select(going // samples)
    uniform = uniforms(seeds, samples, length + 1).view(-1, length + 1).to(device)  # (S·samples, T)
    tokens = torch.full((sources * samples, length + 1), marks.eos, device=device)
    totals = torch.zeros(sources * samples, dtype=torch.float64, device=device)
    lengths = torch.zeros_like(going)
    finished = torch.zeros_like(going, dtype=torch.bool)
    for time in range(length + 1):
        allowed = rules.apply(log_probs, tokens[going, :time], going // samples)
        possible = (allowed.amax(1) > -math.inf).nonzero().flatten()
        if len(possible) < len(going):
            going, log_probs, allowed = going[possible], log_probs[possible], allowed[possible]
        last = draw_tokens(allowed, uniform[going, time], config)
        ends = last == marks.eos
        gained = log_probs.gather(1, last.unsqueeze(1)).squeeze(1).double()
        on = (~ends).nonzero().flatten()
        finished[going] = ends
        if time == length:  # full: a response that draws another token than </s> stays unfinished
            totals[going] += gained.masked_fill(~ends, 0)
            break
        totals[going] += gained
        tokens[going, time] = last
        lengths[going[on]] += 1
        if not len(on):
            break
        going, state = going[on], state.select(possible[on])
        log_probs, state = step(last[on], state)
    kept = finished | (lengths >= max(config.min_length, len(texts.begin)))
    if rules.required:
        kept &= finished | rules.required.complete(tokens)
    return _sorted(tokens, lengths, totals, finished, kept, config)


def _sorted(
    tokens: Tensor, lengths: Tensor, totals: Tensor, finished: Tensor, kept: Tensor, config: DecodeConfig
) -> list[list[Hypothesis]]:
    """The samples that are ``kept`` by source, the best first."""
    groups: list[list[Hypothesis]] = [[] for _ in range(len(tokens) // config.nbest)]
    rows = zip(*(part.tolist() for part in (tokens, lengths, totals, finished, kept)), strict=True)
    for number, (row, length, total, ended, fit) in enumerate(rows):
        if fit:
            score = total / max(length + ended, 1) ** config.length_penalty
            found = Hypothesis(tuple(row[:length]), total, score, ended)
            groups[number // config.nbest].append(found)
    return [sorted(group, key=lambda hypothesis: hypothesis.order) for group in groups]
