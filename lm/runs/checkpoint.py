"""The checkpoints of a run, committed so that a crash at any moment leaves the old or the new one.

A commit takes three steps. Files are written under a temporary name and synced, the manifest last. The folder
is synced, renamed, and its parent synced. Old commits are deleted. The newest commit says which steps are
best. The module does not import torch.
"""

import hashlib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from lm.disk.jsonfile import JSON
from lm.disk.storage import (
    make_folder,
    move,
    publish_folder,
    remove_tree,
    require_space,
    sha256_file,
    storage_errors,
    sync,
)
from lm.errors import ConfigError, StorageError, require
from lm.runs.commit import (
    MANIFEST,
    STEP_FOLDER,
    Commit,
    CommitReport,
    average_tensors,
    is_intact,
    weights_of,
    write_commit,
)
from lm.stop import deferred_signals

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CHECKPOINTS", "CheckpointStore", "Commit", "CommitReport"]

T = TypeVar("T")
CHECKPOINTS = "checkpoints"  # their folder in a run
AVERAGE = "average-best"  # the mean of the k best
_REPETITIONS = 10  # of a reading that fails while commits change
_SLACK = 1 << 20  # bytes of a commit besides its tensors


class CheckpointStore:
    """The commits in ``folder``. Reading changes nothing; one process at a time may write.

    ``problems`` has one line for each damaged commit that the last ``latest()`` skipped.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    @classmethod
    def of(cls, run: Path) -> Self:
        """The store of a run's folder."""
        return cls(run / CHECKPOINTS)

    def commit(
        self,
        step: int,
        groups: Mapping[str, Mapping[str, "Tensor"]],
        state: Mapping[str, JSON],
        facts: Mapping[str, JSON],
    ) -> Commit:
        """Write a commit durably; an identical existing commit is kept.

        Tensors may be on any device, strided or shared; empty groups are omitted. Raises StorageError, which
        leaves older commits unchanged and no other files, and ValueError for NaN or ±inf in ``state`` or
        ``facts``.
        """
        self._require_folder()
        final = self._path(step)
        tmp = final.with_name(f"{final.name}.tmp")
        tensors = [tensor for group in groups.values() for tensor in group.values()]
        require_space(self.folder, _SLACK + sum(tensor.nbytes for tensor in tensors))
        with deferred_signals():
            try:
                remove_tree(tmp)
                make_folder(tmp)
                state_sha256 = write_commit(tmp, step, groups, state, facts)
                if self._holds(final, state_sha256):
                    remove_tree(tmp)
                else:
                    self._publish(tmp, final)
            except (Exception, KeyboardInterrupt):
                with suppress(StorageError):
                    remove_tree(tmp)
                raise
        return Commit.read(final, tensors=False)

    def latest(self) -> Commit | None:
        """The newest intact commit, or None if there is no commit.

        Damaged newer commits are skipped and listed in ``problems``. Raises StorageError if commits exist but
        none is intact. The disk may be unreadable only temporarily, and a run that started over would delete
        them.
        """
        self.problems = []
        for _, path in self._folders():
            try:
                return Commit.read(path)
            except StorageError as error:
                self.problems.append(str(error))
        if self.problems:
            raise StorageError(
                f"no checkpoint is intact ({self.problems[0]}); restore one from a copy, or remove "
                f"{self.folder} to start over"
            )
        return None

    @property
    def begun(self) -> bool:
        """True if there is a commit, intact or not."""
        return self.newest_folder() is not None

    def committed(self) -> list[int]:
        """Steps of all commits, intact or not, oldest first."""
        return [step for step, _ in reversed(self._folders())]

    def newest_folder(self) -> Path | None:
        """The folder of the newest commit, intact or not; None without one."""
        return next((path for _, path in self._folders()), None)

    def newest(self) -> Commit | None:
        """The newest commit with intact manifest and state; tensors are not verified. None without one."""
        for _, path in self._folders():
            with suppress(StorageError):
                return Commit.read(path, tensors=False)
        return None

    def open(self, which: str) -> Commit:
        """Verify and return ``last``, ``best`` or ``step-N``.

        Raises StorageError if it is missing or damaged, ConfigError for another name.
        """
        require(which != AVERAGE, f"--checkpoint {AVERAGE}: a mean of several; choose last, best or step-N")
        return self.undisturbed(lambda: self._opened(which, Commit.read))

    def _opened(self, which: str, read: Callable[[Path], T]) -> T:
        folders = dict(self._folders())
        wanted = next(iter(self._steps_of(which, folders)), -1)
        if wanted not in folders:
            unnamed = "best checkpoint before the first validation"
            name = unnamed if which == "best" else f"checkpoint {which!r}"
            others = self._choices([*folders]) or "; train the run first"
            raise StorageError(f"{self.folder}: no {name}{others}")
        return self._read(wanted, folders, read)

    def _read(self, wanted: int, folders: Mapping[int, Path], read: Callable[[Path], T], role: str = "") -> T:
        """Result of ``read`` on the folder of a step; StorageError that names others that are intact."""
        try:
            return read(folders[wanted])
        except StorageError as error:
            intact = [step for step, path in folders.items() if step != wanted and is_intact(path)]
            none = "; no other checkpoint is intact: restore one from a copy"
            raise StorageError(f"{error}{role}{self._choices(intact) or none}") from error

    def _steps_of(self, which: str, folders: Mapping[int, Path]) -> list[int]:
        """Steps of a checkpoint name, several for an average; ConfigError for an unknown name."""
        if which == "last":
            return [*folders][:1]  # newest first
        if which in ("best", AVERAGE):
            return self._best(folders, 1 if which == "best" else None)
        if match := re.fullmatch(r"step-(\d{1,15})", which, re.ASCII):
            return [int(match[1])]
        others = self._choices([*folders])
        raise ConfigError(f"--checkpoint {which}: must be last, best, average-best or step-N{others}")

    def _best(self, folders: Mapping[int, Path], count: int | None) -> list[int]:
        """The ``count`` best steps, or all, best first; [] before any validation.

        A commit that no training wrote is the best one itself. Raises StorageError if the newest commit is
        damaged, or if one of the steps is missing.
        """
        if not folders:
            return []
        read = partial(Commit.read, tensors=False)
        newest = self._read(max(folders), folders, read, "; it says which checkpoint is best")
        steps = [newest.step] if newest.best is None else newest.best[:count]
        if missing := [step for step in steps if step not in folders]:
            named = ", ".join(f"step {step}" for step in missing)
            others = self._choices([*folders], ", or")
            raise StorageError(
                f"{self.folder}: {named} of the best is missing; restore it from a copy{others}"
            )
        return steps

    def steps(self, which: str) -> list[int]:
        """Current steps of a checkpoint name, several for an average."""
        return [step for step, _ in self.undisturbed(lambda: self._named(which))]

    def _named(self, which: str) -> list[tuple[int, Path]]:
        """Current steps of a checkpoint name, and their folders."""
        folders = dict(self._folders())
        return [(step, folders[step]) for step in self._steps_of(which, folders) if step in folders]

    def fingerprint(self, which: str) -> str | None:
        """Hash of the manifests that a name currently means; None if there is none.

        Weights are neither read nor verified.
        """
        found = self.undisturbed(
            lambda: [sha256_file(path / MANIFEST, follow=False) for _, path in self._named(which)]
        )
        return hashlib.sha256("".join(found).encode()).hexdigest() if found else None

    def weights(self, which: str) -> dict[str, "Tensor"]:
        """Weights for inference: ``last``, ``best``, ``step-N`` or ``average-best``, a mean of the k best."""
        if which != AVERAGE:
            return self.undisturbed(lambda: self._opened(which, weights_of))
        return self.undisturbed(self._average)

    def _average(self) -> dict[str, "Tensor"]:
        folders = dict(self._folders())
        steps = self._best(folders, None)
        if not steps:
            raise StorageError(f"{self.folder}: no best checkpoints yet to average; choose last")
        return average_tensors(self._read(step, folders, weights_of) for step in steps)

    def undisturbed(self, read: Callable[[], T]) -> T:
        """Result of ``read``, which is repeated if it fails while a training changes the commits."""
        for _ in range(_REPETITIONS):
            seen = self._identities()
            try:
                return read()
            except StorageError:
                if seen == self._identities():
                    raise
        return read()

    def _identities(self) -> list[tuple[Path, int]]:
        """Folders of the commits, and their inodes, which change if a step is committed again."""
        found = []
        for _, path in self._folders():
            with suppress(OSError):  # deleted meanwhile
                found.append((path, os.lstat(path).st_ino))
        return found

    def prune(self, keep: Collection[int]) -> None:
        """Delete every commit whose step is not in ``keep``, after verifying the newest kept one.

        Raises StorageError and deletes nothing if that commit is damaged or no commit would stay. Commits are
        renamed before deletion, so a kill leaves no half-deleted commit.
        """
        folders = self._folders()
        doomed = [path for step, path in folders if step not in keep]
        if not doomed:
            return
        kept = next((path for step, path in folders if step in keep), None)
        if kept is None:
            raise StorageError(f"{self.folder}: no checkpoint would stay, so none was deleted")
        Commit.read(kept)
        graves = [path.with_name(f"{path.name}.tmp") for path in doomed]
        for path, grave in zip(doomed, graves, strict=True):
            remove_tree(grave)
            move(path, grave)
        sync(self.folder)
        for grave in graves:
            remove_tree(grave)

    def clean(self) -> None:
        """Finish or undo the work of a killed writer; only for the process that holds the run."""
        self._require_folder()
        with storage_errors(self.folder):
            names = sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else []
        for name in names:
            match = STEP_FOLDER.fullmatch(name)
            if name.endswith(".tmp") or (match and match[2] and os.path.lexists(self._path(int(match[1])))):
                remove_tree(self.folder / name)
            elif match and match[2]:
                move(self.folder / name, self._path(int(match[1])))
                sync(self.folder)

    def verify_all(self) -> list[CommitReport]:
        """Check every byte of every commit, newest first."""
        return self.undisturbed(self._verified)

    def _verified(self) -> list[CommitReport]:
        reports = []
        for step, path in self._folders():
            try:
                commit = Commit.read(path)
                reports.append(CommitReport(step, commit.state_sha256, commit.size, None))
            except StorageError as error:
                if not os.path.lexists(path):  # a training has deleted it meanwhile
                    raise
                reports.append(CommitReport(step, None, 0, str(error)))
        return reports

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _folders(self) -> list[tuple[int, Path]]:
        """Steps and their folders, newest first, intact or not."""
        self._require_folder()
        names: list[str] = []
        with storage_errors(self.folder), suppress(FileNotFoundError):
            names = sorted(os.listdir(self.folder))
        found: dict[int, Path] = {}
        for name in names:  # sorted, so a folder precedes its .old one, which counts only without it
            if match := STEP_FOLDER.fullmatch(name):
                found.setdefault(int(match[1]), self.folder / name)
        return sorted(found.items(), reverse=True)

    def _publish(self, tmp: Path, final: Path) -> None:
        """Rename a finished folder; another commit of the same step stays valid until then."""
        old = final.with_name(f"{final.name}.old")
        if os.path.lexists(final):
            remove_tree(old)
            move(final, old)
        publish_folder(tmp, final)
        remove_tree(old)

    def _holds(self, path: Path, state_sha256: str) -> bool:
        """True if an intact commit with equal content exists."""
        with suppress(StorageError):
            return os.path.lexists(path) and Commit.read(path).state_sha256 == state_sha256
        return False

    def _choices(self, steps: Sequence[int], joint: str = ";") -> str:
        names = ", ".join(f"step-{step}" for step in steps[:8])
        return f"{joint} choose another one by --checkpoint: {names}" if names else ""

    def _require_folder(self) -> None:
        """Raise StorageError where the folder is a link or a file."""
        if os.path.islink(self.folder):
            raise StorageError(f"{self.folder}: a symbolic link; link the whole run folder instead")
        if os.path.isfile(self.folder):
            raise StorageError(f"{self.folder}: a file; restore the folder from a copy, or name another run")
