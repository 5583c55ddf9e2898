"""Sizes of a language model from a parameter budget."""

from bisect import bisect_right

from lm.engine.shapes import shapes_only
from lm.errors import ConfigError, DataError
from lm.huggingface.architecture import Architecture, read_architecture
from lm.language.config import LmConfig
from lm.language.model import LanguageModel
from lm.trunks.names import pretrained_path


def sized(config: LmConfig, vocab_size: int) -> LmConfig:
    """The config with sizes resolved from ``model.budget`` and ``model.input_embedding_ratio``.

    Layers get n times their share in ``hidden_sizes`` (Melis et al. 2020), those of a transformer in units of
    ``transformer.multiple``. n is the largest number for which all parameters, including embedding and head,
    fit the budget. ConfigError if there is no such n. A pretrained trunk has the sizes of its own config.
    """
    if path := pretrained_path(config.model.trunk):
        return with_architecture(config, read_architecture(path), vocab_size)
    budget, shares = config.model.budget, config.model.hidden_sizes
    unit = config.transformer.multiple if config.model.trunk == "transformer" else 1
    if not budget:
        return with_sizes(config, shares)

    def candidate(factor: int) -> LmConfig:
        return with_sizes(config, tuple(factor * unit * share for share in shares))

    def parameters(factor: int) -> int:
        return count_parameters(candidate(factor), vocab_size)

    if (least := parameters(1)) > budget:
        sizes = ", ".join(map(str, candidate(1).model.hidden_sizes))
        raise ConfigError(
            f"model.budget = {budget:,}: with {vocab_size:,} words, layers of {sizes}"
            f" units already have {least:,} parameters; raise the budget, or lower model.hidden_sizes"
        )
    exceeds = 2
    while parameters(exceeds) <= budget:
        exceeds *= 2
    return candidate(bisect_right(range(exceeds), budget, exceeds // 2, key=parameters) - 1)


def with_architecture(config: LmConfig, found: Architecture, vocab_size: int) -> LmConfig:
    """The config with the sizes of a pretrained model. Raises DataError for another vocabulary."""
    span = config.model.attention_span
    if found.positions and span > found.positions:
        raise ConfigError(
            f"model.attention_span = {span:,}: the model of model.trunk reads texts of at most"
            f" {found.positions:,} tokens; set model.attention_span = {found.positions}, or less"
        )
    if vocab_size != found.words:
        raise DataError(
            f"the vocabulary has {vocab_size:,} tokens, but the model of model.trunk has {found.words:,};"
            ' prepare the text with `lm prepare --tokenizer hf:FOLDER`, or set data.tokenizer = "hf"'
        )
    return with_sizes(config, (found.hidden_size,) * found.layers, found.embedding_size)


def count_parameters(config: LmConfig, vocab_size: int) -> int:
    """Number of parameters of the model, tied ones counted once. Allocates nothing and draws nothing."""
    with shapes_only():
        model = LanguageModel(config, vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())


def with_sizes(
    config: LmConfig, hidden_sizes: tuple[int, ...], embedding_size: int | None = None
) -> LmConfig:
    """The config with layers and, unless it follows from them, an embedding of these sizes, all resolved."""
    model, head, ratio = config.model, config.head, config.model.input_embedding_ratio
    sizes: dict[str, object] = {"hidden_sizes": hidden_sizes, "budget": 0, "input_embedding_ratio": None}
    if ratio is not None:
        size = max(1, round(min(1.0, ratio) * hidden_sizes[-1]))
        sizes["embedding_size"] = size
        head = head.model_copy(update={"embedding_size": size})
    elif embedding_size is not None:
        sizes["embedding_size"] = embedding_size
    return config.model_copy(update={"model": model.model_copy(update=sizes), "head": head})
