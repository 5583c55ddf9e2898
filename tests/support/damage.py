"""Ways to damage the files of a run or a corpus: what disks, copies and well-meant edits do to them.

Every generator gives named damages: functions that do it to one file or folder. Whoever uses them puts
the original back. ``runs/test_integrity.py`` takes a few of each for every file.
"""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lm.disk.jsonfile import canonical_json, is_sealed, sealed
from lm.runs.inputs import flat


class Damage(NamedTuple):
    """What is done to a file: ``name`` says what, ``do`` does it."""

    path: Path
    name: str
    do: Callable[[], object]


UNCHECKED = {"lock", "timing.jsonl"}  # of a run: who trains, and what the clock said


def run_files(run: Path) -> list[Path]:
    """The files of a run that an evaluation or another training depends on, and its log."""
    files = (path for path in run.rglob("*") if path.is_file())
    return sorted(path for path in files if path.relative_to(run).parts[0] not in UNCHECKED)


def flips(path: Path, count: int, choose: random.Random) -> Iterator[Damage]:
    """So many single bits, anywhere in a file."""
    data = path.read_bytes()
    for _ in range(count):
        bit = choose.randrange(8 * len(data))
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield Damage(path, f"bit {bit}", partial(path.write_bytes, bytes(changed)))


def wounds(path: Path, choose: random.Random) -> Iterator[Damage]:
    """A file cut short, emptied, zeroed, with something after its end, missing, and what is no file."""
    data = path.read_bytes()
    at = choose.randrange(len(data))
    contents = {
        "cut by a byte": data[:-1],
        "cut in half": data[: len(data) // 2],
        "empty": b"",
        "zeros": bytes(len(data)),
        "zeros from the middle": data[:at] + bytes(len(data) - at),
        "not JSON": b"\xff{",
        "nested": b"[" * 100_000,
    }
    for name, content in contents.items():
        if content != data:
            yield Damage(path, name, partial(path.write_bytes, content))
    if path.suffix != ".jsonl":  # a log grows
        yield Damage(path, "longer", partial(path.write_bytes, data + b"\0"))
    yield Damage(path, "missing", path.unlink)
    yield Damage(path, "a pipe", lambda: _instead(path, os.mkfifo))
    yield Damage(path, "a folder", lambda: _instead(path, Path.mkdir))
    yield Damage(path, "a device", lambda: _instead(path, lambda path: path.symlink_to("/dev/zero")))
    yield Damage(path, "1 GB of zeros", lambda: (path.write_bytes(b""), os.truncate(path, 10**9)))


def _instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def edits(run: Path) -> Iterator[Damage]:
    """Values of a run changed to others that are as good: what only a record of the old ones can notice."""
    yield from _edited_config(run / "config.json")
    yield from _edited_inputs(run / "data.json", run / "vocabulary.json")
    log = run / "metrics.jsonl"
    lines = log.read_text(encoding="utf-8")
    for digit in "3579":
        if digit in lines:
            yield Damage(log, f"a {digit}", partial(log.write_text, lines.replace(digit, "4", 1), "utf-8"))
    folders = sorted((run / "checkpoints").glob("step-*"))
    oldest, newest = folders[0], folders[-1]
    for target in sorted(newest.iterdir()):
        source = oldest / target.name
        if source.is_file() and source.read_bytes() != target.read_bytes():
            yield Damage(target, "of an older step", partial(shutil.copy, source, target))


def _edited_config(path: Path) -> Iterator[Damage]:
    for key, value in dict(flat(json.loads(path.read_bytes())["config"])).items():
        if type(value) in (int, float, bool) or key in ("data.train", "data.test", "head.kind"):
            yield Damage(path, key, partial(_set, path, key, _other(value)))


def _edited_inputs(data: Path, words: Path) -> Iterator[Damage]:
    hashes = json.loads(data.read_bytes())
    for name in hashes:
        changed = json.dumps(hashes | {name: "0" * 64}, indent=1)
        yield Damage(data, name, partial(data.write_text, changed))
    pairs = json.loads(words.read_bytes())
    swapped = [*pairs[:-2], [pairs[-1][0], pairs[-2][1]], [pairs[-2][0], pairs[-1][1]]]
    counted = [*pairs[:-1], [pairs[-1][0], pairs[-1][1] + 1]]
    for name, value in (("two words swapped", swapped), ("another count", counted)):
        text = json.dumps(value, ensure_ascii=False, indent=0)
        yield Damage(words, name, partial(words.write_text, text, "utf-8"))


def _other(value: Any) -> Any:
    return not value if isinstance(value, bool) else value + "x" if isinstance(value, str) else value + 1


def _set(path: Path, key: str, value: object) -> None:
    """One value of a config changed by hand: what else the file holds stays."""
    document = json.loads(path.read_bytes())
    place = document["config"]
    *tables, name = key.split(".")
    for table in tables:
        place = place[table]
    place[name] = value
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rewrite_state(commit: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the state of a commit and make its hashes right again, as another training would have."""
    state = json.loads((commit / "state.json").read_bytes())
    change(state)
    content = canonical_json(state)
    (commit / "state.json").write_bytes(content)
    record = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite_manifest(commit, lambda manifest: manifest["files"].update({"state.json": record}))


def rewrite_manifest(commit: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a commit and seal it again."""
    path = commit / "manifest.json"
    manifest = json.loads(path.read_bytes())
    assert is_sealed(manifest)
    change(manifest)
    path.write_bytes(canonical_json(sealed(manifest)))


def forget_record(run: Path) -> None:
    """Remove the records of a run from its commits; an imported run has none either."""
    for commit in run.glob("checkpoints/step-*"):
        rewrite_manifest(commit, lambda manifest: manifest["facts"].pop("run"))
