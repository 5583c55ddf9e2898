"""The model card of an exported folder."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from lm.config.difference import flat_config
from lm.disk.storage import canonical_json
from lm.errors import HighrankError, StorageError, visible
from lm.runs.evaluations import Result, evaluation_names, load_evaluation

_USE = """```python
import {module}  # registers the model; pip install "highrank[hf]"
from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained("{folder}").eval()
tokenizer = AutoTokenizer.from_pretrained("{folder}")
```"""


def model_card(
    run: Path, out: Path, config: BaseModel, use: Mapping[str, str], parameters: int, licence: str | None
) -> str:
    """Markdown: use, data, measured numbers with their commands, settings and licence of a run's model.

    ``use`` has the ``module`` to import, the ``auto`` class and the ``command`` line.
    """
    values = flat_config(config)
    head = f"{values['head.kind']}, K = {values['head.components']}"
    front = ["---", "library_name: transformers", f"license: {licence or 'other'}", "tags: [highrank]", "---"]
    data = [f"- {split}: `{visible(values[f'data.{split}'])}`" for split in ("train", "valid", "test")]
    settings = (f"{key} = {canonical_json(value).decode()}" for key, value in sorted(values.items()))
    licensed = (
        licence
        or "not stated by the exporter; that of the training text decides. Highrank's code is Apache-2.0."
    )
    parts = {
        "Use": [_USE.format(folder=out.name, **use)],
        "Data": data,
        "Measured": _measured(run, use["command"]),
        "Settings": ["```", *settings, "```"],
        "Licence": [licensed],
    }
    title = [*front, "", f"# {out.name}", "", f"{parameters:,} parameters; output head: {head}.", ""]
    return "\n".join(
        title + [line for name, lines in parts.items() for line in (f"## {name}", "", *lines, "")]
    )


def _measured(run: Path, command: str) -> list[str]:
    rows = [
        row for name in evaluation_names(run) if ".first-" not in name and (row := _row(run, name, command))
    ]
    if not rows:
        return [f"Nothing was measured before the export: `{command} evaluate` measures."]
    return ["| text | perplexity | command |", "|---|---|---|", *rows]


def _row(run: Path, name: str, command: str) -> str:
    try:
        result: Result = load_evaluation(run, name, [("result", "perplexity")], [], command).result
    except StorageError:
        raise
    except HighrankError:
        return ""  # of weights that the run no longer has
    way = "dynamic" if result.get("method", "static") != "static" else "evaluate"
    source, checkpoint = str(result["data"]["source"]), str(result["checkpoint"])
    given = shlex.join([command, way, str(run), "--data", source, "--checkpoint", checkpoint])
    return f"| {visible(name)} | {result['perplexity']:.2f} | `{visible(given)}` |"
