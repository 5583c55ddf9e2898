"""Rows of bad data: G1 chosen by hand, G2 mutated files, for everything that the program reads."""

import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dialog.config import DialogConfig
from dialog.corpora.columns import ReadOptions
from dialog.corpora.corpus import load_dialogs
from dialog.corpora.prepare import prepare
from dialog.corpora.prepared import write_split
from dialog.corpora.sources import read_source
from dialog.metrics.references import build_references, read_references, write_references
from dialog.utterance import Dialog, Utterance
from lm.config.load import load_config, read_config
from lm.config.write import config_text
from lm.disk.storage import remove_tree
from lm.errors import HighrankError
from lm.huggingface.folder import require_exportable
from lm.language.config import LmConfig
from lm.language.corpora.corpus import load_split
from lm.language.corpora.prepare import PrepareOptions as LmPrepareOptions
from lm.language.corpora.prepare import prepare as lm_prepare
from lm.runs.commit import Commit
from lm.text.lines import InputLog
from lm.text.vectors import read_vectors
from lm.text.vocabulary import Codec
from tests.matrix.row import Case, refused
from tests.support.bad_corpora import CURATED
from tests.support.format_page import page_examples
from tests.support.tiny_lm import text_of, tiny_codec, write_run
from tests.support.tiny_store import header
from tests.support.words import WORDS
from tests.support.zhao_pickle import CORPUS, pickled

PIECES = (
    b"", b"\n", b"\t", b'"', b"{", b"[" * 3000, b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[2J", b"9" * 5000,
    b"-1", b"1e999", b"null", b"\r", b"\xed\xa0\x80", b"\xe2\x80\xa8", b",", b"=",
)  # fmt: skip
DIALOGS = [
    Dialog(f"d{number}", "topic", (Utterance("A", "who is there"), Utterance("B", f"it is {number}", "sd")))
    for number in range(6)
]


@dataclass(frozen=True)
class Reader:
    """Something that reads a file: a good one, where it has to lie, and what opens it."""

    name: str
    data: bytes
    file: str  # relative to a folder that ``open`` is given
    open: Callable[[Path], object]


@contextmanager
def mutated(folder: Path) -> Iterator[Case]:
    """G2: the readers take turns; a file of each is damaged at random."""
    readers = all_readers(folder)
    slow = [reader for reader in readers if reader.name == "pickle"]  # a process for each
    fast = [reader for reader in readers if reader.name != "pickle"]

    def case(rng: random.Random, index: int) -> int:
        reader = slow[0] if index % 100 == 99 else fast[index % len(fast)]
        path = folder / reader.name / reader.file
        path.write_bytes(mutant(reader.data, rng))
        try:
            reader.open(folder / reader.name)
        except HighrankError as error:
            message = str(error)
            assert message.isprintable(), f"{reader.name}: {message!r}"
            assert len(message) < 2000, f"{reader.name}: {len(message)} characters"
        except Exception as error:
            kept = path.read_bytes()[:300]
            raise AssertionError(f"{reader.name}: {type(error).__name__}: {error} for {kept!r}") from error
        finally:
            path.write_bytes(reader.data)
        return 1

    yield case


def mutant(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one to four stretches cut, copied, overwritten, or a bit flipped; or nothing alike."""
    if rng.random() < 0.03:
        return rng.randbytes(rng.randint(0, 200))
    bytes_ = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(bytes_) + 1)
        way = rng.randrange(6)
        if way == 0 and bytes_:
            bytes_[at % len(bytes_)] ^= 1 << rng.randrange(8)
        elif way == 1:
            del bytes_[at : at + rng.choice((1, 4, 30, 10**6))]
        elif way == 2:
            bytes_[at:at] = bytes_[: rng.choice((1, 9, 64))]
        elif way == 3:
            bytes_[at : at + rng.randint(0, 8)] = rng.randbytes(rng.randint(1, 8))
        else:
            bytes_[at : at + rng.randint(0, 4)] = rng.choice(PIECES)
    return bytes(bytes_)


def sound(source: Path) -> None:
    """Dialogs that are whole, whether bad lines are skipped or not; skipping changes nothing without any."""
    found: dict[str, list[Dialog]] = {}
    errors: list[HighrankError] = []
    for policy in ("error", "skip"):
        try:
            splits = read_source(str(source), ReadOptions(), InputLog(policy))
        except HighrankError as error:
            errors.append(error)
            continue
        found[policy] = [dialog for dialogs in splits.values() for dialog in dialogs]
    for dialogs in found.values():
        assert dialogs, "an empty corpus was accepted"
        for dialog in dialogs:
            assert len(dialog.utterances) >= 2
            assert all(u.speaker.strip() and u.text.strip() == u.text != "" for u in dialog.utterances)
            f"{dialog.id}{dialog.topic}{dialog.utterances}".encode()
    if "error" in found:
        assert found["skip"] == found["error"], "skipping changed what nothing is wrong with"
    if errors:
        raise errors[0]


def all_readers(folder: Path) -> list[Reader]:
    """Every reader with a good file, which it accepts."""
    folder.mkdir(exist_ok=True)
    made = [
        *dialog_readers(folder),
        *lm_readers(folder),
        *own_readers(folder),
        *exported_readers(folder),
    ]
    for reader in made:
        path = folder / reader.name / reader.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(reader.data)
        reader.open(folder / reader.name)
    assert len({reader.name for reader in made}) == len(made)
    return made


def dialog_readers(folder: Path) -> Iterator[Reader]:
    """Sources of conversations: the examples of docs/data.md, and binary formats."""
    for number, (name, example) in enumerate(page_examples()):
        name = f"{number}-{re.sub(r'[^a-z]+', '-', name)}"
        yield Reader(name, example.encode(), "x.txt", lambda place: sound(place / "x.txt"))
    rows = [{"dialog": d.id, "speaker": u.speaker, "text": u.text} for d in DIALOGS for u in d.utterances]
    pq.write_table(pa.Table.from_pylist(rows), folder / "x.parquet")
    data = (folder / "x.parquet").read_bytes()
    yield Reader("parquet", data, "x.parquet", lambda place: sound(place / "x.parquet"))
    yield Reader("pickle", pickled(CORPUS), "x.pkl", lambda place: sound(place / "x.pkl"))
    write_split(folder / "arrow" / "split", DIALOGS)
    for name in ("data-00000-of-00001.arrow", "state.json", "dataset_info.json"):
        place = folder / f"arrow-{name.split('.')[0]}"
        shutil.copytree(folder / "arrow", place)
        data = (place / "split" / name).read_bytes()
        yield Reader(place.name, data, f"split/{name}", lambda place: load_dialogs(str(place / "split")))
    (folder / "source.tsv").write_text(
        "".join(f"{r['dialog']}\t{r['speaker']}\t{r['text']}\n" for r in rows * 1), encoding="utf-8"
    )
    prepare(str(folder / "source.tsv"), folder / "prepared" / "out", force=True)
    data = (folder / "prepared/out/manifest.json").read_bytes()

    def again(place: Path) -> None:
        prepare(str(folder / "source.tsv"), place / "out", force=True)

    yield Reader("prepared", data, "out/manifest.json", again)
    items = build_references(DIALOGS, DIALOGS)
    write_references(folder / "x.json", items)
    data = (folder / "x.json").read_bytes()
    yield Reader("references", data, "x.json", lambda place: read_references(place / "x.json"))


def lm_readers(folder: Path) -> Iterator[Reader]:
    """A prepared corpus of tokens: its arrays, its manifest, its vocabulary."""
    text = folder / "text.txt"
    text.write_text(text_of(60, 1), encoding="utf-8")
    made = folder / "lm-out"
    lm_prepare(str(text), made, LmPrepareOptions())
    for path in ("train/00000.npy", "train/split.json", "manifest.json", "vocabulary.json"):
        name = "lm-" + path.split("/")[-1].replace(".", "-")
        shutil.copytree(made, folder / name / "out")

        yield Reader(name, (made / path).read_bytes(), f"out/{path}", load_tokens)
    vectors = "".join(f"{word} {place} -0.5 1e-3\n" for place, word in enumerate(WORDS)).encode()
    vocabulary = tiny_codec().vocabulary
    yield Reader("vectors", vectors, "x.txt", lambda place: read_vectors(place / "x.txt", vocabulary, 3))


def load_tokens(place: Path) -> None:
    """What ``lm train`` reads."""
    load_split(str(place / "out" / "train"), Codec.load(place / "out"))


def own_readers(folder: Path) -> Iterator[Reader]:
    """What the program writes itself: configs, runs, vocabularies, tensors."""
    config = load_config("smalltalk_mos", DialogConfig, family="dialog").config
    yield Reader(
        "toml", config_text(config).encode(), "x.toml",
        lambda place: load_config(str(place / "x.toml"), DialogConfig, family="dialog"),
    )  # fmt: skip
    (folder / "trained").mkdir()
    run = write_run(folder / "trained" / "run")
    data = (run / "config.json").read_bytes()
    yield Reader("config", data, "config.json", lambda place: read_config(place / "config.json", LmConfig))
    place = folder / "vocabulary"
    place.mkdir()
    tiny_codec().save(place)
    data = (place / "vocabulary.json").read_bytes()
    yield Reader("vocabulary", data, "vocabulary.json", Codec.load)
    for name in ("model.safetensors", "state.json", "manifest.json"):
        place = folder / f"commit-{name.split('.')[0]}"
        shutil.copytree(run / "checkpoints", place)
        data = (place / "step-00000003" / name).read_bytes()
        yield Reader(
            place.name, data, f"step-00000003/{name}",
            lambda place: Commit.read(place / "step-00000003").tensors("model"),
        )  # fmt: skip


def exported_readers(folder: Path) -> Iterator[Reader]:
    """What ``lm import`` reads, and the list that ``lm export`` reads before it replaces a folder."""
    from lm.export import export_run, import_run

    made = folder / "exported"
    export_run(folder / "trained" / "run", made)

    def imported(place: Path) -> None:
        remove_tree(place / "run")
        import_run(place / "out", place / "run")

    files = ("model.safetensors", "config.json", "highrank/config.json", "highrank/vocabulary.json")
    for name in files:
        place = folder / f"exported-{name.replace('/', '-').split('.')[0]}"
        shutil.copytree(made, place / "out")
        yield Reader(place.name, (made / name).read_bytes(), f"out/{name}", imported)
    shutil.copytree(made, folder / "exported-list" / "out")
    name = "highrank/manifest.json"
    data = (made / name).read_bytes()
    yield Reader("exported-list", data, f"out/{name}", lambda place: require_exportable(place / "out"))


@contextmanager
def chosen(folder: Path) -> Iterator[Case]:
    """G1: the curated list of the tests, then damage that is the same for every reader."""
    readers = all_readers(folder / "readers")
    everywhere = (
        b"",
        b"\0",
        b"\xff\xfe\0",
        b"\n" * 50,
        b"\x1f\x8b\x08\0rest",
        b"PK\x03\x04",
        header({}, 1 << 62),
    )

    def case(rng: random.Random, index: int) -> int:
        if index < len(CURATED):
            name, content, message = CURATED[index]
            path = folder / name
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            found = refused(lambda: load_dialogs(str(path)))
            assert re.search(message, found), found
            return 1
        number, place = divmod(index - len(CURATED), len(everywhere))
        if number >= len(readers):
            return 0
        reader = readers[number]
        path = folder / "readers" / reader.name / reader.file
        path.write_bytes(everywhere[place])
        try:
            refused(lambda: reader.open(folder / "readers" / reader.name))
        finally:
            path.write_bytes(reader.data)
        return 1

    yield case
