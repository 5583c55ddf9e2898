"""The tables of README.md and docs/, drawn from results/*.json by scripts/docs.py."""

from collections import defaultdict
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

from pages.result_entries import entries_of, head_of
from pages.seed_tables import SeedTests, by_label
from pages.study_tables import study_tables
from pages.table_columns import TABLES
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

BASELINES = ("softmax", "softmax ×4", "MoC ×4, K = 3")  # labels that every model is tested against
START = "bias at the frequencies"  # heading of head.start = "frequencies"
BEYOND_MOS = (  # labels of heads with more than mixed probabilities
    "DOC ×4, 2 + 1 components of two layers",
    "DOC ×4, K = 3",
    "CPR ×4, 20 and 100 likely words, words of the context, pointer",
)
MIXTURES = ("MoC ×4, K = 3", "MoS ×4, K = 3", "MoSS ×4, K = 3", "MoS ×1, K = 3", *BEYOND_MOS)
STARTS = (  # pairs of labels: heads that begin so and the same with the bias at zero, and two that begin so
    *((f"{label}, {START}", label) for label in ("softmax", "softmax ×4", *MIXTURES)),
    (f"softmax, {START}", "softmax ×4"),
    *((f"{label}, {START}", f"softmax, {START}") for label in ("softmax ×4", *MIXTURES)),
    *((f"{label}, {START}", f"softmax ×4, {START}") for label in MIXTURES),
    *((f"MoS ×4, K = 3, {START}", f"{label}, {START}") for label in ("MoC ×4, K = 3", "MoS ×1, K = 3")),
    (f"MoSS ×4, K = 3, {START}", f"MoS ×4, K = 3, {START}"),
    *((f"{label}, {START}", f"MoS ×4, K = 3, {START}") for label in BEYOND_MOS),
)
REMOVED = (  # labels of the leads that this start takes a share of
    ("softmax ×4", "softmax"),
    ("MoC ×4, K = 3", "softmax"),
    ("MoS ×4, K = 3", "softmax"),
)
PAIRS = {  # labels of further tests by file
    "ptb_small": (
        ("MoS ×1, K = 3", "MoS ×4, K = 3"),
        ("MoC ×1, K = 3", "MoC ×4, K = 3"),
        ("MoS ×1, K = 3", "MoC ×1, K = 3"),
        ("MoC, learned factor, K = 3", "MoC ×1, K = 3"),
        ("MoS, learned factor, K = 3", "MoS ×1, K = 3"),
        ("MoS, learned factor, K = 3", "MoS ×4, K = 3"),
        ("MoSS, learned factor, K = 3", "MoSS ×1, K = 3"),
        ("MoSS ×1, K = 3", "MoSS ×4, K = 3"),
        ("MoSS ×1, K = 3", "MoS ×1, K = 3"),
        ("MoSS ×4, K = 3", "MoS ×4, K = 3"),
        ("MoS ×4, K = 1", "MoS ×1, K = 1"),
        ("DOC ×4, 2 + 1 components of two layers", "MoS ×4, K = 3"),
        ("DOC ×4, 2 + 1 components of two layers", "Mixtape ×4, K = 4, gates for 2,000 words"),
        ("Mixtape ×4, K = 4, gates for 2,000 words", "MoS ×4, K = 3"),
        ("MFS ×4, K = 3, four parts, two layers", "MoS ×4, K = 3"),
        ("CPR ×4, likely words only, two layers", "MoS ×4, K = 3"),
        ("Mogrifier, softmax ×4", "Mogrifier, softmax"),
        ("Mogrifier, MoS ×4, K = 3", "Mogrifier, softmax"),
        ("Mogrifier, MoS ×4, K = 3", "Mogrifier, softmax ×4"),
        ("Mogrifier, softmax, rate .004", "softmax, rate .004"),
        ("MoS ×4, K = 3, dropout .1", "softmax ×4, dropout .1"),
        ("DOC ×4, 2 + 1 components of two layers, dropout .1", "MoS ×4, K = 3, dropout .1"),
    ),
    "switchboard_bleu": (
        ("MoS ×1, K = 3", "MoS ×1, K = 1"),
        ("MoS ×4, K = 3", "MoS ×4, K = 1"),
        ("DOC ×4, K = 3", "MoS ×4, K = 3"),
        ("MFS ×4, K = 3, four parts", "MoS ×4, K = 3"),
        ("MoC, learned factor, K = 3", "MoC ×1, K = 3"),
        ("MoS, learned factor, K = 3", "MoS ×1, K = 3"),
        ("MoSS, learned factor, K = 3", "MoSS ×1, K = 3"),
        ("MoSS ×1, K = 3", "MoS ×1, K = 3"),
        ("MoSS ×4, K = 3", "MoS ×4, K = 3"),
        ("MoS ×1, K = 3", "MoC ×1, K = 3"),
        ("CPR ×4, 20 and 100 likely words, words of the context, pointer", "MoS ×4, K = 3"),
        ("CPR ×4, 20 and 100 likely words, words of the context, pointer", "attention, softmax ×4"),
        ("CPR ×4, 20 and 100 likely words, words of the context, pointer", "Mogrifier, softmax ×4"),
        ("attention, softmax ×4", "attention, softmax"),
        ("attention, MoC ×4, K = 3", "attention, softmax"),
        ("attention, MoS ×4, K = 3", "attention, softmax"),
        ("attention, MoS ×4, K = 3", "attention, softmax ×4"),
        ("Mogrifier, softmax ×4", "Mogrifier, softmax"),
        ("Mogrifier, MoS ×4, K = 3", "Mogrifier, softmax"),
        ("Mogrifier, MoS ×4, K = 3", "Mogrifier, softmax ×4"),
        ("Mogrifier, softmax ×4", "softmax ×4"),
        ("Mogrifier, MoS ×4, K = 3", "MoS ×4, K = 3"),
        ("MoS ×4, K = 3, rate .006, dropout .1", "softmax ×4, rate .006, dropout .1"),
    ),
}
SETTINGS = {  # labels of heads, and what each heading adds to them, of a grid of leads by file
    "ptb_small": (
        ("softmax ×4", "MoC ×4, K = 3", "MoS ×4, K = 3", "DOC ×4, 2 + 1 components of two layers"),
        {
            "rate .008, dropout .2": "{}",
            "rate .004": "{}, rate .004",
            "dropout .1": "{}, dropout .1",
            START: "{}, " + START,
        },
    ),
    "switchboard_bleu": (
        ("softmax ×4", "MoC ×4, K = 3", "MoS ×4, K = 3", "MoS ×1, K = 3"),
        {
            "rate .003, dropout .2": "{}",
            "rate .006": "{}, rate .006",
            "dropout .1": "{}, dropout .1",
            "rate .006, dropout .1": "{}, rate .006, dropout .1",
            START: "{}, " + START,
            "Mogrifier": "Mogrifier, {}",
            "attention": "attention, {}",
        },
    ),
}
SHARED = {"ptb_small": ("softmax", "MoS ×4, K = 3")}  # labels of the baseline and of the whole lead
SHORT = {  # tables with these labels only
    "ptb_small, perplexity": (
        *BASELINES,
        "MoS ×1, K = 3",
        "MoS ×4, K = 3",
        "DOC ×4, 2 + 1 components of two layers",
        f"softmax, {START}",
        f"MoS ×4, K = 3, {START}",
    ),
    "switchboard_bleu, short": (
        *BASELINES,
        "MoS ×1, K = 3",
        "MoS ×4, K = 3",
        "CPR ×4, 20 and 100 likely words, words of the context, pointer",
        f"softmax, {START}",
        f"MoS ×4, K = 3, {START}",
    ),
}
LEADS = {  # heading by file
    "ptb_short": "Penn Treebank, 2,000 updates",
    "ptb_small": "12,000",
    "switchboard_short": "Switchboard, 500 updates",
    "switchboard_bleu": "5,000",
}
TRIALS = {  # files by heading of a training of seed 1, by table
    "ptb_trials": {
        "rate .004": "ptb_trials_lr4",
        "rate .008": "ptb_trials",
        "rate .016": "ptb_trials_lr16",
        "rate .008, dropout .1": "ptb_trials_dropout1",
    },
    "ptb_trials, full": {
        "rate .008, dropout .2": "ptb_small",
        "rate .004": "ptb_small_lr4",
        "dropout .1": "ptb_small_dropout1",
    },
    "switchboard_trials": {
        "rate .003": "switchboard_trials",
        "rate .006": "switchboard_trials_lr6",
        "rate .012": "switchboard_trials_lr12",
        "rate .012, dropout .1": "switchboard_trials_lr12_dropout1",
    },
    "switchboard_trials, full": {
        "rate .003, dropout .2": "switchboard_bleu",
        "rate .006": "switchboard_bleu_lr6",
        "dropout .1": "switchboard_bleu_dropout1",
        "dropout .3": "switchboard_bleu_dropout3",
        "rate .006, dropout .1": "switchboard_bleu_lr6_dropout1",
    },
    "ptb_trials, start": {"bias at zero": "ptb_trials", START: "ptb_trials_frequencies"},
    "ptb_small, start": {"bias at zero": "ptb_small", START: "ptb_small_frequencies"},
    "switchboard_bleu, start": {"bias at zero": "switchboard_bleu", START: "switchboard_bleu_frequencies"},
}
LEADING = {  # label and rank by end of the preset's name
    "sigsoftmax": ("sigsoftmax", "full"),
    "plif": ("PLIF", "full"),
    "mos_k1_linear": ("softmax ×4", "E + 2"),
    "mos_k1_scale1": ("MoS ×1, K = 1", "E + 2"),
    "mos_k1": ("MoS ×4, K = 1", "E + 2"),
    "moc_scale1": ("MoC ×1", "E + 2"),
    "moc_learned_scale": ("MoC, learned factor", "E + 2"),
    "moc": ("MoC ×4", "E + 2"),
    "mos_scale1": ("MoS ×1", "full"),
    "mos_learned_scale": ("MoS, learned factor", "full"),
    "mos": ("MoS ×4", "full"),
    "moss_scale1": ("MoSS ×1", "full"),
    "moss_learned_scale": ("MoSS, learned factor", "full"),
    "moss": ("MoSS ×4", "full"),
    "doc": ("DOC ×4", "full"),
    "mixtape": ("Mixtape ×4", "above E + 2"),
    "mfs": ("MFS ×4", "full"),
    "cpr": ("CPR ×4", "above E + 2"),
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
    of_trials = {name: trials(folder, files) for name, files in TRIALS.items()}
    of_trials["ptb_trials, seeds"] = trial_seeds(folder, TRIALS["ptb_trials"])
    return tables | of_trials | {"ptb_small, leads": leads(folder)} | study_tables(folder)


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
    return markdown(["head", "rank of log P", *LEADS.values()], rows)


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
