"""``lm prepare`` over again, on bad input, stopped half-way, and on texts larger than memory."""

import errno
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lm.ending import EarlyStop
from lm.errors import ConfigError, DataError, StorageError
from lm.language.corpora import prepare as module
from lm.language.corpora.prepare import PrepareOptions, prepare
from lm.language.corpora.sources import ReadOptions
from lm.text import lines
from lm.text.prepared_folder import OutputFolder, Prepared, hash_inputs
from tests.support.outcomes import files_below
from tests.support.signals import signal_at
from tests.support.tiny_text import folder_of, standard, text

DEFAULTS = PrepareOptions()


def test_again_is_a_no_op_and_anything_else_a_rebuild(tmp_path: Path) -> None:
    source, out = standard(tmp_path / "in"), tmp_path / "out"

    def again(options: PrepareOptions = DEFAULTS) -> Prepared:
        return prepare(source, out, options)

    assert not again().unchanged
    first = files_below(out)
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    second = again()
    assert second.unchanged
    assert second.report == json.loads((out / "report.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == stamps
    assert not again(PrepareOptions(vocab_size=5)).unchanged
    assert not again().unchanged
    assert files_below(out) == first, "the same input and options give the same bytes"
    with Path(source, "valid.txt").open("a") as file:
        file.write("more\n")
    assert not again().unchanged
    assert files_below(out) != first
    standard(tmp_path / "in")
    for name in ("train/00000.npy", "test/split.json", "vocabulary.json", "report.json"):
        (out / name).write_bytes(b"damaged")
        assert not again().unchanged
    (out / "valid/00000.npy").unlink()
    assert not again().unchanged
    assert files_below(out) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"], "nothing is left behind"


def test_another_corpus_and_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    source, out = standard(tmp_path / "in"), tmp_path / "out"
    prepare(source, out, DEFAULTS)
    first = files_below(out)
    other = standard(tmp_path / "other")
    moved = prepare(other, out, PrepareOptions(vocab_size=5))  # the same text in another place
    assert not moved.unchanged
    prepare(source, out, DEFAULTS)
    with Path(other, "train.txt").open("a") as file:
        file.write("more\n")
    with pytest.raises(
        StorageError, match=rf"out: holds the result of `lm prepare {source}`; choose another"
    ):
        prepare(other, out, DEFAULTS)
    assert files_below(out) == first
    (out / "train" / "notes").write_text("mine")
    with pytest.raises(StorageError, match=r"out/train/notes: not written by `lm prepare`.*move it"):
        prepare(source, out, PrepareOptions(vocab_size=5))
    (out / "train" / "notes").unlink()
    assert files_below(out) == first


BAD = {
    "missing": (None, r"no such file or folder; check the path"),
    "empty": (b"", r"bad: the file is empty"),
    "blank": (b"\n \n" * 50, r"bad: the train split has no token"),
    "nul": (b"a\n" * 30 + b"b\0\n", r"bad:31:2: NUL byte"),
    "utf16": ("a b\n".encode("utf-16") * 30, r"is UTF-16; convert it"),
    "gzip": (gzip.compress(text(50).encode()), r"is gzip-compressed; unpack it"),
    "zip": (b"PK\x03\x04" + b"\0\n" * 99, r"is a zip archive; unpack it"),
    "latin1": (b"ab\n" * 30 + b"caf\xe9\n", r"bad:31:4: not UTF-8 \(byte 0xe9\); convert"),
    "long": (b"a\n" + b"moss " * 300 + b"\n" + b"b\n" * 99, r"bad:2: longer than"),
}


@pytest.mark.parametrize(
    ("case", "where"),
    [(case, where) for case in BAD for where in ("file", "valid") if (case, where) != ("missing", "valid")],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    case: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, message = BAD[case]
    monkeypatch.setattr(lines, "MAX_LINE", 1000)
    path = tmp_path / "bad"
    if where == "valid":
        standard(tmp_path / "in")
        path = tmp_path / "in/valid.txt"
        message = message.replace("bad:", "valid.txt:").replace(
            "valid.txt: the train split has no token", "in: the valid split has no token"
        )
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        prepare(str(path if where == "file" else tmp_path / "in"), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value), "a remedy follows"
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_folders_and_pipes_that_are_no_corpus(tmp_path: Path) -> None:
    cases = {
        "nothing": (r"a folder without known content; expected files named train"),
        "no_train": (r"has no train split, only test.txt, valid.txt"),
        "twice": (r"val.txt and valid.txt both are the split valid; remove one"),
        "pipe": (r"train.txt: not a regular file"),
        "packed": (r"enwik8.zip: no such|a folder without known content"),
    }
    folder_of(tmp_path / "nothing", notes__md="x")
    folder_of(tmp_path / "no_train", test__txt="a\n", valid__txt="a\n")
    folder_of(tmp_path / "twice", train__txt="a\n", val__txt="a\n", valid__txt="a\n")
    folder_of(tmp_path / "pipe", valid__txt="a\n", test__txt="a\n")
    os.mkfifo(tmp_path / "pipe/train.txt")
    folder_of(tmp_path / "packed", enwik8__zip="PK")
    for name, message in cases.items():
        with pytest.raises(DataError, match=message):
            prepare(str(tmp_path / name), tmp_path / "out")
    (tmp_path / "enwik8").write_bytes(b"PK\x03\x04" + bytes(2000))
    with pytest.raises(DataError, match="enwik8: is compressed; unpack it with unzip"):
        prepare(str(tmp_path / "enwik8"), tmp_path / "out")
    prepare(standard(tmp_path / "in"), tmp_path / "done")
    told = {"done": "a prepared corpus, not a text", "done/train": "is prepared already"}
    for name, message in told.items():
        with pytest.raises(DataError, match=message):
            prepare(str(tmp_path / name), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_typed_line_end_is_refused_in_capitals_too(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(text(60) + "moss <EOS> bog\n")
    with pytest.raises(DataError, match=r"in.txt:61: the text has <eos>"):
        prepare(str(tmp_path / "in.txt"), tmp_path / "out", PrepareOptions(lowercase=True))
    prepare(str(tmp_path / "in.txt"), tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "words"}, "--tokenizer words"),
        ({"vocabulary": "test"}, "--vocabulary test"),
        ({"blank_lines": "no"}, "--blank-lines no"),
        ({"vocab_size": -1}, "--vocab-size"),
        ({"shard_tokens": 0}, "--shard-tokens"),
    ],
)
def test_impossible_options_are_usage_errors(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        PrepareOptions(**options)
    for read in ({"format": "html"}, {"valid_fraction": 1.0}, {"valid_fraction": 0.5, "test_fraction": 0.5}):
        with pytest.raises(ConfigError, match=r"--format html|fraction"):
            ReadOptions(**read)
    with pytest.raises(ConfigError, match="a vocabulary of 1"):
        prepare(standard(tmp_path / "in"), tmp_path / "out", PrepareOptions(vocab_size=1))
    assert not (tmp_path / "out").exists()


def test_results_of_other_commands_are_never_replaced(tmp_path: Path) -> None:
    from dialog.corpora.prepare import prepare as prepare_dialogs

    talk = tmp_path / "talk.tsv"
    talk.write_text("".join(f"d{n}\t{speaker}\thello\n" for n in range(9) for speaker in "AB"))
    prepare_dialogs(str(talk), tmp_path / "dialogs")
    source = standard(tmp_path / "in")
    before = files_below(tmp_path / "dialogs")
    with pytest.raises(StorageError, match="was not written by `lm prepare`"):
        prepare(source, tmp_path / "dialogs")
    assert files_below(tmp_path / "dialogs") == before
    prepare(source, tmp_path / "out")
    with pytest.raises(StorageError, match="was not written by `dialog prepare`"):
        prepare_dialogs(str(talk), tmp_path / "out")


def test_a_signal_ends_the_hashing_of_a_long_file(tmp_path: Path) -> None:
    source = Path(standard(tmp_path / "in"), "train.txt")
    whole = hash_inputs([source])
    assert whole[str(source)]["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    prepare(str(source), tmp_path / "first")
    with pytest.raises(KeyboardInterrupt), signal_at(1, "hash_inputs"):
        prepare(str(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_signal_ends_the_hashing_of_a_result(tmp_path: Path) -> None:
    source = standard(tmp_path / "in")
    prepare(source, tmp_path / "out")
    wanted = json.loads((tmp_path / "out/manifest.json").read_text())
    del wanted["outputs"]
    assert OutputFolder(tmp_path / "out", "lm prepare").current(wanted) is not None
    with pytest.raises(KeyboardInterrupt), signal_at(2, "sha256_file"):
        OutputFolder(tmp_path / "out", "lm prepare").current(wanted)


@pytest.mark.parametrize("ending", ["signal", "disk", "input"])
def test_whatever_ends_it_leaves_the_old_result(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = standard(tmp_path / "in"), tmp_path / "out"
    prepare(source, out)
    before = files_below(out)
    Path(source, "train.txt").write_text(text(31), encoding="utf-8")
    original = module.write_split

    def failing(*arguments: Any) -> Any:
        if ending == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        elif ending == "disk":
            raise OSError(28, "No space left on device")
        else:
            Path(source, "train.txt").write_text(text(32), encoding="utf-8")
        return original(*arguments)

    monkeypatch.setattr(module, "write_split", failing)
    errors = {"signal": KeyboardInterrupt, "disk": StorageError, "input": DataError}
    with pytest.raises(errors[ending]), EarlyStop():
        prepare(source, out)
    assert files_below(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize("place", ["text", "codec"])
def test_a_full_disk_names_the_result_and_no_size_of_a_part(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = standard(tmp_path / "in"), tmp_path / "out"

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if place == "text":
        monkeypatch.setattr(module, "store_text", full)
    else:
        monkeypatch.setattr("lm.disk.storage.write_all", full)
    with pytest.raises(StorageError) as error:
        prepare(source, out)
    told = "no space left on device; free space there, then run the same command again"
    assert str(error.value) == f"{out}: {told}"
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


PEAK = """
import sys
from pathlib import Path
from lm.language.corpora.prepare import PrepareOptions, prepare
out = Path(sys.argv[2])
prepare(sys.argv[1], out, PrepareOptions(shard_tokens=100_000))
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Ten times the text, a million tokens more: 8 MB as a list of ids, 4 MB as the text that they are."""
    page = text(2000)
    peaks = []
    for name, copies in (("short", 12), ("long", 120)):
        (tmp_path / name).write_text(page * copies, encoding="utf-8")
        command = [sys.executable, "-c", PEAK, str(tmp_path / name), str(tmp_path / f"out-{name}")]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent.parent
        )
        peaks.append(int(ended.stdout) / 1024)
    assert json.loads((tmp_path / "out-long/report.json").read_text())["splits"]["train"]["tokens"] > 10**6
    assert peaks[1] - peaks[0] < 3, f"MB at the peak: {peaks}"


@pytest.mark.slow
def test_a_line_of_100_megabytes_is_named_in_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "book").write_bytes(b"a b\n" * 50 + b"moss " * 20_000_000 + b"\n" + b"a b\n" * 9_000_000)
    with pytest.raises(DataError, match=r"book:51: longer than 16 MiB"):
        prepare(str(tmp_path / "book"), tmp_path / "out")
