"""Corpora of dialogs prepared in parts: the bytes of one process, and the errors of a part."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog.corpora.columns import ReadOptions
from dialog.corpora.prepare import PrepareOptions, preparation, prepare
from lm.errors import DataError, StorageError
from lm.text.parts import PartOf
from lm.text.prepared_parts import join_parts, prepare_part
from tests.support.outcomes import files_below
from tests.support.talk_source import corpus

SKIP = PrepareOptions(on_bad_line="skip")
TURNS = [["A", "is it wet in the fen?"], ["B", "crème 中"]]
OBJECTS: dict[str, Any] = {
    "zhao": {"utts": TURNS},
    "dialogs": {"utterances": [{"speaker": s, "text": t} for s, t in TURNS]},
    "messages": {"messages": [{"role": s, "content": t} for s, t in TURNS]},
    "pairs": {"question": TURNS[0][1], "answer": TURNS[1][1]},
}
BAD = ["", "{", "[1]", "nul \0", '{"other": 1}', '{"utts": 1, "utterances": 1, "messages": 1}']
LINES = st.lists(st.one_of(st.none(), st.sampled_from("abc"), st.integers(0, len(BAD) - 1)), max_size=14)


def in_parts(source: str, out: Path, count: int, options: PrepareOptions) -> None:
    for index in range(count, 0, -1):
        prepare_part(preparation(source, options), out, PartOf(index, count))
    join_parts(preparation(source, options), out)


@given(st.sampled_from(list(OBJECTS)), LINES, st.sampled_from(["\n", "\r\n"]), st.integers(1, 4))
@settings(max_examples=6, deadline=None)
def test_objects_are_cut_at_line_ends(
    tmp_path_factory: pytest.TempPathFactory, format: str, lines: list[str | int | None], end: str, count: int
) -> None:
    """Dialogs without ids, with ids, with ids that come twice, and bad lines, on either side of a cut."""
    base = tmp_path_factory.mktemp("any")
    shown = [
        BAD[line]
        if isinstance(line, int)
        else json.dumps(OBJECTS[format] | ({"id": line} if line else {}), ensure_ascii=False)
        for line in (None, *lines, None, None, None, None)
    ]
    source = base / "talk.jsonl"
    source.write_text(end.join(shown), encoding="utf-8", newline="")
    prepare(str(source), base / "whole", SKIP)
    in_parts(str(source), base / "out", count, SKIP)
    assert files_below(base / "out") == files_below(base / "whole")
    assert sorted(path.name for path in base.iterdir()) == ["out", "talk.jsonl", "whole"]


def test_an_object_may_have_several_lines(tmp_path: Path) -> None:
    """Each file of a folder, as ``evaluate --data`` and ``show`` read it."""
    (tmp_path / "in").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / f"in/{split}.json").write_text(json.dumps(OBJECTS["dialogs"], indent=1))
    result = prepare(str(tmp_path / "in"), tmp_path / "out", PrepareOptions())
    assert [counts["utterances"] for counts in result.report["splits"].values()] == [2, 2, 2]


def _folder(path: Path) -> None:
    path.mkdir()
    for number in range(7):
        (path / f"{number}.txt").write_text(f"A|hello {number}|q\nB|good day|s\nbad\n" * 3)


def _dataset(path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    rows = [{"dialog": d, "speaker": s, "text": f"moss {d}"} for d in "abcdefg" for s in "AB"]
    datasets.Dataset.from_list(rows).save_to_disk(path)


SOURCES = {
    "table.tsv": lambda path: path.write_text(corpus(30, bad=True)),
    "array.json": lambda path: path.write_text(json.dumps([OBJECTS["zhao"]] * 9, indent=1)),
    "folder": _folder,
    "dataset": _dataset,
}


@pytest.mark.parametrize("name", list(SOURCES))
def test_other_formats_are_cut_by_file_or_not_at_all(name: str, tmp_path: Path) -> None:
    SOURCES[name](tmp_path / name)
    read = ReadOptions(format="datasets" if name == "dataset" else "auto")
    options = PrepareOptions(read, on_bad_line="skip")
    prepare(str(tmp_path / name), tmp_path / "whole", options)
    in_parts(str(tmp_path / name), tmp_path / "out", 3, options)
    assert files_below(tmp_path / "out") == files_below(tmp_path / "whole")


def test_processes_and_splits_of_several_files(tmp_path: Path) -> None:
    source, rng = tmp_path / "in", random.Random(1)
    source.mkdir()
    for split in ("train", "valid", "test"):
        turns = [[["A", f"why {rng.random()}?"], ["B", f"so {split} {n}"]] for n in range(rng.randint(9, 30))]
        (source / f"{split}.jsonl").write_text("".join(json.dumps({"utts": t}) + "\n" for t in turns))
    prepare(str(source), tmp_path / "whole")
    prepare(str(source), tmp_path / "out", processes=2)
    assert files_below(tmp_path / "out") == files_below(tmp_path / "whole")


def test_a_bad_part_and_a_missing_one_are_named(tmp_path: Path) -> None:
    lines = [json.dumps(OBJECTS["zhao"])] * 40
    lines[30] = "{"
    source, out = tmp_path / "talk.jsonl", tmp_path / "out"
    source.write_text("\n".join(lines))
    made = preparation(str(source), PrepareOptions())
    prepare_part(made, out, PartOf(1, 2))
    with pytest.raises(DataError, match=r"talk\.jsonl:31:2: not JSON"):
        prepare_part(made, out, PartOf(2, 2))
    with pytest.raises(StorageError, match=r"lacks the part 2/2"):
        join_parts(made, out)
    lines[30] = lines[0]
    lines[3] = lines[3].replace("fen", "bog")
    source.write_text("\n".join(lines))
    made = preparation(str(source), PrepareOptions())
    prepare_part(made, out, PartOf(2, 2))
    with pytest.raises(DataError, match=r"1-of-2: made from another version of .*talk\.jsonl"):
        join_parts(made, out)
