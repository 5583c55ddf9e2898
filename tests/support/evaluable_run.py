"""A run of a dialog model with random weights, and conversations to evaluate it on."""

import json
import random
from pathlib import Path

from dialog.config import DialogConfig
from dialog.task import build_model
from dialog.utterance import Dialog, Utterance
from lm.config.load import Resolved, save_config
from lm.runs.checkpoint import CheckpointStore
from lm.text.vocabulary import build_codec
from tests.support.words import WORDS

SMALL = DialogConfig.model_validate(
    {
        "model": {"embedding_size": 8},
        "encoder": {"utterance_size": 6, "context_size": 10},
        "decoder": {"hidden_size": 9},
        "decode": {"beam": 3, "nbest": 2, "max_length": 5},
    }
)


def conversations(seed: int, count: int = 3) -> list[Dialog]:
    rng = random.Random(seed)
    return [
        Dialog(
            str(number),
            "pets",
            tuple(
                Utterance("AB"[turn % 2], " ".join(rng.choices(WORDS, k=rng.randint(1, 6))))
                for turn in range(6)
            ),
        )
        for number in range(count)
    ]


def write_dialogs(path: Path, dialogs: list[Dialog]) -> None:
    rows = [
        {"topic": d.topic, "utts": [[u.speaker, u.text, ["sd", None]] for u in d.utterances]} for d in dialogs
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def evaluable_run(place: Path) -> Path:
    """A run folder with a random model, and ``test.jsonl`` beside it."""
    write_dialogs(place / "test.jsonl", conversations(2))
    config = SMALL.model_copy(update={"data": SMALL.data.model_copy(update={"test": "test.jsonl"})})
    texts = [u.text for d in conversations(1, 20) for u in d.utterances]
    codec = build_codec(
        "wordpunct", texts, vocab_size=40, lowercase=True, extra_counts={"<s>": 9, "</s>": 9, "<d>": 3}
    )
    folder = place / "run"
    folder.mkdir()
    save_config(Resolved(config, {}), folder / "config.json")
    codec.save(folder)
    store = CheckpointStore(folder / "checkpoints")
    store.commit(1, {"model": build_model(config, codec).state_dict()}, {}, {})
    return folder
