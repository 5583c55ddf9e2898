"""The language whose truth is known: its rank, what each head reaches of it, and the sweep over heads."""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lm.errors import ConfigError, DivergenceError, StorageError, visible
from lm.studies.bottleneck import (
    POINTS,
    RESULT,
    WIDE,
    BottleneckOptions,
    bottleneck,
    models,
    points,
    train_point,
)
from lm.studies.bottleneck_figure import Name, bottleneck_tables, component_series, draw_bottleneck, series
from lm.studies.known_language import Language, measured_rank
from lm.studies.sweep_point import SweepPoint
from tests.support.signals import signal_at

TINY = BottleneckOptions(
    contexts=12,
    vocab=20,
    rank=6,
    heads=("softmax", "mos"),
    embedding_sizes=(1, 2),
    components=(2,),
    component_sweep=(1, 2),
    sweep_size=2,
    hidden_size=6,
    steps=(8,),
)


@cache
def language() -> Language:
    """A small language, made once by the process that needs it."""
    return Language(seed=3, contexts=24, vocab=40, rank=16)


@pytest.mark.parametrize(("contexts", "vocab", "rank"), [(9, 30, 2), (30, 9, 9), (16, 16, 16), (96, 768, 48)])
@pytest.mark.parametrize("seed", [0, 7])
def test_a_language_has_its_rank_and_normalised_rows(contexts: int, vocab: int, rank: int, seed: int) -> None:
    language = Language(seed, contexts, vocab, rank)
    assert language.log_probs.dtype == torch.float64
    assert language.log_probs.shape == (contexts, vocab)
    torch.testing.assert_close(language.log_probs.exp().sum(-1), torch.ones(contexts, dtype=torch.float64))
    assert measured_rank(language.log_probs) == rank
    assert torch.linalg.matrix_rank(language.log_probs) == rank  # by NumPy's threshold too
    assert 0 < language.entropy < math.log(vocab)


def test_a_language_is_what_its_seed_says_and_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    first, again, other = (Language(seed, 8, 9, 3).log_probs for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    train_point(Language(1, 8, 9, 3), SweepPoint("softmax", 1, 2, 3), 2, 0.05)
    assert torch.equal(torch.get_rng_state(), state)


def test_divergence_and_entropy_are_expectations_over_contexts() -> None:
    language = Language(1, 5, 7, 3, context_law="zipf")
    weights = [1 / n for n in range(1, 6)]
    model = torch.log_softmax(torch.randn(5, 7, dtype=torch.float64), -1)
    kl = entropy = 0.0
    for weight, truth, guess in zip(weights, language.log_probs.tolist(), model.tolist(), strict=True):
        share = weight / sum(weights)
        kl += share * sum(math.exp(p) * (p - q) for p, q in zip(truth, guess, strict=True))
        entropy -= share * sum(math.exp(p) * p for p in truth)
    assert language.divergence(model) == pytest.approx(kl)
    assert language.entropy == pytest.approx(entropy)
    assert language.divergence(language.log_probs) == 0


@pytest.mark.parametrize("components", [(2, 4, 8), BottleneckOptions().component_sweep])
def test_at_each_size_all_models_have_the_same_parameters(components: tuple[int, ...]) -> None:
    options = BottleneckOptions(components=(2, 4, 8))
    for size in options.embedding_sizes:
        named = dict.fromkeys(points(options, size, components))
        assert {(point.kind, point.components) for name, point in named if name != WIDE} == {
            *(("softmax", 1), ("sigsoftmax", 1)),
            *((kind, number) for kind in ("moc", "mos", "moss") for number in components),
        }
        counts = {
            (name, point.components): point.parameters(options.contexts, options.vocab)
            for name, point in named
        }
        wide = counts.pop((WIDE, 1))
        assert max(counts.values()) <= 1.02 * min(counts.values())
        assert wide <= counts["mos", 8] == options.budget(size)
        assert all(point.embedding_size == size for name, point in named if name != WIDE)


def test_the_two_sweeps_share_the_models_that_they_have_in_common() -> None:
    options = BottleneckOptions()
    alone = models(replace(options, component_sweep=()))
    both = models(options)
    assert len(set(both)) == len(both)
    assert both[: len(alone)] == alone  # the sweep of E comes first, as it is
    assert {(size, name, point.components) for size, name, point in both[len(alone) :]} == {
        (options.sweep_size, head, number) for head in ("moc", "mos", "moss") for number in (1, 2, 8, 16)
    }
    elsewhere = models(replace(options, sweep_size=5))  # what has no components is level, but has to be there
    assert {name for size, name, _ in elsewhere if size == 5} == {*options.heads, WIDE}
    for sweep in ((), (1, 2)):  # nothing has components
        softmax = replace(options, heads=("softmax",), component_sweep=sweep, sweep_size=5)
        assert {size for size, *_ in models(softmax)} == set(options.embedding_sizes)


@pytest.mark.parametrize(("kind", "components"), [("softmax", 1), ("moc", 3), ("mos", 1)])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_the_rank_of_softmax_moc_and_one_component_is_the_wall(kind: str, components: int, size: int) -> None:
    point = SweepPoint(kind, components, size, hidden_size=20)
    assert train_point(language(), point, steps=30, lr=0.05)["rank"] == size + 2


def test_softmax_learns_a_language_that_fits_it() -> None:
    language = Language(2, 12, 20, rank=5)
    fits, wall = (train_point(language, SweepPoint("softmax", 1, size, 8), 300, 0.05) for size in (4, 2))
    assert fits["kl"] < 2e-3
    assert wall["kl"] > 0.1
    assert wall["late_gain"] < 1e-3  # so it is the wall, and not too short a training


def test_mos_passes_the_wall_that_stops_softmax_and_moc() -> None:
    softmax = train_point(language(), SweepPoint("softmax", 1, 3, 24), 200, 0.05)
    moc = train_point(language(), SweepPoint("moc", 4, 3, 16, context_scale=10.0), 200, 0.05)
    mos = train_point(language(), SweepPoint("mos", 4, 3, 16, context_scale=10.0), 200, 0.05)
    assert mos["kl"] < 0.75 * min(softmax["kl"], moc["kl"])
    assert moc["kl"] == pytest.approx(softmax["kl"], rel=0.15)
    assert mos["rank"] > language().rank > softmax["rank"]


def test_more_components_come_nearer_to_the_truth_at_equal_parameters() -> None:
    options = BottleneckOptions(contexts=24, vocab=40, rank=16, components=(2,), hidden_size=24)
    named = points(replace(options, heads=("mos",)), 3, (1, 2, 4))
    kl = [train_point(language(), point, 200, 0.05)["kl"] for _, point in named]
    assert kl[1] < 0.9 * kl[0]
    assert kl[2] < 0.9 * kl[1]


def test_the_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    first, again = bottleneck(TINY, tmp_path / "a"), bottleneck(TINY, tmp_path / "b")
    assert first == again
    for name in (POINTS, RESULT):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert json.loads((tmp_path / "a" / RESULT).read_text())["rows"] == first["rows"]


def test_an_interrupted_sweep_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = bottleneck(TINY, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt), signal_at(2 * TINY.steps[0] + 4, "lr"):
        bottleneck(TINY, tmp_path / "cut")
    assert len((tmp_path / "cut" / POINTS).read_text().splitlines()) == 2
    left = len(whole["rows"]) - 2
    with signal_at(left * TINY.steps[0] + 1, "lr"):
        assert bottleneck(TINY, tmp_path / "cut") == whole
    for name in (POINTS, RESULT):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_is_finished_is_not_trained_again_and_what_changed_is(tmp_path: Path) -> None:
    first = bottleneck(TINY, tmp_path)
    seen: list[tuple[int, int]] = []
    with signal_at(1, "lr"):
        assert bottleneck(TINY, tmp_path, lambda done, total: seen.append((done, total))) == first
    assert seen[-1] == (len(first["rows"]), len(first["rows"]))
    wider = replace(TINY, embedding_sizes=(1, 2, 3))
    assert [row for row in bottleneck(wider, tmp_path)["rows"] if row["size"] < 3] == first["rows"]
    for change in ({"steps": (9,)}, {"lr": 0.01}, {"rank": 5}, {"seeds": (2,)}, {"spread": 2.0}):
        with pytest.raises(KeyboardInterrupt), signal_at(1, "lr"):
            bottleneck(replace(TINY, **change), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line", ['{"settings": {}}', '{"settings": {}, "result": {"kl": 0.1, "rank": 2, "late_gain": 0.0}}']
)
def test_a_damaged_file_of_points_is_named(line: str, tmp_path: Path) -> None:
    bottleneck(TINY, tmp_path)
    with (tmp_path / POINTS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(StorageError, match=rf"{POINTS}:\d+: not a point of a sweep; remove the line"):
        bottleneck(TINY, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 1}, "--rank 1: choose between 2 and 12"),
        ({"rank": 13}, "--rank 13: choose between 2 and 12"),
        ({"heads": ()}, "--heads: name at least one"),
        ({"heads": ("softmax", "sofmax")}, "--heads 'sofmax': unknown head; choose from softmax"),
        ({"embedding_sizes": (2, 0)}, "--embedding-sizes 0: must be at least 1"),
        ({"embedding_sizes": (2, 2)}, "--embedding-sizes: repeated value"),
        ({"components": (-1,)}, "--components -1: must be at least 1"),
        ({"component_sweep": (1, 0)}, "--component-sweep 0: must be at least 1"),
        ({"component_sweep": (2, 2)}, "--component-sweep: repeated value"),
        ({"component_sweep": (10**6,)}, "contexts × words × components need about"),
        ({"sweep_size": 0}, "--sweep-size 0: must be at least 1"),
        ({"seeds": (-1,)}, "--seeds -1: must be between 0 and"),
        ({"seeds": (2**63,)}, "--seeds 9223372036854775808: must be between"),
        ({"steps": (0,)}, "--steps 0: must be at least 1"),
        ({"steps": (8, 9)}, "--steps: 2 numbers for 1 of --context-scale; give one, or one for each"),
        ({"context_scale": (0.0,)}, "--context-scale 0.0: must be a number from 1e-30 to 1e+30"),
        ({"context_scale": (math.inf,)}, "--context-scale inf: must be a number from 1e-30 to 1e+30"),
        ({"context_scale": (1.0, 1.0)}, "--context-scale: repeated value"),
        ({"lr": math.nan}, "--lr nan: must be a number from 1e-30 to 1e+30"),
        ({"lr": 1e300}, "--lr 1e+300: must be a number from"),
        ({"embedding_sizes": (2, 20_000_000)}, "--embedding-sizes 20000000: must be at most 10000000"),
        ({"heads": ("mfs",), "vocab": 3}, "--vocab 3: mfs needs 4 words; raise it"),
        ({"heads": ("cpr",), "vocab": 9}, "--vocab 9: cpr needs 10 words; raise it"),
        ({"spread": 1e-15}, "--rank 6: the language has rank"),
        ({"spread": math.inf}, "--spread inf: must be above 0"),
        ({"context_law": "bell\x1b"}, "--context-law"),
        ({"contexts": 10**5, "vocab": 10**5}, "contexts × words × components need about"),
    ],
)
def test_bad_options_are_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(TINY, **change)
    assert message in str(caught.value)
    assert "\n" not in visible(caught.value)


def test_a_training_that_diverges_says_so() -> None:
    with pytest.raises(DivergenceError, match="lower --lr"):
        train_point(language(), SweepPoint("softmax", 1, 2, 4), 20, lr=1e30)


def test_tables_and_pictures_show_every_head(tmp_path: Path) -> None:
    heads = ("softmax", "sigsoftmax", "moc", "mos")
    swept = {"component_sweep": (1, 3, 4), "sweep_size": 3, "steps": (2,)}
    options = replace(TINY, heads=heads, components=(2, 3), seeds=(1, 2), **swept)  # type: ignore[arg-type]
    result = bottleneck(options, tmp_path)
    *tables, language, _, updates, wide = bottleneck_tables(result)
    mixtures = [f"{kind} ×10 K = {k}" for kind in ("MoC", "MoS") for k in (2, 3)]
    against_size = ["E", "parameters", "softmax", "sigsoftmax", *mixtures, WIDE]
    against_components = ["K", "parameters", "softmax", "sigsoftmax", "MoC ×10", "MoS ×10", WIDE]
    shapes = [(against_size, 2)] * 2 + [(against_components, 3)] * 2
    for shown, (headers, rows) in zip(tables, shapes, strict=True):
        assert not isinstance(shown, str)
        assert [column.head for column in shown.columns()] == headers
        assert len(shown.rows) == rows
    assert "rank 6" in str(language)
    assert str(updates) == "contexts of mixtures are multiplied by a factor (papers: 1); updates: 2 at ×10"
    assert str(wide).startswith(WIDE)
    pictures = [tmp_path / "b.png", tmp_path / "b.svg"]
    draw_bottleneck(result, pictures)
    before = [path.read_bytes() for path in pictures]
    assert before[0].startswith(b"\x89PNG")
    assert b"<svg" in before[1]
    draw_bottleneck(result, pictures[1:])
    assert pictures[1].read_bytes() == before[1]
    with pytest.raises(ConfigError, match="pictures end in"):
        draw_bottleneck(result, [tmp_path / "b.pdf"])


def test_a_number_of_components_that_the_parameters_do_not_pay_is_left_out(tmp_path: Path) -> None:
    fits = max(k for k in range(1, 40) if SweepPoint("mos", k, 2, 1).parameters(12, 20) <= TINY.budget(2))
    options = replace(TINY, component_sweep=(1, fits, fits + 1))
    assert options.swept_components == (1, fits)
    result = bottleneck(options, tmp_path)
    assert {row["components"] for row in result["rows"]} == {1, 2, fits}
    assert str(bottleneck_tables(result)[-1]).startswith(f"K = {fits + 1} omitted: at E = 2 more parameters")
    result = bottleneck(replace(TINY, component_sweep=(fits + 1,)), tmp_path)
    assert str(bottleneck_tables(result)[-1]).startswith(f"K = {fits + 1} omitted"), "no sweep is left"


def test_a_row_is_shown_in_every_sweep_that_it_belongs_to(tmp_path: Path) -> None:
    result = bottleneck(replace(TINY, component_sweep=(1, 2, 3)), tmp_path)
    by_size, by_components = series(result), component_series(result)
    softmax, mos = Name("softmax", 1.0), Name("mos", 10.0)
    assert set(by_size) == {replace(softmax, components=1), replace(mos, components=2), Name(WIDE, 1.0, 1)}
    assert set(by_components) == {softmax, mos, Name(WIDE, 1.0)}
    assert by_components[mos][2] == by_size[replace(mos, components=2)][2]
    assert [by_components[softmax][k] for k in (1, 2, 3)] == [by_size[replace(softmax, components=1)][2]] * 3
    shown = [
        row
        for rows in (*by_size.values(), *by_components.values())
        for seeds in rows.values()
        for row in seeds
    ]
    assert all(row in shown for row in result["rows"])
    for result in (
        bottleneck(replace(TINY, component_sweep=()), tmp_path),
        bottleneck(replace(TINY, heads=("softmax",)), tmp_path),
    ):  # nothing to sweep K of
        assert component_series(result) == {}
        assert len(bottleneck_tables(result)) == 5 + ("mos" in result["settings"]["heads"])
    draw_bottleneck(result, [tmp_path / "b.svg"])


def test_each_factor_on_the_contexts_is_trained_and_shown(tmp_path: Path) -> None:
    options = replace(TINY, context_scale=(10.0, 1.0), steps=(8, 12))
    result = bottleneck(options, tmp_path)
    assert result["settings"]["context_scale"] == (10.0, 1.0)
    updates = {(row["head"], row["context_scale"]): row["steps"] for row in result["rows"]}
    assert updates == {("softmax", 1.0): 12, (WIDE, 1.0): 12, ("mos", 10.0): 8, ("mos", 1.0): 12}
    for row in result["rows"]:
        if row["head"] == "mos":  # the factor changes the training, and the parameters do not know of it
            same = {name: row[name] for name in ("kind", "components", "embedding_size", "hidden_size")}
            alone = train_point(
                TINY.languages[0], SweepPoint(**same, context_scale=row["context_scale"]), row["steps"], 0.05
            )
            assert alone["kl"] == row["kl"]
    kl = {row["context_scale"]: row["kl"] for row in result["rows"] if row["head"] == "mos"}
    assert kl[1.0] != kl[10.0]
    shown: Any = bottleneck_tables(result)[0]
    columns = list(shown.cells()[0])
    assert columns == ["E", "parameters", "softmax", "MoS ×10 K = 2", "MoS ×1 K = 2", WIDE]
    draw_bottleneck(result, [tmp_path / "b.svg"])


@pytest.mark.parametrize(("kind", "components"), [("mixtape", 2), ("plif", 1), ("doc", 2)])
def test_later_heads_are_trained_and_pass_the_rank_of_a_softmax(kind: str, components: int) -> None:
    point = SweepPoint(kind, components, 2, 8)
    outcome = train_point(Language(1, 24, 32, 12), point, 40, 0.05)
    assert outcome["parameters"] == point.parameters(24, 32)
    assert outcome["rank"] > 2 + 2
    assert outcome["late_gain"] > 0


def test_heads_that_cannot_have_a_number_of_components_are_left_out() -> None:
    options = BottleneckOptions(heads=("mos", "mixtape", "doc"), components=(1, 3, 4), hidden_size=400)
    found = {(point.kind, point.components) for _, point in points(options, 8, options.components)}
    assert found == {
        ("mos", 1),
        ("mos", 3),
        ("mos", 4),
        ("mixtape", 1),
        ("mixtape", 4),
        ("doc", 3),
        ("doc", 4),
    }
    with pytest.raises(ConfigError, match="mixtape cannot have it; add 4"):
        BottleneckOptions(heads=("mixtape",), components=(3,))


def test_a_head_that_does_not_allow_a_number_of_components_has_an_empty_cell(tmp_path: Path) -> None:
    options = replace(TINY, heads=("doc", "mixtape"), component_sweep=(1, 2, 3), hidden_size=12, steps=(2,))
    result = bottleneck(options, tmp_path)
    assert result["swept_components"] == (1, 2, 3)
    kl: Any = bottleneck_tables(result)[2]
    empty = {(row["K"], name) for row in kl.rows for name, value in row.items() if value is None}
    assert empty == {(1, "DOC ×10"), (3, "Mixtape ×10")}
    assert all(row["parameters"] for row in kl.rows)
    draw_bottleneck(result, [tmp_path / "b.svg"])
    alone = bottleneck(replace(options, heads=("doc",)), tmp_path)  # nothing has one component
    kl = bottleneck_tables(alone)[2]
    assert [row["K"] for row in kl.rows] == [2, 3]
    draw_bottleneck(alone, [tmp_path / "b.svg"])
