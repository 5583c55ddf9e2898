"""Loading of a language-model run's text: from the names in its config to a codec and token ids."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from lm.config.named_data import SPLITS, missing
from lm.config.places import prepared_by, wrong_kind
from lm.disk.storage import storage_errors
from lm.errors import DataError, StorageError
from lm.language.config import DataConfig
from lm.language.corpora.pieces import FilePiece, whole_file
from lm.language.corpora.sources import is_spelled
from lm.language.corpora.split_files import SPLIT, TokenSplit, add_ids, id_chunks, read_split, unknown_ids
from lm.language.corpora.survey import SplitCounts, learn_codec, learn_tokenizer, read_tokens
from lm.text.lines import InputLog
from lm.text.prepared_folder import require_unchanged
from lm.text.tokenizers import UNK, StoredKind
from lm.text.vocabulary import CODEC_FILES, Codec

__all__ = ["TokenSplit", "load_codec", "load_split", "text_piece"]

_SEED = 1  # of the text sample for sentencepiece


def load_split(source: str, codec: Codec) -> TokenSplit:
    """The tokens of ``data.train``, ``data.valid``, ``data.test`` or ``--data``.

    ``source`` is a split of a folder that ``lm prepare`` wrote, such as ``data/ptb/test``, or a text file,
    which the codec encodes. DataError, with file, line and remedy, if it is missing, bad, or of another
    codec.
    """
    path = _existing(source)
    if path.is_dir():
        return read_split(_require_split(path), codec)
    piece = text_piece(path, codec.tokenizer.kind)
    seen, digest = SplitCounts(), hashlib.sha256()
    lines = read_tokens([piece], codec.tokenizer, InputLog("error", "lm prepare"))
    ids = np.concatenate([*id_chunks(lines, codec, seen)])
    add_ids(digest, ids)
    outside = unknown_ids(ids, codec) - seen.words[UNK]
    return TokenSplit((ids,), digest.hexdigest(), outside)


def load_codec(data: DataConfig, pretrained: Path | None = None) -> Codec:
    """The codec of ``data.train``: that of the prepared folder, or one learned from the text file.

    ``pretrained`` is the folder with the tokenizer ``hf``.
    A learned codec has ``<unk>`` if ``data.valid`` or ``data.test`` are text files with words that train
    lacks. DataError as in :func:`load_split`. ConfigError for an impossible vocabulary size.
    """
    train = _existing(data.train)
    if train.is_dir():
        folder = _require_split(train).parent
        try:
            codec = Codec.load(folder)
            with storage_errors(folder):
                require_unchanged(folder, *CODEC_FILES)
        except StorageError as error:
            detail = str(error).split(";")[0]
            raise DataError(f"{detail}; run `lm prepare` again") from error
        return codec
    splits = {"train": [text_piece(train, data.tokenizer)]}
    for split, source in (("valid", data.valid), ("test", data.test)):
        if Path(source).is_file():
            splits[split] = [text_piece(Path(source), data.tokenizer)]
    log = InputLog("error", "lm prepare")
    tokenizer = learn_tokenizer(
        data.tokenizer,
        splits["train"],
        lowercase=data.lowercase,
        vocab_size=data.vocab_size,
        seed=_SEED,
        log=log,
        pretrained=pretrained,
    )
    return learn_codec(splits, tokenizer, size=data.vocab_size, log=log)


def text_piece(path: Path, kind: StoredKind) -> FilePiece:
    """A text file as a piece in the tokenizer's form. DataError if it is unreadable."""
    if kind == "byte":
        return whole_file(path, "bytes")
    piece = whole_file(path, "lines")
    return replace(piece, form="spelled") if kind == "char" and is_spelled(path) else piece


def _existing(source: str) -> Path:
    """The path of a source. DataError with a remedy if it is missing."""
    if not os.path.lexists(source):
        raise missing(source, "lm prepare")
    return Path(source)


def _require_split(path: Path) -> Path:
    """The folder itself if it is a prepared split, else DataError with the names to use instead."""
    if (path / SPLIT).is_file():
        return path
    splits = [split for split in SPLITS if (path / split / SPLIT).is_file()]
    if splits:
        named = " or ".join(f"{path}/{split}" for split in splits)
        raise DataError(f"{path}: holds the splits {', '.join(splits)}; name one of them: {named}")
    corpus = path.parent if prepared_by(path.parent) == "dialog" else path
    if found := wrong_kind(corpus, "lm", "a text"):
        raise DataError(f"{corpus}: {found}")
    raise DataError(
        f"{path}: not a split that `lm prepare` wrote; run `lm prepare` on this folder, or name a text file"
    )
