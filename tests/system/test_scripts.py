"""The scripts that turn runs into tables and pictures."""

import importlib
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dialog.config import DialogConfig
from dialog.decoding.config import DecodeConfig
from lm.config.load import load_config, override
from lm.language.config import LmConfig
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import config_of
from tests.support.kept_records import edit_record, keep_record
from tests.support.scripts import SCRIPTS, ended_script, run_script

SCHEMAS: dict[str, tuple[str, type[LmConfig] | type[DialogConfig]]] = {  # with the family of presets
    "lm": ("ptb_small", LmConfig),
    "dialog": ("smalltalk", DialogConfig),
}


def make_run(folder: Path, head: str, seed: int, perplexity: float, family: str = "lm") -> Path:
    """A run folder with what the scripts read."""
    folder.mkdir(parents=True)
    scores = {str(n): {"precision": 0.5, "recall": 0.25, "f1": 1 / 3} for n in range(1, 5)}
    result = {"head": head, "seed": seed, "parameters": 1234, "perplexity": perplexity}
    result |= {"checkpoint": "best"}
    result |= {"perplexity_batch_mean": 60.0, "bleu": scores, "bleu_legacy": scores}
    result |= {
        "legacy_undefined_share": 0.25,
        "inter_distinct_2": 0.1,
        "mean_length": 5.0,
        "most_common_share": 0.2,
    }
    keep_record(folder, "test", result, {})
    presets, schema = SCHEMAS[family]
    config = load_config(f"{presets}_{head}", schema, family=family).config.model_dump(mode="json")
    (folder / "config.json").write_text(json.dumps({"family": family, "config": config, "provenance": {}}))
    lines: list[dict[str, Any]] = [
        {"split": "train", "step": 5, "nll": 4.0},
        {"split": "valid", "step": 10, "nll": math.log(perplexity)},
        {"split": "valid", "step": 20, "nll": math.log(perplexity - 1)},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    CheckpointStore.of(folder).commit(20, {"model": {}}, {}, {"torch": "2.13.0+cpu"})
    (folder / "timing.jsonl").write_text('{"step": 10, "seconds": 60.0}\n{"step": 20, "seconds": 600.0}\n')
    return folder


def without_scores(record: dict[str, Any]) -> None:
    """Take from the record of a dialog model what a language model has not."""
    for key in ("bleu", "bleu_legacy", "legacy_undefined_share", "inter_distinct_2"):
        del record["result"][key]


def test_results_table(tmp_path: Path) -> None:
    made = (("mos", 1, 50.0), ("mos", 2, 52.0), ("softmax", 1, 55.5))
    runs = [make_run(tmp_path / f"{head}-{seed}", head, seed, ppl) for head, seed, ppl in made]
    runs.append(make_run(tmp_path / "softmax_lstm-1", "softmax", 1, 54.5))
    header, rule, mos, softmax, other = run_script(
        SCRIPTS / "results_table.py", "--name", "test", *runs
    ).splitlines()
    assert header.count("|") == rule.count("|") == mos.count("|") == softmax.count("|")
    assert mos.startswith("| mos | 1,234 | 1, 2 | 49.99 [49.00, 51.00] | 50.99 [50.00, 52.00] |")
    assert mos.endswith("| 20 [20, 20] | 10.0 [10.0, 10.0] |")
    assert softmax.startswith("| softmax | 1,234 | 1 | 54.50 | 55.50 |")
    assert other.startswith("| softmax_lstm | 1,234 | 1 | 53.50 | 54.50 |")
    assert "rank" not in header


def test_results_table_writes_numbers_that_the_pages_can_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    runs = [make_run(tmp_path / f"mos-{seed}", "mos", seed, 50.0 + seed) for seed in (1, 2)]
    written = tmp_path / "mos.json"
    table = SCRIPTS / "results_table.py"
    run_script(table, "--name", "test", *runs, "--json", written, "--machine", "two cores")
    (entry,) = json.loads(written.read_text())["entries"]
    assert (entry["label"], entry["seeds"], entry["machine"]) == ("mos", [1, 2], "two cores")
    assert entry["numbers"]["test_perplexity"] == [51.0, 52.0]
    assert entry["numbers"]["best_at"] == [20, 20]
    *_, columns = importlib.import_module("pages.table_columns").TABLES["ptb_transformer"]
    assert {key for _, key, _ in columns} <= set(entry["numbers"])


def test_results_table_shows_where_each_number_of_a_file_is_from(tmp_path: Path) -> None:
    """A dash is a number that an entry lacks. A series of numbers is only named."""
    made = {"config": "c", "config_sha256": "ab", "seeds": [1], "machine": "m", "torch": "2", "date": "d"}
    bleu = [{"precision": 0.5, "recall": 0.25}, {"precision": 0.25, "recall": 0.125}]
    numbers: dict[str, Any] = {
        "a": {"test_perplexity": 50.25, "valid_curve": [[1, 9.0]]},
        "b": {"rank": [1200, 1300], "bleu_1": bleu},
    }
    entries = [made | {"label": label, "numbers": found} for label, found in numbers.items()]
    (tmp_path / "found.json").write_text(json.dumps({"about": "two", "entries": entries}))
    table = run_script(SCRIPTS / "results_table.py", tmp_path / "found.json")
    header, _, *rows, _, note = table.splitlines()
    assert header.split(" | ")[-4:] == ["date", "test_perplexity", "rank", "bleu_1 |"]
    assert note == "Not shown: valid_curve"
    assert rows == [
        "| a | c | ab | [1] | m | 2 | d | 50.25 | – | – |",
        "| b | c | ab | [1] | m | 2 | d | – | 1,200, 1,300 | .500/.250, .250/.125 |",
    ]
    (tmp_path / "lacking.json").write_text('{"entries": [{"label": "a"}]}')
    for given, said in (
        (("lacking.json",), "has no entries"),
        (("found.json", "--name", "test"), "no options"),
    ):
        code, _, err = ended_script(SCRIPTS / "results_table.py", tmp_path / given[0], *given[1:])
        assert (code, said in err, err.count("\n")) == (2, True, 1)


def test_results_table_has_the_learned_factor_of_the_evaluated_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    table = importlib.import_module("results_table")
    run = make_run(tmp_path / "mos-1", "mos", 1, 50.0)
    assert "learned_factor" not in table.load(run, "test", {})
    store = CheckpointStore.of(run)
    for step, factor in ((30, 1.5), (40, 1.75)):
        progress = {"best": [[1.0, 30]]}
        store.commit(step, {"model": {"head.scale": torch.tensor(factor)}}, {"progress": progress}, {})
    saved = json.loads((run / "config.json").read_text())
    saved["config"]["head"]["learn_context_scale"] = True
    (run / "config.json").write_text(json.dumps(saved))
    assert table.load(run, "test", {})["learned_factor"] == 1.5


def test_results_table_keeps_no_seed_twice(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name / "mos-1", "mos", 1, 50.0) for name in ("a", "b")]
    options = ["--json", tmp_path / "mos.json", "--machine", "two cores"]
    code, _, err = ended_script(SCRIPTS / "results_table.py", "--name", "test", *runs, *options)
    assert (code, err) == (2, "mos: two of its runs have the same seed; leave one out\n")


def evaluation_of(run: Path) -> dict[str, Any]:
    """What ``dialog evaluate --json`` writes of a run, as far as the table of decoding reads it."""
    scores = {
        "bleu_legacy": {order: {"precision": 0.5, "recall": 0.25} for order in "14"},
        "mean_length": 3.5,
    }
    scores |= {"inter_distinct_1": 0.9, "inter_distinct_2": 0.8, "most_common_share": 0.125}
    result = scores | {"perplexity": 41.5, "yardsticks": {"true_response": scores | {"mean_length": 9.0}}}
    result |= {"run": str(run), "checkpoint": "best", "contexts": 30, "seed": 2}
    return result | {"data": {"name": "test.first-30", "references_file": None}}


def test_the_table_of_decoding_has_the_true_responses_below(tmp_path: Path) -> None:
    result = evaluation_of(make_run(tmp_path / "mos", "mos", 2, 41.5, "dialog"))
    for name, decode in {"beam": {}, "mmi": {"select": "mmi", "mmi_run": "x/back", "seed": 9}}.items():
        (tmp_path / name).write_text(json.dumps(result | {"decode": decode}))
    script, written = SCRIPTS / "decoding_table.py", tmp_path / "written.json"
    given = [f"beam = 5={tmp_path / 'beam'}", f"MMI={tmp_path / 'mmi'}"]
    _, _, beam, mmi, people = run_script(script, *given, "--json", written, "--machine", "m").splitlines()
    assert beam == "| beam = 5 | 41.50 | .500/.250 | .500/.250 | .900 | .800 | 3.5 | 12 |"
    assert mmi.startswith("| MMI | 41.50 ")
    assert people == "| true responses | none | .500/.250 | .500/.250 | .900 | .800 | 9.0 | 12 |"
    entries = json.loads(written.read_text())["entries"]
    keys = """--set 'decode.select="mmi"' --set 'decode.mmi_run="runs/back"' --set decode.seed=9"""
    assert entries[1]["command"] == f"dialog evaluate runs/mos {keys} --limit 30"
    assert len(entries[1]["config_sha256"]) == 16


@pytest.mark.parametrize("script", ["decoding_table", "results_table"])
def test_a_table_replaces_only_results(tmp_path: Path, script: str) -> None:
    """Also an empty file, but no file of the user."""
    run = make_run(tmp_path / "mos", "mos", 2, 41.5, "dialog")
    (tmp_path / "own").write_text(json.dumps(evaluation_of(run) | {"decode": {}}))
    given = [f"own={tmp_path / 'own'}"] if script == "decoding_table" else [run, "--name", "test"]
    written = tmp_path / "written.json"
    written.touch()
    for _ in range(2):
        run_script(SCRIPTS / f"{script}.py", *given, "--json", written, "--machine", "m")
    written.write_text('{"about": 1}')
    code, _, err = ended_script(SCRIPTS / f"{script}.py", *given, "--json", written, "--machine", "m")
    assert (code, err) == (2, f"{written}: exists and is no result of this command; choose another file\n")
    assert written.read_text() == '{"about": 1}'


def test_the_table_of_decoding_refuses_scores_of_other_contexts(tmp_path: Path) -> None:
    own = evaluation_of(make_run(tmp_path / "mos", "mos", 2, 41.5, "dialog")) | {"decode": {}}
    other = own | {"yardsticks": {"true_response": {"mean_length": 8.0}}}
    for name, result in {"own": own, "other": other}.items():
        (tmp_path / name).write_text(json.dumps(result))
    given = [f"{name}={tmp_path / name}" for name in ("own", "other")]
    code, _, err = ended_script(SCRIPTS / "decoding_table.py", *given)
    refused = f"{tmp_path / 'other'}: scores of other contexts or references than {given[0]}"
    assert (code, err) == (2, f"{refused}\n")


def test_the_keys_of_the_table_of_decoding_repeat_the_evaluation(tmp_path: Path) -> None:
    """The preset of the run has a table [decode] of its own."""
    run = make_run(tmp_path / "mos", "mos", 2, 41.5, "dialog")
    trained = config_of(run, DialogConfig)
    ways = {
        "own": trained.config.decode,
        "defaults": DecodeConfig(),
        "greedy": trained.config.decode.model_copy(update={"beam": 1, "nbest": 1}),
    }
    for name, decode in ways.items():
        result = evaluation_of(run) | {"decode": decode.model_dump(mode="json")}
        (tmp_path / name).write_text(json.dumps(result))
    given, written = [f"{name}={tmp_path / name}" for name in ways], tmp_path / "written.json"
    run_script(SCRIPTS / "decoding_table.py", *given, "--json", written, "--machine", "m")
    *entries, _ = json.loads(written.read_text())["entries"]
    assert entries[0]["settings"] == []
    for decode, entry in zip(ways.values(), entries, strict=True):
        repeated = override(trained, entry["settings"], DialogConfig, sections=("decode",))
        assert repeated.config.decode == decode
        assert all(f"--set {shlex.quote(key)}" in entry["command"] for key in entry["settings"])


def test_results_table_of_language_models(tmp_path: Path) -> None:
    """A column is there where all runs have it; analyses are found by the folder of the run."""
    runs = [make_run(tmp_path / head, head, 1, 50.0) for head in ("mos", "softmax")]
    for run in runs:
        edit_record(run / "evaluation/test.json", without_scores)
    ranks = {str(tmp_path / "." / run.name): {"rank": 10_000 // (i + 1)} for i, run in enumerate(runs)}
    (tmp_path / "rank.json").write_text(json.dumps({"runs": ranks}))
    header, _, mos, softmax = run_script(
        SCRIPTS / "results_table.py", "--name", "test", *runs, "--analysis", tmp_path / "rank.json"
    ).splitlines()
    assert "BLEU" not in header
    assert header.endswith("| rank | updates | minutes |")
    assert mos.endswith("| 10,000 | 20 | 10.0 |")
    assert softmax.endswith("| 5,000 | 20 | 10.0 |")


def test_results_table_keeps_analyses_over_training(tmp_path: Path) -> None:
    run = make_run(tmp_path / "mos-1", "mos", 1, 50.0)
    ranks = {key: {"effective_rank": 80.0} for key in ("logits", "states", "update")}
    steps = {
        f"{run} step-{step}": {
            "share": step / 1000,
            "share_error": 0.01,
            "random_share": 0.1,
            "gain": 2.0,
            "alignment": 0.1,
        }
        | ranks
        for step in (90, 600)
    }
    rows = {key: {"anisotropy": 0.2, "effective_rank": 60.0} for key in ("states", "contexts", "output")}
    (tmp_path / "gradient.json").write_text(json.dumps({"runs": steps}))
    (tmp_path / "geometry.json").write_text(json.dumps({"runs": dict.fromkeys(steps, rows)}))
    run_script(
        SCRIPTS / "results_table.py", "--name", "test", run, "--json", tmp_path / "found.json",
        "--machine", "any", "--analysis", tmp_path / "gradient.json", tmp_path / "geometry.json",
    )  # fmt: skip
    numbers = json.loads((tmp_path / "found.json").read_text())["entries"][0]["numbers"]
    assert numbers["gradient_share"] == 0.6
    assert (numbers["gradient_rank_of_states"], numbers["effective_rank_of_states"]) == (80.0, 60.0)
    over = numbers["over_training"]
    assert {step: found["gradient_share"] for step, found in over.items()} == {"90": 0.09, "600": 0.6}
    assert over["90"]["anisotropy_of_states"] == 0.2


def test_what_is_missing_is_told_in_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "mos-1", "mos", 1, 50.0)
    (tmp_path / "rank.json").write_text(json.dumps({"runs": {}}))
    for script, *arguments in (
        ("results_table.py", "--name", "test", tmp_path / "absent"),
        ("results_table.py", "--name", "other", run),
        ("results_table.py", "--name", "test", run, "--analysis", tmp_path / "rank.json"),
        ("results_table.py", "--name", "test", run, "--analysis", tmp_path / "ranks.json"),
    ):
        code, _, err = ended_script(SCRIPTS / script, *arguments)
        assert code in (2, 3, 4)
        assert err.count("\n") == 1
    (run / "timing.jsonl").write_text("")
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"step": 30, "split": "valid", "nll": null}\n')
    header, _, row = run_script(SCRIPTS / "results_table.py", "--name", "test", run).splitlines()
    assert "minutes" not in header
    assert "| 49.00 |" in row, "the best of what is finite"


def test_what_the_studies_measured_becomes_results_and_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    study_tables = importlib.import_module("pages.study_tables")
    (tmp_path / "results").mkdir()

    def keep(name: str, settings: dict[str, Any], rows: Sequence[Any], **others: Any) -> None:
        result = {"settings": settings | {"seeds": [1, 2]}, "rows": rows} | others
        saved, out = tmp_path / f"{name}.json", tmp_path / "results" / f"{name}.json"
        command = "reverse-copy" if name == "reverse_copy" else "bottleneck"
        saved.write_text(
            json.dumps(result | {"command": f"lm {command} --seeds 1,2", "versions": {"torch": "2.13.0+cpu"}})
        )
        run_script(SCRIPTS / "study_results.py", saved, "--machine", "any", "--out", out)
        run_script(SCRIPTS / "study_results.py", saved, "--machine", "any", "--out", out)  # replaces its own
        kept = json.loads(out.read_text())
        (entry,) = kept["entries"]
        assert (entry["label"], entry["seeds"], entry["torch"]) == (name, [1, 2], "2.13.0")
        assert f"lm {command}" in kept["about"]

    row = {"parameters": 90, "rank": 4, "late_gain": 0.0, "components": 1, "context_scale": 1.0, "steps": 80}
    points = [
        row | {"head": "softmax", "kind": "softmax", "size": 8, "seed": 1, "kl": 0.5},
        row | {"head": "mos", "kind": "mos", "size": 8, "seed": 1, "kl": 0.25, "components": 4},
    ]
    swept = {
        **{"embedding_sizes": [8], "components": [4], "component_sweep": [4], "sweep_size": 8},
        **{"contexts": 9, "vocab": 9, "rank": 4, "context_scale": [1.0], "steps": [80]},
    }
    for name in ("bottleneck", "bottleneck_26"):
        keep(name, swept, points, swept_components=[4], truth=[{"entropy": 1.0}])
    relayed = [
        {
            "trainer": trainer,
            "seed": seed,
            "kl": seed / 4,
            "gradient_effective_rank": 7.6,
            "moved_effective_rank": 20.4,
            "readers": readers,
        }
        for trainer in ("untrained", "softmax")
        for seed, readers in ((1, {"softmax": {"kl": 0.5}}), (2, {"softmax": {"kl": 0.25}}))
    ]
    keep("backward", {}, relayed, heads=["softmax"])
    said = [
        {"seed": seed, "vocab": 1000, "head": "softmax", "accuracy": 0.5, "nll": float(seed)}
        for seed in (1, 2)
    ]
    keep("spam", {"steps": [300]}, said, heads=["softmax"])
    copied = [
        {"seed": seed, "length": 9, "cell": "lstm", "test_nll": float(seed), "exact": 0.5, "parameters": 90}
        | {"hidden_size": 4}
        for seed in (1, 2)
    ]
    keep("reverse_copy", {"lengths": [9], "vocab": 5, "steps": 7, "lrs": [0.1]}, copied)
    drawn = study_tables.study_tables(tmp_path / "results")
    last = {name: table.splitlines()[-1] for name, table in drawn.items()}
    assert last == {
        "bottleneck, sizes": "| 8 | 90 | 0.500 | 0.250 |",
        "bottleneck_26": "| 8 | 90 | 0.500 | 0.250 |",
        "bottleneck, components": "| 4 | 90 | 0.500 | 0.250 |",
        "bottleneck, updates": "| 80 | 1, 2 | 0.500 | 0.250 |",
        "reverse_copy": "| 9 | 1.500 | 1.448 |",  # 9 / 10 of log 5
        "reverse_copy, exact": "| 9 | 0.500 |",
        "backward": "| softmax | 8, 8 | 20, 20 | 0.250, 0.500 | 0.500, 0.250 |",
        "spam": "| 300 | softmax | 0.50, 0.50 | 1.00, 2.00 |",
    }
    assert "| untrained | none | none | none | 0.500, 0.250 |" in drawn["backward"]


def test_a_mistyped_option_or_a_closed_pipe_ends_a_script_in_one_line_at_most() -> None:
    table = SCRIPTS / "tables" / "ptb_small.toml"
    status = [sys.executable, SCRIPTS / "train_table.py", table, "--status"]
    mistyped = subprocess.run([*status, "--heads", "mos", "--x"], capture_output=True, text=True, check=False)
    assert mistyped.returncode == 2
    assert mistyped.stderr == "unrecognized arguments: --x; --help lists the options\n"
    with subprocess.Popen(status, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as closed:
        assert closed.stdout
        assert closed.stderr
        closed.stdout.close()
        assert closed.stderr.read() == b""
    assert closed.returncode == 141
