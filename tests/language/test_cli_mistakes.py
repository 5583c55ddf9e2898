"""Mistakes at the ``lm`` command line: exit codes, and one line with the remedy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lm_workspace import Lm, names
from tests.support.outcomes import files_below


@pytest.mark.parametrize(
    "command",
    [
        "evaluate talk", "dynamic talk", "generate talk", "score talk text.txt", "finetune talk",
        "compare talk", "analyze rank talk", "analyze divergence talk", "analyze components talk",
        "analyze examples talk runs/tiny", "check talk",
    ],
)  # fmt: skip
@pytest.mark.parametrize("run", ["talk", "none"])
def test_what_is_no_run_of_a_language_model_is_refused(lm: Lm, inside: Path, command: str, run: str) -> None:
    code, out, err = lm(*command.replace("talk", run).split())
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert run in err
    assert names("talk") == {"config.json", "evaluation"}


def test_a_run_that_is_named_twice_counts_once_with_a_note(lm: Lm, inside: Path) -> None:
    runs = ("runs/tiny", "runs/soft/", "./runs/tiny", f"{inside}/runs/tiny")
    notes = [f"{name}: named twice, counts once\n" for name in ("runs/tiny", f"{inside}/runs/tiny")]
    for command in ("evaluate", "analyze gates", "compare", "report"):
        code, _, err = lm(*command.split(), *runs)
        assert (code, err[: len("".join(notes))]) == (
            3 if command in ("compare", "report") else 0,
            "".join(notes),
        )
    [evaluation] = Path("runs/tiny/evaluation").glob("*.json")
    assert evaluation.name == "test.with-soft.json"
    evaluation.unlink()


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("trian", 2, "trian: no such command; did you mean train?"),
        ("chat runs/a", 2, "chat: no such command; only dialog models have it: `dialog chat`; see"),
        ("analyze rnk", 2, "rnk: no such command; did you mean rank?; see `lm analyze --help`\n"),
        ("analyze rank", 2, "RUN... is missing; write the command as in `lm analyze rank runs/ptb"),
        ("analyze rank runs/tiny --limit 2 --limit 3", 2, "--limit: given twice; leave out one of the two\n"),
        ("runs --csv --markdown", 2, "--markdown --csv: two formats of the same tables; leave out one\n"),
        ("evaluate ptb_mos", 4, "ptb_mos: a preset, not a run; `lm train ptb_mos` makes the run runs/ptb"),
        ("evaluate runs", 4, "runs: a folder of runs, not a run; name one of them, such as runs/"),
        ("train runs/tiny", 2, "runs/tiny: a run, not a config; `lm runs runs/tiny` shows it\n"),
        ("train ptb_sofmax", 2, "ptb_sofmax: no such preset or file; did you mean ptb_softmax?\n"),
        ("train ptb_mos --set model.embeding_size=2", 2, "did you mean model.embedding_size?\n"),
        ("train tiny.toml --run x --set data.train=p/nothing", 3, "p/nothing"),
        ("train tiny.toml --run x --set data.train=p/train --set data.vocab_size=9", 2, "--vocab-size\n"),
        ("train tiny.toml --run x --set data.train=p", 3, "p/train or p/valid or p/test"),
        ("describe tiny.toml --set head.kind=mosss", 2, "did you mean moss?\n"),
        (
            "train tiny.toml --run x --set train.start_from=runs/tiny --set model.hidden_sizes=[8,6]", 2,
            "runs/tiny: has other weights than this config: layers.0.weight_ih_l0 is 28 × 6 there, and 32 × 6"
            " here; set the kinds and sizes of head and layers as runs/tiny/config.json has them\n",
        ),
        (
            "train tiny.toml --run x --set train.start_from=runs/soft", 2,
            "runs/soft: has other weights than this config: head.latent.weight is missing there; set",
        ),
        ("finetune runs/tiny --set model.embedding_size=2", 2, "fixed when the run was trained"),
        ("finetune runs/tiny --set train.start_from=x", 2, "runs/tiny itself; finetune the other run"),
        ("generate runs/tiny --top-k 1 --seed 3", 2, "--seed: has no effect with --top-k 1, which takes the"),
        ("generate runs/tiny --temperature-on components", 2, "no effect at --temperature 1; leave it out"),
        ("dynamic runs/tiny --setting paper-mos-pbt", 2, "did you mean paper-mos-ptb?\n"),
        ("dynamic runs/tiny --setting x", 2, "choose from default"),
        ("evaluate runs/tiny --checkpoint step-99", 4, "step-99"),
        ("evaluate runs/tiny --mc-samples 1 --mc-rate 9", 2, "--mc-rate 9"),
        ("evaluate runs/tiny --json no/e.json", 4, "no/e.json: its folder does not exist; create it"),
        ("analyze rank runs/tiny --json no/r.json", 4, "no/r.json: its folder does not exist; create it"),
        ("analyze rank runs/tiny --tokens 5", 2, "--tokens: no such option; see `lm analyze rank --help`\n"),
        ("check -none", 2, "-none: no such option; see `lm check --help`\n"),
        ("generate -top-k 1", 2, "-top-k: no such option; did you mean --top-k?; see"),
        ("train ptb_mos --data p", 2, "--data: no such option; name the texts with --set data.train=… --set"),
        ("tune ptb_mos --run x", 2, "--run: no such option; did you mean --out?; see `lm tune --help`\n"),
        ("train ptb_mos --out x", 2, "--out: no such option; did you mean --run?; see `lm train --help`\n"),
        ("analyze rank runs/tiny --limit 0", 2, "--limit: must be at least 1, got 0; see"),
        ("analyze divergence runs/tiny --limit 1", 3, "name a longer text"),
        ("analyze recovery runs/tiny --share 0", 2, "--share 0: must be above 0 and at most 1\n"),
        ("analyze examples runs/tiny runs/soft --margin nan", 2, "--margin nan: must be a finite number"),
        ("analyze components runs/soft", 2, "has no prior to analyse"),
        ("bottleneck --out x --embedding-sizes x", 2, "--embedding-sizes 'x': separate whole numbers"),
        ("bottleneck --out x --heads softmax,sofmax", 2, "'sofmax': unknown head"),
        ("compare runs/tiny --name test --resamples 3", 2, "--resamples"),
        ("generate runs/tiny --temperature 0", 2, "--temperature 0"),
        ("prepare none.txt --out x", 3, "none.txt"),
    ],
)  # fmt: skip
def test_mistakes(lm: Lm, inside: Path, command: str, code: int, message: str) -> None:
    if not Path("runs/tiny/evaluation/test.json").exists():
        assert lm("evaluate", "runs/tiny")[0] == 0
    found, out, err = lm(*command.split())
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (inside / "x").exists()


def test_an_imported_run_resumes_no_training_but_begins_one(lm: Lm, inside: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    out, run, new = (str(tmp_path / name) for name in ("out", "back", "new"))
    assert lm("export", "runs/tiny", "--to", "hf", out)[0] == 0
    assert lm("import", out, "--run", run)[0] == 0
    before = files_below(Path(run))
    code, _, said = lm("train", "tiny.toml", "--run", run)
    remedy = f"--set train.start_from={run} --run NEW"
    assert (code, said) == (
        4,
        f"{run}: imported without optimiser state, so not resumable; train a new run from its weights:"
        f" {remedy}\n",
    )
    assert files_below(Path(run)) == before
    assert lm("train", "tiny.toml", *remedy.replace("NEW", new).split())[0] == 0


@pytest.mark.parametrize("name", ["-t.toml", "--t.toml"])
def test_a_file_that_looks_like_an_option_has_a_remedy(lm: Lm, inside: Path, name: str) -> None:
    shutil.copy("tiny.toml", name)
    code, _, said = lm("describe", name)
    assert (code, said) == (
        2, f"{name}: no such option; for the file, write ./{name}; see `lm describe --help`\n"
    )  # fmt: skip
    assert lm("describe", f"./{name}")[0] == 0


def test_a_mistake_is_told_before_torch_is_loaded(inside: Path) -> None:
    program = """
import sys
from lm.cli import main
commands = "train ptb_mos --set x=1", "describe x", "evaluate x", "dynamic x", "generate x", "score x y"
for command in commands:
    try:
        main(command.split())
    except SystemExit as ending:
        assert ending.code in (2, 4)
assert "torch" not in sys.modules
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("\n") == 6


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("empty.txt", "empty.txt"),
        ("nul.txt", "nul.txt:2"),
        ("foreign.txt", "foreign.txt"),
        ("none.txt", "none.txt"),
        ("p/none", "p/none"),
        ("p", "p/test"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "dynamic", "analyze rank"])
def test_a_text_that_cannot_be_read_is_named(
    lm: Lm, inside: Path, command: str, data: str, message: str
) -> None:
    Path("empty.txt").write_bytes(b"")
    Path("nul.txt").write_bytes(b"well so\nyeah \0 you\n")
    Path("foreign.txt").write_text("sommes nous\n" * 9)
    before = names("runs/tiny")
    code, out, err = lm(*command.split(), "runs/tiny", "--data", data)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert message in err
    assert names("runs/tiny") == before


def test_examples_need_one_vocabulary_and_one_text(lm: Lm, inside: Path) -> None:
    text = Path("text.txt").read_text()
    Path("longer.txt").write_text(text + "zebra zebra\n")
    split = "data.{}=longer.txt"
    sources = [word for name in ("train", "valid", "test") for word in ("--set", split.format(name))]
    assert lm("train", "tiny.toml", "--run", "runs/other", *sources)[0] == 0
    code, out, err = lm("analyze", "examples", "runs/tiny", "runs/other")
    assert (code, out) == (3, "")
    assert err.startswith("the runs have different vocabularies, of ")
    Path("a.txt").write_text("well so\nyou like\n")
    Path("b.txt").write_text("you like\nwell so\n")
    for name in ("a", "b"):
        test = ("--set", f"data.test={name}.txt")
        assert lm("train", "tiny.toml", "--run", f"runs/{name}", *test)[0] == 0
    code, out, err = lm("analyze", "examples", "runs/a", "runs/b")
    assert (code, out) == (2, "")
    assert err == "runs/a and runs/b have different test splits; name one text with --data\n"
    assert lm("analyze", "examples", "runs/a", "runs/b", "--data", "a.txt")[0] == 0
    code, out, err = lm("analyze", "examples", "runs/a", "runs/../runs/a")
    assert (code, out) == (2, "")
    assert err == "runs/../runs/a: named twice; name the better run\n"
