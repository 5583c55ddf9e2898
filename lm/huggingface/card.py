"""The model card of an exported folder."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from lm.config.difference import flat_config
from lm.disk.jsonfile import canonical_json
from lm.errors import HighrankError, StorageError, visible
from lm.numbers import number
from lm.runs.checkpoint import CheckpointStore
from lm.runs.evaluations import Evaluation, evaluation_names, load_evaluation, lookup

_LIMITED = re.compile(r"\.first-\d+(\.|$)")  # in the name of an evaluation with --limit
_USE = """```python
import {module}  # registers the model; in a copy of Highrank: pip install -e '.[hf]'
from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained("{folder}").eval()
tokenizer = AutoTokenizer.from_pretrained("{folder}")
```"""


@dataclass(frozen=True)
class CardFamily:
    """Facts about a family's exported models."""

    command: str  # line that made the run
    module: str  # to import before transformers opens the folder
    auto: str  # class of transformers that opens it
    measures: Mapping[str, Sequence[str]]  # label of each measure → its keys in the result of an evaluation


@dataclass(frozen=True)
class Exported:
    """An exported checkpoint of a run."""

    run: Path
    checkpoint: str
    config: BaseModel
    parameters: int
    licence: str | None


def model_card(model: Exported, name: str, family: CardFamily) -> str:
    """Markdown: use, data, measured numbers with their commands, settings and licence of a run's model.

    ``name`` is that of the exported folder.
    """
    values, licence = flat_config(model.config), model.licence
    head = f"{values['head.kind']}, K = {values['head.components']}"
    front = ["---", "library_name: transformers", f"license: {licence or 'other'}", "tags: [highrank]", "---"]
    settings = (f"{key} = {canonical_json(value).decode()}" for key, value in sorted(values.items()))
    parts = {
        "Use": [_USE.format(folder=name, module=family.module, auto=family.auto)],
        "Data": [f"- {split}: `{visible(values[f'data.{split}'])}`" for split in ("train", "valid", "test")],
        "Measured": _measured(model, family),
        "Settings": ["```", *settings, "```"],
        "Licence": [
            licence
            or "not stated by the exporter; that of the training text decides. Highrank's code is Apache-2.0."
        ],
    }
    title = [*front, "", f"# {name}", "", f"{model.parameters:,} parameters; output head: {head}.", ""]
    return "\n".join(
        title + [line for heading, lines in parts.items() for line in (f"## {heading}", "", *lines, "")]
    )


def _measured(model: Exported, family: CardFamily) -> list[str]:
    rows = [
        f"| {visible(found.result['data']['name'])} | {label} | {number(label, value)} | `{command}` |"
        for found, command in _evaluations(model, family.command)
        for label, keys in family.measures.items()
        if isinstance(value := lookup(found.result, keys), int | float)
    ]
    if not rows:
        return [f"Nothing was measured before the export: `{family.command} evaluate` measures."]
    return ["| text | measure | value | command |", "|---|---|---|---|", *rows]


def _evaluations(model: Exported, program: str) -> list[tuple[Evaluation, str]]:
    """Evaluations of the exported weights alone on whole texts, and the command of each."""
    weights = CheckpointStore.of(model.run).fingerprint(model.checkpoint)
    found: list[tuple[Evaluation, str]] = []
    for name in evaluation_names(model.run):
        try:
            one = load_evaluation(model.run, name, [("result", "data", "name")], [], program)
        except StorageError:
            raise
        except HighrankError:
            continue  # of weights that the run no longer has
        command: Any = one.details.get("command")
        partial = _LIMITED.search(name) or "ensemble_with" in one.result
        if isinstance(command, str) and not partial and one.result.get("weights") == weights:
            found.append((one, str(visible(command))))
    return found
