"""Language models whose trunk is a pretrained model: their vocabulary, and a note on blocks."""

import shlex

from lm.errors import DataError
from lm.huggingface.architecture import read_architecture
from lm.huggingface.source import TOKENIZER
from lm.language.config import LmConfig
from lm.text.vocabulary import Codec
from lm.trunks.names import pretrained_path


def pretrained_words(config: LmConfig) -> int:
    """Size of the vocabulary of a pretrained trunk, 0 for other trunks."""
    path = pretrained_path(config.model.trunk)
    return 0 if path is None else read_architecture(path).words


def require_vocabulary(config: LmConfig, codec: Codec) -> None:
    """Raise DataError if the vocabulary is not that of the pretrained model's tokenizer.

    A folder without ``tokenizer.json`` has no tokenizer to compare.
    """
    path = pretrained_path(config.model.trunk)
    if path is None or not (path / TOKENIZER).is_file():
        return
    from lm.huggingface.pieces import read_tokenizer

    if codec.vocabulary.tokens != read_tokenizer(path).names:
        named = shlex.quote(f"hf:{path}")
        raise DataError(
            f"{config.data.train}: its vocabulary is not that of the tokenizer of {path}; prepare the text"
            f' with `lm prepare --tokenizer {named}`, or give text files and data.tokenizer = "hf"'
        )


def block_note(config: LmConfig, tokens: int = 0) -> list[str]:
    """A note on the blocks in which a pretrained trunk reads a text of more ``tokens``; 0 = of any length."""
    span = config.model.attention_span
    if pretrained_path(config.model.trunk) is None or 0 < tokens <= span:
        return []
    return [f"the model begins a text anew after every {span:,} tokens (model.attention_span)"]
