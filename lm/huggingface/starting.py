"""Runs on a pretrained trunk: the copy of its architecture, checks of its folder, and the start.

The config of a family names the trunk in ``model.trunk``.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from torch import nn

from lm.heads.head import Head
from lm.heads.start import require_startable
from lm.huggingface.architecture import Architecture, read_architecture
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import TRUNK, RunFile
from lm.trunks.names import pretrained_name, pretrained_path

if TYPE_CHECKING:
    from lm.huggingface.weights import PretrainedNetwork

C = TypeVar("C", bound=BaseModel)


def local(config: C, run: Path) -> C:
    """The config with the copy of the trunk's architecture in the run, or in that of ``train.start_from``.

    So the folder of the pretrained model is needed only until the first checkpoint.
    """
    named: Any = config
    if pretrained_path(named.model.trunk) is None:
        return config
    begun = CheckpointStore.of(run).begun
    for source in ([run] if begun else []) + [Path(name) for name in [named.train.start_from] if name]:
        if os.path.lexists(source / TRUNK):
            return with_trunk(config, source / TRUNK)
    return config


def with_trunk(config: C, path: Path) -> C:
    """The config with the pretrained trunk of another folder, or of a file with its architecture."""
    named: Any = config
    model = named.model.model_copy(update={"trunk": pretrained_name(path)})
    return config.model_copy(update={"model": model})


def trunk_file(config: Any) -> dict[RunFile, bytes]:
    """The run's copy of the architecture, by file name; {} for other trunks."""
    path = pretrained_path(config.model.trunk)
    return {} if path is None else {TRUNK: _architecture(config, path).content}


def _architecture(config: Any, path: Path) -> Architecture:
    return read_architecture(path, dialog=config.family == "dialog")


def require_pretrained(config: Any) -> None:
    """Raise an error for a folder that cannot be the trunk of a new run, before any text is read.

    ConfigError or StorageError, as of :func:`lm.huggingface.architecture.read_architecture` and
    :func:`lm.huggingface.weights.require_weights`.
    """
    path = pretrained_path(config.model.trunk)
    if path is None:
        return
    _architecture(config, path)
    if config.head.start == "pretrained":
        require_startable(config.head)
    if not config.train.start_from:
        from lm.huggingface.weights import require_weights

        require_weights(path)


def start_pretrained(
    config: Any, network: "nn.Module | PretrainedNetwork", embedding: nn.Embedding, head: Head
) -> str | None:
    """Load the weights of a pretrained trunk into its network. Return their hash, None for other trunks.

    ConfigError or StorageError as of :func:`lm.huggingface.weights.load_pretrained`.
    """
    path = pretrained_path(config.model.trunk)
    if path is None:
        return None
    from lm.huggingface.weights import PretrainedNetwork, load_pretrained, require_weights, weights_hash

    assert isinstance(network, PretrainedNetwork)
    digest = weights_hash(require_weights(path))
    start_head = config.head.start == "pretrained"
    load_pretrained(_architecture(config, path), network, embedding, head, start_head=start_head)
    return digest
