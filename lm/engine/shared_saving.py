"""Saving and resuming in distributed training: rank 0 reads and writes, all ranks get the outcome."""

import hashlib
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from lm.disk.jsonfile import JSON
from lm.disk.tensors import tensor_bytes
from lm.engine.config import TrainConfig
from lm.engine.saving import Saver
from lm.engine.state import Progress, TrainingState
from lm.errors import StorageError, WorkerError
from lm.parallel.group import Group
from lm.parallel.shards import shards_of, slice_of
from lm.stop import StopFlag


class Follower:
    """Stand-in for a run on ranks other than 0: handles signals, has no folder; a context manager."""

    def __init__(self) -> None:
        self.stop = StopFlag()

    def __enter__(self) -> Self:
        self.stop.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.uninstall()


class SharedSaver:
    """A :class:`~lm.engine.saving.Saver` of rank 0 whose methods all ranks call together.

    ``saver`` is None on other ranks. An error on rank 0 is raised on all of them.
    """

    def __init__(
        self, group: Group, training: TrainingState, train: TrainConfig, saver: Saver | None
    ) -> None:
        self._group, self._training, self._train, self._saver = group, training, train, saver
        self.dirty = True

    def preflight(self, size: int) -> None:
        """See :meth:`lm.engine.saving.Saver.preflight`."""
        self._on_first(lambda saver: saver.preflight(size))

    def resume(self) -> None:
        """See :meth:`lm.engine.saving.Saver.resume`; every rank takes over rank 0's state."""
        self._on_first(Saver.resume)
        self._spread()

    def recover(self) -> bool:
        """See :meth:`lm.engine.saving.Saver.recover`; every rank takes over rank 0's state."""
        recovered = bool(self._on_first(Saver.recover))
        if recovered:
            self._spread()
        return recovered

    def require_best(self) -> None:
        """See :meth:`lm.engine.saving.Saver.require_best`."""
        self._on_first(Saver.require_best)

    def save(self, final: bool) -> None:
        """See :meth:`lm.engine.saving.Saver.save`. WorkerError where the weights of ranks differ."""
        if not self.dirty:
            return
        require_equal_weights(self._training.task.model, self._group)
        self._collect()
        failure: StorageError | None = None
        try:
            self._on_first(lambda saver: saver.save(final))
        except StorageError as error:  # of rank 0, whose progress it has changed
            failure = error
        self._training.progress = Progress.load(self._group.first(self._training.progress.values()))
        self.dirty = bool(self._group.first(self.dirty))
        if failure:
            raise failure

    def _on_first(self, work: Callable[[Saver], JSON]) -> JSON:
        """Run ``work`` with rank 0's saver, whose ``dirty`` is set to that of all ranks."""

        def on_saver() -> JSON:
            assert self._saver is not None
            self._saver.dirty = self.dirty
            try:
                return work(self._saver)
            finally:
                self.dirty = self._saver.dirty

        outcome: JSON = self._group.share(on_saver)
        return outcome

    def _collect(self) -> None:
        """Assemble the carried states of all ranks in the order of shards."""
        task, group, shards = self._training.task, self._group, self._train.shards
        whole: dict[str, Tensor] = {}
        for name, tensor in task.state().items():
            every = group.gather_rows(tensor)
            rows = [
                other[slice_of(len(other), shard, shards)]
                for rank, other in enumerate(every)
                for shard in shards_of(rank, group.size, shards)
            ]
            whole[name] = torch.cat(rows)
        task.load_state(whole)

    def _spread(self) -> None:
        """Broadcast rank 0's state to every rank."""
        values = self._group.first(self._training.values())
        groups = self._training.groups()
        names = self._group.first(sorted(groups))
        received = {name: self._group.broadcast(groups.get(name, {})) for name in names}
        if self._group.rank:
            self._training.restore(received.__getitem__, values)
        self.dirty = bool(self._group.first(self.dirty))


def require_equal_weights(model: nn.Module, group: Group) -> None:
    """Raise WorkerError, naming the first tensor, if the ranks' weights differ."""
    names = list(model.state_dict())
    every = group.gather(
        [hashlib.sha256(tensor_bytes(tensor)).hexdigest() for tensor in model.state_dict().values()]
    )
    for rank, hashes in enumerate(every):
        if differing := [name for name, a, b in zip(names, every[0], hashes, strict=True) if a != b]:
            raise WorkerError(
                f"rank {rank}: {differing[0]} differs from rank 0's; start all ranks on equal processors with"
                " the same versions and threads, then run the same command again to resume"
            )
