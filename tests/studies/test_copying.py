"""The reverse copy task: its model, its sweep, and that a stopped sweep goes on."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lm.cells.config import CellConfig
from lm.cli import main
from lm.disk.filelock import FileLock
from lm.errors import ConfigError, DataError, DivergenceError, StorageError
from lm.language.config import DataConfig
from lm.language.corpora import sources
from lm.language.corpora.corpus import load_codec, load_split
from lm.language.corpora.prepare import PrepareOptions, prepare
from lm.language.corpora.sources import ReadOptions, locate
from lm.steps import no_progress
from lm.studies.copying import CLIP, POINTS, RESULT, Copier, CopyOptions, copying, train_point
from lm.studies.copying_data import BATCH, HELD_OUT, _sequences, read_corpora
from lm.studies.copying_figure import copying_tables, draw_copying
from lm.studies.sweep import Sweep
from lm.text.lines import InputLog
from tests.support.signals import signal_at

TINY = CopyOptions(
    lengths=(1, 3), vocab=4, rounds=2, rank=2, embedding_size=4, parameters=900, steps=6, lrs=(0.01, 0.02)
)


def test_the_decoder_sees_the_sequence_through_the_last_state_alone_and_is_asked_for_its_reverse() -> None:
    torch.manual_seed(1)
    model = Copier(CellConfig(kind="lstm"), 5, 4, 6)
    tokens = torch.tensor([[1, 1], [2, 3], [4, 0]])
    states, targets = model(tokens)
    assert targets.tolist() == [[4, 0], [2, 3], [1, 1], [5, 5]]
    with torch.no_grad():  # one cell after the other, by torch's own steps
        encoder, decoder = (nn.LSTMCell(4, 6) for _ in range(2))
        for cell, layer in ((encoder, model.encoder), (decoder, model.decoder)):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(cell, name).copy_(getattr(layer, f"{name}_l0"))
        state = (torch.zeros(2, 6), torch.zeros(2, 6))
        for token in (*tokens, torch.tensor([5, 5])):
            state = encoder(model.words(token), state)
        for step, token in enumerate((torch.tensor([5, 5]), *targets[:-1])):
            state = decoder(model.said(token), state)
            torch.testing.assert_close(states[step], state[0])


def test_cells_that_mogrify_have_the_rounds_and_rank_of_the_options() -> None:
    options = replace(TINY, rounds=2, rank=3)
    found = {kind: options.cell(kind) for kind in ("lstm", "gru", "mogrifier", "mogrifier_gru")}
    gating = {kind: (cell.rounds, cell.rank) for kind, cell in found.items() if cell.mogrifies}
    assert gating == {"mogrifier": (2, 3), "mogrifier_gru": (2, 3)}


@pytest.mark.parametrize("cell", ["lstm", "mogrifier", "mlstm"])
def test_the_largest_model_within_the_parameters_is_taken(cell: str) -> None:
    size = replace(TINY, cells=(cell,)).hidden_sizes[cell]
    counts = [
        sum(p.numel() for p in Copier(TINY.cell(cell), TINY.vocab, TINY.embedding_size, h).parameters())
        for h in (size, size + 1)
    ]
    assert counts[0] <= TINY.parameters < counts[1]


def test_sizes_of_models_are_sought_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(TINY, lengths=(1,), cells=("lstm",), steps=1)
    monkeypatch.setattr("lm.studies.copying.bisect_right", None)
    (row,) = copying(options, tmp_path)["rows"]
    assert row["hidden_size"] == options.hidden_sizes["lstm"]


def test_short_sequences_are_learned_and_nothing_is_known_at_first(tmp_path: Path) -> None:
    options = CopyOptions(
        lengths=(2,), vocab=4, cells=("lstm",), embedding_size=8, parameters=5000, steps=250, lrs=(0.02,)
    )
    (row,) = copying(options, tmp_path)["rows"]
    assert row["test_nll"] < 0.05
    assert row["exact"] > 0.98
    (row,) = copying(replace(options, steps=1), tmp_path)["rows"]
    assert row["test_nll"] > math.log(4) * 2 / 3
    assert row["exact"] < 0.3


@pytest.mark.parametrize("clip", [CLIP, 0.3])
def test_training_is_adam_without_momentum_on_a_cosine_with_summed_losses_clipped(
    clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trained model against the same by torch's own optimizer, step by step."""
    monkeypatch.setattr("lm.studies.copying.CLIP", clip)
    options = replace(TINY, steps=4, lrs=(0.02,))
    point = train_point(options, 3, 3, "lstm", 0.02)

    random = torch.Generator().manual_seed(3)
    valid, test = (torch.randint(options.vocab, (3, HELD_OUT), generator=random) for _ in range(2))
    torch.manual_seed(3)
    model = Copier(options.cell("lstm"), options.vocab, options.embedding_size, options.hidden_sizes["lstm"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, betas=(0.0, 0.999), eps=1e-8)
    norms: list[float] = []
    for step in range(4):
        states, targets = model(torch.randint(options.vocab, (3, BATCH), generator=random))
        log_probs = model.head.log_probs(states)
        summed = -log_probs.gather(2, targets[..., None]).sum() / BATCH
        optimizer.zero_grad()
        summed.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= 4  # the mean over the tokens of a sequence
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + math.cos(math.pi * step / 4))
        optimizer.step()
    assert (max(norms) > clip) == (clip < CLIP)
    for name, tokens in (("valid_nll", valid), ("test_nll", test)):
        with torch.no_grad():
            states, targets = model(tokens)
            wanted = -model.head.log_probs(states).gather(2, targets[..., None]).mean()
        assert point[name] == pytest.approx(wanted.item(), rel=1e-5)


def test_a_stopped_sweep_goes_on_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole = copying(TINY, tmp_path / "whole")
    rows = whole["rows"]
    assert [(row["length"], row["cell"]) for row in rows] == [
        (1, "lstm"), (1, "mogrifier"), (3, "lstm"), (3, "mogrifier"),
    ]  # fmt: skip
    with pytest.raises(KeyboardInterrupt), signal_at(21, "lr"):
        copying(TINY, tmp_path / "again")
    assert len((tmp_path / "again" / POINTS).read_text().splitlines()) == 3
    with signal_at(31, "lr"):
        assert copying(TINY, tmp_path / "again") == whole
    for name in (POINTS, RESULT):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    points = [json.loads(line) for line in (tmp_path / "whole" / POINTS).read_text().splitlines()]
    for row, pair in zip(rows, zip(points[::2], points[1::2], strict=True), strict=True):
        best = min(pair, key=lambda point: point["result"]["valid_nll"])
        assert (row["lr"], row["valid_nll"]) == (best["settings"]["lr"], best["result"]["valid_nll"])


def test_tables_and_picture(tmp_path: Path) -> None:
    result = copying(replace(TINY, seeds=(1, 2)), tmp_path)
    nll, exact, models = copying_tables(result)
    assert [column.head for column in nll.columns()] == ["length", "lstm", "mogrifier", "knowing nothing"]  # type: ignore[union-attr]
    assert "Copied without error" in str(exact.title)  # type: ignore[union-attr]
    assert f"6 updates; rate: the best of {TINY.lrs[0]:g}, {TINY.lrs[1]:g}" in str(models)
    length = TINY.lengths[0]
    assert nll.rows[0]["knowing nothing"] == math.log(4) * length / (length + 1)  # type: ignore[union-attr]
    draw_copying(result, [tmp_path / "a.svg"])
    draw_copying(result, [tmp_path / "b.svg"])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_divergence_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError, match="lstm at length 1 diverged at rate 1e\\+30; lower --lrs"):
        copying(replace(TINY, lrs=(1e30,)), tmp_path)


@pytest.mark.parametrize("lrs", [(0.02, 1e30), (1e30, 0.02)])
def test_a_rate_that_diverges_leaves_the_others(lrs: tuple[float, ...], tmp_path: Path) -> None:
    (row,) = copying(replace(TINY, lengths=(3,), cells=("lstm",), lrs=lrs), tmp_path)["rows"]
    assert row["lr"] == 0.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": ()}, "--lengths: name at least one"),
        ({"lengths": (3, 3)}, "--lengths: repeated value"),
        ({"lengths": (0,)}, "--lengths 0: must be from 1 to"),
        ({"lengths": (100_001,)}, "--lengths 100001: must be from 1 to 100,000"),
        ({"cells": ("lstn",)}, "--cells 'lstn': unknown cell; choose from lstm, mogrifier"),
        ({"vocab": 1}, "--vocab 1: must be from 2 to 10000000"),
        ({"embedding_size": 0}, "--embedding-size 0: must be from 1 to 10000000"),
        ({"rank": -1}, "--rank -1: must be from 0 to"),
        ({"lrs": (0.1, 0.0)}, "--lrs 0.0: must be a number from"),
        ({"lrs": (0.1, math.nan)}, "--lrs nan: must be a number from"),
        ({"lrs": (1e300,)}, "--lrs 1e"),
        ({"parameters": 10**24}, "--parameters 1000000000000000000000000: must be from 1 to"),
        ({"embedding_size": 10**12}, "--embedding-size 1000000000000: must be from 1 to"),
        ({"seeds": (-1,)}, "--seeds -1: must be between"),
        ({"parameters": 10}, "--parameters 10: too few for any lstm; raise it"),
    ],
)
def test_impossible_options_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TINY, **change)  # type: ignore[arg-type]


def test_prepared_sequences_are_random_and_followed_by_their_reverse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_COPIES", (40, 6, 5))
    read = ReadOptions(length=7, vocab=9)
    report = prepare("reverse-copy", tmp_path / "one", PrepareOptions(read)).report
    counts = {split: (found["lines"], found["tokens"]) for split, found in report["splits"].items()}
    assert counts == {"train": (40, 640), "valid": (6, 96), "test": (5, 80)}
    assert report["vocabulary_size"] == 9 + 2  # and |, <eos>
    assert report["splits"]["valid"]["oov_tokens"] == 0
    located = locate("reverse-copy", read)
    lines = {
        split: [line.text for part in parts for line in part.lines(InputLog())]
        for split, parts in located.splits.items()
    }
    for line in lines["train"]:
        sequence, backwards = (side.split() for side in line.split(" | "))
        assert len(sequence) == 7
        assert sequence == backwards[::-1]
    assert len({line for split in lines.values() for line in split}) == 51
    assert prepare("reverse-copy", tmp_path / "one", PrepareOptions(read)).unchanged
    other = locate("reverse-copy", replace(read, seed=2))
    assert next(other.splits["train"][0].lines(InputLog())).text not in lines["train"]


def copies(folder: Path, length: int, vocab: int = 4, **options: Any) -> str:
    prepare("reverse-copy", folder, PrepareOptions(ReadOptions(length=length, vocab=vocab), **options))
    return str(folder)


@pytest.fixture
def corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders of sequences of 3 and of 2 symbols out of 4."""
    monkeypatch.setattr(sources, "_COPIES", (150, 20, 10))
    return [copies(tmp_path / f"copies-{length}", length) for length in (3, 2)]


def test_a_prepared_corpus_has_the_sequences_that_were_written(corpora: list[str]) -> None:
    short, long = read_corpora(corpora)
    assert (short.length, long.length, short.vocab) == (2, 3, 4)
    located = locate("reverse-copy", ReadOptions(length=3, vocab=4))
    for split, tokens in (("train", long.train), ("valid", long.valid), ("test", long.test)):
        lines = located.splits[split][0].lines(InputLog())
        written = [[int(symbol) for symbol in line.text.split(" | ")[0].split()] for line in lines]
        assert tokens.T.tolist() == written
    batches = long.batches(torch.Generator().manual_seed(1))
    passes = [torch.cat([next(batches) for _ in range(3)], 1) for _ in range(2)]  # 64 + 64 + 22
    assert not torch.equal(*passes)
    for seen in passes:
        assert sorted(seen.T.tolist()) == sorted(long.train.T.tolist())


def test_the_sweep_trains_on_prepared_corpora_and_knows_them_again(
    corpora: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(TINY, lengths=(2, 3), cells=("lstm",), lrs=(0.02,))
    given = read_corpora(corpora)
    result = copying(options, tmp_path, corpora=given)
    assert [row["length"] for row in result["rows"]] == [2, 3]
    assert list(result["corpora"]) == corpora[::-1]
    assert (10 * result["rows"][0]["exact"]).is_integer()  # of ten test sequences
    with signal_at(1, "lr"):
        assert copying(options, tmp_path, corpora=given) == result
    with pytest.raises(KeyboardInterrupt), signal_at(1, "lr"):  # random sequences are not those
        copying(options, tmp_path)
    monkeypatch.setattr("lm.studies.copying.AT_ONCE", 3)
    for row, piece in zip(
        result["rows"], copying(options, tmp_path / "b", corpora=given)["rows"], strict=True
    ):
        assert row["test_nll"] == pytest.approx(piece["test_nll"], rel=1e-6)
        assert row["exact"] == piece["exact"]
    with pytest.raises(ConfigError, match="lengths or symbols of the corpora"):
        copying(replace(options, lengths=(2,)), tmp_path, corpora=given)


def test_the_command_takes_lengths_and_symbols_from_the_corpora(corpora: list[str], tmp_path: Path) -> None:
    small = ["--cells", "lstm", "--steps", "2", "--lrs", "0.01", "--parameters", "900"]
    small += ["--embedding-size", "4"]
    data = [argument for folder in corpora for argument in ("--data", folder)]
    with pytest.raises(SystemExit) as ended:
        main(["reverse-copy", *data, *small, "--out", str(tmp_path / "out")])
    assert not ended.value.code
    result = json.loads((tmp_path / "out" / RESULT).read_text())
    assert (result["settings"]["lengths"], result["settings"]["vocab"]) == ([2, 3], 4)
    assert list(result["corpora"]) == corpora[::-1]
    for wrong in (["--lengths", "3"], ["--vocab", "4"]):
        with pytest.raises(SystemExit) as ended:
            main(["reverse-copy", *data, *wrong])
        assert ended.value.code == 2


def test_options_of_a_mogrifier_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["reverse-copy", "--cells", "lstm", "--rounds", "2"])
    assert ended.value.code == 2
    assert "--rounds: is of a Mogrifier; add one to --cells" in capsys.readouterr().err


def test_what_is_no_such_corpus_is_refused(corpora: list[str], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "valid", "test"):
        (text / f"{split}.txt").write_text("1 2 | 2 1\n3 1 | 1 3\n")
    prepare(str(text), tmp_path / "lines", PrepareOptions())
    fewer, spelled = tmp_path / "fewer", tmp_path / "spelled"
    copies(fewer, 3, vocab_size=5)
    copies(spelled, 3, tokenizer="char")
    for folder in (tmp_path / "none", text, tmp_path / "lines", fewer, spelled, tmp_path / ("x" * 300)):
        with pytest.raises(DataError, match="not a folder of `lm prepare reverse-copy --length L --vocab V`"):
            read_corpora([str(folder)])
    with pytest.raises(ConfigError, match=r"copies-3 \(--length 3 --vocab 4\), .*copies-3"):
        read_corpora([corpora[0], corpora[0]])
    with pytest.raises(ConfigError, match="the same --vocab"):
        read_corpora([corpora[0], copies(tmp_path / "more", 2, 5)])


def sweep(folder: Path) -> Sweep:
    return Sweep(folder, POINTS, {"value": int}, 3, no_progress)


def test_two_sweeps_in_one_folder_keep_the_points_of_both(tmp_path: Path) -> None:
    """As two processes do, each of which read the file before the other wrote."""
    first, second = (sweep(tmp_path) for _ in range(2))
    for number, points in enumerate((first, second, first)):
        points.measured({"number": number}, lambda number=number: {"value": number})
    again = sweep(tmp_path)
    assert [again.measured({"number": n}, dict)["value"] for n in range(3)] == [0, 1, 2]
    (tmp_path / POINTS).write_text((tmp_path / POINTS).read_text()[:-9])
    with pytest.raises(StorageError, match=r"points.jsonl:3: not a point of a sweep; remove the line"):
        sweep(tmp_path)


def test_points_are_added_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, written = sweep(tmp_path), []

    def write(path: Path, data: bytes) -> None:
        assert not FileLock(path.with_name(f".{POINTS}.lock")).acquire(wait=False)
        written.append(data)

    monkeypatch.setattr("lm.studies.sweep.write_atomic", write)
    kept.measured({"number": 1}, lambda: {"value": 1})
    assert len(written) == 1


def test_a_training_that_ends_worse_than_guessing_has_diverged() -> None:
    with pytest.raises(DivergenceError, match="lower --lrs"):
        train_point(replace(TINY, steps=3), 1, 3, "lstm", 1e9)


@pytest.mark.parametrize("losses", [(math.nan, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_a_training_whose_losses_are_not_finite_has_diverged(
    losses: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter(losses)
    monkeypatch.setattr("lm.studies.copying._measured", lambda *_: (next(found), 0.0))
    with pytest.raises(DivergenceError, match="lower --lrs"):
        train_point(replace(TINY, steps=1), 1, 3, "lstm", 0.01)


@pytest.mark.parametrize(("key", "wrong"), [("length", -1), ("length", 0), ("vocab", 10**11), ("vocab", "4")])
def test_a_damaged_manifest_is_refused(corpora: list[str], key: str, wrong: object) -> None:
    path = Path(corpora[0], "manifest.json")
    manifest = json.loads(path.read_text())
    manifest["options"]["read"][key] = wrong
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="not a folder of `lm prepare reverse-copy"):
        read_corpora(corpora[:1])


@pytest.mark.parametrize("place", [3, 7, 4, 0])  # the bar, the end, the reverse; a symbol where the bar is
def test_a_damaged_corpus_is_refused(corpora: list[str], place: int) -> None:
    codec = load_codec(DataConfig(train=f"{corpora[0]}/train"))
    ids = load_split(f"{corpora[0]}/valid", codec).ids().copy()
    bar = codec.vocabulary.tokens.index("|")
    ids[place] = bar if place == 0 else (ids[place] + 1) % len(codec.vocabulary)
    symbols = np.array([int(word) if word.isdigit() else -1 for word in codec.vocabulary.tokens], np.int32)
    marks = (bar, codec.vocabulary.eos)
    with pytest.raises(DataError, match="here: a line is not a sequence, a bar and the reverse"):
        _sequences(ids, 3, symbols, marks, "here")
    for cut in (ids[:-1], ids[:0]):
        with pytest.raises(DataError, match="here: a line is not a sequence, a bar and the reverse"):
            _sequences(cut, 3, symbols, marks, "here")


def test_impossible_sequences_are_refused() -> None:
    with pytest.raises(ConfigError, match="--length 0: must be from 1 to 100,000"):
        ReadOptions(length=0)
    with pytest.raises(ConfigError, match="--length 100001: must be from 1 to 100,000"):
        ReadOptions(length=100_001)
    with pytest.raises(ConfigError, match="--vocab 1: must be from 2 to"):
        ReadOptions(vocab=1)
