"""Entries of the files of results, results/*.json.

A file of results has ``about`` and ``entries``. An entry has a label, the config and its settings, the
command, seeds, machine, version of torch, date, and numbers. It has the hash of its config, unless it is a
timing, whose sizes are in its label and command. One of scripts/train_table.py has the nats of the units of
the text.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, BinaryIO

from dialog.config import DialogConfig
from lm.disk.jsonfile import JSON, canonical_json, parse_json, read_json, write_json
from lm.disk.storage import read_file
from lm.errors import require
from lm.language.config import LmConfig
from lm.runs.checkpoint import CheckpointStore
from lm.runs.evaluations import load_evaluation
from lm.runs.inputs import CONFIG, config_of
from lm.runs.outputs import require_earlier
from lm.runs.overview import learning_curve
from lm.runs.pooling import FREE_KEYS

Result = dict[str, Any]

HASHED = {"data.test", "train.keep_last", "train.log_every"}  # keys without effect that published hashes have
SCHEMAS: dict[str, type[LmConfig] | type[DialogConfig]] = {"lm": LmConfig, "dialog": DialogConfig}
Keys = tuple[str | int, ...]
NUMBERS: dict[
    str, Keys
] = {  # keys of a number in a result, by the name that scripts/pages/table_columns.py has
    "valid_perplexity": ("valid_perplexity",),
    "test_perplexity": ("perplexity",),
    "perplexity_batch_mean": ("perplexity_batch_mean",),
    "bleu_legacy_1": ("bleu_legacy", "1"),
    "bleu_legacy_4": ("bleu_legacy", "4"),
    "bleu_1": ("bleu", "1"),
    "bleu_4": ("bleu", "4"),
    "undefined": ("legacy_undefined_share",),
    "inter_distinct_2": ("inter_distinct_2",),
    "mean_length": ("mean_length",),
    "same_answer": ("most_common_share",),
    "best_at": ("best_at",),
    "valid_curve": ("valid_curve",),
    "updates": ("updates",),
    "minutes": ("minutes",),
    "over_training": ("over_training",),
    "learned_factor": ("learned_factor",),
}
ANALYSED: dict[str, dict[str, Keys]] = {  # the same of one checkpoint, by analysis
    "rank": {"rank": ("rank",)},
    "divergence": {"divergence": ("expected_divergence",)},
    "gradient": {
        "gradient_share": ("share",),
        "gradient_share_error": ("share_error",),
        "gradient_random_share": ("random_share",),
        "gradient_gain": ("gain",),
        "gradient_alignment": ("alignment",),
        "gradient_rank_of_logits": ("logits", "effective_rank"),
        "gradient_rank_of_states": ("states", "effective_rank"),
        "gradient_rank_of_update": ("update", "effective_rank"),
    },
    "geometry": {
        "anisotropy_of_states": ("states", "anisotropy"),
        "anisotropy_of_contexts": ("contexts", "anisotropy"),
        "anisotropy_of_output": ("output", "anisotropy"),
        "effective_rank_of_states": ("states", "effective_rank"),
        "effective_rank_of_contexts": ("contexts", "effective_rank"),
        "effective_rank_of_output": ("output", "effective_rank"),
    },
    "histories": {
        "histories": ("histories",),
        "histories_rank_without_future": ("matrices", 0, "effective_rank"),
        "histories_rank_with_futures": ("matrices", -1, "effective_rank"),
    },
    "unargmaxable": {
        "unargmaxable": ("unargmaxable",),
        "unargmaxable_free": ("unargmaxable_free",),
        "undecided": ("undecided",),
        "undecided_free": ("undecided_free",),
    },
}
MEASUREMENTS = NUMBERS | {
    name: (analysis, *keys) for analysis, found in ANALYSED.items() for name, keys in found.items()
}


def entries_of(folder: Path, name: str) -> list[Any]:
    """The entries of a file of results. StorageError if the file cannot be read."""
    content: Any = read_json(folder / f"{name}.json")
    found: list[Any] = content["entries"]
    return found


def head_of(entry: Mapping[str, Any]) -> str:
    """The end of the preset's name, after that of its family of small presets."""
    name: str = entry["config"].partition("_small_")[2]
    return name


def load(run: Path, name: str, analyses: Mapping[str, Result]) -> Result:
    """Everything that is known of a run. Analyses by name; each is that of the last checkpoint."""
    saved = read_json(run / CONFIG)
    result = load_evaluation(run, name, (), (), saved["family"]).result
    if saved["config"]["head"].get("learn_context_scale"):
        weights = CheckpointStore.of(run).weights(result["checkpoint"])
        result["learned_factor"] = float(weights["head.scale"])
    over_training: Result = defaultdict(dict)
    for kind, analysis in analyses.items():
        found = {step: value for path, step, value in analysed(analysis) if path == run.resolve()}
        require(bool(found), f"{run}: not in what --analysis has; analyse it, too")
        result[kind] = found[max(found)]
        for step in sorted(found) if len(found) > 1 else ():
            over_training[str(step)] |= numbers_of(kind, found[step])
    if over_training:
        result["over_training"] = over_training
    result["updates"] = records(run / "metrics.jsonl")[-1]["step"]
    if valid := learning_curve(run):
        result["valid_perplexity"], result["best_at"] = min((perplexity, step) for step, perplexity in valid)
        result["valid_curve"] = {str(step): round(perplexity, 2) for step, perplexity in valid}
    if timing := records(run / "timing.jsonl"):  # of very short runs it is empty
        result["minutes"] = timing[-1]["seconds"] / 60
    return result


def records(path: Path) -> list[Any]:
    """The lines of a log; StorageError where one is no JSON, or the log cannot be read."""
    return [parse_json(line, path) for line in read_file(path, limit=1 << 30).splitlines()]


def analysed(analysis: Result) -> Iterator[tuple[Path, int, Result]]:
    """Run, update and measurement of each checkpoint of an analysis; 0 for the only checkpoint of a run."""
    for key, value in analysis["runs"].items():
        run, _, step = key.partition(" step-")
        yield Path(run).resolve(), int(step or 0), value


def at(found: Result, keys: Keys) -> Any:
    """The number at these keys, None without the first. KeyError without another."""
    return reduce(getitem, keys, found) if keys[0] in found else None


def numbers_of(analysis: str, found: Result) -> Result:
    """Numbers of an analysis of one checkpoint. KeyError without one of them."""
    return {name: reduce(getitem, keys, found) for name, keys in ANALYSED[analysis].items()}


def entry(
    label: str,
    numbers: Result,
    seeds: Sequence[int],
    machine: str,
    *,
    config: str,
    config_hash: str,
    settings: Sequence[str],
    command: str,
    torch_version: str,
) -> Result:
    """Numbers of a model in the form of results/*.json."""
    return {
        "label": label,
        "config": config,
        "config_sha256": config_hash,
        "settings": list(settings),
        "command": command,
        "seeds": list(seeds),
        "machine": machine,
        "torch": torch_version,
        "date": datetime.now(UTC).date().isoformat(),
        "numbers": numbers,
    }


def write_entries(path: Path, about: str, entries: Sequence[Result]) -> None:
    """Write a file in the form of results/*.json. ConfigError for an existing file of another kind."""

    def is_results(file: BinaryIO) -> bool:
        found = json.load(file)
        return isinstance(found, dict) and found.keys() == {"about", "entries"}

    require_earlier(path, is_results)
    write_json(path, {"about": about, "entries": list(entries)})


def numbers_of_runs(results: Sequence[Result]) -> Result:
    """Parameters of a model and all that was measured of it: a number, or one for each of several seeds.

    ConfigError for a number that only some of the seeds have.
    """
    numbers: Result = {"parameters": results[0]["parameters"]}
    for name, keys in MEASUREMENTS.items():
        found = [at(result, keys) for result in results]
        missing = [str(one["seed"]) for one, value in zip(results, found, strict=True) if value is None]
        some = f"seed {', '.join(missing)} lacks {name}, which another has; measure it, too"
        require(len(missing) in (0, len(found)), some)
        if not missing:
            numbers[name] = found if len(found) > 1 else found[0]
    return numbers


def torch_of(run: Path) -> str:
    """The version of torch that trained a run last."""
    return str(CheckpointStore.of(run).open("last").facts["torch"]).partition("+")[0]


def hash_of_run(run: Path) -> str:
    """:func:`config_sha256` of the config of a run."""
    schema = SCHEMAS[read_json(run / CONFIG)["family"]]
    return config_sha256(config_of(run, schema).config)


def config_sha256(config: LmConfig | DialogConfig) -> str:
    """Hash of a config without the keys in which runs of one pool may differ, such as the seed.

    Keys with their default values are left out, so that a new key of a later version changes no hash.
    """
    kept = {
        f"{section}.{key}": value
        for section, keys in config.model_dump(mode="json", exclude_defaults=True).items()
        if isinstance(keys, Mapping)
        for key, value in keys.items()
        if f"{section}.{key}" not in FREE_KEYS - HASHED and section != "decode"  # the evaluation has these
    }
    return sha256_of(kept)


def sha256_of(settings: Mapping[str, JSON]) -> str:
    """The first 16 hexadecimal digits of the hash of settings in canonical JSON."""
    return hashlib.sha256(canonical_json(settings)).hexdigest()[:16]
