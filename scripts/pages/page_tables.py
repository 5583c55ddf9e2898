"""The tables of README.md and docs/, drawn from results/*.json by scripts/docs.py."""

from collections import defaultdict
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

from pages.compared import (
    BASELINES,
    LEADING,
    LEADS,
    PAIRS,
    REMOVED,
    SETTINGS,
    SHARED,
    SHORT,
    START,
    STARTS,
    TRIALS,
)
from pages.result_entries import entries_of, head_of
from pages.seed_tables import SeedTests, by_label
from pages.study_tables import study_tables
from pages.table_columns import SPREAD, TABLES
from pages.table_forms import Column, markdown, mean_of


def settings(entry: Mapping[str, Any]) -> str:
    """What was set besides the preset of an entry."""
    return ", ".join(f"`{name}`" for name in entry.get("settings", ())) or "none"


def presets(entry: Mapping[str, Any]) -> str:
    """The preset of an entry, and what was set."""
    return ", ".join(f"`{name}`" for name in (entry["config"], *entry.get("settings", ())) if name) or "none"


def seeds(entry: Mapping[str, Any]) -> str:
    """The seeds of an entry."""
    return ", ".join(map(str, entry["seeds"]))


# heading of the labels: heading and text of a second column
SECOND = {
    "model": ("preset", presets),
    "class": ("preset", presets),
    "variation": ("`--set`", settings),
    "try": ("`--set`", settings),
    "models": ("seeds", seeds),
}


def page_tables(folder: Path) -> dict[str, str]:
    """Every table of the pages in Markdown, by its name; StorageError where a file cannot be read."""
    tables = {
        name: table(
            rows(name, [*entries_of(folder, file), *(trial_entries(folder, file) if name in SHORT else ())]),
            heading,
            columns,
        )
        for name, (file, heading, columns) in TABLES.items()
    }
    for file, pairs in PAIRS.items():
        entries = entries_of(folder, file)
        tests = SeedTests(entries)
        tables[f"{file}, tests"] = tests.leads(BASELINES)
        tables[f"{file}, spreads"] = tests.spreads()
        tried = SeedTests([*entries, *trial_entries(folder, file)])
        tables[f"{file}, pairs"] = tried.pairs(pairs)
        tables[f"{file}, starts"] = tried.pairs(STARTS)
        tables[f"{file}, removed"] = tried.removed(REMOVED, START)
        tables[f"{file}, settings"] = tried.grid(BASELINES[0], *SETTINGS[file])
        if file in SHARED:
            tables[f"{file}, shares"] = tests.shares(*SHARED[file])
    spread = over_training(entries_of(folder, "ptb_gradient"), SPREAD)
    of_trials = {name: trials(folder, files) for name, files in TRIALS.items()}
    of_trials["ptb_trials, seeds"] = trial_seeds(folder, TRIALS["ptb_trials"])
    others = {"ptb_small, leads": leads(folder), "ptb_gradient, over training": spread}
    return tables | of_trials | others | study_tables(folder)


def over_training(entries: list[Any], columns: tuple[Column, ...]) -> str:
    """Numbers of the stored checkpoints by update."""
    series = {entry["label"]: entry["numbers"]["over_training"] for entry in entries}
    first, *later = dict.fromkeys(update for own in series.values() for update in own)
    heads = ["head"]
    for title, _, _ in columns:
        heads += [f"{title}, update {first}", *(f"{int(update):,}" for update in later)]
    rows = [
        [label, *(form(own[update][key]) for _, key, form in columns for update in (first, *later))]
        for label, own in series.items()
    ]
    return markdown(heads, rows)


def trial_entries(folder: Path, file: str) -> list[Any]:
    """Entries of the trials of a file, with the heading of the trial after the label."""
    return [
        entry | {"label": f"{entry['label']}, {heading}"}
        for files in TRIALS.values()
        if file in files.values()
        for heading, trial in files.items()
        if trial != file
        for entry in entries_of(folder, trial)
    ]


def rows(name: str, entries: list[Any]) -> list[Any]:
    """The entries of a table, one a model; a short table may have some of the trials, too."""
    return [entry for entry in by_label(entries) if name not in SHORT or entry["label"] in SHORT[name]]


def leads(folder: Path) -> str:
    """Lead of each head over softmax, in per cent of the mean test perplexity over its seeds, by files.

    Heads that no file has, and learned factors, are left out.
    """
    found = [perplexities(entries_of(folder, file)) for file in LEADS]
    rows = [
        [label, rank, *(lead(own.get(name), own["softmax"]) for own in found)]
        for name, (label, rank) in LEADING.items()
        if any(name in own for own in found) and not name.endswith("_learned_scale")
    ]
    return markdown(["head", "bound on the rank of log P", *LEADS.values()], rows)


def lead(own: Mapping[int, float] | None, softmax: Mapping[int, float]) -> str:
    """Lead over softmax in per cent, of means over the seeds that each has."""
    if own is None:
        return "not run"
    ours, theirs = (mean_of("perplexity", [*one.values()]) for one in (own, softmax))
    return f"{100 * (1 - ours / theirs):.1f} %"


def trials(folder: Path, files: Mapping[str, str]) -> str:
    """Perplexities of seed 1 by head and setting, of heads with more than one setting.

    The best setting of a head by validation is bold. The last column has the nats by which it is ahead of
    the best one of softmax, on validation.
    """
    found = [by_head(entries_of(folder, file)) for file in files.values()]
    labels = dict.fromkeys(label for own in found for label in own)
    tried = {label: [own.get(label, ()) for own in found] for label in labels}
    best = {label: min(own[0] for own in scores if own) for label, scores in tried.items()}
    rows = [
        [
            label,
            *(setting_cell(own, bold=own[:1] == (best[label],)) for own in scores),
            f"{log(best[BASELINES[0]] / best[label]):.3f}",
        ]
        for label, scores in tried.items()
        if sum(map(bool, scores)) > 1
    ]
    return markdown(["head", *files, "nats on validation, best against best"], rows)


def trial_seeds(folder: Path, files: Mapping[str, str]) -> str:
    """Validation perplexities by head and setting, of heads that have several seeds, in their order."""
    found = []
    for file in files.values():
        own = defaultdict[str, list[float]](list)
        for entry in sorted(entries_of(folder, file), key=lambda one: one["seeds"]):
            own[entry["label"]].append(entry["numbers"]["valid_perplexity"])
        found.append(own)
    labels = [label for label in found[0] if any(len(own[label]) > 1 for own in found)]
    cells = [[", ".join(f"{value:.1f}" for value in own[label]) for own in found] for label in labels]
    return markdown(["head", *files], [[label, *row] for label, row in zip(labels, cells, strict=True)])


def setting_cell(perplexities: tuple[float, ...], *, bold: bool) -> str:
    """Validation and test perplexity of a setting, or the first alone."""
    shown = ", ".join(f"{value:.2f}" for value in perplexities) or "not run"
    return f"**{shown}**" if bold else shown


def by_head(entries: list[Any]) -> dict[str, tuple[float, ...]]:
    """Validation and test perplexity of seed 1 by label; the first alone where the test split is unread."""
    return {
        entry["label"]: tuple(
            entry["numbers"][key]
            for key in ("valid_perplexity", "test_perplexity")
            if key in entry["numbers"]
        )
        for entry in entries
        if entry["seeds"] == [1]
    }


def perplexities(entries: list[Any]) -> dict[str, dict[int, float]]:
    """Test perplexity of each seed by end of the preset's name, of entries without other settings."""
    found = defaultdict[str, dict[int, float]](dict)
    for entry in entries:
        if not entry.get("settings"):
            values = entry["numbers"]["test_perplexity"]
            values = values if isinstance(values, list) else [values]
            found[head_of(entry)] |= zip(entry["seeds"], values, strict=True)
    return found


def table(entries: list[Any], heading: str, columns: tuple[Column, ...]) -> str:
    """One row an entry that has one of the columns; headings of SECOND add a column on its config."""
    second = [SECOND[heading]] if heading in SECOND else []
    heads = [heading, *(title for title, _ in second), *(title for title, _, _ in columns)]
    lines = []
    for entry in entries:
        numbers = [(entry["numbers"].get(key), form) for _, key, form in columns]
        cells = ["none" if number is None else form(number) for number, form in numbers]
        if any(key in entry["numbers"] for _, key, _ in columns):
            lines.append([entry["label"], *(text(entry) for _, text in second), *cells])
    return markdown(heads, lines)
