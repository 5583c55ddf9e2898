"""Sampling responses, through the same step interface as beam search."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dialog.beam import Constraints, Hypothesis, Marks, StateT, StepFunction
from dialog.config import DecodeConfig
from lm.heads.sampling import INFINITY, draw
from lm.stop import Poll, no_poll


def uniforms(seeds: Sequence[int], samples: int, steps: int) -> Tensor:
    """Numbers of [0, 1) for each source, sample and step (S, samples, steps), one generator a source."""
    drawn = torch.empty(len(seeds), samples, steps, dtype=torch.float64)
    for source, seed in enumerate(seeds):
        # Drawn on the CPU on every device, and for all steps at once: batch mates cannot shift them.
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
    poll: Poll = no_poll,
) -> list[list[Hypothesis]]:
    """``config.nbest`` independent samples for each source, most probable first, duplicates kept.

    ``state`` has ``sources`` rows; ``seeds`` has one seed for each source, which alone decides its samples:
    batch mates change nothing. The temperature applies to the step's distribution. Where it belongs to a
    mixture's components (``temperature_on = "components"``) the caller builds the step function with
    ``head.log_probs(hidden, component_temperature=config.temperature)``, and none is applied here.

    ``log_prob`` is under the distribution that the step function returns, before mixture temperature,
    top-k, top-p and constraints. A sample that reaches ``max_length``, or has no token left to go on with,
    is unfinished; in the latter case it may be shorter.
    """
    if not sources:
        return []
    constraints = Constraints(config, marks)
    samples, length = config.nbest, config.max_length
    poll()
    log_probs, state = step(torch.full((sources,), marks.bos), state)
    device = log_probs.device
    going = torch.arange(sources * samples, device=device)  # the samples at work; a row of the state for each
    log_probs, state = log_probs[going // samples], state.select(going // samples)
    uniform = uniforms(seeds, samples, length + 1).view(-1, length + 1).to(device)  # (S·samples, T)
    tokens = torch.full((sources * samples, length + 1), marks.eos, device=device)
    totals = torch.zeros(sources * samples, dtype=torch.float64, device=device)
    lengths = torch.zeros_like(going)
    finished = torch.zeros_like(going, dtype=torch.bool)
    for time in range(length + 1):
        allowed = constraints.apply(log_probs, tokens[going, :time])
        possible = (allowed.max(1).values > -INFINITY).nonzero().flatten()
        going, log_probs = going[possible], log_probs[possible]
        last = draw(allowed[possible], uniform[going, time], config)
        ends = last == marks.eos
        gained = log_probs.gather(1, last.unsqueeze(1)).squeeze(1).double()
        on = (~ends).nonzero().flatten()
        finished[going] = ends
        if time == length:  # only an end counts now
            totals[going] += gained.masked_fill(~ends, 0)
            break
        totals[going] += gained
        tokens[going, time] = last
        lengths[going[on]] += 1
        if not len(on):
            break
        going, state = going[on], state.select(possible[on])
        poll()
        log_probs, state = step(last[on], state)
    return _sorted(tokens, lengths, totals, finished, config)


def _sorted(
    tokens: Tensor, lengths: Tensor, totals: Tensor, finished: Tensor, config: DecodeConfig
) -> list[list[Hypothesis]]:
    found = []
    rows = zip(tokens.tolist(), lengths.tolist(), totals.tolist(), finished.tolist(), strict=True)
    for row, length, total, ended in rows:
        score = total / max(length + ended, 1) ** config.length_penalty
        found.append(Hypothesis(tuple(row[:length]), total, score, ended))
    groups = (found[start : start + config.nbest] for start in range(0, len(found), config.nbest))
    return [sorted(group, key=lambda hypothesis: -hypothesis.log_prob) for group in groups]
