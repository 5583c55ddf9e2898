"""Choice of the evaluations that a comparison pairs, of each run that of the same text.

Of two texts with one name, a run keeps the evaluation of the later one under a name with six digits of a
hash (:func:`lm.runs.evaluations.keep`). The later one may be another text in every run. So such evaluations
have a *label*, their name with this hash in any case.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from lm.config.suggest import did_you_mean
from lm.errors import ConfigError, DataError, visible
from lm.runs.evaluations import HASH_DIGITS, evaluation_file, evaluation_names, kept_inputs, unhashed


def paired(runs: Sequence[Path], name: str | None, program: str, options: str) -> tuple[str, list[str]]:
    """Name of the evaluation that all runs have, and its file name in each run.

    ``name`` chooses among several: the name of a file in the first run, or a label. Without it, the
    evaluation of a whole text is chosen before those of its parts and with other options, as ``test`` before
    ``test.first-100``. The runs may lack a ``name``, or have other texts under it. ``options`` are those of
    ``evaluate`` that determine the name, for the error message.

    Raises:
        ConfigError: several evaluations in common without a ``name``.
        DataError: no evaluation in common, or a ``name`` of other texts than those in common.
        StorageError: not a run.
    """
    kept = [evaluation_names(run) for run in runs]
    hashed = {unhashed(file) for files in kept for file in files if unhashed(file) != file}
    shelves = [
        {_label(run, file, hashed): file for file in files} for run, files in zip(runs, kept, strict=True)
    ]
    common = [label for label in shelves[0] if all(label in shelf for shelf in shelves)]
    if name is not None:
        _require_right(name, runs[0], shelves[0], common)
        common = [label for label in common if name in (label, shelves[0][label])]
    if not common:
        found = name or _common_name(runs, kept, program, options)
        return found, [found] * len(runs)
    if name is None:
        common = _plain(common) or common
    if len(common) > 1:
        names = ", ".join(_choice(runs[0], shelves[0][label], label) for label in common)
        raise ConfigError(f"the runs have several evaluations in common; choose one with --name: {names}")
    files = [shelf[common[0]] for shelf in shelves]
    return (files[0] if len(set(files)) == 1 else common[0]), files


def _plain(labels: Sequence[str]) -> list[str]:
    """The label that all others extend by options, as a list; [] if there is none."""
    return [one for one in labels if all(f"{other}.".startswith(f"{one}.") for other in labels)]


def _label(run: Path, file: str, hashed: Collection[str]) -> str:
    """The label of an evaluation whose name without a hash is in ``hashed``, and the name of another one."""
    name = unhashed(file)
    found = kept_inputs(evaluation_file(run, file)) if name in hashed else None
    return f"{name}.{found[0][:HASH_DIGITS]}" if found else file


def _choice(run: Path, file: str, label: str) -> str:
    """A label for a choice, with the source of its text if the name without the hash does not say it."""
    found = kept_inputs(evaluation_file(run, file)) if label != unhashed(label) else None
    return f"{label} ({visible(found[1])})" if found else label


def _require_right(name: str, run: Path, shelf: Mapping[str, str], common: Sequence[str]) -> None:
    """Raise DataError for a name that only resembles that of an evaluation in ``common``.

    ``shelf`` has the files of the first ``run`` by label.
    """
    if any(name in (label, shelf[label]) for label in common):
        return
    if same := [_choice(run, shelf[label], label) for label in common if unhashed(label) == name]:
        others = ", ".join(same)
        raise DataError(f"--name {name}: is another text in some runs; choose one that all have: {others}")
    if name not in shelf.values() and (hint := did_you_mean(name, common)):
        raise DataError(f"--name {name}: no evaluation of the runs{hint}")


def _common_name(runs: Sequence[Path], kept: Sequence[Sequence[str]], program: str, options: str) -> str:
    """The first name that all runs have, for texts that differ or cannot be read. DataError for none."""
    common = sorted(set.intersection(*map(set, kept)))
    if common:
        return common[0]
    if len(runs) == 1:
        raise DataError(f"{runs[0]}: not evaluated yet; run `{program} evaluate` on it")
    names = "; ".join(f"{run}: {', '.join(files) or 'none'}" for run, files in zip(runs, kept, strict=True))
    raise DataError(
        f"no evaluation in common ({names}); run `{program} evaluate` on each run "
        f"with the same options ({options})"
    )
