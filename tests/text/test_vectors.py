"""Pretrained word vectors: reading, refusal of other files, and what training does with them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from dialog.config import DialogConfig
from dialog.train import train
from dialog.trained import TrainedModel
from lm.config.load import load_config
from lm.engine.events import Event, Note
from lm.errors import DataError
from lm.runs.check import check_run
from lm.text.vectors import read_vectors
from lm.text.vocabulary import Vocabulary
from tests.support.tiny_dialog import write_corpus

VOCABULARY = Vocabulary.of_text({"<unk>": 1, "<eos>": 3, "rain": 6, "snow": 8, ". .": 2})


def written(folder: Path, data: str | bytes) -> Path:
    path = folder / "vectors.txt"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize("header", ["", "5 3\n"])
@pytest.mark.parametrize("end", ["\n", " \n", "\r\n"])
def test_the_words_of_the_vocabulary_are_read(tmp_path: Path, header: str, end: str) -> None:
    lines = [". . . 9 9 9", "snow 0.5 -1e-2 3", "rain 1 2 3", ". . 4 5 6", "rain 7 7 7"]
    found = read_vectors(written(tmp_path, header + "".join(line + end for line in lines)), VOCABULARY, 3)
    words = [VOCABULARY.tokens[index] for index in found.ids]
    by_word = dict(zip(words, found.matrix.tolist(), strict=True))
    assert by_word.keys() == {"rain", "snow", ". ."}
    assert by_word["snow"] == pytest.approx([0.5, -0.01, 3])
    assert by_word["rain"] == [1, 2, 3], "the first vector counts"
    assert by_word[". ."] == [4, 5, 6]
    assert found.coverage == (
        "model.vectors: 3 of 5 words of the vocabulary have a vector, and 80.0% of the tokens in training"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "rain 1 2\n",
            r"vectors\.txt:1: a vector of 2 numbers, but the embedding has 3; set model\.embedding",
        ),
        ("9 300\nrain 1 2 3\n", r":1: a vector of 300 numbers, but the embedding has 3"),
        (". . . 1 2\n", r":1: a vector of 2 numbers, but the embedding has 3"),
        ("the sun and the rain\n", r":1: has fewer than 3 numbers \(the sun"),
        ("sun 1 2 3\nrain 1 2\n", r":2: has fewer than 3 numbers \(rain 1 2\)"),
        ("rain 1 two 3\n", r":1: could not convert string to float: 'two'; choose"),
        ("rain 1 nan 3\n", r":1: a number is not finite or beyond 10,000"),
        ("rain 1 1e300 3\n", r":1: a number is not finite or beyond"),
        ("sun 1 2 3\n", r"none of its 1 words is in the vocabulary"),
        ("5 3\n", r"none of its 0 words is in the vocabulary"),
        ("", "the file is empty"),
        (b"rain 1 \0 3\n", r":1:8: NUL byte"),
        (b"rain \xff 2 3\n", r":1:6: not UTF-8"),
        (b"\x1f\x8b\x08\0\0", "gzip-compressed; unpack it with gunzip"),
        (b"x" * (17 << 20), "longer than 16 MiB"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_vectors(written(tmp_path, data), VOCABULARY, 3)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        read_vectors(tmp_path / "pipe", VOCABULARY, 3)


def test_a_training_begins_with_them_and_tells_the_coverage(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    vector = np.arange(8) / 10
    path = written(tmp_path, f"raining {' '.join(map(str, vector))}\n")
    run, told = tmp_path / "run", list[Event]()
    settings = [f"data.{split}={corpus}" for split in ("train", "valid", "test")]
    settings += [f"model.vectors={path}", "model.embedding_size=8", "optim.lr=1e-9", "train.max_steps=1"]
    settings += ["head.embedding_size=8", "train.validate_every=1", "encoder.utterance_size=8"]
    resolved = load_config("smalltalk_softmax", DialogConfig, family="dialog", overrides=settings)
    train(resolved, run, told.append)
    notes = [event.line for event in told if isinstance(event, Note)]
    assert any(line.startswith("model.vectors: 1 of") for line in notes)
    model = TrainedModel.load(run)
    row = model.model.embedding.weight[model.codec.encode("raining")[0]].tolist()  # type: ignore[union-attr]
    assert row == pytest.approx(vector, abs=1e-6)
    assert "vectors_sha256" in json.loads((run / "data.json").read_text())
    path.unlink()  # not needed again
    more = load_config(
        "smalltalk_softmax", DialogConfig, family="dialog", overrides=[*settings, "train.max_steps=2"]
    )
    train(more, run, told.append)
    assert check_run(run).step == 2
