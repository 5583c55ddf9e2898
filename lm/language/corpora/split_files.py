"""Storage of a split: token ids in memory-mapped files of limited size.

::

    SPLIT/00000.npy …   ids, uint16 if the vocabulary allows it, else int32
    SPLIT/split.json    counts, SHA-256 of the ids, tokens of each file, fingerprint of the codec

"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lm.disk.jsonfile import JSON, read_json, write_json
from lm.disk.regular import open_file
from lm.disk.storage import storage_errors
from lm.errors import DataError, StorageError
from lm.language.corpora.survey import SplitCounts, TokenLine
from lm.text.prepared_folder import REPORT_FILE, recorded_hashes, require_recorded, require_unchanged
from lm.text.tokenizers import UNK
from lm.text.vocabulary import Codec

SPLIT = "split.json"
_FORMAT = 1
_CHUNK = 1 << 16  # tokens
_LIMIT = 16 << 20  # bytes of split.json
_NPY = b"\x93NUMPY\x01\0"
_MAGIC = len(_NPY)
_AGAIN = "run `lm prepare` again"


@dataclass(frozen=True)
class TokenSplit:
    """The tokens of a split, including ``<eos>``. Memory-mapped if the split is prepared.

    ``fingerprint`` is the SHA-256 of the ids as little-endian int32, regardless of their stored type.
    ``outside`` counts the tokens that are ``<unk>`` instead of another word of the text.
    """

    files: tuple[NDArray[np.integer], ...]
    fingerprint: str
    outside: int

    def __len__(self) -> int:
        return sum(len(file) for file in self.files)

    def ids(self) -> NDArray[np.integer]:
        """All tokens as one array, for corpora that fit into memory."""
        return self.files[0] if len(self.files) == 1 else np.concatenate(self.files)


def id_chunks(lines: Iterable[TokenLine], codec: Codec, seen: SplitCounts) -> Iterator[NDArray[np.integer]]:
    """Yield the ids of a text in pieces of about 65,536.

    ``seen`` counts its lines, and the ``<unk>`` that it has itself.

    DataError for words that the codec cannot encode.
    """
    dtype = id_dtype(codec)
    ids: list[int] = []
    for line in lines:
        seen.lines += line.line.ends
        ids += line_ids(line, codec)
        seen.words[UNK] += line.tokens.count(UNK)
        if len(ids) >= _CHUNK:
            yield np.array(ids, dtype)
            ids = []
    if ids:
        yield np.array(ids, dtype)


def line_ids(line: TokenLine, codec: Codec) -> list[int]:
    """The ids of a line, with ``<eos>`` at its end. DataError for words that the codec cannot encode."""
    ids = codec.line_ids(line.tokens, line.place)
    return ids if line.line.ends else ids[:-1]


def id_dtype(codec: Codec) -> type[np.integer]:
    """The smallest integer type for every id of a codec."""
    return np.uint16 if len(codec.vocabulary) <= 1 << 16 else np.int32


def add_ids(digest: Any, ids: NDArray[np.integer]) -> None:
    """Hash ids as little-endian int32, regardless of their stored type."""
    for start in range(0, len(ids), _CHUNK):
        digest.update(ids[start : start + _CHUNK].astype("<i4").tobytes())


def write_split(
    folder: Path, chunks: Iterable[NDArray[np.integer]], codec: Codec, counts: SplitCounts, shard_tokens: int
) -> None:
    """Write a text's token ids into a new folder, one file in memory at a time.

    OSError or StorageError if a write fails.
    """
    folder.mkdir()
    digest, sizes = hashlib.sha256(), list[int]()
    buffer = np.empty(min(shard_tokens, counts.words.total()), id_dtype(codec))
    filled = 0

    def flush() -> None:
        with (folder / f"{len(sizes):05d}.npy").open("xb") as file:
            header = np.lib.format.header_data_from_array_1_0(buffer[:filled])
            np.lib.format.write_array_header_1_0(file, header)
            file.write(buffer[:filled].data)  # NumPy's errors of a full disk lack the file's name
        sizes.append(filled)

    for ids in chunks:
        add_ids(digest, ids)
        while len(ids):
            taken = min(len(ids), len(buffer) - filled)
            buffer[filled : filled + taken] = ids[:taken]
            filled, ids = filled + taken, ids[taken:]
            if filled == len(buffer):
                flush()
                filled = 0
    if filled:
        flush()
    about: dict[str, JSON] = {
        "format": _FORMAT,
        "tokens": sum(sizes),
        "lines": counts.lines,
        "sha256": digest.hexdigest(),
        "shards": sizes,
        "codec": codec.fingerprint,
    }
    write_json(folder / SPLIT, about)


def read_split(folder: Path, codec: Codec) -> TokenSplit:
    """The split of a folder that :func:`write_split` wrote.

    DataError if it is damaged, or was written with another codec.
    """
    try:
        about = read_json(folder / SPLIT, limit=_LIMIT)
        with storage_errors(folder / SPLIT), open_file(folder / SPLIT) as file:
            require_recorded(file, folder / SPLIT, recorded_hashes(folder))
        if not isinstance(about, dict) or about["format"] != _FORMAT:
            raise ValueError("another format")
        fingerprint, sizes = str(about["codec"]), [int(size) for size in about["shards"]]
        if fingerprint != codec.fingerprint:
            raise DataError(
                f"{folder}: its vocabulary ({fingerprint[:12]}…) is not that of the run or the training data "
                f"({codec.fingerprint[:12]}…); use splits of one prepared folder, or name a text file"
            )
        if not sizes:
            raise ValueError("no file")
        dtype = np.dtype(id_dtype(codec))
        files = tuple(_mapped(folder / f"{index:05d}.npy", dtype, size) for index, size in enumerate(sizes))
        digest = hashlib.sha256()
        for ids in files:
            add_ids(digest, ids)
        if digest.hexdigest() != about["sha256"]:
            raise ValueError("the ids differ from those that were written")
        outside = _outside(folder, files, codec)
        return TokenSplit(files, digest.hexdigest(), outside)
    except StorageError as error:
        raise DataError(f"{error}: {_AGAIN}") from error
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise DataError(f"{folder}: damaged, or not written by this `lm prepare`; {_AGAIN}") from error


def _outside(folder: Path, files: Sequence[NDArray[np.integer]], codec: Codec) -> int:
    """Number of tokens that are ``<unk>`` instead of another word, as the report beside a split counts them.

    Without a report, every ``<unk>`` may have been another word. DataError for a changed report.
    """
    corpus = folder.absolute().parent
    if os.path.lexists(corpus / REPORT_FILE):
        with storage_errors(corpus / REPORT_FILE):
            require_unchanged(corpus, REPORT_FILE)
    try:
        report: Any = read_json(corpus / REPORT_FILE)
        return int(report["splits"][folder.absolute().name]["oov_tokens"])
    except (StorageError, KeyError, TypeError, ValueError):
        return sum(unknown_ids(ids, codec) for ids in files)


def unknown_ids(ids: NDArray[np.integer], codec: Codec) -> int:
    """Number of ids that are ``<unk>``."""
    return int(np.count_nonzero(ids == codec.vocabulary.unk))


def _mapped(path: Path, dtype: np.dtype[np.integer], size: int) -> NDArray[np.integer]:
    """The ids of a file, memory-mapped. DataError for any file that :func:`write_split` does not write.

    NumPy would parse the header as Python before any hash is verified.
    """
    header = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({size},), }}".encode()
    with storage_errors(path), open_file(path) as file:
        start = file.read(_MAGIC + 2)
        length = int.from_bytes(start[_MAGIC:], "little")
        offset = len(start) + length
        whole = os.fstat(file.fileno()).st_size == offset + size * dtype.itemsize
        if start[:_MAGIC] != _NPY or file.read(length).rstrip(b" \n") != header or not whole:
            raise DataError(f"{path}: damaged, or not written by this `lm prepare`; {_AGAIN}")
        return np.memmap(file, dtype, "r", offset, (size,))
