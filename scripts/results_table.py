"""A Markdown table of evaluated runs: one row a model, mean over the seeds and, in brackets, their range.

python scripts/results_table.py --name test+test_multi_ref runs/small/*
python scripts/results_table.py --name test runs/ptb/* --analysis rank.json divergence.json

Runs of one model are in folders NAME-SEED. Columns are the results that all runs have. ``--analysis`` adds
what ``lm analyze NAME … --json NAME.json`` wrote. ``--json FILE --machine TEXT`` also writes the numbers in
the form of results/*.json, from which scripts/docs.py draws the tables of the pages.
"""

import hashlib
import json
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from command_line import Options, run_script
from table_forms import markdown, mean_of

from dialog.config import DialogConfig
from lm.config.settings import COMMAND_LINE
from lm.disk.storage import canonical_json, parse_json, read_file, read_json, write_json
from lm.errors import require
from lm.language.config import LmConfig
from lm.runs.checkpoint import CheckpointStore
from lm.runs.evaluations import load_evaluation
from lm.runs.inputs import CONFIG, config_of
from lm.runs.overview import learning_curve
from lm.runs.pooling import FREE_KEYS

Result = dict[str, Any]

HASHED = {"data.test", "train.keep_last", "train.log_every"}  # keys without effect that published hashes have
SCHEMAS: dict[str, type[LmConfig] | type[DialogConfig]] = {"lm": LmConfig, "dialog": DialogConfig}
COLUMNS = {  # form and name of the number by heading
    "valid ppl": (".2f", "valid_perplexity"),
    "perplexity": (".2f", "test_perplexity"),
    "batch mean": (".2f", "perplexity_batch_mean"),
    "BLEU-1 P": (".3f", "bleu_legacy_1.precision"),
    "BLEU-1 R": (".3f", "bleu_legacy_1.recall"),
    "BLEU-4 P": (".3f", "bleu_legacy_4.precision"),
    "BLEU-4 R": (".3f", "bleu_legacy_4.recall"),
    "undefined": (".0%", "undefined"),
    "today's BLEU-4 P": (".3f", "bleu_4.precision"),
    "today's BLEU-4 R": (".3f", "bleu_4.recall"),
    "inter-distinct-2": (".3f", "inter_distinct_2"),
    "length": (".1f", "mean_length"),
    "same answer": (".3f", "same_answer"),
    "rank": (",.0f", "rank"),
    "divergence": (".2f", "divergence"),
    "updates": (",.0f", "updates"),
    "minutes": (".0f", "minutes"),
}
Keys = tuple[str | int, ...]
NUMBERS: dict[str, Keys] = {  # keys of a number in a result, by the name that scripts/table_columns.py has
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
    },
}
MEASUREMENTS = NUMBERS | {
    name: (analysis, *keys) for analysis, found in ANALYSED.items() for name, keys in found.items()
}


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


def cell(column: str, values: Sequence[Any]) -> str:
    """The mean, and the range where there are several."""
    form, name = COLUMNS[column]
    mean = format(mean_of(name, values), form)
    return mean if len(values) == 1 else f"{mean} [{min(values):{form}}, {max(values):{form}}]"


def shown(result: Result, column: str) -> Any:
    """The number of a column, or None if the run was not measured this way."""
    name, _, part = COLUMNS[column][1].partition(".")
    found = at(result, MEASUREMENTS[name])
    return found[part] if found is not None and part else found


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


def entry_of_runs(model: str, runs: Sequence[Path], results: Sequence[Result], machine: str) -> Result:
    """The entry of a model from runs of one config and different seeds, with the keys of the command line."""
    hashes, seeds = {hash_of_run(run) for run in runs}, [result["seed"] for result in results]
    require(len(hashes) == 1, f"{model}: its runs have different configs; give each config a name of its own")
    require(len(set(seeds)) == len(seeds), f"{model}: two of its runs have the same seed; leave one out")
    saved = read_json(runs[0] / CONFIG)
    return entry(
        model,
        numbers_of_runs(results),
        seeds,
        machine,
        config=model,
        config_hash=hashes.pop(),
        settings=[
            f"{key}={json.dumps(reduce(getitem, key.split('.'), saved['config']))}"
            for key, where in saved.get("provenance", {}).items()
            if where == COMMAND_LINE and key not in FREE_KEYS - HASHED
        ],
        command=f"python {shlex.join(sys.argv)}",
        torch_version=torch_of(runs[0]),
    )


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
    return hashlib.sha256(canonical_json(kept)).hexdigest()[:16]


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--name", required=True, help="which evaluation, as named in RUN/evaluation")
    parser.add_argument("--analysis", nargs="*", type=Path, default=[], help="JSON files of lm analyze")
    parser.add_argument("--json", type=Path, help="write the numbers there, in the form of results/*.json")
    parser.add_argument("--machine", default="", help="the machine that trained the runs, for --json")
    options = parser.parse_args()
    require(not options.json or options.machine, "--json: name the machine with --machine TEXT")
    unknown = [path for path in options.analysis if path.stem not in ANALYSED]
    require(not unknown, f"--analysis: name each file as its analysis: {', '.join(ANALYSED)}")
    analyses: dict[str, Any] = {path.stem: read_json(path) for path in options.analysis}
    results = [load(run, options.name, analyses) for run in options.runs]
    columns = [one for one in COLUMNS if all(shown(result, one) is not None for result in results)]
    models: dict[str, list[Result]] = defaultdict(list)
    folders: dict[str, list[Path]] = defaultdict(list)
    for run, result in zip(options.runs, results, strict=True):
        model = run.name.removesuffix(f"-{result['seed']}")
        models[model].append(result)
        folders[model].append(run)
    rows = []
    for model, found in models.items():
        cells = [cell(column, [shown(one, column) for one in found]) for column in columns]
        seeds = ", ".join(str(result["seed"]) for result in found)
        rows.append([model, f"{found[0]['parameters']:,}", seeds, *cells])
    print(markdown(["model", "parameters", "seeds", *columns], rows))
    if options.json:
        entries = [
            entry_of_runs(model, folders[model], found, options.machine) for model, found in models.items()
        ]
        write_json(options.json, {"about": f"evaluation {options.name}", "entries": entries})


if __name__ == "__main__":
    run_script(main)
