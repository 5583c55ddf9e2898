"""What is killed of ``dialog``: trainings with every head and optimiser."""

import json
import random
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tests.support.crash_driver import HEADS, TRAIN, Lab, Tables, Training, write_toml

BASE: Tables = {
    "data": {"vocab_size": 60, "max_tokens": 12, "context": 3, "segment": 3},
    "model": {"embedding_size": 8, "dropout": 0.2, "word_dropout": 0.1},
    "encoder": {"kind": "hierarchical", "utterance_size": 6, "context_size": 8},
    "decoder": {"hidden_size": 8},
}
OPTIMIZERS: Tables = {
    "adam": {"lr": 0.01, "average": "ema", "ema_decay": 0.9, "schedule": "plateau"},
    "adamw": {"lr": 0.01, "weight_decay": 0.1, "schedule": "cosine", "warmup_steps": 2, "decay_steps": 10},
    "sgd": {"lr": 0.5, "momentum": 0.9, "average": "uniform", "average_start": 5},
}
SENTENCES = (
    "well I like the garden/my sister grows beans/we walk on sundays/that sounds nice/do you cook/uh-huh/yes"
)


@dataclass(frozen=True)
class DialogTraining(Training):
    """A configuration; the parts that head and optimiser leave open differ from case to case."""

    program = "dialog"

    head: str = "softmax"
    optimizer: str = "adam"
    flat: bool = False
    accumulate: int = 1
    tokenizer: str = "wordpunct"
    gated: bool = False

    @property
    def name(self) -> str:
        encoder = ("flat" if self.flat else "hierarchical") + "-gated" * self.gated
        return f"dialog-{self.head}-{self.optimizer}-{encoder}-{self.tokenizer}-x{self.accumulate}"

    def arguments(self, lab: Lab) -> list[object]:
        corpus = lab.shared("dialog-corpus", write_corpus)
        config = lab.shared(f"{self.name}.toml", lambda path: write_toml(path, self.tables(corpus)))
        return ["train", config, "--run", "run"]

    def tables(self, corpus: Path) -> Tables:
        """The config sections."""
        tables = self.opened(BASE, corpus, ".jsonl")
        tables["data"]["tokenizer"] = self.tokenizer
        tables["head"] = {"kind": self.head, **HEADS[self.head]}
        tables["optim"] = {"name": self.optimizer, **OPTIMIZERS[self.optimizer]}
        tables["train"] = TRAIN | {"accumulate": self.accumulate}
        if self.flat:
            tables["encoder"] |= {"kind": "flat", "cell": "lstm", "layers": 2}
            tables["decoder"] |= {"layers": 2, "attention": "additive"}
        if self.gated:
            tables["cell"] = {"rounds": 2, "rank": 3}
            tables["encoder"]["cell"] = tables["decoder"]["cell"] = "mogrifier"
        return tables


def dialog_cases() -> list[DialogTraining]:
    """Every head with every optimiser; encoders, cells, accumulation and tokenizers take turns."""
    tokenizers = ("wordpunct", "char", "bpe", "whitespace")
    return [
        DialogTraining(
            head, optimizer, number % 2 == 1, 1 + number % 3 // 2, tokenizers[number % 4], number % 4 == 3
        )
        for number, (head, optimizer) in enumerate(product(HEADS, OPTIMIZERS))
    ]


def write_corpus(folder: Path) -> None:
    """Invented conversations: about five batches an epoch, so that trainings end in the middle of one."""
    rng = random.Random(7)
    folder.mkdir()
    for split, count in (("train", 8), ("valid", 2), ("test", 2)):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for _ in range(count):
                utts = [
                    ["AB"[turn % 2], " . ".join(rng.choices(SENTENCES.split("/"), k=rng.randint(1, 3)))]
                    for turn in range(8)
                ]
                file.write(json.dumps({"topic": "weekend", "utts": utts}) + "\n")
