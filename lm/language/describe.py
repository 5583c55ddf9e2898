"""Parameter counts by part and estimated memory of a language model's config."""

from typing import Any

from lm.engine.memory import head_scratch, training_memory
from lm.engine.shapes import shapes_only
from lm.errors import ConfigError
from lm.heads.head import Head
from lm.language.config import LmConfig
from lm.language.model import LanguageModel
from lm.language.sizes import sized
from lm.language.windows import longest

PARTS = ("embedding", "layers", "head")
_TORCH_LSTM = 16  # numbers a unit and step in the workspace of torch's own layer, on CPUs


def describe(config: LmConfig, vocab_size: int | None = None) -> dict[str, Any]:
    """Sizes, parameter counts by part (``parameters`` is the total) and estimated memory in bytes.

    ``vocab_size`` defaults to ``data.vocab_size``. A tied output matrix counts as embedding. ConfigError if
    neither size is known, or if sizes do not fit each other.
    """
    vocabulary = vocab_size or config.data.vocab_size
    if not vocabulary:
        raise ConfigError("data.vocab_size = 0: describe does not read the text; set data.vocab_size")
    config = sized(config, vocabulary)
    with shapes_only():
        model = LanguageModel(config, vocabulary)
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():
        counts[name.split(".")[0]] += parameter.numel()
    return {
        "parameters": sum(counts.values()),
        "parameters_by_part": counts,
        "sizes": {
            "embedding": config.model.embedding_size,
            "hidden": list(config.model.hidden_sizes),
            "contexts": model.head.size,
        },
        "vocabulary": vocabulary,
        "vocabulary_assumed": vocab_size is None,
        "memory": training_memory(model, config.optim, _activations(config, model.head)),
    }


def _activations(config: LmConfig, head: Head) -> int:
    """Number of activations kept for backpropagation through a long window, and of the head's scratch."""
    tokens = longest(config.window) * config.train.batch_size
    sizes = (config.model.embedding_size, *config.model.hidden_sizes)
    by_torch = config.cell.is_plain and config.cell.kind == "lstm"
    floats = _TORCH_LSTM if by_torch else config.cell.floats
    per_token = 2 * sizes[0] + sum((floats + 2) * size for size in sizes[1:])
    per_token += head.config.components * head.size * (3 if head.latent is not None else 1)
    return tokens * per_token + head_scratch(head, tokens)
