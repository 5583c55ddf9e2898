"""One's own conversations: trained on, missing, the same twice."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dialog.batches import list_examples
from dialog.cli import main
from dialog.config import DataConfig, DialogConfig
from dialog.corpora.own_data import OWN_OPTIONS, own_data
from dialog.corpora.prepare import PrepareOptions
from dialog.utterance import Dialog, Utterance
from lm.cli import main as lm_main
from lm.config.load import load_config
from lm.errors import ConfigError, DataError, StorageError
from tests.support.command_lines import Outcome
from tests.support.outcomes import files_below
from tests.support.own_talk import BRIEF, SETTINGS, WORDS, chat


def test_the_page_has_the_shares_that_are_held_out() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    for options, sentence in (
        (
            PrepareOptions(),
            "`dialog prepare` holds out {valid:.0%} of the dialogs for validation and {test:.0%}",
        ),
        (OWN_OPTIONS, "`dialog train --data` holds out {valid:.0%} for each"),
    ):
        shares = {"valid": options.valid_fraction, "test": options.test_fraction}
        assert sentence.format(**shares).replace("%", " %") in " ".join(page.split())


def test_train_on_ones_own_file(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    Path("talk.txt").write_text(chat(20))
    command = ("train", "own_small", "--data", "talk.txt", *SETTINGS)
    code, out, err = dialog(*command, "--set", "train.max_steps=2")
    assert code == 0, err
    assert "talk:0" in out, "what was read is shown"
    config = json.loads(Path("runs/own_small/config.json").read_text())["config"]
    assert config["data"]["train"] == "runs/own_small/corpus/train"
    kept = json.loads(Path("runs/own_small/corpus/report.json").read_text())["splits"]
    assert [counts["dialogs"] for counts in kept.values()] == [16, 2, 2]
    code, out, err = dialog(*command, "--set", "train.max_steps=3")
    assert code == 0, err
    assert "after 3 updates" in out
    assert "talk:0" not in out
    assert dialog("evaluate", "runs/own_small")[0] == 0
    Path("r.json").write_text('[{"context": [], "responses": ["yes"]}]')
    code, _, err = dialog("evaluate", "runs/own_small", "--references", "r.json")
    assert (code, "leave out --references" in err) == (ConfigError.exit_code, True)

    report = Path("runs/own_small/corpus/report.json").read_bytes()
    Path("talk.txt").write_text(chat(21))
    code, _, err = dialog(*command, "--set", "train.max_steps=4")
    assert code == DataError.exit_code
    assert "talk.txt: changed since this run began" in err
    assert Path("runs/own_small/corpus/report.json").read_bytes() == report, "the old corpus is kept"
    assert dialog(*command, "--run", "runs/new", "--set", "train.max_steps=2")[0] == 0


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("x.jsonl", '{"utterances": ["x"]}\n', ("--on-bad-line", "skip")),
        ("x.dat", "what\nis\nit\n", ("--format", "text")),
        ("x.csv", "dialog,speaker,said\n", ("--text-column", "said")),
    ],
)
def test_refused_input_is_prepared_and_then_trained_on(
    name: str, content: str, options: tuple[str, ...], in_tmp: Path, dialog: Callable[..., Outcome]
) -> None:
    good = {
        "x.jsonl": '{"utterances": ["x", "y"]}\n' * 9,
        "x.dat": "\nx\ny\n" * 8,
        "x.csv": "".join(f"{n},A,x\n{n},B,y\n" for n in range(9)),
    }
    Path(name).write_text(content + good[name])
    code, _, err = dialog("train", "own_small", "--data", name, *BRIEF)
    assert (code, err.count("\n")) == (DataError.exit_code, 1)
    assert f"`dialog prepare … {options[0]}" in err
    assert err.endswith("; then name the folder that it writes with --data\n")
    assert dialog("prepare", name, "--out", "p", *options)[0] == 0
    assert own_data("p", Path("runs/new"), DataConfig()).settings[0] == "data.train=p/train"


def test_a_folder_that_is_no_run_stays_as_it_is(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    Path("talk.txt").write_text(chat(20))
    Path("other").mkdir()
    Path("other/x").write_text("")
    code, _, err = dialog("train", "own_small", "--data", "talk.txt", "--run", "other", *BRIEF)
    assert (code, "choose a new or empty folder with --run" in err) == (StorageError.exit_code, True)
    assert [path.name for path in Path("other").iterdir()] == ["x"]


def test_a_closed_pipe_does_not_end_a_training_before_it_begins(in_tmp: Path) -> None:
    Path("talk.txt").write_text(chat(20))
    line = [sys.executable, "-m", "dialog", "train", "own_small", "--data", "talk.txt", *BRIEF]
    with subprocess.Popen([*line, "--run", "r"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ended:
        assert ended.stdout
        ended.stdout.close()
    assert ended.returncode == 0
    assert [*Path("r/checkpoints").glob("step-*")]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``talk.txt`` and the run ``r`` that began with it."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("talk.txt").write_text(chat(20))
        with pytest.raises(SystemExit, match="0"):
            main(["train", "own_small", "--data", "talk.txt", "--run", "r", *BRIEF])
    return folder


@pytest.fixture
def own(begun: Path, in_tmp: Path) -> Path:
    """A copy of it, in the working folder."""
    shutil.copytree(begun, in_tmp, dirs_exist_ok=True)
    return Path("r")


def resume(*arguments: str, run: str = "r", steps: int = 3) -> tuple[str, ...]:
    return ("train", "own_small", "--run", run, *SETTINGS, "--set", f"train.max_steps={steps}", *arguments)


def test_a_copy_of_the_source_leaves_the_corpus_as_it_is(own: Path, dialog: Callable[..., Outcome]) -> None:
    """Ids come from the name of the file, and splits from the ids."""
    before = files_below(own / "corpus")
    Path("talk.txt").rename("copy.txt")
    code, _, err = dialog(*resume("--data", "copy.txt"))
    assert code == 0, err
    assert files_below(own / "corpus") == before


def test_a_run_goes_on_without_its_source(own: Path, dialog: Callable[..., Outcome]) -> None:
    Path("talk.txt").unlink()
    code, out, err = dialog(*resume("--data", "talk.txt"))
    assert code == 0, err
    assert "after 3 updates" in out
    assert "note: talk.txt: not found, so not compared; continuing with r/corpus" in err
    code, _, err = dialog(*resume("--data", "nothing.txt"))
    assert (code, "nothing.txt: no such file" in err) == (DataError.exit_code, True)
    code, out, err = dialog(*resume(steps=4))
    assert code == 0, err
    assert "after 4 updates" in out


def test_a_moved_run_has_its_corpus(own: Path, dialog: Callable[..., Outcome]) -> None:
    """Also where another run has taken its place."""
    own.rename("moved")
    code, _, err = dialog("evaluate", "moved", "--json", "one.json")
    assert code == 0, err
    code, _, err = dialog(*resume("--data", "talk.txt", run="moved"))
    assert code == 0, err
    assert dialog("evaluate", "moved", "--json", "before.json")[0] == 0
    Path("talk.txt").write_text(chat(40))
    assert dialog(*resume("--data", "talk.txt"))[0] == 0
    assert dialog("evaluate", "moved", "--json", "after.json")[0] == 0
    before, after = (json.loads(Path(f"{name}.json").read_text()) for name in ("before", "after"))
    assert before["contexts"] == after["contexts"]


def test_a_damaged_corpus_is_found(own: Path, dialog: Callable[..., Outcome]) -> None:
    assert dialog("check", "r")[0] == 0
    for name in ("train", "valid", "test"):
        (path,) = (own / "corpus" / name).glob("*.arrow")
        data = path.read_bytes()
        path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
        for command in (("check", "r"), resume("--data", "talk.txt"), resume()):
            code, _, err = dialog(*command)
            assert (code, f"{path}: edited or damaged" in err) == (StorageError.exit_code, True)
        path.unlink()
        code, _, err = dialog("check", "r")
        assert (code, f"{path}: " in err) == (StorageError.exit_code, True)
        path.write_bytes(data)
    manifest = own / "corpus/manifest.json"
    text = manifest.read_text()
    for damaged in ("", "{}", "[]", text.replace('"report.json"', '"../../talk.txt"')):
        manifest.write_text(damaged)
        code, _, err = dialog("check", "r")
        assert (code, "manifest.json: missing or damaged" in err) == (StorageError.exit_code, True)
    manifest.write_text(text)
    assert dialog("check", "r")[0] == 0


def test_a_data_set_is_compared(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    import datasets

    datasets.disable_progress_bars()
    for name in ("one", "other"):
        rows = [
            {"question": f"is it {word} {n}", "answer": f"{name} {word}"}
            for n in range(4)
            for word in WORDS[:8]
        ]
        datasets.Dataset.from_list(rows).save_to_disk(f"stored/{name}")
    code, _, err = dialog(*resume("--data", "hf:./stored/one"))
    assert code == 0, err
    before = files_below(Path("r/corpus"))
    code, _, err = dialog(*resume("--data", "hf:./stored/other"))
    assert (code, "hf:./stored/other: changed since this run began" in err) == (DataError.exit_code, True)
    shutil.copytree("stored/one", "elsewhere/one")
    for source in ("hf:./stored/one", "hf:./elsewhere/one"):
        assert dialog(*resume("--data", source))[0] == 0
    shutil.rmtree("stored")
    code, _, err = dialog(*resume("--data", "hf:./stored/one"))
    assert (code, "not found, so not compared" in err) == (0, True)
    assert files_below(Path("r/corpus")) == before


def test_train_on_a_prepared_folder(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    Path("talk.txt").write_text(chat(20))
    assert dialog("prepare", "talk.txt", "--out", "p")[0] == 0
    assert dialog("train", "own_small", "--data", "p", *BRIEF)[0] == 0
    code, _, err = dialog("train", "own_small", "--data", "talk.txt", *BRIEF)
    assert (code, "own_small: began without --data" in err) == (DataError.exit_code, True)
    assert not Path("runs/own_small/corpus").exists()
    code, _, err = dialog("train", "own_small", "--data", "p/train", "--run", "other")
    assert (code, "name the folder with train" in err) == (DataError.exit_code, True)
    code, _, err = dialog("train", "own_small", "--data", "nothing.txt", "--run", "other")
    assert (code, "nothing.txt: no such file" in err) == (DataError.exit_code, True)
    assert not Path("other").exists()


def test_a_corpus_that_is_prepared_again_is_told(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    Path("talk.txt").write_text(chat(20))
    prepare = ("prepare", "talk.txt", "--out", "p", "--test-fraction", "0.2", "--valid-fraction", "0.2")
    splits = [word for split in ("train", "valid", "test") for word in ("--set", f"data.{split}=p/{split}")]
    assert dialog(*prepare)[0] == 0
    assert dialog("train", "own_small", *splits, "--run", "r", *BRIEF)[0] == 0
    for seed, data, told in (
        ("", (), False),
        ("5", (), True),
        ("5", ("--data", "p/test"), False),
        ("", (), False),
    ):
        shutil.rmtree("p")
        assert dialog(*prepare, *(("--seed", seed) if seed else ()))[0] == 0
        code, _, err = dialog("evaluate", "r", *data)
        assert code == 0
        assert ("warning: p/train was prepared again since r was trained" in err) == told
    assert dialog("train", "own_small", *splits, "--run", "r", *BRIEF)[0] == 0, "the run goes on"


def test_a_killed_preparation_does_not_block_the_run(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    """Only the corpus is there, and what a killed process left beside it."""
    Path("talk.txt").write_text(chat(20))
    command = ("train", "own_small", "--data", "talk.txt", "--run", "r", *BRIEF)
    assert dialog("prepare", "talk.txt", "--out", "r/corpus")[0] == 0
    Path("r/.corpus.tmp").mkdir()
    Path("r/.corpus.lock").touch()
    assert dialog(*command)[0] == 0


def test_answers_are_learnt_where_they_are_last() -> None:
    dialogs = [Dialog("d", "", (Utterance("user", "why"), Utterance("assistant", "so")))]
    assert [example.response.text for example in list_examples(dialogs)] == ["why"]
    last = list_examples(dialogs, last=True)
    assert [example.response.text for example in last] == ["why", "so"]
    assert [utterance.text for utterance in last[1].context] == ["<d>", "why"]
    assert load_config("own_small", DialogConfig, family="dialog").config.data.last_response
    assert not load_config("smalltalk_mos", DialogConfig, family="dialog").config.data.last_response


@pytest.mark.parametrize(
    ("package", "config", "message"),
    [
        (
            "lm",
            "ptb_small_mos",
            "data/ptb/train: no such corpus; make it with: lm prepare path/to/ptb --out data/ptb; "
            "or name yours with --set data.train=…",
        ),
        (
            "dialog",
            "switchboard_small_mos",
            "data/switchboard/train: no such corpus; make it with: "
            "dialog prepare path/to/switchboard --out data/switchboard; or train on a file of your own with: "
            "dialog train switchboard_small_mos --data FILE",
        ),
        (
            "dialog",
            "own_small",
            "data/own/train: no such corpus; make it with: dialog prepare path/to/own --out data/own; "
            "or train on a file of your own with: dialog train own_small --data FILE",
        ),
    ],
)
def test_missing_data_is_told_at_once(
    package: str, config: str, message: str, in_tmp: Path, ending: Callable[..., Outcome]
) -> None:
    main_of: dict[str, Any] = {"lm": lm_main, "dialog": main}
    code, _, err = ending(main_of[package], "train", config)
    assert (code, err) == (DataError.exit_code, f"{message}\n")
    code, _, err = ending(main_of[package], "train", config, "--set", "data.train=talk.txt")
    assert (code, err) == (DataError.exit_code, "talk.txt: no such file or folder; check data.train\n")
    if package == "dialog":
        code, _, err = ending(main, "train", "own_small", "--data", "smalltalk:train")
        assert code == DataError.exit_code
        assert err.endswith("name it with --set data.train=smalltalk:train\n")
    assert not list(in_tmp.iterdir())
    program = (
        f"import sys; from {package}.cli import main\ntry: main(['train', {config!r}])\n"
        "except SystemExit: print(sorted({'torch', 'datasets', 'pyarrow'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=in_tmp,  # the repository's folder may have the data
    )
    assert found.stdout == "[]\n", "before anything heavy is loaded"


def test_the_same_file_for_two_splits_is_a_warning(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    Path("talk.txt").write_text(chat(4))
    Path("link.txt").symlink_to("talk.txt")
    names = [
        word for split in ("train=talk", "valid=link", "test=none") for word in ("--set", f"data.{split}.txt")
    ]
    code, _, err = dialog("train", "own_small", *names, *BRIEF)
    assert code == 0
    assert err.startswith("warning: data.train and data.valid are both talk.txt; ")
    assert "data.test" not in err


def test_several_processes_train_on_what_one_has_prepared(
    in_tmp: Path, dialog: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their command names the corpus of the run, which each of them would otherwise prepare."""
    started: list[list[str]] = []
    monkeypatch.setattr("lm.console.app.launched", lambda program, words, count: started.append(words) or 0)
    Path("talk.txt").write_text(chat(20))
    options = (*SETTINGS, "--set", "train.shards=2", "--set", "train.max_steps=2")
    code, out, err = dialog("train", "own_small", "--data=talk.txt", "--processes", "2", *options)
    assert code == 0, err
    assert "talk:0" in out
    assert sorted(os.listdir("runs/own_small")) == ["corpus"]
    named = [f"data.{split}=runs/own_small/corpus/{split}" for split in ("train", "valid", "test")]
    assert started == [
        ["train", "own_small", *options, *(word for text in named for word in ("--set", text))]
    ]
    assert dialog(*started[0])[0] == 0
    code, out, err = dialog("train", "own_small", "--data", "talk.txt", *options[:-1], "train.max_steps=3")
    assert (code, "after 3 updates" in out) == (0, True), err


def test_a_corpus_and_a_split_are_not_both_named(
    in_tmp: Path, dialog: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("talk.txt").write_text(chat(20))
    code, _, err = dialog("train", "own_small", "--data", "talk.txt", "--set", "data.train=talk.txt")
    assert (code, err) == (
        ConfigError.exit_code,
        "--set data.train: --data already names the text of every split; omit one\n",
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = dialog("train", "own_small", "--data", "talk.txt")
    assert (code, "give --processes N instead of torchrun" in err) == (ConfigError.exit_code, True)
    assert not Path("runs").exists()
