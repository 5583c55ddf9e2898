"""The page of a report: its sections from the files of runs, and its HTML.

The page needs no network and runs no script. It names no time and no machine, so equal runs give equal bytes.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm import __version__
from lm.config.difference import Flat, changed_keys, flat_config
from lm.config.load import Resolved
from lm.config.write import config_text
from lm.console.options import RESAMPLES
from lm.console.output import versions
from lm.console.shared_tables import pool_tables
from lm.console.tables import Column, Table, without_common_folder
from lm.console.terminal import sanitize
from lm.disk.jsonfile import read_json
from lm.errors import ConfigError, StorageError, visible
from lm.numbers import NOTHING, number, shown
from lm.report.charts import Series, colour_of, interval_chart, line_chart, percent, shown_best
from lm.report.page_parts import (
    Code,
    Component,
    Components,
    Names,
    PagePart,
    PageSection,
    PageTable,
    Paragraph,
    ReportFamily,
)
from lm.report.ranks import rank_sections
from lm.report.train_command import train_command
from lm.report.verdict import MAIN, Judgement, judgement, reading
from lm.runs.check import changed_log
from lm.runs.compare import ComparedRun, ComparedRuns
from lm.runs.evaluations import Evaluation, load_evaluation
from lm.runs.inputs import DATA, config_of
from lm.runs.overview import learning_curve

Configs = Mapping[str, Resolved[Any]]
_MANY = 3  # from more runs, only curves of the validation are drawn
_UNSAID = {"about", "extends"}  # keys that change no number


def report_of(
    family: ReportFamily, runs: Sequence[Path], name: str | None, resamples: int
) -> tuple[Judgement, bytes]:
    """Judgement and HTML page of evaluated runs; the first is the baseline.

    Raises as the family's ``compare`` does, and StorageError for a damaged run.
    """
    runs = [*dict.fromkeys(runs)]
    configs = {str(run): config_of(run, family.schema) for run in runs}
    comparison = family.compare(runs, name, resamples)
    names = _names(runs)
    found = zip(runs, comparison.runs, strict=True)
    evaluations = [load_evaluation(run, row.evaluation, (), (), family.program) for run, row in found]
    flats = {run: flat_config(resolved.config) for run, resolved in configs.items()}
    verdict = _verdict(family, runs, comparison, names, resamples)
    remarks = family.remarks(evaluations, names)
    sections = [
        PageSection("scores", "Scores", _scores(family, comparison, names)),
        PageSection("curves", "Learning curves", _curves(runs, names)),
        *rank_sections(runs, names, family.program),
        PageSection("components", "Components", _components(evaluations, names)),
        PageSection("settings", "Settings that differ", _settings(flats, names)),
        PageSection("samples", "Samples", family.samples(evaluations, names)),
        PageSection(
            "again", "Make each number again", _again(family, evaluations, configs, comparison, runs)
        ),
    ]
    title = f"{', '.join(names.values())} on {comparison.data.get('name', comparison.name)}"
    page = {
        "title": _plain(title),
        "program": family.program,
        "version": __version__,
        "verdict": Judgement(verdict.headline, [*verdict.sentences, *remarks], verdict.clear),
        "lead": _lead(comparison, names),
        "sections": [section for section in sections if section.parts],
    }
    return verdict, _rendered(page)


def _plain(text: str) -> str:
    return visible(sanitize(text))


def _names(runs: Sequence[Path]) -> dict[str, str]:
    """Shown names of runs, by their paths: without common folders, and without any for a single run."""
    paths = [str(run) for run in runs]
    _, short = without_common_folder(paths)
    shortened = short if len(paths) > 1 else [runs[0].resolve().name]
    return {path: visible(name) for path, name in zip(paths, shortened, strict=True)}


def _verdict(
    family: ReportFamily, runs: Sequence[Path], comparison: ComparedRuns, names: Names, resamples: int
) -> Judgement:
    """Judgement of a comparison against the best run."""
    means = {run: pool.scores[MAIN].mean for pool in comparison.pools or () for run in pool.runs}
    order = sorted(
        range(len(runs)),
        key=lambda index: (means.get(comparison.runs[index].run, 0), comparison.runs[index].perplexity),
    )
    if order[0] != 0:
        ordered = [runs[index] for index in order]
        comparison = family.compare(ordered, comparison.name, resamples)
    return judgement(comparison, names, family.units)


def _lead(comparison: ComparedRuns, names: Names) -> PagePart | None:
    """Chart of the changes in perplexity against the first run; None without tested runs."""
    first, *others = comparison.runs
    rows = [
        (names[row.run], colour_of(index), change)
        for index, row in enumerate(others, start=1)
        if (change := row.change.get(MAIN))
    ]
    if not rows:
        return None
    noise = ", of the text only" if comparison.pools else ""
    title = f"Change in perplexity against {names[first.run]}, with its 95% interval{noise}; left is better"
    listed = "; ".join(
        f"{name}: {percent(change)} ({percent(low)} to {percent(high)})"
        for name, _, (change, low, high) in rows
    )
    return interval_chart(title, listed, rows)


def _scores(family: ReportFamily, comparison: ComparedRuns, names: Names) -> list[PagePart]:
    """A table of changes for every run but the first, all measures, and the remarks of ``compare``."""
    scores, tables = family.scores(comparison), family.tables(comparison)
    first, *others = comparison.runs
    pools = [part for part in pool_tables(comparison, scores) if isinstance(part, Table)]
    grids: list[PagePart] = [PageTable.of(table) for table in pools]
    grids += [_changes(first, row, scores, names, pooled=bool(pools)) for row in others]
    if others and len(scores) > 1:
        grids.append(Paragraph("The p-values are not corrected for the number of scores."))
    overview = next(table for table in tables if isinstance(table, Table))
    shown_above = set(scores) if others else set()
    rows = [{key: row[key] for key in row if key not in shown_above} for row in overview.rows]
    notes = [Paragraph(_plain(part)) for part in tables if isinstance(part, str)]
    return [*grids, PageTable.of(Table(overview.title, rows), turn=True), *notes]


def _changes(
    first: ComparedRun, row: ComparedRun, scores: Mapping[str, str], names: Names, *, pooled: bool
) -> PageTable:
    """Each score of two runs, the change with its interval, and the p-value.

    A test of the text alone judges no run beside others of several seeds, which are ``pooled``.
    """
    base, other = names[first.run], names[row.run]
    cells: dict[str, list[str]] = {
        head: [] for head in ("score", base, other, "change", "95% interval", "p", "reading")
    }
    for label, key in scores.items():
        change, p = row.change.get(key), row.p.get(key)
        is_perplexity = not key.startswith("bleu")
        values = [shown(label, one.score(key)) for one in (first, row)]
        by, low, high = (_change(label, x, is_perplexity) for x in change) if change else [NOTHING] * 3
        if not change:
            sign = "not tested"
        elif pooled:
            sign = "of the text only"
        else:
            sign = reading(p, change[0], lower_is_better=is_perplexity)
        interval = f"{low} to {high}" if change else NOTHING
        line = [label, *values, by, interval, shown("p", p), sign]
        for column, cell in zip(cells.values(), line, strict=True):
            column.append(cell)
    heading = f"{other} against {base}"
    return PageTable(heading, [Column(head, column, head in (base, other)) for head, column in cells.items()])


def _change(label: str, value: float, is_perplexity: bool) -> str:
    if is_perplexity:
        return percent(value)
    return f"{'+' if value > 0 else ''}{number(label, value)}".replace("-", "−")


def _curves(runs: Sequence[Path], names: Names) -> list[PagePart]:
    """Chart of validation and, for few runs, training; the validations as a table; changed logs.

    The training of a run without a validation is always drawn, in the place of the validation.
    """
    series, training = [], []
    for index, run in enumerate(runs):
        name, colour, valid = names[str(run)], colour_of(index), learning_curve(run)
        best = min(valid, key=lambda point: (point[1], point[0]), default=None)
        series.append(Series(name, valid, colour, best))
        if len(runs) <= _MANY or not valid:
            points = learning_curve(run, "train")
            training.append(Series(f"{name}, training", points, colour, None, faint=bool(valid)))
    steps = sorted({step for one in series for step, _ in one.points})
    about = [f"{shown_best(series, 'update')}. The ring marks the best validation."] if steps else []
    if any(one.faint and one.points for one in training):
        about.append("Thin lines are perplexities of the training.")
    title = "Validation perplexity by update" if steps else "Training perplexity by update"
    chart = line_chart(title, " ".join(about), ("update", "perplexity"), [*training, *series])
    changed = [Paragraph(problem) for problem in map(changed_log, runs) if problem]
    if not steps:
        return [*changed, chart or Paragraph("No run has a log of its training.")]
    columns = [Column("update", [f"{step:,}" for step in steps], right=True)]
    for one in series:
        values = dict(one.points)
        columns.append(Column(one.name, [shown("ppl", values.get(step)) for step in steps], right=True))
    return [*changed, *filter(None, [chart]), PageTable("Validation perplexity", columns, folded=True)]


def _components(evaluations: Sequence[Evaluation], names: Names) -> list[PagePart]:
    """Use of the components of every mixture."""
    found: list[PagePart] = []
    for index, evaluation in enumerate(evaluations):
        use = evaluation.details.get("components")
        if not isinstance(use, dict):
            continue
        shares: list[float] = use["usage"]
        preferred = use.get("preferred") or [[] for _ in shares]
        rows = [
            Component(
                place + 1,
                f"{shares[place]:.1%}",
                f"{100 * shares[place]:.1f}",
                " · ".join(_plain(word["word"]) for word in preferred[place]) or "mixes contexts, not words",
            )
            for place in sorted(range(len(shares)), key=lambda place: (-shares[place], place))
        ]
        about = (
            f"{use['head']}: a token mixes {use['prior_perplexity']:.2f} of {use['components']} components,"
            f" and {use['effective_components']:.2f} are in use over the {use['tokens']:,} tokens read"
        )
        if "mutual_information" in use:
            about += f"; component and word share {use['mutual_information']:.3f} nats"
        found.append(Components(names[evaluation.run], colour_of(index), f"{about}.", rows))
    return found


def _settings(flats: Mapping[str, Flat], names: Names) -> list[PagePart]:
    """Keys whose values differ between the runs."""
    first, *others = flats.values()
    keys = sorted({key for other in others for key in changed_keys(first, other)} - _UNSAID)
    if not keys:
        return [Paragraph("The runs have equal settings.")] if others else []
    columns = [Column("key", keys, right=False)]
    for run, values in flats.items():
        columns.append(Column(names[run], [_plain(str(values.get(key))) for key in keys], right=False))
    return [PageTable("Settings", columns)]


def _again(
    family: ReportFamily,
    evaluations: Sequence[Evaluation],
    configs: Configs,
    comparison: ComparedRuns,
    runs: Sequence[Path],
) -> list[PagePart]:
    """Commands, configs and hashes."""
    lines, files = list[str](), list[Code]()
    for run, evaluation in zip(runs, evaluations, strict=True):
        resolved = configs[str(run)]
        train = train_command(resolved, run, family.program)
        if not train:
            own = shlex.quote(f"{run.name}.toml")
            train = f"{family.program} train {own} --run {shlex.quote(str(run))}  # {own}: the config below"
        evaluate = evaluation.details.get("command", "# not recorded")
        lines += [train, str(evaluate)]
        try:
            text = config_text(resolved.config)
        except ConfigError as error:  # an older run of a file in another encoding
            text = f"# {error}"
        files.append(Code(f"Config of {visible(run)}", text, folded=True))
    boot, chosen = comparison.bootstrap, ["--name", comparison.name]
    if boot.resamples != RESAMPLES:
        chosen += ["--resamples", str(boot.resamples)]
    lines.append(shlex.join([family.program, "compare", *map(str, runs), *chosen]))
    hashes = [_hashes(run, evaluation) for run, evaluation in zip(runs, evaluations, strict=True)]
    installed = ", ".join(f"{name} {version}" for name, version in versions().items())
    about = f"{boot.resamples:,} resamples, seed {boot.seed}. Installed: {installed}."
    return [
        Code("Commands", "\n".join(map(_plain, lines))),
        PageTable.of(Table("SHA-256", hashes), turn=True),
        Paragraph(about),
        *files,
    ]


def _hashes(run: Path, evaluation: Evaluation) -> dict[str, object]:
    """Hashes of weights, vocabulary and data of a run."""
    result = evaluation.result
    row: dict[str, object] = {
        "run": str(run),
        "checkpoint": result["checkpoint"],
        "weights": result.get("weights"),
        "vocabulary": result["vocabulary_sha256"],
        "test text": result["data"]["sha256"],
    }
    try:
        inputs = read_json(run / DATA)
    except StorageError:
        inputs = {}
    for split in ("train", "valid"):
        row[f"{split} text"] = inputs.get(f"{split}_sha256") if isinstance(inputs, Mapping) else None
    return row


def _rendered(page: Mapping[str, Any]) -> bytes:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(page).encode()
