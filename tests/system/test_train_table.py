"""Trainings of several heads and seeds, whose entries outlive the runs."""

import importlib
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dialog.config import DialogConfig
from lm.config.load import load_config
from lm.errors import ConfigError, HighrankError
from tests.support.scripts import SCRIPTS, ended_script

TABLE = """
about = "Two heads."
program = "dialog"
preset = "smalltalk_"
settings = ["train.threads=1", "train.max_steps=2", "optim.decay_steps=2", "optim.warmup_steps=0"]
seeds = [1]
evaluation = "smalltalk-test.first-20.beam-1.nbest-1"
unit = "dialog"
evaluate = ["--limit", "20", "--set", "decode.beam=1", "--set", "decode.nbest=1"]

[analyses]
rank = ["--limit", "10"]
gradient = ["--limit", "10", "--sample", "2"]

[heads]
softmax = "softmax"
mos = "MoS"
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "two.toml"
    path.write_text(TABLE, encoding="utf-8")
    (tmp_path / "results").mkdir()
    return path


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("train_table")


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(SCRIPTS / "train_table.py"), *map(str, arguments)]


def train(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False)


def entries() -> list[Any]:
    found: list[Any] = json.loads(Path("results/two.json").read_text(encoding="utf-8"))["entries"]
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_missing_is_trained_and_what_tests_need_is_kept(table: Path) -> None:
    older = {"label": "softmax", "config": "smalltalk_softmax", "seeds": [1], "numbers": {}}
    Path("results/two.json").write_text(json.dumps({"about": "", "entries": [older]}))
    first = train(table, "--machine", "a test", "--heads", "mos", "--seeds", "2,2")
    assert first.returncode == 0, first.stderr
    second = train(table, "--machine", "a test", "--jobs", "2")
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith("missing: 2 of 2 trainings: softmax-1, mos-1\n")
    again = "results/two.json has them; to measure again, name another file with --results\n"
    assert train(table, "--seeds", "1").stdout == f"missing: 0 of 2 trainings\n{again}"
    softmax, mos, other = entries()
    assert [one["seeds"] for one in (softmax, mos, other)] == [[1], [1], [2]]
    assert softmax["config_sha256"] != mos["config_sha256"] == other["config_sha256"]
    assert softmax["units"]["tokens"] == mos["units"]["tokens"]
    nats, tokens = (np.array(softmax["units"][name].split(), float).sum() for name in ("nats", "tokens"))
    for trained in (softmax, mos, other):
        assert 0 < trained["numbers"]["gradient_share"] < 1
        assert trained["numbers"]["rank"] > 10
    assert np.exp(nats / tokens) == pytest.approx(softmax["numbers"]["test_perplexity"], rel=1e-3)
    table.write_text(TABLE.replace("max_steps=2", "max_steps=3"), encoding="utf-8")
    others = "results/two.json has other entries, without units or of another config: softmax-1, mos-1\n"
    missing = "missing: 2 of 2 trainings: softmax-1, mos-1\n"
    assert train(table, "--status").stdout == f"{missing}{others}"


@pytest.mark.slow
def test_a_failure_is_told_and_stops_no_other_training(table: Path) -> None:
    Path("runs/two").mkdir(parents=True)
    Path("runs/two/softmax-1").write_text("in the way")
    ended = train(table, "--machine", "a test")
    assert ended.returncode == 4
    assert ended.stderr.startswith(
        "softmax-1: dialog train: exit code 4: runs/two/softmax-1: not a directory"
    )
    assert ended.stderr.endswith("(runs/two/softmax-1.log)\n")
    assert ended.stderr.count("\n") == 1
    assert [one["config"] for one in entries()] == ["smalltalk_mos"]


def test_an_unexpected_error_stops_no_other_training(
    module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def training(name: str) -> Any:
        def measured(machine: str) -> str:
            if name == "a":
                raise KeyError("share")
            return machine

        return SimpleNamespace(name=name, run=tmp_path / "runs" / name, commands=list, measured=measured)

    added: list[str] = []
    results = SimpleNamespace(path="results.json", add=added.append)
    assert module.run_all([training(name) for name in "abc"], results, 1, "m") == 1
    assert added == ["m", "m"]
    assert capsys.readouterr().err == "a: KeyError('share')\n"


@pytest.mark.slow
def test_a_signal_saves_the_training_and_the_same_command_resumes(table: Path) -> None:
    table.write_text(TABLE.replace("max_steps=2", "max_steps=200000"), encoding="utf-8")
    running = subprocess.Popen(command(table, "--machine", "a test"), stderr=subprocess.PIPE, text=True)
    log = Path("runs/two/softmax-1/metrics.jsonl")
    until = time.monotonic() + 60
    while not (log.exists() and log.stat().st_size) and time.monotonic() < until:
        time.sleep(0.2)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 75
    notice, error = err.splitlines()
    assert notice == "stopping when the trainings have saved; another signal ends at once"
    assert error == "interrupted by SIGTERM; the same command resumes it"
    assert list(Path("runs/two/softmax-1/checkpoints").glob("step-*"))
    assert not Path("runs/two/mos-1").exists()


def test_a_mistake_is_one_line_and_changes_nothing(table: Path) -> None:
    negative = f"{table}: --set train.seed: must be greater than or equal to 0, got -1\n"
    for wrong, message in (
        (("--heads", "mof"), "--heads mof: choose from softmax, mos\n"),
        (("--seeds", "-1"), negative),
        (("--trial", "lr"), "--trial lr: choose from nothing, since the table has no [trials]\n"),
        ((), "name the machine with --machine TEXT\n"),
    ):
        code, _, err = ended_script(SCRIPTS / "train_table.py", table, *wrong)
        assert (code, err) == (2, message)
    assert list(Path("results").iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("smalltalk_", "smallchat_", "smallchat_mos: no such preset or file"),
        ("seeds = [1]", 'seeds = "12"', r"two\.toml:6: seeds: input should be a valid list"),
        ("seeds = [1]", "seeds = []", r"two\.toml:6: seeds: list should have at least 1 item"),
        ("unit =", "units =", r"two\.toml:8: units: unknown key; did you mean unit\?"),
        ('unit = "dialog"\n', "", r"two\.toml: unit: field required"),
        ("max_steps=2", "max_steps=x", r"train\.max_steps: must be an integer"),
        ("train.max_steps=2", "train.seed=2", r"two\.toml: settings: leave out train\.seed"),
        (
            "[heads]",
            "[trials]\na = ['train.seed=2']\n[heads]",
            r"two\.toml: trials\.a: leave out train\.seed",
        ),
        ("rank =", "rnk =", r"two\.toml: analyses\.rnk: choose from rank, gradient"),
    ],
)
def test_a_mistake_in_a_table_is_named(
    module: ModuleType, table: Path, old: str, new: str, message: str
) -> None:
    table.write_text(TABLE.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        module.trainings(module.Table.read(table), ["mos"], [1], Path("runs"))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"entries": 3}', '{"entries": [{}]}', '{"entries": [0]}']
)
def test_a_file_that_has_no_results_is_refused(module: ModuleType, table: Path, content: str) -> None:
    path = Path("results/two.json")
    path.write_text(content)
    (training,) = module.trainings(module.Table.read(table), ["mos"], [1], Path("runs"))
    with pytest.raises(HighrankError, match=r"^results/two\.json: "):
        module.Results(path, training.table).missing([training])


def test_the_folder_of_the_results_is_made(
    module: ModuleType, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["train_table.py", str(table), "--results", "a/b.json", "--machine", "m"])
    monkeypatch.setattr(module, "run_all", lambda left, *_: len(left))
    with pytest.raises(SystemExit, match=r"^2$"):
        module.main()
    assert Path("a").is_dir()


def test_those_that_add_at_the_same_time_lose_no_entry(
    module: ModuleType, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(path: Path) -> Any:
        content = json.loads(path.read_text(encoding="utf-8"))
        time.sleep(0.05)  # others read the same content now, if they may
        return content

    monkeypatch.setattr(module, "read_json", slowly)
    Path("results/two.json").write_text('{"about": "", "entries": []}', encoding="utf-8")
    results = [module.Results(Path("results/two.json"), module.Table.read(table)) for _ in range(4)]
    made = [{"config": "smalltalk_mos", "seeds": [seed]} for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(module.Results.add, results, made))
    assert [one["seeds"] for one in entries()] == [[0], [1], [2], [3]]


def test_what_was_trained_or_measured_in_another_way_is_missing(module: ModuleType, table: Path) -> None:
    path, read = Path("results/two.json"), module.Table.read
    (training,) = module.trainings(read(table), ["mos"], [1], Path("runs"))
    entry = {"config": training.preset, "seeds": [1], "config_sha256": training.config_sha256, "units": {}}
    path.write_text(json.dumps({"entries": [entry | {"measured": training.table.measured}]}))
    assert module.Results(path, training.table).missing([training]) == []
    for old, new in (
        ("max_steps=2", "max_steps=3"),
        ('"--limit", "20"', '"--limit", "30"'),
        ('unit = "dialog"', 'unit = ""'),
    ):
        table.write_text(TABLE.replace(old, new), encoding="utf-8")
        (other,) = module.trainings(read(table), ["mos"], [1], Path("runs"))
        assert module.Results(path, other.table).missing([other]) == [other], new
    table.write_text(
        TABLE.replace("settings = [", 'settings = ["head.label_smoothing=0.0", '), encoding="utf-8"
    )
    (same,) = module.trainings(read(table), ["mos"], [1], Path("runs"))
    assert same.config_sha256 == training.config_sha256, "a key with its default value changes no hash"
    (other,) = module.trainings(training.table, ["mos"], [2], Path("runs"))
    assert other.config_sha256 == training.config_sha256
    assert module.Results(path, training.table).missing([other]) == [other]
    run = Path("runs/mos-1")
    run.mkdir(parents=True)
    longer = load_config(
        "smalltalk_mos", DialogConfig, family="dialog", overrides=["train.max_steps=3"]
    ).config
    saved = {"family": "dialog", "config": longer.model_dump(mode="json"), "provenance": {}}
    (run / "config.json").write_text(json.dumps(saved))
    with pytest.raises(ConfigError, match="runs/mos-1: has another config; remove it"):
        training.require_same_config()


def test_a_run_evaluated_on_other_references_too_gives_no_entry(module: ModuleType, table: Path) -> None:
    (training,) = module.trainings(module.Table.read(table), ["mos"], [1], Path("runs"))
    name = training.table.evaluation
    folder = Path("runs/mos-1/evaluation")
    folder.mkdir(parents=True)
    for one in (name, f"{name}.ba8b74"):
        (folder / f"{one}.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"runs/mos-1/evaluation: has {name}, {name}.ba8b74, .* remove it"):
        training.measured("a machine")


def test_a_trial_adds_its_settings_to_those_of_the_table(module: ModuleType, table: Path) -> None:
    table.write_text(f'{TABLE}\n[trials]\nfast = ["optim.lr=0.01"]\n', encoding="utf-8")
    whole = module.Table.read(table)
    tried = whole.trial("fast")
    assert tried.settings == [*whole.settings, "optim.lr=0.01"]
    assert tried.about == "Two heads. Trial of optim.lr=0.01."
    [own], [other] = (module.trainings(one, ["mos"], [1], Path("runs")) for one in (whole, tried))
    assert own.config_sha256 != other.config_sha256
    with pytest.raises(ConfigError, match="--trial slow: choose from fast"):
        whole.trial("slow")


def test_a_table_may_have_the_heads_of_another(module: ModuleType, table: Path) -> None:
    heads = module.Table.read(table).heads
    other = table.with_name("other.toml")
    own = TABLE[: TABLE.index("[heads]")]
    other.write_text(f'heads = "{table.name}"\n{own}', encoding="utf-8")
    assert module.Table.read(other).heads == heads
    for name, message in (
        ("none.toml", r"none\.toml: no such file"),
        (other.name, r"other\.toml:1: heads: "),
    ):
        other.write_text(f'heads = "{name}"\n{own}', encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            module.Table.read(other)


@pytest.mark.parametrize("path", sorted((SCRIPTS / "tables").glob("*.toml")), ids=lambda path: path.stem)
def test_every_head_of_a_table_has_a_preset_and_a_table_on_a_page(module: ModuleType, path: Path) -> None:
    compared, tables = (
        importlib.import_module("pages.compared"),
        importlib.import_module("pages.table_columns"),
    )
    table = module.Table.read(path)
    trainings = module.trainings(table, list(table.heads), table.seeds, Path("runs"))
    assert len(trainings) == len(table.heads) * len(table.seeds)
    drawn = {file for file, _, _ in tables.TABLES.values()}
    drawn |= {file for files in compared.TRIALS.values() for file in files.values()}
    assert {path.stem, *(f"{path.stem}_{trial}" for trial in table.trials)} <= drawn


def test_every_table_can_be_drawn_from_the_entry_of_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    results, tables = importlib.import_module("results_table"), importlib.import_module("pages.page_tables")
    score = {"precision": 0.2, "recall": 0.1}
    measured = {
        **{"valid_perplexity": 90.0, "perplexity": 95.0, "perplexity_batch_mean": 96.0, "minutes": 3.5},
        **{"bleu_legacy": {"1": score, "4": score}, "bleu": {"1": score, "4": score}},
        **{"legacy_undefined_share": 0.1, "inter_distinct_2": 0.4, "mean_length": 5.5},
        **{
            "most_common_share": 0.5,
            "best_at": 11000,
            "valid_curve": {"500": 90.0},
            "updates": 12000,
            "over_training": {},
            "learned_factor": 1.5,
        },
        **{"rank": {"rank": 130}, "divergence": {"expected_divergence": 4.5}},
        "gradient": {
            **{"share": 0.1, "share_error": 0.01, "random_share": 0.1, "gain": 17.0, "alignment": 0.08},
            **{key: {"effective_rank": 80.0} for key in ("logits", "states", "update")},
        },
        "geometry": {
            key: {"anisotropy": 0.1, "effective_rank": 60.0} for key in ("states", "contexts", "output")
        },
        "histories": {"histories": 300, "matrices": [{"effective_rank": 60.0}, {"effective_rank": 70.0}]},
        "unargmaxable": dict.fromkeys(results.ANALYSED["unargmaxable"], 0),
    }
    numbers = {name: results.at(measured, keys) for name, keys in results.MEASUREMENTS.items()}
    assert None not in numbers.values()
    new = {"label": "MoS ×4, K = 3", "config": "x_new", "settings": [], "numbers": numbers}
    for name, (file, heading, columns) in tables.TABLES.items():
        if file in tables.PAIRS:
            both = [new | {"seeds": [seed]} for seed in (1, 2)]
            *_, row = tables.table(tables.rows(name, both), heading, columns).splitlines()
            assert row.startswith("| MoS ×4, K = 3 |"), name
            assert "none" not in row, name
