"""The tokenizer of a pretrained model's folder as one of ours, with the ids of the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.disk.jsonfile import MAX_JSON
from lm.disk.storage import read_file
from lm.errors import StorageError
from lm.huggingface.chat import learn_form, template_of, token_text
from lm.huggingface.source import MODEL_CONFIG, TOKENIZER, TOKENIZER_CONFIG, read_settings, require_folder
from lm.libraries import require_libraries
from lm.text.chat_form import ChatForm
from lm.text.pretrained_tokenizer import PretrainedTokenizer, library_tokenizer


def read_tokenizer(folder: Path, *, dialog: bool = False, chat: bool = False) -> PretrainedTokenizer:
    """The tokenizer of a folder, with as many ids as its model has.

    A text begins with the tokenizer's ``bos_token`` or else its ``eos_token``. Those that
    ``tokenizer_config.json`` does not name are those of the model's ``config.json``. A line ends in the piece
    of a line end or else the ``eos_token``. An utterance of a ``dialog`` ends in the ``eos_token``. With
    ``chat``, the chat template of the folder is kept, if it has one and the model is no encoder-decoder.

    Raises:
        ConfigError: the library ``tokenizers`` is not installed.
        StorageError: no folder, no ``tokenizer.json``, or one that does not fit the other files.
    """
    require_libraries(f"the tokenizer of {folder}", "hf", "tokenizers")
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
        marks = [
            _mark(tokenizer, settings[name]) if name in settings else own_id(config.get(f"{name}_id"), size)
            for name in ("bos_token", "eos_token")
        ]
        ends = (
            [*reversed(marks), _line_end(tokenizer)] if dialog else [_line_end(tokenizer), *reversed(marks)]
        )
        end = next((one for one in ends if one is not None), None)
        if end is None:
            raise ValueError(f"no piece ends a line, and {TOKENIZER_CONFIG} names no eos_token")
        begin = next((one for one in marks if one is not None), end)
        streams = chat and not config.get("is_encoder_decoder")
        form = _chat_form(folder, tokenizer, settings) if streams else None
        end = form.end if form else end
        return PretrainedTokenizer.of(text, size, begin, end, dialog=dialog, chat=form)
    except ValueError as error:
        raise StorageError(f"{path}: {error}; use the files of one model") from error


def _chat_form(folder: Path, tokenizer: Any, settings: Mapping[str, Any]) -> ChatForm | None:
    """The chat template of a folder, None without one. StorageError for one that cannot be used."""
    template = template_of(folder, settings)
    if template is None:
        return None
    try:
        return learn_form(tokenizer, template, settings)
    except ValueError as error:
        raise StorageError(
            f"{folder}: its chat template {error}; set data.chat_template = false, or mend the template"
        ) from error


def _model_size(config: Mapping[str, Any]) -> int:
    """Number of ids of the model, 0 if it is not known."""
    size = config.get("vocab_size", 0)
    return size if isinstance(size, int) else 0


def _mark(tokenizer: Any, value: object) -> int | None:
    """Id of a special token, named by a text or an object with the text as ``content``."""
    text = token_text(value)
    index: int | None = None if text is None else tokenizer.token_to_id(text)
    return index


def own_id(value: object, size: int) -> int | None:
    """A special id of a model's config, the first of several; None if it is not one of ``size``."""
    first = value[0] if isinstance(value, list) and value else value
    return first if type(first) is int and 0 <= first < size else None


def _line_end(tokenizer: Any) -> int | None:
    """Id of the one piece that a line end after a word becomes."""
    word, line = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("a", "a\n"))
    alone = line[:-1] == word and len(line) == len(word) + 1
    if not alone or tokenizer.decode(line[-1:], skip_special_tokens=False) != "\n":
        return None
    index: int = line[-1]
    return index
