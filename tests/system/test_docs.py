"""The pages for readers: links and anchors, lengths, and commands."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from lm.config.load import load_config
from lm.config.presets import preset_names
from lm.errors import ConfigError
from lm.heads.config import HeadConfig
from lm.heads.registry import HEADS
from tests.support.scripts import SCRIPTS, run_script

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/*.md"))]
SHORT = 150  # lines


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """The targets of links and pictures."""
    without_code = re.sub(r"`[^`\n]*`", "", prose(page))
    return re.findall(r"\]\(([^)\s]+)\)", without_code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
        elif page.parent == ROOT / "docs" and target.parent != page.parent:
            broken.append(f"{link}: leaves docs/, which the site does not have")
    assert not broken


def test_make_help_names_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    assert set(phony.split()) == set(re.findall(r"^([a-z-]+):.*##", text, flags=re.MULTILINE))


def test_every_page_is_in_the_index_and_in_the_readme() -> None:
    pages = {path.name for path in ROOT.glob("docs/*.md")} - {"index.md"}
    assert pages == {link for link in links(ROOT / "docs/index.md") if link.endswith(".md")}
    linked = {link.partition("#")[0] for link in links(ROOT / "README.md")}
    assert {f"docs/{name}" for name in pages} <= linked


def test_the_first_page_begins_with_a_command_and_both_first_pages_are_short() -> None:
    lines, others = (
        (ROOT / name).read_text("utf-8").splitlines() for name in ("README.md", "CONTRIBUTING.md")
    )
    assert max(len(lines), len(others)) <= SHORT
    assert lines.index("```") + 1 < 15


def test_the_page_of_heads_has_every_kind() -> None:
    kinds = set(get_args(HeadConfig.model_fields["kind"].annotation))
    text = (ROOT / "docs/heads.md").read_text(encoding="utf-8")
    picture = (ROOT / "docs/heads.svg").read_text(encoding="utf-8")
    assert re.findall(r'"bold">(.*?)<', picture) == [row.label for row in HEADS.values()]
    assert picture.count(">Σ") == sum(row.is_mixture for row in HEADS.values())
    for title in ("Formulas", "When to use which"):
        (rows,) = re.findall(rf"^## {title}$(.*?)^## ", text, flags=re.MULTILINE | re.DOTALL)
        first_cells = " ".join(re.findall(r"^\| (`.*?) \|", rows, flags=re.MULTILINE))
        assert kinds <= set(re.findall(r"`(\w+)`", first_cells)), title


def test_generated_parts_are_up_to_date() -> None:
    """Otherwise: python scripts/docs.py."""
    assert run_script(SCRIPTS / "docs.py", "--check") == ""


TIMINGS = {  # files of results whose entries have sizes in the label and command, and no config
    *("exchange", "loss_memory", "scale", "serve", "trunks"),
    *("speed", "speed_epyc", "speed_gpu"),
}


def test_every_table_of_results_is_on_a_page_and_every_file_has_its_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    tried = importlib.import_module("pages.compared").TRIALS
    drawn = {
        name for page in PAGES for name in re.findall(r"docs\.py table (.+?) -->", page.read_text("utf-8"))
    }
    files = {path.stem: json.loads(path.read_text("utf-8")) for path in ROOT.glob("results/*.json")}
    assert set(tried) <= drawn
    own = {name.partition(",")[0] for name in drawn}
    assert own | {file for columns in tried.values() for file in columns.values()} == set(files)
    fields = {"label", "config", "command", "seeds", "machine", "torch", "date", "numbers"}
    optional = {"settings", "config_sha256", "measured", "units"}
    hashed = {file: {"config_sha256" in entry for entry in found["entries"]} for file, found in files.items()}
    assert {file for file, found in hashed.items() if found != {True}} == TIMINGS
    for results in files.values():
        assert results["about"]
        assert all(set(entry) - optional == fields for entry in results["entries"])
        trials = [one for one in results["entries"] if one.get("measured", [""])[0].startswith("valid")]
        assert not [one["label"] for one in trials if "test_perplexity" in one["numbers"]]


def test_the_command_of_a_published_number_has_its_presets_and_settings() -> None:
    presets = {*preset_names("lm"), *preset_names("dialog")}
    trained = 0
    for path in sorted(ROOT.glob("results/*.json")):
        for entry in json.loads(path.read_text("utf-8"))["entries"]:
            command, place = " ".join(shlex.split(entry["command"])), (path.name, entry["label"])
            assert all(setting in command for setting in entry.get("settings", ())), place
            named = presets & set(re.findall(r"\w+", entry["config"] or ""))
            if named and " train " in command:
                assert named == set(re.findall(r" train (\w+)", command)), place
                trained += 1
    assert trained > 50


def trained_configs(command: str, schemas: dict[str, type], hashed: Callable[[Any], str]) -> list[str]:
    """Hashes of the configs that the trainings of a command have with the presets of today."""
    found = {}
    for part in re.split(r";\s*", command.replace("SEED", "1")):
        words = shlex.split(part)
        if "train" in words:
            place = words.index("train")
            family, preset = words[place - 1], words[place + 1]
            sets = [value for key, value in pairwise(words) if key == "--set"]
            resolved = load_config(preset, schemas[family], family=family, overrides=sets)
            found[hashed(resolved.config)] = None
    return list(found)


def test_a_published_number_has_the_hash_of_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a preset has changed since, its number is one of another model: train anew, or set the old keys."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    entries = importlib.import_module("pages.result_entries")
    files = {path.stem: json.loads(path.read_text("utf-8")) for path in ROOT.glob("results/*.json")}
    trained = set()
    for name, results in files.items():
        for entry in results["entries"]:
            hashes = trained_configs(entry["command"], entries.SCHEMAS, entries.config_sha256)
            if hashes:
                assert entry["config_sha256"].split(", ") == hashes, (name, entry["label"])
                trained.update(hashes)
    for name in ("comparisons", "decoding", "recovery"):
        for entry in files[name]["entries"]:
            assert trained.issuperset(entry["config_sha256"].split(", ")), (name, entry["label"])
    assert len(trained) > 100


def test_a_study_has_the_hash_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    hashed = importlib.import_module("study_results").settings_sha256
    for name in ("backward", "bottleneck", "bottleneck_26", "reverse_copy", "spam"):
        for entry in json.loads((ROOT / f"results/{name}.json").read_text("utf-8"))["entries"]:
            assert entry["config_sha256"] == hashed(entry["numbers"]["settings"]), (name, entry["label"])


def p_values(text: str) -> list[str]:
    """Every number of the lists after "p =", which end with their parenthesis, table cell or sentence."""
    lists = re.findall(r"\bp\s=\s(\.\d.*?)(?=[()|]|\.\*\*|\.\s|\bp\s=|\Z)", text, flags=re.DOTALL)
    return [p for one in lists for p in re.findall(r"(?<!\d)\.\d+(?!\d*\s*(?:%|nats))", one)]


def test_lists_of_p_values_are_read_to_their_end() -> None:
    assert p_values("(p = .02, .3 and .5), a third .7 (p =\n.9; .11 with seed 2)") == [
        ".02",
        ".3",
        ".5",
        ".9",
        ".11",
    ]
    assert p_values("p = .0002. It gains .4 and p = .03 at .5 nats or .6 %") == [".0002", ".03"]


@pytest.fixture(scope="module")
def tested() -> dict[str, str]:
    """The tables of tests over seeds, by file and kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        tables = importlib.import_module("pages.page_tables")
        drawn = tables.page_tables(ROOT / "results")
    kinds = ("tests", "spreads", "pairs", "starts")
    return {name: drawn[name] for name in (f"{file}, {kind}" for file in tables.PAIRS for kind in kinds)}


def test_every_p_value_of_the_pages_is_in_a_file_of_results(tested: dict[str, str]) -> None:
    files = [json.loads(path.read_text("utf-8")) for path in ROOT.glob("results/comparisons*.json")]
    numbers = [number for file in files for entry in file["entries"] for number in entry["numbers"].values()]
    measured = [p for number in numbers for p in (number if isinstance(number, list) else [number])]
    measured += [float(p) for test in tested.values() for p in p_values(test)]
    cited = [p for page in PAGES for p in p_values(page.read_text("utf-8"))]
    assert len(cited) > 50
    assert not {p for p in cited if float(p) not in (round(one, len(p) - 1) for one in measured)}


def claimed_differences(text: str) -> list[tuple[str, str]]:
    """Differences of three decimals, each with the p-value of the parenthesis after it in its sentence."""
    lists = re.findall(
        r"((?:\.\d{3}(?:,? and |, )?)+)(?!\d)[^.()|]*\(([^()]*?\bp\s[=<]\s[^()]*)\)", " ".join(text.split())
    )
    found: list[tuple[str, str]] = []
    for differences, tests in lists:
        nats, (sign, *_) = re.findall(r"\.\d{3}", differences), re.findall(r"p ([=<])", tests)
        values = [f"p {sign} {p}" for p in re.findall(r"(?<!\d)\.\d+", tests[tests.index("p ") :])]
        found += zip(nats, values if len(values) > 1 else values * len(nats), strict=True)
    return found


def test_differences_are_read_with_their_p_values() -> None:
    assert claimed_differences("It is .02 and\n.044 ahead, and .031 of MoC (x, p =\n.02; two seeds)") == [
        (".031", "p = .02")
    ]
    assert claimed_differences(
        "| -.1 | .011, .012 and .013 (p < .001 each), .2 and .015, .016** (p = .3, .04)"
    ) == [
        *((f".01{n}", "p < .001") for n in (1, 2, 3)),
        (".015", "p = .3"),
        (".016", "p = .04"),
    ]


def test_every_difference_with_a_p_value_is_a_row_of_a_table(tested: dict[str, str]) -> None:
    """A p-value alone may be that of another row."""
    text = "".join(table for name, table in tested.items() if not name.endswith("spreads"))
    measured = set(re.findall(r"0(\.\d{3}) ± [\d.]+, (p [=<] \.\d+)", text))
    typed = [
        re.sub(r"<!-- scripts/.*?<!-- end -->", "", page.read_text("utf-8"), flags=re.DOTALL)
        for page in PAGES
    ]
    claimed = [claim for page in typed for claim in claimed_differences(page)]
    assert len(claimed) > 50
    assert measured.issuperset(claimed), set(claimed) - measured


def tables(text: str) -> list[list[str]]:
    """Cells of each table of a page, without its heads and its first column."""
    found = re.findall(r"(?:^\|.*\n){3,}", text, flags=re.MULTILINE)
    return [
        [cell.strip() for row in table.splitlines()[2:] for cell in row.strip("|").split("|")[1:]]
        for table in found
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_of_measured_numbers_is_typed(page: Path) -> None:
    """Generated ones stand between markers. Those of the papers have numbers that others have measured."""
    typed = re.sub(r"<!-- scripts/.*?(<!-- end -->|\Z)", "", page.read_text("utf-8"), flags=re.DOTALL)
    for cells in tables(typed) if page.name != "paper_tables.md" else ():
        numbers = [cell for cell in cells if re.fullmatch(r"[\d.,%×–−± ]+", cell)]
        assert 2 * len(numbers) < len(cells), cells


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """With the extra ``docs``, as ``make docs`` does it."""
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", ROOT / "docs", tmp_path / "site"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert (tmp_path / "site/tutorial.html").is_file()


def test_a_part_without_an_end_is_refused_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    docs = importlib.import_module("docs")
    page = "<!-- scripts/docs.py a -->\nprose\n<!-- scripts/docs.py b -->\nold\n<!-- end -->\n"
    with pytest.raises(ConfigError, match="a part lacks its <!-- end -->"):
        docs.drawn(page, {"a": lambda: "new", "b": lambda: "new"}, "page.md")
