"""Corpora as they are released: the CSV files of SwDA, Zhao et al.'s pickle, tables of data sets."""

import json
import os
import pickle
import stat
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dialog.corpora import unpickle
from dialog.corpora.columns import ReadOptions
from dialog.corpora.corpus import load_dialogs
from dialog.corpora.sources import read_source
from dialog.corpora.swda import clean
from dialog.utterance import Dialog, Utterance
from lm.errors import ConfigError, DataError
from lm.text.hub import load_tables, quiet_datasets
from lm.text.lines import InputLog
from tests.support.corpus_files import OTHER, ROWS, TURNS, refusal, said, write
from tests.support.zhao_pickle import CORPUS, pickled

# --- the SwDA release --------------------------------------------------------------------------------------

HEADER = (
    "swda_filename,ptb_basename,conversation_no,transcript_index,act_tag,caller,"
    "utterance_index,subutterance_index,text,pos"
)
SWDA = [
    ("qw", "A", "{F Uh, } {D well, } how's the [ gar-, + garden? ] /"),
    ("sd", "B", "It's, <laughter> ((pretty)) dry, --"),
    ("b", "A", "Uh-huh. /"),
    ("+", "B", "dry this year # I think. / *listen again"),
    ("x", "A", "<<sighing>>."),
    ("sd", "A", "[ [ We, + we, ] + we ] used the Smiths' and/or T V. -/"),
    ("%", "B", "<talking>  {F Um, } -/"),
    ("sd^e", "B", 'He said, ""twenty-five - or so"".'),
]


def swda_table(rows: list[tuple[str, str, str]] = SWDA, number: int = 4325) -> str:
    lines = [f'f,p,{number},{n},{act},{caller},1,1,"{text}",x' for n, (act, caller, text) in enumerate(rows)]
    return "\n".join([HEADER, *lines]) + "\n"


@pytest.mark.parametrize("layout", ["folder", "zip", "file"])
def test_the_swda_release_is_cleaned_joined_and_listed(layout: str, tmp_path: Path) -> None:
    name = "swda/sw00utt/sw_0001_4325.utt.csv"
    metadata = "conversation_no,topic_description\n4325,GARDENING\n"
    write(tmp_path, name, swda_table())
    source = str(tmp_path / name)
    if layout != "file":
        write(tmp_path, "swda/swda-metadata.csv", metadata)
        source = str(tmp_path / "swda")
    if layout == "zip":
        source = str(tmp_path / "swda.zip")
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, swda_table())
            archive.writestr("__MACOSX/sw.utt.csv", b"\0")
            archive.writestr("swda/swda-metadata.csv", metadata)
    log = InputLog()
    (dialog,) = read_source(source, ReadOptions(), log)[""]
    assert (dialog.id, dialog.topic) == ("sw4325", "" if layout == "file" else "GARDENING")
    assert dialog.utterances == (
        Utterance("A", "well how's the gar garden", "qw"),
        Utterance("B", "it's pretty dry this year i think", "sd"),
        Utterance("A", "uh-huh", "b"),
        Utterance("A", "we used the smiths' and/or t v", "sd"),
        Utterance("B", "he said twenty-five or so", "sd^e"),
    )
    assert [(piece.line, piece.reason) for piece in log.dropped] == [
        (6, "non-verbal"),
        (8, "only markup or fillers"),
    ]


def test_cleaning_is_idempotent_and_leaves_no_markup() -> None:
    for _, _, text in SWDA:
        assert clean(clean(text)) == clean(text)
        assert not set(clean(text)) & set('[]{}()<>#*+,.?"')
    assert clean("<" * 100_000 + "'" * 100_000 + "&" * 100_000) == ""


@pytest.mark.parametrize("name", ["../x.utt.csv", "/x.utt.csv", "a/../../x.utt.csv", "..\\x.utt.csv"])
def test_zips_that_lead_outside_are_refused(name: str, tmp_path: Path) -> None:
    source = tmp_path / "swda.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("sw.utt.csv", swda_table())
        archive.writestr(name, swda_table())
    assert "points outside" in refusal(str(source))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["swda.zip"]


def test_links_bombs_and_foreign_zips_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "swda.zip"
    link = zipfile.ZipInfo("sw.utt.csv")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    assert "points outside" in refusal(str(source))
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("sw.utt.csv", bytes(65 << 20))
    assert "larger than 64 MiB" in refusal(str(source))
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "without .utt.csv" in refusal(str(source))
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("sw.utt.csv", swda_table())
    data = source.read_bytes()
    source.write_bytes(data.replace(b"Uh-huh", b"Oh-huh"))  # its CRC no longer fits
    assert "damaged" in refusal(str(source))


def test_swda_tables_with_broken_rows_are_named(tmp_path: Path) -> None:
    source = write(tmp_path, "x.utt.csv", swda_table() + "f,p,1\n")
    assert "x.utt.csv:10: wrong number of columns" in refusal(source)
    assert len(load_dialogs(source, on_bad_line="skip")[0].utterances) == 5
    assert "x.utt.csv:10: not CSV" in refusal(write(tmp_path, "x.utt.csv", swda_table() + 'f,p,"a'))


# --- Zhao's pickle -----------------------------------------------------------------------------------------


PYTHON_2 = (
    b"(dp0\nS'train'\np1\n(lp2\n(dp3\nS'utts'\np4\n(lp5\n(S'A'\np6\nS'hello'\np7\ntp8\na(g6\ng7\ntp9\nasas."
)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_zhaos_pickle_reads_like_his_jsonl(protocol: int, tmp_path: Path) -> None:
    source = write(tmp_path, "corpus.p", pickled(CORPUS, protocol))
    splits = read_source(source, ReadOptions(), InputLog())
    for split in ("train", "valid", "test"):
        lines = "\n".join(map(json.dumps, CORPUS[split]))
        assert splits[split] == load_dialogs(write(tmp_path, f"{split}.jsonl", lines))


def test_a_column_of_a_format_without_columns_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, "corpus.p", pickled(CORPUS))
    with pytest.raises(ConfigError, match="--text-column body: pickle has no named columns; leave it out"):
        read_source(source, ReadOptions(text_column="body"), InputLog())


def test_a_pickle_without_dialogs_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, "corpus.p", pickled({"train": [], "valid": []}))
    with pytest.raises(DataError, match=r"corpus\.p: holds no dialogs; name another file"):
        read_source(source, ReadOptions(), InputLog())


def test_a_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    (dialog,) = load_dialogs(write(tmp_path, "corpus.p", PYTHON_2))
    assert said(dialog) == [("A", "hello"), ("A", "hello")]


class Gadget:
    """Creates a file when it is unpickled by an ordinary unpickler."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    data = pickled({"train": [Gadget(canary)]}, 4)
    pickle.loads(data)  # noqa: S301 (proves the gadget works)
    assert canary.exists()
    canary.unlink()
    message = refusal(write(tmp_path, "corpus.p", data))
    assert "refused" in message
    assert "needs no code" in message
    for attack in (
        b"cos\nsystem\n(S'touch " + bytes(canary) + b"'\ntR.",
        b"(S'touch " + bytes(canary) + b"'\nios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",
        b"\x80\x02Pid\n.",
        b"\x80\x02\x82\x01.",
    ):
        assert "refused" in refusal(write(tmp_path, "corpus.p", attack))
    assert not canary.exists()


def test_reading_a_pickle_imports_nothing_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("open('executed', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    assert "not a dictionary" in refusal(write(tmp_path, "corpus.p", pickle.dumps([1])))
    assert not (tmp_path / "executed").exists()


def test_pickles_of_another_layout_and_bombs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialog = {"utts": [["A", "x" * 1000]] * 1000}
    laughs: list[Any] = ["ha"]
    for _ in range(40):
        laughs = [laughs] * 10
    wrong: list[object] = [[], {"train": {}}, {"train": [1]}, {"other": []}, {"train": [{"utts": [laughs]}]}]
    for value in (*wrong, {"train": [dialog] * 1000}):
        assert "refused" in refusal(write(tmp_path, "corpus.p", pickled(value)))
    # A dict whose keys all have the hash 0, opcode by opcode: making it takes as long as reading it.
    items = b"".join(pickle.dumps(n * (2**61 - 1), 2)[2:-1] + b"K\0" for n in range(1, 60_000))
    data = pickle.dumps({"train": [{"utts": [], "id": 7}]}, 2).replace(b"K\x07", b"}(" + items + b"u")
    before = os.times()
    monkeypatch.setattr(unpickle, "_SECONDS", (1, 0))
    assert "needs more than 1 s or 520 MiB of memory" in refusal(write(tmp_path, "corpus.p", data))
    assert os.times().children_user - before.children_user < 3
    memo = b"\x80\x02}r\xff\xff\xff\x7f."  # a memo of 2³¹ entries
    assert "memory" in refusal(write(tmp_path, "corpus.p", memo))


@given(data=st.binary(max_size=40), cut=st.integers(0, 60))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_pickles_are_refused(data: bytes, cut: int, tmp_path: Path) -> None:
    good = pickled(CORPUS)
    source = write(tmp_path, "corpus.p", good[:cut] + data + good[cut + len(data) : -1])
    assert refusal(source)


# --- tables ------------------------------------------------------------------------------------------------


def test_parquet_of_turns_and_of_whole_dialogs(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = str(tmp_path / "x.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS), source)
    first, second = load_dialogs(source)
    assert (first.id, said(first)) == ("first", [(s, t) for s, t, _ in TURNS])
    assert first.utterances[0].act == "qy"
    assert said(second) == [(s, t) for s, t, _ in OTHER]

    lists = [
        {"talk": ["hello", "hi", "bye"], "act": [1, 2, 2], "unused": 1.0},
        {"talk": ["yes", "no"], "act": [0, 0]},
    ]
    pq.write_table(pa.Table.from_pylist(lists), source)
    dialogs = read_source(source, ReadOptions(text_column="talk"), InputLog())[""]
    assert said(dialogs[0]) == [("A", "hello"), ("B", "hi"), ("A", "bye")]
    assert [utterance.act for utterance in dialogs[0].utterances] == ["1", "2", "2"]
    assert dialogs[1].id == "x:1"
    assert "no column text; name one with `dialog prepare … --text-column`: talk" in refusal(source)

    structures = [{"id": 5, "turns": [{"speaker": "X", "text": "hello"}, {"speaker": "Y", "text": "hi"}]}]
    pq.write_table(pa.Table.from_pylist(structures), source)
    options = ReadOptions(text_column="turns", dialog_column="id")
    assert read_source(source, options, InputLog())[""] == [
        Dialog("5", "", (Utterance("X", "hello"), Utterance("Y", "hi")))
    ]

    pq.write_table(pa.table({"text": ["a"], "who": ["A"]}), source)
    assert "no column dialog; name one with `dialog prepare … --dialog-column`: text" in refusal(source)
    pq.write_table(pa.table({"text": [["a", "b"]], "speaker": [["A"]]}), source)
    assert "x.parquet:1: lists of different lengths" in refusal(source)
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), source)
    assert "no dialog" in refusal(source)


def test_datasets_are_read_with_their_splits(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    parts = {name: datasets.Dataset.from_list(ROWS) for name in ("train", "validation", "extra")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "stored")
    log = InputLog()
    splits = read_source(str(tmp_path / "stored"), ReadOptions(format="datasets"), log)
    assert list(splits) == ["train", "valid"]
    assert said(splits["valid"][1]) == [(s, t) for s, t, _ in OTHER]
    assert [piece.reason for piece in log.dropped] == ["split other than train, valid and test"]
    with pytest.raises(DataError, match="no such folder"):
        read_source(str(tmp_path / "nothing"), ReadOptions(format="datasets"), InputLog())


@pytest.mark.parametrize("name", ["state.json", "train/state.json", "train/data-00000-of-00001.arrow"])
def test_a_pipe_in_a_stored_dataset_is_refused_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "train").mkdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name}: not a regular file"):
        read_source(str(tmp_path), ReadOptions(format="datasets"), InputLog())
    with pytest.raises(DataError, match=rf"{name}: not a regular file"):
        load_tables(f"hf:{tmp_path}")


@pytest.mark.parametrize("name", ["x[1].jsonl", "x*.jsonl", "x?.jsonl"])
def test_a_name_of_a_file_is_no_pattern(name: str, tmp_path: Path) -> None:
    for other in ("x1.jsonl", "xy.jsonl", name):
        (tmp_path / other).write_text(json.dumps({"text": other}) + "\n")
    assert load_tables(str(tmp_path / name))[""]["text"] == [name]


def test_the_settings_of_the_library_are_left_as_they_were() -> None:
    datasets.enable_progress_bars()
    before = datasets.utils.logging.get_verbosity()
    with suppress(KeyError), quiet_datasets():
        assert datasets.are_progress_bars_disabled()
        raise KeyError
    assert not datasets.are_progress_bars_disabled()
    assert datasets.utils.logging.get_verbosity() == before
