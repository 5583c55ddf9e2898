"""A language in which every text repeats one symbol (SpamLang of Godey & Artzi 2026, arXiv 2603.10145).

After the first symbol x, the next one is x with certainty. A softmax of any E > 1 can express this, by V
vectors on a circle. So what a head fails to learn here is no matter of its rank. Vectors of symbols that no
batch has shown stay nearly as they began, and a larger E tells them apart better. So only heads of one E
compare.

The model has an embedding of size E, which is also the output matrix, a trunk of two tanh layers of H units,
and a head. Sharing lets the trunk learn one rule for symbols that no batch has shown yet. Batches draw
symbols uniformly. All heads get equal numbers of updates and symbols.

B symbols of a batch · E context size · H hidden size · V symbols.
"""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lm.errors import DivergenceError, require
from lm.heads.head import Head
from lm.steps import OnProgress, no_progress
from lm.studies.options import HeadOptions, heads_of, require_scores
from lm.studies.sweep import Sweep, cosine_adam, descend
from lm.studies.sweep_point import SweepPoint

SPAM_POINTS, SPAM_RESULT = "spam.jsonl", "spam.json"
SPAM_MEASURES: dict[str, type] = {"nll": float, "accuracy": float}
FEWEST = 1000  # symbols of the smallest language
SYMBOLS, JUDGED = 64, 2000  # of a batch, and of the measurement


@dataclass(frozen=True)
class SpamOptions(HeadOptions):
    """Heads, and the number V of symbols of the largest language. Raises a one-line ConfigError."""

    vocab: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.vocab >= FEWEST, f"--vocab {self.vocab}: must be at least {FEWEST} for --task spam")
        require_scores("symbols", SYMBOLS, self.vocab, max(self.components))
        heads_of(self)


def spam(options: SpamOptions, out: Path, progress: OnProgress = no_progress) -> dict[str, Any]:
    """Train every head on 1,000, 10,000 … and ``vocab`` symbols, and save each point to ``out`` at once.

    Returns:
        ``rows``: for each seed, V and head, ``nll`` in nats and ``accuracy`` of 2,000 drawn symbols.

    Raises:
        StorageError: ``out`` cannot be written.
        DivergenceError: training ended in non-finite numbers.
    """
    sizes = [*(10**power for power in range(3, 9) if 10**power < options.vocab), options.vocab]
    heads = heads_of(options)
    [steps], rows = options.steps, []
    plan = list(product(sizes, options.seeds, heads.items()))
    sweep = Sweep(out, SPAM_POINTS, SPAM_MEASURES, len(plan), progress)
    for size, seed, (name, point) in plan:
        settings = asdict(point) | {
            "seed": seed, "vocab": size, "steps": steps, "lr": options.lr, "batch": SYMBOLS
        }  # fmt: skip
        values = sweep.measured(settings, partial(repeat, point, seed, size, steps, options.lr))
        rows.append({"seed": seed, "vocab": size, "head": name} | values)
    result: dict[str, Any] = {"settings": asdict(options), "heads": list(heads), "rows": rows}
    return sweep.finished(SPAM_RESULT, result)


class Repeater(nn.Module):
    """Embedding, trunk and head of a model that reads one symbol."""

    def __init__(self, point: SweepPoint, vocab: int) -> None:
        super().__init__()
        size, hidden = point.embedding_size, point.hidden_size
        self.embedding = nn.Embedding(vocab, size)
        self.trunk = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        config, shared = point.config.model_copy(update={"tied": True}), self.embedding.weight
        assert isinstance(shared, nn.Parameter)
        self.head = Head(config, hidden, vocab, shared)

    def states(self, symbols: Tensor) -> Tensor:
        """States (B, H) of symbols (B,)."""
        states: Tensor = self.trunk(self.embedding(symbols))
        return states


def repeat(point: SweepPoint, seed: int, vocab: int, steps: int, lr: float) -> dict[str, float]:
    """Train one model to repeat symbols, and measure its loss in nats and its accuracy."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Repeater(point, vocab)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        symbols = torch.randint(vocab, (SYMBOLS,), generator=generator)
        return model.head.loss(model.states(symbols), symbols) / SYMBOLS

    descend(model, loss, cosine_adam(steps, lr))
    right, total = 0, 0.0
    for symbols in torch.randint(vocab, (JUDGED,), generator=generator).split(SYMBOLS):
        with torch.no_grad():
            log_probs = model.head.log_probs(model.states(symbols))
        if not log_probs.isfinite().all():
            raise DivergenceError(f"{point.kind} with {vocab:,} symbols diverged; lower --lr")
        right += int((log_probs.argmax(1) == symbols).sum())
        total -= float(log_probs.gather(1, symbols[:, None]).double().sum())
    return {"nll": total / JUDGED, "accuracy": right / JUDGED}
