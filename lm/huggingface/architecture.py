"""The architecture of a pretrained model: its ``config.json``, checked before anything large is made."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lm.config.section import MAX_LAYERS, MAX_SIZE
from lm.engine.shapes import shapes_only
from lm.errors import ConfigError, StorageError, brief
from lm.huggingface.source import (
    FORCED,
    GENERATION_CONFIG,
    MODEL_CONFIG,
    read_model,
    read_settings,
    require_folder,
)
from lm.libraries import require_libraries
from lm.runs.inputs import TRUNK

_NUMBERS = {"num_hidden_layers": MAX_LAYERS, "hidden_size": MAX_SIZE, "vocab_size": MAX_SIZE}
_LABELS = ("num_labels", "id2label", "label2id")  # of classifiers; transformers fills a table of them
_DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")  # in kinds whose encoder may have another number
_SCALING = ("umt5", "switch_transformers")  # kinds of T5 that scale as the first one, without such a key


@dataclass(frozen=True)
class Architecture:
    """Kind and sizes of a causal language model or an encoder-decoder of transformers."""

    path: Path  # of config.json
    content: bytes
    config: Any  # of transformers
    words: int  # V
    embedding_size: int
    hidden_size: int
    layers: int  # of the decoder
    positions: int  # the longest text; 0 = no limit
    start: int | None  # id of the token that the decoder of an encoder-decoder reads first
    forced: int | None  # id of the token that such a decoder always reads next, as a language in mBART

    @property
    def output_scale(self) -> float:
        """Factor of the hidden states before the output layer, as in the first T5."""
        scales = getattr(self.config, "scale_decoder_outputs", self.config.model_type in _SCALING)
        return self.hidden_size**-0.5 if scales else 1.0

    def network(self) -> Any:
        """A new model of transformers in torch's default precision, with random weights."""
        return _network(self.config)


def read_architecture(path: Path, *, dialog: bool = False) -> Architecture:
    """The architecture of a folder, or of a file that is a copy of its ``config.json``.

    Raises:
        ConfigError: transformers is not installed.
        StorageError: no such folder or file, a kind that transformers lacks or that is no causal language
            model, code that would have to be run, or sizes that do not fit each other. An encoder-decoder
            is accepted only for a ``dialog``.
    """
    require_libraries(f"model.trunk = hf:{path}", "hf", "transformers")
    if path.is_file():
        found = architecture_of(*read_settings(path), path)
    else:
        require_folder(path)
        path, read = path / MODEL_CONFIG, read_model(path)
        found = architecture_of(*read, path)
    if found.start is not None and not dialog:
        raise StorageError(
            f"{path}: is an encoder-decoder; choose a causal language model, or use `dialog` instead of `lm`"
        )
    return found


def carried_architecture(values: Mapping[str, Any]) -> Architecture:
    """The architecture in the config of an exported model, which has no file of its own."""
    return architecture_of(values, json.dumps(values).encode(), Path(TRUNK))


def architecture_of(values: Mapping[str, Any], content: bytes, path: Path) -> Architecture:
    """The architecture of the values of a ``config.json`` and their bytes. Raises as of its folder."""
    kind = _checked(path, values)
    layers = next((name for name in _DECODER_LAYERS if hasattr(kind, name)), "num_hidden_layers")
    for name, limit in (_NUMBERS | {layers: MAX_LAYERS}).items():
        size = getattr(kind, name, None)
        if not isinstance(size, int) or not 0 < size <= limit:
            raise StorageError(f"{path}: {name} = {size!r}: must be a number from 1 to {limit:,}")
    words, embedding_size, hidden_size = _widths(path, content)
    start, forced = _first_tokens(path, values, kind, words) if kind.is_encoder_decoder else (None, None)
    return Architecture(
        path=path,
        content=content,
        config=kind,
        words=words,
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        layers=getattr(kind, layers),
        positions=_positions(kind),
        start=start,
        forced=forced,
    )


def _positions(kind: Any) -> int:
    """Largest number of tokens that a model reads alike from any position; 0 for no bound.

    LongRoPE turns all keys by other frequencies from its original length on, so that cached ones do not fit.
    """
    rope = getattr(kind, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings") if rope.get("rope_type") == "longrope" else None
    found = (getattr(kind, "max_position_embeddings", None), original)
    return min((number for number in found if isinstance(number, int)), default=0)


def _first_tokens(path: Path, values: Any, config: Any, words: int) -> tuple[int, int | None]:
    """Ids of the token that a decoder reads first, and of the one that is forced to follow, None for none.

    StorageError if one of them is no word.
    """
    start, forced = getattr(config, "decoder_start_token_id", None), values.get(FORCED)
    if not isinstance(start, int) or not 0 <= start < words:
        raise StorageError(
            f"{path}: decoder_start_token_id = {start!r}: must be the id of the token with which the decoder"
            " begins; add it"
        )
    if forced is not None and not (isinstance(forced, int) and 0 <= forced < words):
        raise StorageError(
            f"{path}: {FORCED} = {forced!r}: must be the id of a token; correct it here or in"
            f" {GENERATION_CONFIG}"
        )
    return start, forced


def _checked(path: Path, values: Any) -> Any:
    """The config of transformers. Raises StorageError for kinds that cannot be a trunk."""
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    kind, config = values.get("model_type"), None
    if values.get("quantization_config"):
        raise StorageError(f"{path}: has quantised weights; choose the model in full precision")
    _require_few_layers(path, values)
    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        try:
            with silence():
                config = CONFIG_MAPPING[kind].from_dict(_plain(values))
        except Exception as error:  # of each kind's own checks
            raise StorageError(f"{path}: no config of {kind} ({brief(error)}); download it again") from error
    known, name = (
        (MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, "encoder-decoder of texts")
        if config is not None and config.is_encoder_decoder
        else (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "causal language model")
    )
    if config is None or kind not in known:
        raise StorageError(
            f"{path}: model_type = {kind!r}: no {name} of transformers {__version__}; choose another model,"
            " or another version of transformers"
        )
    return config


def _require_few_layers(path: Path, values: Any) -> None:
    """Raise StorageError for too many layers, before transformers makes a list of them."""
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        if "layer" in key and isinstance(value, int) and value > MAX_LAYERS:
            raise StorageError(f"{path}: {key} = {value}: must be a number from 1 to {MAX_LAYERS:,}")
        _require_few_layers(path, value)


def _plain(values: Any) -> Any:
    """Values without labels, names of other files, and kernels, which transformers would download and run."""
    if not isinstance(values, dict):
        return values
    kept = {key: value for key, value in values.items() if not key.endswith("_implementation")}
    for key in ("transformers_weights", *_LABELS):
        kept.pop(key, None)
    return {key: _plain(value) for key, value in kept.items()}


@lru_cache(maxsize=4)
def _widths(path: Path, content: bytes) -> tuple[int, int, int]:
    """Number of words, embedding size and hidden size, read from the modules without their memory."""
    try:
        with shapes_only(), silence():
            model = _network(_checked(path, json.loads(content)))
        embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    except (ConfigError, StorageError):
        raise
    except Exception as error:  # of a kind's own code, for sizes that do not fit each other
        raise StorageError(f"{path}: its sizes make no model ({brief(error)}); download it again") from error
    for name, weight in model.named_parameters():
        if max(weight.shape, default=0) > MAX_SIZE:
            raise StorageError(
                f"{path}: makes {name} of shape {tuple(weight.shape)}, but a size is at most {MAX_SIZE:,};"
                " correct the number, or download it again"
            )
    if not isinstance(embedding, nn.Embedding) or not isinstance(output, nn.Linear):
        raise StorageError(f"{path}: a model without embedding and output layer; choose another one")
    return embedding.num_embeddings, embedding.embedding_dim, output.in_features


def _network(config: Any) -> Any:
    return auto_class(config).from_config(config, dtype=torch.get_default_dtype(), trust_remote_code=False)


def auto_class(config: Any) -> Any:
    """The class of transformers that makes models of a config."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


@contextmanager
def silence() -> Iterator[None]:
    """Context without progress bars and warnings of transformers, whose results are checked here."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
