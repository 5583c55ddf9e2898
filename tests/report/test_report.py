"""The report: the same bytes twice, and nothing of a hostile run gets out of its text."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from dialog.cli import main as dialog_main
from dialog.config import DialogConfig
from dialog.report import FAMILY as DIALOG
from lm.cli import main as lm_main
from lm.config.load import load_config, save_config
from lm.language.config import LmConfig
from lm.language.report import FAMILY as LM
from lm.report.charts import Series, line_chart, linear_ticks, log_ticks, percent
from lm.report.page import report_of
from lm.report.train_command import train_command
from lm.runs.checkpoint import CheckpointStore
from lm.runs.evaluations import load_evaluation, spread
from lm.spectra.spectrum import RankResult
from tests.support.command_lines import Outcome
from tests.support.kept_records import keep_record, keep_scores

HOSTILE = "<script>alert('&\"')</script>"
EVIL = "</pre><img src=http://x.test/?\u202e\x1b[31m>"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def dialog_run(
    folder: Path, *, text: str = "so it was", settings: tuple[str, ...] = (), **facts: Any
) -> Path:
    """A run with a config, a log, and an evaluation with details."""
    folder.mkdir(parents=True)
    resolved = load_config("smalltalk_mos", DialogConfig, family="dialog", overrides=settings)
    save_config(resolved, folder / "config.json")
    lines = [f'{{"step": {step}, "split": "valid", "nll": {5 - step / 9}}}\n' for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    keep_scores(folder, **facts)
    made = load_evaluation(folder, "test", (), (), "dialog")
    use = {
        **{"head": "mos", "usage": [0.25, 0.75], "prior_perplexity": 1.5, "components": 2, "tokens": 9},
        **{"effective_components": 1.7, "mutual_information": 0.1, "preferred": [[{"word": text}], []]},
    }
    samples = [{"index": 7, "context": [f"A: {text}"], "true": text, "reply": text}]
    details = {"samples": samples, "components": use, "command": f"dialog evaluate {folder}"}
    result = made.result | {"bleu": facts.get("bleu", made.result["bleu"]), "inter_distinct_2": 0.5}
    result |= {"data": {"sha256": "d", "name": text}, "warnings": [text]}
    keep_record(folder, "test", result, made.contexts, details)
    return folder


def page_of(*runs: Path) -> str:
    return report_of(DIALOG, runs, None, 1000)[1].decode()


class Strict(HTMLParser):
    """Every element's name and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tree_of(page: str) -> ElementTree.Element:
    """The page parsed as XML, which is stricter than HTML."""
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))


def text_of(page: str) -> str:
    return "".join(tree_of(page).itertext())


def test_the_page_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    page = page_of(dialog_run(tmp_path / "a"), dialog_run(tmp_path / "b", seed=2, better=0.1))
    tree, parser = tree_of(page), Strict()
    parser.feed(page)
    tags = {tag for tag, _ in parser.found}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    addresses = [
        value
        for _, given in parser.found
        for name, value in given.items()
        if name in ("href", "src", "action")
    ]
    assert addresses
    assert all(str(value).startswith("#") for value in addresses)
    ids = [given["id"] for _, given in parser.found if "id" in given]
    assert len(ids) == len(set(ids))
    assert {str(value)[1:] for value in addresses} == set(ids)
    assert not re.search(r"url\(|@import|https?:", page)
    assert "default-src 'none'" in page
    assert ("table", {"class": "hash"}) in parser.found, "long hashes are broken"
    assert re.search(r"dialog compare .* --name test --resamples 1000$", text_of(page), re.M)
    for name in ("scores", "curves", "components", "samples", "again"):
        assert tree.find(f".//section[@id='{name}']") is not None
    assert all("aria-label" in given for tag, given in parser.found if given.get("role") == "img")


def log(run: Path, split: str, *losses: float) -> None:
    lines = [f'{{"step": {step}, "split": "{split}", "nll": {nll}}}\n' for step, nll in enumerate(losses, 1)]
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(lines))


def test_a_run_without_a_validation_shows_its_training(tmp_path: Path) -> None:
    run, other, *more = (dialog_run(tmp_path / name) for name in "abcd")
    (run / "metrics.jsonl").unlink()

    def curves(*runs: Path) -> str:
        section = tree_of(page_of(*runs)).find(".//section[@id='curves']")
        assert section is not None
        return "".join(section.itertext())

    assert "No run has a log of its training." in curves(run)
    log(run, "train", 5.0, 4.0)
    shown = curves(run)
    assert "Training perplexity by update" in shown
    assert "a, training" in shown
    assert not re.search("No run|ring|Thin|Validation", shown)
    log(other, "train", 5.0, 4.0)
    shown = curves(run, other)
    assert "a, training" in shown
    assert "b, training" not in shown, "a thin line, which has no legend"
    assert re.search("Validation perplexity by update.*ring.*Thin lines", shown)
    shown = curves(run, other, *more)
    assert "a, training" in shown
    assert "Thin lines" not in shown


def test_equal_runs_give_equal_bytes_and_another_number_others(tmp_path: Path) -> None:
    first, second = dialog_run(tmp_path / "a"), dialog_run(tmp_path / "b", seed=2)
    assert page_of(first, second) == page_of(first, second)
    assert page_of(first, second) != page_of(second, first)


@pytest.mark.parametrize("text", [HOSTILE, EVIL, "{{ 7 * 7 }}{% raw %}", "a" * 5000])
def test_what_a_run_says_stays_text(text: str, tmp_path: Path) -> None:
    name = re.sub(r"[/\x1b]", "_", text)[:60]
    runs = [dialog_run(tmp_path / name, text=text), dialog_run(tmp_path / "b", text=text, head="<b>x</b>")]
    page = page_of(*runs)
    plain = page_of(*(dialog_run(tmp_path / f"{letter}2") for letter in "ab"))
    parsers = []
    for one in (page, plain):
        parsers.append(Strict())
        parsers[-1].feed(one)
    shown = text_of(page)
    assert [tag for tag, _ in parsers[0].found] == [tag for tag, _ in parsers[1].found]
    assert not re.search("[\x00-\x08\x1b\u202e]", page)
    if text is not EVIL:
        assert text in shown


def test_the_command_writes_only_its_own_kind_of_file(tmp_path: Path, ending: Callable[..., Outcome]) -> None:
    runs = [str(dialog_run(tmp_path / name, better=better)) for name, better in (("a", 0.0), ("b", 0.2))]
    out = tmp_path / "r.html"
    for _ in range(2):
        code, said, _ = ending(dialog_main, "report", *runs, "--out", str(out))
        assert (code, out.read_bytes()[:15]) == (0, b"<!DOCTYPE html>")
        assert said.startswith("b is better than a: ")
    other = tmp_path / "mine.html"
    other.write_text("<html>mine</html>")
    code, _, err = ending(dialog_main, "report", *runs, "--out", str(other))
    assert (code, other.read_text()) == (2, "<html>mine</html>")
    assert "choose another file" in err
    code, _, err = ending(dialog_main, "report", runs[0], str(tmp_path / "missing"), "--out", str(out))
    assert (code, err.count("\n")) == (4, 1)
    code, said, _ = ending(dialog_main, "report", runs[0], runs[0], "--out", str(out))
    assert (code, said.startswith("a has a perplexity of ")) == (0, True)
    code, _, err = ending(lm_main, "report", *runs, "--out", str(out))
    assert (code, "dialog" in err) == (4, True), "a run of the other program"
    assert ending(dialog_main, "report", "")[0] == 2


# The verdict


# Numbers and commands


@pytest.mark.parametrize(
    "settings", [(), ("optim.betas=[0.8, 0.9]", "head.embedding_size=none", "train.seed=7")]
)
def test_the_command_of_a_training_gives_its_config(settings: tuple[str, ...]) -> None:
    resolved = load_config("smalltalk_softmax", DialogConfig, family="dialog", overrides=settings)
    command = train_command(resolved, Path("runs/a b"), "dialog")
    assert command.startswith("dialog train smalltalk_softmax ")
    assert command.endswith("--run 'runs/a b'")
    assert command.count("--set") == len(settings)


def test_a_config_whose_file_is_gone_is_told_whole(in_tmp: Path) -> None:
    Path("own.toml").write_text('extends = "_smalltalk"\n[train]\nseed = 9\n')
    resolved = load_config("own.toml", DialogConfig, family="dialog")
    assert train_command(resolved, Path("r"), "dialog") == "dialog train own.toml --run r"
    Path("own.toml").unlink()
    assert train_command(resolved, Path("r"), "dialog") == ""


def test_a_chart_of_the_largest_numbers_is_drawn() -> None:
    points = [(1, 1e300), (2, sys.float_info.max)]
    assert line_chart("t", "about", ("x", "y"), [Series("run", points, 0)])


def test_samples_are_spread_over_the_text() -> None:
    assert spread(588, 12)[:2] == [24, 73]
    assert spread(3, 12) == [0, 1, 2]
    assert spread(0, 12) == []


@pytest.mark.parametrize(("low", "high"), [(0, 250), (-0.31, 0.02), (3.1, 3.2), (5, 5)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = linear_ticks(low, high)
    assert 1 <= len(ticks) <= 8
    assert all(low - 1e-6 <= tick <= high + 1e-6 for tick in ticks)


@pytest.mark.parametrize(("low", "high"), [(1e-17, 1), (90, 130), (2, 9000), (43.2, 43.9)])
def test_logarithmic_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 15
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)


# Language models


def lm_run(folder: Path, seed: int, train_seed: int = 1, rate: float = 0.008) -> Path:
    folder.mkdir()
    settings = (f"train.seed={train_seed}", f"optim.lr={rate}")
    config = load_config("ptb_small_mos", LmConfig, family="lm", overrides=settings)
    save_config(config, folder / "config.json")
    nll = 1000 * np.random.default_rng(seed).normal(4 + seed / 10, 0.1, 30)
    value = float(np.exp(nll.mean() / 1000))
    result = {
        **{"head": "mos", "components": 3, "parameters": 5, "checkpoint": "best", "seed": train_seed},
        **{"method": "static", "compat": "none", "tokens": 30000, "nll": nll.mean() / 1000},
        **{"perplexity": value, "vocabulary_sha256": "v", "data": {"sha256": "d", "name": "test"}},
    }  # fmt: skip
    samples = [{"index": 3, "words": ["<b>", "a"], "nll": [1.0 + 2 * seed, 2.0]}]
    keep_record(folder, "test", result, {"nll": nll.tolist(), "tokens": [1000] * 30}, {"samples": samples})
    return folder


def test_language_models_have_passages_and_ranks(tmp_path: Path) -> None:
    runs = [lm_run(tmp_path / name, seed) for seed, name in enumerate("ab")]
    (runs[1] / "analysis").mkdir()
    RankResult(np.array([8.0, 4.0, 1e-20]), (3, 5)).save(runs[1] / "analysis/rank-test.npz")
    (runs[0] / "analysis").mkdir()
    (runs[0] / "analysis/rank-test.npz").write_bytes(b"damaged")
    told, data = report_of(LM, runs, None, 1000)
    shown = text_of(data.decode())
    assert told.headline.startswith("a is better than b")
    assert "<b>▼" in shown, "b loses two nats on it"
    assert "b, test: rank 2" in shown
    assert "damaged files of ranks: a (test)" in shown


def test_dialog_models_have_ranks(tmp_path: Path) -> None:
    run = dialog_run(tmp_path / "a")
    (run / "analysis").mkdir()
    RankResult(np.array([8.0, 4.0, 1e-20]), (3, 5)).save(run / "analysis/rank-test.npz")
    (run / "analysis/rank-talk.npz").write_bytes(b"damaged")
    shown = text_of(page_of(run))
    assert "a, test: rank 2" in shown
    assert "damaged files of ranks: a (talk). Run `dialog analyze rank` again." in shown


def test_runs_of_several_seeds_have_their_tests_and_no_reading_of_single_runs(tmp_path: Path) -> None:
    runs = [
        lm_run(tmp_path / f"{name}{train_seed}", seed + 2 * train_seed, train_seed, rate)
        for seed, (name, rate) in enumerate([("a", 0.008), ("b", 0.004)])
        for train_seed in (1, 2)
    ]
    told, data = report_of(LM, runs, None, 1000)
    shown = text_of(data.decode())
    assert "lowest mean perplexity over seeds" in told.headline
    assert "Over seeds" in shown
    assert "Welch's t-test over seeds and texts" in shown
    assert "95% interval, of the text only; left is better" in shown
    cells = {cell.text for cell in tree_of(data.decode()).iter() if cell.tag.endswith("td")}
    assert "of the text only" in cells
    assert not cells & {"better", "worse", "no clear difference"}


def test_ranks_of_earlier_weights_are_left_out_with_a_note(tmp_path: Path) -> None:
    run = lm_run(tmp_path / "a", 0)
    store = CheckpointStore.of(run)

    def train(step: int) -> None:
        store.commit(step, {"model": {"weight": torch.full((2,), float(step))}}, {}, {})

    def shown() -> str:
        return text_of(report_of(LM, [run], None, 1000)[1].decode())

    def keep(text: str, checkpoint: str, fingerprint: str) -> None:
        values = np.array([8.0, 4.0, 1e-20])
        kept = RankResult(values, (3, 5), checkpoint=checkpoint, fingerprint=fingerprint)
        kept.save(run / f"analysis/rank-{text}.npz")

    train(3)
    (run / "analysis").mkdir()
    keep("test", "best", store.fingerprint("best") or "")
    keep("test.step-3", "step-3", store.fingerprint("step-3") or "")
    page = shown()
    assert len(re.findall(r"a, test(?:\.step-3)?: rank 2", page)) == 2
    assert "Left out" not in page
    train(5)
    page = shown()
    assert len(re.findall(r"a, test(?:\.step-3)?: rank 2", page)) == 1, "step 3 has not changed"
    note = "Left out are ranks whose weights have changed since, or that name no checkpoint"
    assert f"{note}: a (test). Run `lm analyze rank` again." in page
    keep("test", "", "")
    keep("test.step-3", "<b>", "f")
    page = shown()
    assert "rank 2" not in page
    assert f"{note}: a (test), a (test.step-3)." in page


def test_lm_report_is_a_command(tmp_path: Path, ending: Callable[..., Outcome]) -> None:
    out = tmp_path / "r.html"
    code, said, _ = ending(lm_main, "report", str(lm_run(tmp_path / "a", 0)), "--out", str(out))
    assert (code, out.is_file()) == (0, True)
    assert said.startswith("a has a perplexity of ")
    kept = tmp_path / "a" / "evaluation" / "test.json"
    code, _, said = ending(lm_main, "report", str(kept), "--out", str(out))
    assert (code, said) == (3, f"{kept}: an evaluation; name its run, and the evaluation with --name\n")


# In a browser


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_and_prints_it(tmp_path: Path) -> None:
    runs = [dialog_run(tmp_path / name, better=better) for name, better in (("a", 0.0), ("b", 0.2))]
    out = tmp_path / "r.html"
    out.write_bytes(report_of(DIALOG, runs, None, 1000)[1])
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    start = partial(subprocess.run, capture_output=True, check=True, timeout=90)
    start([str(CHROMIUM), *options, f"--print-to-pdf={tmp_path / 'r.pdf'}", out.as_uri()])
    start(
        [str(CHROMIUM), *options, f"--screenshot={tmp_path / 'r.png'}", "--window-size=400,900", out.as_uri()]
    )
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "r.png").stat().st_size > 20_000, "an empty page has 2 kB"
    dom = start([str(CHROMIUM), *options, "--dump-dom", out.as_uri()]).stdout.decode()
    assert "b is better than a" in dom


def test_a_small_change_has_two_digits() -> None:
    assert [percent(value) for value in (0.0, 0.0094, 0.0096, -0.071)] == ["0%", "+0.94%", "+1.0%", "−7.1%"]
