"""Tables of trainings with several seeds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import bartlett, t, ttest_ind

from lm.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCKS = 20


def entry(label: str, seed: int, nats: float, **numbers: Any) -> dict[str, Any]:
    """A training whose blocks of the text have equal nats, so that the text is no source of noise."""
    units = {
        "text_sha256": "a",
        "nats": " ".join([f"{1000 * nats:.2f}"] * BLOCKS),
        "tokens": " ".join(["1000"] * BLOCKS),
    }
    return {"label": label, "config": label, "seeds": [seed], "units": units, "numbers": numbers}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.mark.usefixtures("scripts")
def test_the_test_over_seeds_is_that_of_welch() -> None:
    from pages.seed_tables import SeedTests

    nats = {"softmax": [4.50, 4.52, 4.57], "MoS": [4.45, 4.46, 4.44], "MoC": [4.47]}
    entries = [entry(head, seed, value) for head, found in nats.items() for seed, value in enumerate(found)]
    older = entry("softmax", 9, 0.0)
    del older["units"]
    tests = SeedTests([older, *entries])
    header, _, softmax, mos, _ = tests.leads(["softmax", "DOC"]).splitlines()
    assert header == "| head | seeds | nats ahead of softmax |"
    assert softmax == "| softmax | 0, 1, 2 | none |"
    expected = ttest_ind(nats["MoS"], nats["softmax"], equal_var=False)
    low, high = expected.confidence_interval()
    ahead = np.mean(nats["softmax"]) - np.mean(nats["MoS"])
    p = f"{expected.pvalue:.2g}".removeprefix("0")
    cell = f"{ahead:.3f} ± {(high - low) / 2:.3f}, p = {p}"
    assert mos == f"| MoS | 0, 1, 2 | {cell} |"
    pairs = [("MoS", "softmax"), ("MoS", "DOC")]
    assert tests.pairs(pairs).splitlines()[2:] == [f"| MoS | 0, 1, 2 | softmax | 0, 1, 2 | {cell} |"]


@pytest.mark.usefixtures("scripts")
def test_a_model_of_one_seed_takes_the_spread_of_the_others() -> None:
    from pages.seed_tables import SeedTests

    nats = {"softmax": [4.50, 4.52], "MoS": [4.44, 4.46], "MoC": [4.47]}
    entries = [entry(head, seed, value) for head, found in nats.items() for seed, value in enumerate(found)]
    *_, moc = SeedTests(entries).pairs([("MoC", "MoS")]).splitlines()
    variances = [0.0001, 0.0002]  # of the mean of two, and of one
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 1 + variances[1] ** 2 / 2)
    half = t.ppf(0.975, freedom) * sum(variances) ** 0.5
    p = f"{2 * t.sf(0.02 / sum(variances) ** 0.5, freedom):.2g}".removeprefix("0")
    assert moc == f"| MoC | 0 | MoS | 0, 1 | -0.020 ± {half:.3f}, p = {p} |"
    *_, alone = SeedTests([entry("MoC", 1, 4.4), entry("MoS", 1, 4.3)]).leads(["MoC"]).splitlines()
    assert alone == "| MoS | 1 | 0.100, no test |"


@pytest.mark.usefixtures("scripts")
def test_a_model_of_one_seed_has_no_test_where_spreads_differ() -> None:
    from pages.seed_tables import SeedTests

    nats = {"softmax": [4.40, 4.50, 4.60], "MoS": [4.449, 4.45, 4.451], "MoC": [4.47]}
    entries = [entry(head, seed, value) for head, found in nats.items() for seed, value in enumerate(found)]
    tests = SeedTests(entries)
    *_, moc = tests.pairs([("MoC", "MoS")]).splitlines()
    assert moc == "| MoC | 0 | MoS | 0, 1, 2 | -0.020, no test |"
    assert tests.leads(["softmax"]).splitlines()[-1] == "| MoC | 0 | 0.030, no test |"
    p = bartlett(nats["softmax"], nats["MoS"]).pvalue
    assert p < 0.05
    *_, softmax, mos, alike = tests.spreads().splitlines()
    assert (softmax, mos) == ("| softmax | 0, 1, 2 | 0.1000 |", "| MoS | 0, 1, 2 | 0.0010 |")
    assert alike == f"| alike in all these |  | p = {p:.2g} |".replace("= 0", "= ")


@pytest.mark.usefixtures("scripts")
def test_spreads_that_may_differ_are_not_pooled() -> None:
    """With three seeds Bartlett's test does not reach .05, though one spread is five times the other."""
    from pages.seed_tables import ALIKE, SeedTests

    nats = {"softmax": [4.40, 4.45, 4.50], "MoS": [4.44, 4.45, 4.46], "MoC": [4.47]}
    assert 0.05 < bartlett(nats["softmax"], nats["MoS"]).pvalue < ALIKE
    entries = [entry(head, seed, value) for head, found in nats.items() for seed, value in enumerate(found)]
    assert SeedTests(entries).leads(["softmax"]).splitlines()[-1] == "| MoC | 0 | -0.020, no test |"


@pytest.mark.usefixtures("scripts")
def test_the_share_of_a_lead_is_a_ratio_over_seeds() -> None:
    from pages.seed_tables import SeedTests

    nats = {"softmax": [4.49, 4.50, 4.51], "MoC": [4.44, 4.43, 4.45], "MoS": [4.399, 4.40, 4.401]}
    entries = [entry(head, seed, value) for head, found in nats.items() for seed, value in enumerate(found)]
    header, _, moc = SeedTests([*entries, entry("DOC", 1, 4.3)]).shares("softmax", "MoS").splitlines()
    assert header == "| head | share of the lead of MoS over softmax |"
    assert moc.startswith("| MoC | 60 % (4")
    one = [entry("softmax", 1, 4.5), *entries[3:]]
    assert len(SeedTests(one).shares("softmax", "MoS").splitlines()) == 2, "no share of a lead of one seed"


@pytest.mark.usefixtures("scripts")
def test_the_share_of_a_lead_that_a_change_removes_is_a_ratio_over_seeds() -> None:
    from pages.seed_tables import SeedTests

    spread = np.array([-0.001, 0.0, 0.001])
    middles = {"softmax": 4.5, "MoS": 4.4, "softmax, early": 4.4, "MoS, early": 4.36, "MoC": 4.45}
    entries = [entry(head, n, one) for head, nats in middles.items() for n, one in enumerate(nats + spread)]
    entries += [entry("DOC", 0, 4.3), entry("DOC, early", 0, 4.3)]
    pairs = [("MoS", "softmax"), ("MoC", "softmax"), ("DOC", "softmax")]
    header, _, mos = SeedTests(entries).removed(pairs, "early").splitlines()
    assert header == "| head | other head | nats ahead | with the early | share removed |"
    factors = [
        np.array([1, -1, -1, 1]) - share * np.array([1, -1, 0, 0]) for share in (0.57, 0.58, 0.62, 0.63)
    ]
    variances = [(factor**2 * spread.var(ddof=1) / 3) for factor in factors]  # of the parts of a contrast
    freedom = [sum(parts) ** 2 / sum(parts**2 / 2) for parts in variances]
    half = [t.ppf(0.975, n) * sum(parts) ** 0.5 for n, parts in zip(freedom, variances, strict=True)]
    differs = [abs(factor @ [4.5, 4.4, 4.4, 4.36]) > one for factor, one in zip(factors, half, strict=True)]
    assert differs == [True, False, False, True], "Fieller's interval by hand"
    assert mos == "| MoS | softmax | 0.100 | 0.040 | 60 % (58 % to 62 %) |"


@pytest.mark.usefixtures("scripts")
def test_a_grid_has_the_leads_of_the_same_setting() -> None:
    from pages.seed_tables import SeedTests

    nats = {"softmax": [4.50, 4.52], "MoS": [4.45, 4.46, 4.44], "softmax, fast": [4.3], "MoS, fast": [4.4]}
    entries = [entry(head, seed, value) for head, found in nats.items() for seed, value in enumerate(found)]
    grid = SeedTests(entries).grid("softmax", ["MoS", "DOC"], {"slow": "{}", "fast": "{}, fast"})
    assert grid.splitlines() == [
        "| head | slow | fast |",
        "|---|---|---|",
        "| MoS | 0.060 (3) | -0.100 (1) |",
        "| DOC | not run | not run |",
    ]


@pytest.mark.usefixtures("scripts")
def test_an_entry_of_another_config_is_no_seed_of_a_model() -> None:
    from pages.seed_tables import SeedTests

    entries = [entry("MoS", seed, 4.4 + seed / 100) | {"config_sha256": "a"} for seed in (1, 2)]
    entries.append(entry("MoS", 3, 9.0) | {"config_sha256": "b"})
    *_, own, other = SeedTests(entries).leads(["MoS"]).splitlines()
    assert own.startswith("| MoS | 1, 2 |")
    assert other.startswith("| MoS | 3 |")


@pytest.mark.usefixtures("scripts")
def test_entries_of_another_text_are_refused() -> None:
    from pages.seed_tables import SeedTests

    entries = [entry("softmax", 1, 4.5), entry("softmax", 2, 4.5)]
    entries[1]["units"]["text_sha256"] = "b"
    with pytest.raises(ConfigError, match="entries of one table have other texts"):
        SeedTests(entries)


@pytest.mark.usefixtures("scripts")
def test_entries_of_a_label_are_one_row_with_mean_and_range() -> None:
    from pages.page_tables import table
    from pages.seed_tables import by_label
    from pages.table_forms import fixed, precision_recall

    columns = (("test ppl", "ppl", fixed(2)), ("P/R", "bleu", precision_recall), ("rank", "rank", fixed(0)))
    entries = [
        entry("MoS", 1, 4.5, ppl=90.0, bleu={"precision": 0.2, "recall": 0.1}, rank=130),
        entry("MoC", 1, 4.5, ppl=88.0, bleu={"precision": 0.2, "recall": 0.1}, rank=None),
        entry("MoS", 2, 4.5, ppl=92.0, bleu={"precision": 0.4, "recall": 0.3}),
        entry("MoS", 1, 4.5, ppl=70.0, bleu={"precision": 0.2, "recall": 0.1}, rank=9),  # another experiment
    ]
    entries[0]["config_sha256"] = entries[2]["config_sha256"] = "a"
    entries[1]["config_sha256"] = "b"
    entries.append(entry("MoC", 2, 4.5, ppl=60.0) | {"config_sha256": "b"})
    entries.append(entry("MoC", 3, 4.5, ppl=50.0) | {"config_sha256": "c"})  # of another config
    *_, mos, moc, other, third = table(by_label(entries), "head", columns).splitlines()
    assert mos == "| MoS | 91.00 (90.00–92.00) | .300/.200 | 130 |"
    assert moc == "| MoC | 74.00 (60.00–88.00) | .200/.100 | none |"
    assert third == "| MoC | 50.00 | none | none |"
    assert other == "| MoS | 70.00 | .200/.100 | 9 |"


@pytest.mark.usefixtures("scripts")
def test_a_lead_is_that_of_means_over_seeds() -> None:
    from pages.page_tables import lead

    assert lead({1: 90.0}, {1: 100.0}) == "10.0 %"
    assert lead({2: 90.0}, {1: 80.0, 3: 125.0}) == "10.0 %"
    assert lead(None, {1: 100.0}) == "not run"


@pytest.mark.usefixtures("scripts")
def test_every_pair_is_of_heads_of_its_table() -> None:
    from pages.compared import PAIRS, TRIALS
    from train_table import Table

    for file, pairs in PAIRS.items():
        heads = set(Table.read(ROOT / "scripts" / "tables" / f"{file}.toml").heads.values())
        settings = {name for files in TRIALS.values() if file in files.values() for name in files}
        tried = {f"{head}, {setting}" for head in heads for setting in settings}
        assert {label for pair in pairs for label in pair} <= heads | tried


@pytest.mark.usefixtures("scripts")
def test_every_label_that_tables_ask_for_has_a_number() -> None:
    """A label that is spelt otherwise in the results would be left out, or shown as "not run"."""
    from pages import compared
    from pages.page_tables import trial_entries
    from pages.result_entries import entries_of

    folder, everywhere = ROOT / "results", set()
    for file, pairs in compared.PAIRS.items():
        entries = [*entries_of(folder, file), *trial_entries(folder, file)]
        labels = {entry["label"] for entry in entries}
        short = {
            label for name, chosen in compared.SHORT.items() if name.startswith(file) for label in chosen
        }
        asked = {*compared.BASELINES, *compared.SETTINGS[file][0], *compared.SHARED.get(file, ()), *short}
        assert asked | {label for pair in pairs for label in pair} <= labels, file
        everywhere |= labels
    assert {label for pair in (*compared.STARTS, *compared.REMOVED) for label in pair} <= everywhere
    presets = {entry["config"] for file in compared.LEADS for entry in entries_of(folder, file)}
    assert all(any(preset.endswith(f"_{head}") for preset in presets) for head in compared.LEADING)


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    ("value", "digits", "ratio"),
    [
        (0.0523, "0.0523", "0.052 ×"),
        (1.96, "1.96", "2.0 ×"),
        (99.7, "99.7", "100 ×"),
        (999.7, "1,000", "1000 ×"),
        (5123.0, "5,120", "5100 ×"),
    ],
)
def test_numbers_keep_their_digits_at_the_edges_of_a_form(value: float, digits: str, ratio: str) -> None:
    from pages.table_forms import three_digits, times

    assert three_digits(value) == digits
    assert times(value) == ratio
