"""Parameter counts by part and estimated memory of a language model's config."""

from pathlib import Path
from typing import Any

from lm.engine.device import chosen_device
from lm.engine.memory import head_floats, training_memory
from lm.engine.optim import freeze
from lm.engine.shapes import shapes_only
from lm.errors import ConfigError
from lm.language.config import DataConfig, LmConfig
from lm.language.model import LanguageModel
from lm.language.pretrained_trunk import pretrained_words
from lm.language.sizes import sized
from lm.language.windows import longest
from lm.text.vocabulary import Codec
from lm.trunks.trunk import trains

_PARTS = {"embedding": "embedding", "bigrams": "embedding", "layers": "layers", "head": "head"}


def describe(config: LmConfig, vocab_size: int | None = None) -> dict[str, Any]:
    """Sizes, parameter counts by part (``parameters`` is the total) and estimated memory in bytes.

    ``vocab_size`` defaults to ``data.vocab_size``, or to that of a pretrained trunk. A tied output matrix
    and hashed bigrams count as embedding. ConfigError if no size is known, or if sizes do not fit each other.
    """
    vocabulary = vocab_size or config.data.vocab_size or pretrained_words(config)
    if not vocabulary:
        raise ConfigError(
            "data.vocab_size = 0: describe does not read the text; set data.vocab_size, or prepare the corpus"
        )
    config = sized(config, vocabulary)
    with shapes_only():
        model = LanguageModel(config, vocabulary)
    freeze(config.train, model)
    carried = model.initial_state(config.train.batch_size).tensors()
    counts = dict.fromkeys(_PARTS.values(), 0)
    for name, parameter in model.named_parameters():
        counts[_PARTS[name.split(".")[0]]] += parameter.numel()
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
        "memory": training_memory(
            model,
            config.optim,
            _activations(config, model),
            sum(tensor.nbytes for tensor in carried.values()),
            config.train.shards,
        ),
    }


def prepared_words(data: DataConfig) -> int | None:
    """Size of the vocabulary of a prepared training split; None if there is none yet."""
    folder = Path(data.train)
    if not folder.is_dir() or not (folder.parent / "vocabulary.json").is_file():
        return None
    return len(Codec.load(folder.parent).vocabulary)


def _activations(config: LmConfig, model: LanguageModel) -> int:
    """Number of activations kept for backpropagation through a long window, and of the head's scratch."""
    steps, streams, head = longest(config.window), config.train.shard_size, model.head
    tokens = steps * streams
    device = chosen_device(config.train)
    trunk = (
        model.layers.activations(steps, streams, device)
        if trains(model.layers)
        else tokens * model.layers.size
    )
    return trunk + head_floats(head, tokens)
