"""Optimisers of torch that do not load torch.compile, whose import takes seconds.

torch.optim wraps methods for graphs that are compiled, and the first call of a wrapped method imports the
compiler. These classes have the same methods without the wrappers, so that every update has the same bits.
"""

from inspect import unwrap

import torch
from torch.optim import Optimizer


class EagerOptimizer(Optimizer):
    """An optimiser whose methods are never compiled."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class Sgd(EagerOptimizer, torch.optim.SGD):
    """``torch.optim.SGD``."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class Adam(EagerOptimizer, torch.optim.Adam):
    """``torch.optim.Adam``."""

    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """``torch.optim.AdamW``."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
