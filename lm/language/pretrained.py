"""Language models whose trunk is a pretrained model: checks of its folder, the run's copy, and the start."""

import os
from pathlib import Path

from lm.errors import DataError
from lm.heads.start import require_startable
from lm.huggingface.architecture import read_architecture
from lm.huggingface.source import TOKENIZER
from lm.language.config import LmConfig
from lm.language.model import LanguageModel
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import CHECKPOINTS, TRUNK, RunFile
from lm.text.vocabulary import Codec
from lm.trunks.config import pretrained_name, pretrained_path


def local(config: LmConfig, run: Path) -> LmConfig:
    """The config with the copy of the trunk's architecture in the run, or in that of ``train.start_from``.

    So the folder of the pretrained model is needed only until the first checkpoint.
    """
    if pretrained_path(config.model.trunk) is None:
        return config
    begun = CheckpointStore(run / CHECKPOINTS).latest() is not None
    for source in ([run] if begun else []) + [Path(name) for name in [config.train.start_from] if name]:
        if os.path.lexists(source / TRUNK):
            model = config.model.model_copy(update={"trunk": pretrained_name(source / TRUNK)})
            return config.model_copy(update={"model": model})
    return config


def pretrained_words(config: LmConfig) -> int:
    """Size of the vocabulary of a pretrained trunk, 0 for other trunks."""
    path = pretrained_path(config.model.trunk)
    return 0 if path is None else read_architecture(path).words


def require_pretrained(config: LmConfig) -> None:
    """Raise an error for a folder that cannot be the trunk of a new run, before any text is read.

    ConfigError or StorageError, as of :func:`lm.huggingface.architecture.read_architecture` and
    :func:`lm.huggingface.weights.require_weights`.
    """
    path = pretrained_path(config.model.trunk)
    if path is None:
        return
    read_architecture(path)
    if config.head.start == "pretrained":
        require_startable(config.head)
    if not config.train.start_from:
        from lm.huggingface.weights import require_weights

        require_weights(path)


def require_vocabulary(config: LmConfig, codec: Codec) -> None:
    """Raise DataError if the vocabulary is not that of the pretrained model's tokenizer.

    A folder without ``tokenizer.json`` has no tokenizer to compare.
    """
    path = pretrained_path(config.model.trunk)
    if path is None or not (path / TOKENIZER).is_file():
        return
    from lm.huggingface.pieces import read_tokenizer

    if codec.vocabulary.tokens != read_tokenizer(path).names:
        raise DataError(
            f"{config.data.train}: its vocabulary is not that of the tokenizer of {path}; prepare the text"
            f' with `lm prepare --tokenizer hf:{path}`, or give text files and data.tokenizer = "hf"'
        )


def block_note(config: LmConfig, tokens: int = 0) -> list[str]:
    """A note on the blocks in which a pretrained trunk reads a text of more ``tokens``; 0 = of any length."""
    span = config.model.attention_span
    if pretrained_path(config.model.trunk) is None or 0 < tokens <= span:
        return []
    return [f"the model begins a text anew after every {span:,} tokens (model.attention_span)"]


def start_pretrained(config: LmConfig, model: LanguageModel) -> str | None:
    """Load the weights of a pretrained trunk. Return their hash, None for other trunks.

    ConfigError or StorageError as of :func:`lm.huggingface.weights.load_pretrained`.
    """
    path = pretrained_path(config.model.trunk)
    if path is None:
        return None
    from lm.huggingface.trunk import PretrainedTrunk
    from lm.huggingface.weights import load_pretrained, require_weights, weights_hash

    assert isinstance(model.layers, PretrainedTrunk)
    digest = weights_hash(require_weights(path))
    start_head = config.head.start == "pretrained"
    load_pretrained(read_architecture(path), model.layers, model.embedding, model.head, start_head=start_head)
    return digest


def trunk_file(config: LmConfig) -> dict[RunFile, bytes]:
    """The run's copy of the architecture, by file name; {} for other trunks."""
    path = pretrained_path(config.model.trunk)
    return {} if path is None else {TRUNK: read_architecture(path).content}
