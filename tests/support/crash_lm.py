"""What is killed of ``lm``: preparing a corpus, training, finetuning, dynamic evaluation."""

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.support.crash_driver import HEADS, TRAIN, Case, Lab, Tables, Training, whole_corpus, write_toml

BASE: Tables = {
    "window": {"length": 7, "spread": 2.0, "half_share": 0.2, "shortest": 2, "max_delta": 4},
    "model": {
        "embedding_size": 6, "hidden_sizes": [8, 6], "embedding_dropout": 0.1, "input_dropout": 0.2,
        "hidden_dropout": 0.2, "output_dropout": 0.2, "weight_dropout": 0.3,
    },
}  # fmt: skip
LAMB: Tables = {  # instead of the sections above
    "window": {
        "length": 7, "random": False, "rescale_lr": False, "order": "read_heads", "jitter": 5,
        "state_reset": 0.2,
    },
    "model": {
        "embedding_size": 6, "hidden_sizes": [8, 8], "layer_sum": True, "embedding_init": "scaled",
        "dropout_masks": "per_step", "embedding_dropout": 0.0, "input_dropout": 0.2, "hidden_dropout": 0.2,
        "state_dropout": 0.2, "output_dropout": 0.2, "weight_dropout": 0.0, "activation_penalty": 0.0,
        "slowness_penalty": 0.0, "weight_penalty": 1e-3,
    },
    "cell": {"kind": "mogrifier", "rounds": 3, "rank": 2, "cap_input_gate": True, "init": "truncated"},
}  # fmt: skip
OPTIMIZERS: Tables = {
    "nt-asgd": {
        "name": "sgd", "lr": 40.0, "clip_norm": 0.25, "weight_decay": 1e-4,
        "average": "uniform", "average_trigger": 1,
    },
    "plateau": {"name": "sgd", "lr": 20.0, "momentum": 0.5, "schedule": "plateau"},
    "adam": {
        "name": "adam", "lr": 0.1, "betas": [0.0, 0.99], "schedule": "plateau",
        "average": "ema", "ema_decay": 0.5, "average_trigger": 1,
    },
    "lamb": {
        "name": "adam", "lr": 0.3, "betas": [0.0, 0.99], "clip_norm": 0.1,
        "average": "uniform", "average_patience": 1, "average_start": 10,
    },
    "adamw": {"name": "adamw", "lr": 0.1, "schedule": "one_cycle", "warmup_steps": 4, "decay_steps": 14},
    "muon": {"name": "muon", "lr": 0.1, "muon_momentum": 0.5, "schedule": "plateau"},
}  # fmt: skip
STREAMS = 40  # of a training text of three files and a bit, 800 tokens each: about ten windows a pass
WORDS = ("moss", "grows", "on", "the", "north", "side", "of", "old", "stones", "where", "rain", "stays")


def write_text(path: Path, tokens: int = 2700) -> None:
    """An invented text whose end is unlike its beginning."""
    rng, lines, left = random.Random(11), list[str](), tokens
    while left > 0:
        words = rng.choices(WORDS if left > tokens / 4 else WORDS[::-2], k=rng.randint(0, 12))
        lines.append(" ".join(words))
        left -= len(words) + 1
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Preparation(Case):
    """``lm prepare``; ``older``: instead of the result of other options."""

    program = "lm"

    older: bool = False

    @property
    def name(self) -> str:
        return "lm-prepare-again" if self.older else "lm-prepare"

    def arguments(self, lab: Lab) -> list[object]:
        text = lab.shared("lm-text.txt", write_text)
        fractions = ["--valid-fraction", 0.04, "--test-fraction", 0.03, "--shard-tokens", 800]
        return ["prepare", text, "--out", "out", *fractions]

    def begin(self, lab: Lab, place: Path) -> None:
        if self.older:
            lab.command([self.program, *self.arguments(lab), "--vocab-size", 9], place)

    def saved(self, lab: Lab, place: Path) -> dict[str, str]:
        """Step 1 is the result, 0 the older one or none; RuntimeError for anything between."""
        manifest = whole_corpus(place / "out")
        if not manifest:
            return {"step": "0"}
        return {"step": str(int(manifest["options"]["vocab_size"] == 0))}

    def promise(self, step: str) -> str:
        return "run the same command again to start over"


@dataclass(frozen=True)
class LmTraining(Training):
    """``lm train`` on random windows of a corpus of several files, or of a text file."""

    program = "lm"

    head: str = "softmax"
    optimizer: str = "nt-asgd"
    prepared: bool = True
    paper: bool = False
    lamb: bool = False
    accumulate: int = 1

    @property
    def name(self) -> str:
        parts = ["prepared" if self.prepared else "text"]
        parts += [part for part in ("paper", "lamb") if getattr(self, part)]
        return f"lm-{self.head}-{self.optimizer}-{'-'.join(parts)}-x{self.accumulate}"

    def arguments(self, lab: Lab) -> list[object]:
        config = lab.shared(f"{self.name}.toml", lambda path: write_toml(path, self.tables(lab)))
        return ["train", config, "--run", "run"]

    def tables(self, lab: Lab) -> Tables:
        """The config sections."""
        corpus = lab.shared("lm-corpus", lambda place: lab.finish(Preparation(), place)) / "out"
        tables = self.opened(BASE | LAMB if self.lamb else BASE, corpus)
        tables["data"]["valid_streams"] = 3
        if not self.prepared:
            text = lab.shared("lm-text.txt", write_text)
            short = lab.shared("lm-short.txt", lambda path: write_text(path, 80))
            tables["data"] |= {
                "train": str(text),
                "valid": str(short),
                "test": str(short),
                "tokenizer": "char",
            }
        tables["head"] = {"kind": self.head, "tied": True, **HEADS[self.head]}
        tables["optim"] = OPTIMIZERS[self.optimizer]
        tables["train"] = TRAIN | {
            "batch_size": STREAMS, "validate_every": 2, "accumulate": self.accumulate,
            "compat": "paper" if self.paper else "none",
        }  # fmt: skip
        return tables


@dataclass(frozen=True)
class Finetuning(Training):
    """``lm finetune``: averaged SGD from the best weights of another run, until validation stalls."""

    program = "lm"

    base: LmTraining = LmTraining("mos")

    @property
    def name(self) -> str:
        return "lm-finetune"

    def arguments(self, lab: Lab) -> list[object]:
        run = lab.shared("lm-base", lambda place: lab.finish(self.base, place)) / "run"
        changes = ("optim.lr=40.0", "train.stop_trigger=2", "train.max_steps=40")
        return ["finetune", run, "--run", "run", *(text for change in changes for text in ("--set", change))]


@dataclass(frozen=True)
class DynamicEvaluation(Case):
    """``lm dynamic --grid`` of a trained run; ``stale``: where statistics of other windows are kept."""

    program = "lm"
    settings: ClassVar[dict[str, object]] = {
        "lm.language.dynamic.COMMIT_SECONDS": 0.0,
        "lm.language.setting_search.GRID_LR": [1e-4, 1e-3],
        "lm.language.setting_search.GRID_DECAY": [1e-3, 5e-3],
    }

    stale: bool = False
    base: LmTraining = LmTraining("mos")

    @property
    def name(self) -> str:
        return "lm-dynamic-again" if self.stale else "lm-dynamic"

    def arguments(self, lab: Lab) -> list[object]:
        return ["dynamic", "run", "--grid"]

    def begin(self, lab: Lab, place: Path) -> None:
        base = lab.shared("lm-base", lambda base: lab.finish(self.base, base))
        if self.stale:
            base = lab.shared("lm-stale", lambda copy: self.go_stale(lab, base, copy))
        shutil.copytree(base, place, dirs_exist_ok=True)

    def go_stale(self, lab: Lab, base: Path, copy: Path) -> None:
        """Evaluates a copy of the run in windows of another length."""
        shutil.copytree(base, copy)
        lab.command([self.program, *self.arguments(lab), "--window", 3], copy, self.settings)

    def saved(self, lab: Lab, place: Path) -> dict[str, str]:
        """The step counts windows of the statistics and rows of the grid; those of other windows do not."""
        folder, steps = place / "run" / "dynamic", 0
        for commit in folder.glob("statistics/step-*[0-9]/state.json"):
            if current(read(commit)):
                steps = max(steps, int(commit.parent.name.removeprefix("step-")))
        if (folder / "grid.json").exists() and current(grid := read(folder / "grid.json")):
            steps += len(grid["results"])
        return {"step": str(steps)}

    def promise(self, step: str) -> str:
        return "the same command"  # the statistics tell that it resumes, the grid leaves it open


def lm_cases() -> list[Case]:
    """Every head with some optimiser, every optimiser with some head; everything else that is resumed."""
    return [
        LmTraining("softmax", "nt-asgd", paper=True),
        LmTraining("sigsoftmax", "plateau", accumulate=2),
        LmTraining("moc", "adamw", prepared=False),
        LmTraining("mos", "nt-asgd", accumulate=2),
        LmTraining("moss", "adam"),
        LmTraining("mixtape", "adamw"),
        LmTraining("plif", "plateau", prepared=False),
        LmTraining("doc", "nt-asgd"),
        LmTraining("mfs", "adam"),
        LmTraining("cpr", "adamw"),
        LmTraining("mos", "lamb", lamb=True),
        LmTraining("mos", "muon"),
        Finetuning(),
        DynamicEvaluation(),
        DynamicEvaluation(stale=True),
        Preparation(),
        Preparation(older=True),
    ]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def current(cached: Any) -> bool:
    """Whether statistics or grid are those of windows of the usual length."""
    return bool(cached["of"]["window"] == 5)
