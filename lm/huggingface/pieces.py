"""The tokenizer of a pretrained model's folder as one of ours, with the ids of the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.disk.storage import MAX_JSON, read_file
from lm.errors import StorageError
from lm.huggingface.source import MODEL_CONFIG, TOKENIZER, TOKENIZER_CONFIG, read_settings, require_folder
from lm.text.pretrained_tokenizer import PretrainedTokenizer, library_tokenizer, require_tokenizers


def read_tokenizer(folder: Path, *, dialog: bool = False) -> PretrainedTokenizer:
    """The tokenizer of a folder, with as many ids as its model has.

    A text begins with the tokenizer's ``bos_token`` or else its ``eos_token``. A line ends in the piece of a
    line end or else the ``eos_token``. An utterance of a ``dialog`` ends in the ``eos_token``.

    Raises:
        ConfigError: the library ``tokenizers`` is not installed.
        StorageError: no folder, no ``tokenizer.json``, or one that does not fit the other files.
    """
    require_tokenizers(f"the tokenizer of {folder}")
    require_folder(folder)
    path = folder / TOKENIZER
    if not path.is_file():
        raise StorageError(
            f"{path}: missing; write it with AutoTokenizer.from_pretrained(…).save_pretrained(…)"
        )
    settings, config = (
        read_settings(folder / name)[0] if (folder / name).is_file() else {}
        for name in (TOKENIZER_CONFIG, MODEL_CONFIG)
    )
    try:
        text = read_file(path, limit=MAX_JSON).decode("utf-8")
        tokenizer = library_tokenizer(text)
        ids = tokenizer.get_vocab(with_added_tokens=True).values()
        size = _model_size(config) or max(ids) + 1
        if max(ids) >= size:
            raise ValueError(f"its ids go up to {max(ids):,}, but the model of {MODEL_CONFIG} has {size:,}")
        marks = [_mark(tokenizer, settings.get(name)) for name in ("bos_token", "eos_token")]
        ends = (
            [*reversed(marks), _line_end(tokenizer)] if dialog else [_line_end(tokenizer), *reversed(marks)]
        )
        end = next((one for one in ends if one is not None), None)
        if end is None:
            raise ValueError(f"no piece ends a line, and {TOKENIZER_CONFIG} names no eos_token")
        begin = next((one for one in marks if one is not None), end)
        return PretrainedTokenizer.of(text, size, begin, end, dialog=dialog)
    except ValueError as error:
        raise StorageError(f"{path}: {error}; use the files of one model") from error


def _model_size(config: Mapping[str, Any]) -> int:
    """Number of ids of the model, 0 if it is not known."""
    size = config.get("vocab_size", 0)
    return size if isinstance(size, int) else 0


def _mark(tokenizer: Any, value: object) -> int | None:
    """Id of a special token, named by a text or an object with the text as ``content``."""
    content = value.get("content") if isinstance(value, dict) else value
    index: int | None = tokenizer.token_to_id(content) if isinstance(content, str) else None
    return index


def _line_end(tokenizer: Any) -> int | None:
    """Id of the one piece that a line end after a word becomes."""
    word, line = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("a", "a\n"))
    alone = line[:-1] == word and len(line) == len(word) + 1
    if not alone or tokenizer.decode(line[-1:], skip_special_tokens=False) != "\n":
        return None
    index: int = line[-1]
    return index
