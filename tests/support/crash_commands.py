"""What is killed besides training: commands that write results, ``dialog prepare``, a search."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.support.crash_dialog import DialogTraining, write_corpus
from tests.support.crash_driver import HEADS, TRAIN, Case, Lab, whole_corpus, write_toml
from tests.support.crash_lm import LmTraining

DIALOG, LM = DialogTraining("mos", "adam"), LmTraining("mos")


@dataclass(frozen=True)
class Result(Case):
    """A command that reads a run and writes files into ``results``, each of JSON or of lines of JSON."""

    kind: str
    program: str = "dialog"  # type: ignore[misc]

    @property
    def name(self) -> str:
        return f"{self.program}-{self.kind}"

    def arguments(self, lab: Lab) -> list[object]:
        corpus = lab.shared("dialog-corpus", write_corpus)
        out: list[object] = ["--json", "results/result.json"]
        lines: list[object] = ["--output", "results/responses.jsonl"]
        fast: list[object] = ["--set", "decode.beam=2", "--set", "decode.max_length=5"]
        commands: dict[str, list[object]] = {
            "dialog-evaluate": ["evaluate", "run", *out, *lines, *fast],
            "dialog-average": ["evaluate", "run", "--checkpoint", "average-best", *out, *fast],
            "dialog-sample": ["evaluate", "run", *lines, *fast, "--set", "decode.method=sample"],
            "dialog-references": [
                "references", "--train", corpus / "train.jsonl", "--test", corpus / "test.jsonl",
                "--out", "results/references.json",
            ],
            "lm-evaluate": ["evaluate", "run", *out],
            "lm-average": ["evaluate", "run", "--checkpoint", "average-best", *out],
            "lm-temperature": ["evaluate", "run", "--temperature-search", *out],
        }  # fmt: skip
        return commands[self.name]

    def begin(self, lab: Lab, place: Path) -> None:
        base = DIALOG if self.program == "dialog" else LM
        made = lab.shared(f"{self.program}-base", lambda base_place: lab.finish(base, base_place))
        shutil.copytree(made / "run", place / "run")
        (place / "results").mkdir()

    def saved(self, lab: Lab, place: Path) -> dict[str, str]:
        """The step counts whole results; RuntimeError where one is half written."""
        found = [*(place / "results").glob("[!.]*"), *(place / "run").glob("evaluation/[!.]*")]
        for path in found:
            try:
                text = path.read_text(encoding="utf-8")
                for part in text.splitlines() if path.suffix == ".jsonl" else [text]:
                    json.loads(part)
            except ValueError as error:
                raise RuntimeError(f"half a result: {path.name}: {error}") from error
        lab.check(self.program, place / "run")
        return {"step": str(len(found))}

    def promise(self, step: str) -> str:
        return "run the same command" if step != "0" else "the same command"


@dataclass(frozen=True)
class DialogPreparation(Case):
    """``dialog prepare``; with ``bpe`` a tokenizer is learnt on the way."""

    program = "dialog"

    bpe: bool = False

    @property
    def name(self) -> str:
        return "dialog-prepare-bpe" if self.bpe else "dialog-prepare"

    def arguments(self, lab: Lab) -> list[object]:
        corpus = lab.shared("dialog-corpus", write_corpus)
        learnt = ["--tokenizer", "bpe", "--vocab-size", 60] if self.bpe else []
        return ["prepare", corpus, "--out", "out", *learnt]

    def saved(self, lab: Lab, place: Path) -> dict[str, str]:
        return {"step": str(int(bool(whole_corpus(place / "out"))))}

    def promise(self, step: str) -> str:
        return "the same command" if step == "0" else "run the same command"


@dataclass(frozen=True)
class SearchOfTwo(Case):
    """``lm tune`` of two trials; the journal tells the time, so only its trials are compared."""

    program = "lm"
    settings: ClassVar[dict[str, object]] = {}

    @property
    def name(self) -> str:
        return "lm-tune"

    def arguments(self, lab: Lab) -> list[object]:
        base = lab.shared("lm-tune.toml", lambda path: write_toml(path, self.tables(lab)))
        space = lab.shared("space.toml", self.write_space)
        return ["tune", base, "--space", space, "--trials", 2, "--out", "out"]

    def tables(self, lab: Lab) -> dict[str, dict[str, object]]:
        tables = LM.tables(lab)
        tables["head"] = {"kind": "softmax", "tied": True, **HEADS["softmax"]}
        tables["train"] = TRAIN | {"batch_size": 40, "max_steps": 4, "validate_every": 2}
        return tables

    @staticmethod
    def write_space(path: Path) -> None:
        path.write_text('[space]\n"optim.lr" = {low = 1.0, high = 20.0, log = true}\n', encoding="utf-8")

    def saved(self, lab: Lab, place: Path) -> dict[str, str]:
        runs = sorted(place.glob("out/trials/*"))
        steps = [int(lab.check("lm", run)["step"]) + 1 for run in runs]
        return {"step": str(sum(steps))}

    def promise(self, step: str) -> str:
        return "the same command resumes it"
