"""What preparing one's own conversations shows and warns of."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dialog.config import DataConfig
from dialog.corpora.own_data import own_data
from dialog.tables import prepared_tables
from lm.errors import DataError
from tests.support.command_lines import Outcome
from tests.support.own_talk import chat


def test_windows_text_gets_the_right_advice(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    text = "A: it’s “late”\nB: – is it?\n"
    Path("x.txt").write_bytes(text.encode("cp1252"))
    code, _, err = dialog("prepare", "x.txt", "--out", "p")
    assert (code, "iconv -f cp1252 -t utf-8" in err) == (DataError.exit_code, True)
    Path("x.txt").write_text(Path("x.txt").read_bytes().decode("latin-1"))
    assert "cp1252" in dialog("prepare", "x.txt", "--out", "p")[2], "the wrong conversion is noticed, too"


def test_prepare_ends_by_showing_two_dialogs(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    Path("x.txt").write_text("A: \x1b]0;title\x07red\nB: blue\n\n" + chat())
    for state in ("written", "unchanged"):
        code, out, _ = dialog("prepare", "x.txt", "--out", "p")
        assert code == 0
        lines = out.splitlines()
        assert lines[-1] == f"p: {state}"
        start = lines.index("x:0")
        assert lines[start + 1 : start + 3] == ["  A: red", "  B: blue"]
        assert sum(line.startswith("x:") for line in lines) == 2
    code, out, _ = dialog("show", "p")
    assert sum(line.startswith("x:") for line in out.splitlines()) == 3
    assert out.splitlines()[-1] == "3 of 11 dialogs"
    assert dialog("show", "p", "--split", "test", "--limit", "1")[1].splitlines()[-1] == "1 of 1 dialogs"
    code, out, _ = dialog("show", "x.txt", "--dialog", "x:0")
    assert out.splitlines() == ["x:0", "  A: red", "  B: blue", "1 of 1 dialogs"]
    assert dialog("show", "smalltalk:valid", "--limit", "1")[0] == 0
    for arguments, message in (
        (("x.txt", "--split", "test"), "x.txt: no split test; the source has no splits"),
        (("p", "--split", "dev"), "p: no split dev; use one of train, valid, test"),
        (("p", "--dialog", "x:99"), "p: no dialog with id x:99; the first id is x:0"),
        (("q",), "q: no such file or folder"),
    ):
        code, _, err = dialog("show", *arguments)
        assert (code, message in err) == (DataError.exit_code, True)


def test_a_split_that_is_also_in_train_is_told(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    Path("in").mkdir()
    for split in ("train", "valid", "test"):
        Path(f"in/{split}.txt").write_text(chat(3 if split == "valid" else 4))
    code, out, _ = dialog("prepare", "in", "--out", "p")
    assert code == 0
    assert "warning: 3 of 3 dialogs of valid are also in train" in out
    assert "warning: 4 of 4 dialogs of test are also in train" in out


def test_a_split_of_unknown_words_is_told(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    Path("in").mkdir()
    for split in ("train", "test"):
        Path(f"in/{split}.txt").write_text(chat(4))
    Path("in/valid.txt").write_text("A: der kessel kocht\nB: und der tee?\n")
    code, out, _ = dialog("prepare", "in", "--out", "p")
    assert code == 0
    warnings = [line for line in out.splitlines() if line.startswith("warning") and "vocabulary" in line]
    assert len(warnings) == 1
    assert warnings[0] == (
        "warning: 100% of the tokens of valid are not in the vocabulary of train; check its language and"
        " encoding; text without blanks between words needs --tokenizer char, or data.tokenizer=char in a run"
    )
    Path("in/valid.txt").write_text("A: 你好\nB: 再见\n")
    code, out, _ = dialog("prepare", "in", "--out", "p", "--tokenizer", "char")
    assert "check its language and encoding\n" in out, "char is not named again"


@pytest.mark.parametrize("tokenizer", ["char", "wordpunct", "hf"])
def test_the_report_of_a_run_has_its_tokenizer(tokenizer: str, in_tmp: Path) -> None:
    said = [f"小明：{'一二三四'[n:]}\n小红：{'四三二一'[n:]}" for n in range(4)]
    Path("zh.txt").write_text("\n\n".join(said))
    data = DataConfig.model_validate({"tokenizer": tokenizer, "vocab_size": 9, "lowercase": False})
    prepared = own_data("zh.txt", Path("r"), data).prepared
    assert prepared is not None
    report = prepared.report
    line = prepared_tables(report)[1]
    if tokenizer == "hf":
        assert ("tokenizer" in report, report["notes"], line) == (False, [], "left out: nothing")
    else:
        assert (report["tokenizer"], report["vocabulary_size"]) == (tokenizer, 9)
        assert any("not in the vocabulary" in note for note in report["notes"]) == (tokenizer == "wordpunct")


def test_the_help_lists_the_formats(dialog: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    from dialog.corpora.formats import FORMATS

    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip() for line in dialog("prepare", "--help")[1].splitlines()]
    assert all(f"{name:<10} {about}" in lines for name, about in FORMATS.items())


def test_options_of_drawing_are_refused_where_nothing_is_drawn(
    in_tmp: Path, dialog: Callable[..., Outcome]
) -> None:
    Path("in").mkdir()
    for split in ("train", "valid"):
        Path(f"in/{split}.txt").write_text(chat())
    for split, code, said in (
        ("valid", 2, "--valid-fraction: in has this split; leave it out\n"),
        ("test", 0, ""),
    ):
        assert dialog("prepare", "in", "--out", "p", f"--{split}-fraction", "0.1")[::2] == (code, said)
    assert dialog("prepare", "in", "--out", "p", "--seed", "2")[0] == 0, "it draws test"
    Path("in/test.txt").write_text(chat())
    remedy = "--seed: in has all splits, so none is drawn; leave it out\n"
    assert dialog("prepare", "in", "--out", "p", "--seed", "2")[::2] == (2, remedy)
    assert dialog("prepare", "in", "--out", "p")[0] == 0


def test_a_folder_of_a_split_without_files_is_named(in_tmp: Path, dialog: Callable[..., Outcome]) -> None:
    for split in ("train", "valid"):
        Path("in", split).mkdir(parents=True)
    code, _, said = dialog("prepare", "in", "--out", "p")
    assert code == DataError.exit_code
    assert said.startswith("in/train: no files of ")
