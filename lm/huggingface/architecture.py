"""The architecture of a pretrained model: its ``config.json``, checked before anything large is made."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lm.config.section import MAX_LAYERS, MAX_SIZE
from lm.engine.shapes import shapes_only
from lm.errors import ConfigError, StorageError
from lm.huggingface.installed import require_transformers
from lm.huggingface.source import MODEL_CONFIG, read_settings, require_folder

_NUMBERS = {"num_hidden_layers": MAX_LAYERS, "hidden_size": MAX_SIZE, "vocab_size": MAX_SIZE}


@dataclass(frozen=True)
class Architecture:
    """Kind and sizes of a causal language model of transformers."""

    path: Path  # of config.json
    content: bytes
    config: Any  # of transformers
    words: int  # V
    embedding_size: int
    hidden_size: int
    layers: int
    positions: int  # the longest text; 0 = no limit

    def network(self) -> Any:
        """A new model of transformers in float32, with random weights."""
        return _network(self.config)


def read_architecture(path: Path) -> Architecture:
    """The architecture of a folder, or of a file that is a copy of its ``config.json``.

    Raises:
        ConfigError: transformers is not installed.
        StorageError: no such folder or file, a kind that transformers lacks or that is no causal language
            model, code that would have to be run, or sizes that do not fit each other.
    """
    require_transformers(f"model.trunk = hf:{path}")
    if not path.is_file():
        require_folder(path)
        path = path / MODEL_CONFIG
    return architecture_of(*read_settings(path), path)


def architecture_of(values: Mapping[str, Any], content: bytes, path: Path) -> Architecture:
    """The architecture of the values of a ``config.json`` and their bytes. Raises as of its folder."""
    kind = _checked(path, values)
    for name, limit in _NUMBERS.items():
        size = getattr(kind, name, None)
        if not isinstance(size, int) or not 0 < size <= limit:
            raise StorageError(f"{path}: {name} = {size!r}: must be a number from 1 to {limit:,}")
    words, embedding_size, hidden_size = _widths(path, content)
    positions = getattr(kind, "max_position_embeddings", None)
    return Architecture(
        path=path,
        content=content,
        config=kind,
        words=words,
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        layers=kind.num_hidden_layers,
        positions=positions if isinstance(positions, int) else 0,
    )


def _checked(path: Path, values: Any) -> Any:
    """The config of transformers. Raises StorageError for kinds that cannot be a trunk."""
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise StorageError(
            f"{path}: model_type = {kind!r}: no causal language model of transformers {__version__}; choose"
            " another model, or another version of transformers"
        )
    if values.get("is_encoder_decoder"):
        raise StorageError(f"{path}: is an encoder-decoder; choose a causal language model")
    if values.get("quantization_config"):
        raise StorageError(f"{path}: has quantised weights; choose the model in full precision")
    try:
        return CONFIG_MAPPING[kind].from_dict(_plain(values))
    except Exception as error:  # of each kind's own checks
        raise StorageError(f"{path}: no config of {kind} ({_brief(error)}); download it again") from error


def _plain(values: Any) -> Any:
    """Values without those that name other files, or kernels, which transformers would download and run."""
    if not isinstance(values, dict):
        return values
    kept = {key: value for key, value in values.items() if not key.endswith("_implementation")}
    kept.pop("transformers_weights", None)
    return {key: _plain(value) for key, value in kept.items()}


@lru_cache(maxsize=4)
def _widths(path: Path, content: bytes) -> tuple[int, int, int]:
    """Number of words, embedding size and hidden size, read from the modules without their memory."""
    try:
        with shapes_only():
            model = _network(_checked(path, json.loads(content)))
        embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    except (ConfigError, StorageError):
        raise
    except Exception as error:  # of a kind's own code, for sizes that do not fit each other
        raise StorageError(f"{path}: its sizes make no model ({_brief(error)}); download it again") from error
    if not isinstance(embedding, nn.Embedding) or not isinstance(output, nn.Linear):
        raise StorageError(f"{path}: a model without embedding and output layer; choose another one")
    return embedding.num_embeddings, embedding.embedding_dim, output.in_features


def _network(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)


def _brief(error: Exception) -> str:
    """The beginning of a foreign error on one line."""
    return " ".join(str(error).split())[:160]
