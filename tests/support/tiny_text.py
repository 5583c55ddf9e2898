"""Small texts that are prepared, and read back."""

import random
from pathlib import Path

from lm.language.config import DataConfig
from lm.language.corpora.corpus import TokenSplit, load_codec, load_split
from lm.text.vocabulary import Codec

WORDS = ("moss", "heath", "bog", "peat", "fen", "crème", "N", ",")


def text(count: int, seed: int = 1) -> str:
    rng = random.Random(seed)
    return "".join(" ".join(rng.choices(WORDS, k=rng.randint(0, 9))) + "\n" for _ in range(count))


def folder_of(path: Path, **files: str | bytes) -> str:
    """A folder of files; ``__`` in a name stands for a dot."""
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (path / name.replace("__", ".")).write_bytes(data)
    return str(path)


def standard(path: Path, count: int = 30) -> str:
    return folder_of(path, train__txt=text(count), valid__txt=text(5, 2), test__txt=text(6, 3))


def opened(out: Path, split: str = "train") -> tuple[Codec, TokenSplit]:
    codec = load_codec(DataConfig(train=str(out / split)))
    return codec, load_split(str(out / split), codec)


def read_back(out: Path, split: str) -> str:
    codec, tokens = opened(out, split)
    return codec.decode(tokens.ids().tolist())
