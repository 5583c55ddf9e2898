"""Weights of a pretrained model: checked on disk, then loaded into a trunk, an embedding and a head."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.disk.jsonfile import read_json
from lm.disk.storage import sha256_file
from lm.errors import ConfigError, HighrankError, StorageError, brief
from lm.heads.head import Head
from lm.heads.start import start_as
from lm.huggingface.architecture import Architecture, auto_class, silence
from lm.huggingface.causal import require_logits
from lm.huggingface.folder import WEIGHTS

INDEX, ADAPTER = "model.safetensors.index.json", "adapter_config.json"
_LIMIT = 1 << 26  # bytes of an index
_TRIED = 4  # tokens that both models read
_TOGETHER = 4096  # words whose vectors are copied at once
_CLOSE = 1e-3  # largest difference of hidden states by another order of sums


@runtime_checkable
class PretrainedNetwork(Protocol):
    """A network that can take the weights of a model of transformers."""

    def free(self) -> None:
        """Drop the weights and their memory."""

    def adopt(self, model: Any) -> None:
        """Take the network of a model, whose embedding it then lacks."""

    def expected(self, model: Any, tokens: Tensor) -> Tensor:
        """Hidden states (T, H) of a text (T,) by a model, as its output layer reads them."""
        ...

    def tried(self, vectors: Tensor) -> Tensor:
        """Hidden states (T, H) of word vectors (T, E) by the ways in which the network reads."""
        ...


def require_weights(folder: Path) -> list[Path]:
    """Files with the weights of a folder.

    StorageError if none is in safetensors, one is missing, or an adapter would change them.
    """
    if (folder / ADAPTER).exists():
        raise StorageError(f"{folder / ADAPTER}: the folder has an adapter; merge it into the model first")
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise StorageError(
            f"{folder}: no {WEIGHTS}; other formats can run code: save the model with safe_serialization=True"
        )
    index = read_json(folder / INDEX, limit=_LIMIT)
    places: Any = index.get("weight_map") if isinstance(index, dict) else None
    names = set(places.values()) if isinstance(places, dict) else set()
    if not names or not all(isinstance(name, str) and os.path.basename(name) == name for name in names):
        raise StorageError(f"{folder / INDEX}: no index of weights; download the file again")
    for name in sorted(names):
        if not (folder / name).is_file():
            raise StorageError(f"{folder / name}: missing; download all files that {INDEX} names")
    return [folder / name for name in sorted(names)]


def weights_hash(files: Sequence[Path]) -> str:
    """SHA-256 of the hashes of all files with weights."""
    return hashlib.sha256("".join(map(sha256_file, files)).encode()).hexdigest()


def load_pretrained(
    found: Architecture, network: PretrainedNetwork, embedding: nn.Embedding, head: Head, *, start_head: bool
) -> None:
    """Load the weights of a folder; with ``start_head`` also into the head, see :mod:`lm.heads.start`.

    ``found`` is the architecture in the folder, and ``network`` has it.

    Raises:
        ConfigError: a head that cannot begin as the model's output layer.
        StorageError: weights that are damaged, incomplete, or of a kind that cannot be a trunk.
    """
    folder = found.path.parent
    network.free()
    model = _opened(folder, found.config)
    layer, tokens = model.get_output_embeddings(), torch.tensor(_tried_tokens(found))
    with _its_own_code(folder), torch.no_grad():
        expected, bias = network.expected(model, tokens), _output_bias(model)
        if not expected.isfinite().all():
            raise StorageError(
                f"{folder}: its weights give hidden states that are not finite; download it again"
            )
        if start_head:
            responses = {} if found.start is None else {"decoder_input_ids": tokens[None]}
            logits = model(input_ids=tokens[None], **responses).logits[0]
            require_logits(model, F.linear(expected, layer.weight, bias), logits)
        _copy_vectors(model.get_input_embeddings(), embedding, found.words)
        network.adopt(model)
        read = network.tried(embedding(tokens))
    if not torch.allclose(read, expected, rtol=_CLOSE, atol=_CLOSE):
        raise StorageError(
            f"{folder}: a model of the kind {model.config.model_type} has other outputs where it reads a text"
            " in parts, as a trunk does; choose another"
        )
    if start_head:
        weight = layer.weight.detach()
        if head.config.tied and not torch.equal(weight, embedding.weight[: len(weight)]):
            raise ConfigError(
                "head.tied: the output layer of the model is not its embedding; set head.tied = false"
            )
        start_as(head, weight, bias)


def _tried_tokens(found: Architecture) -> list[int]:
    """The first tokens except padding, which some kinds give no position of its own."""
    padding = getattr(found.config, "pad_token_id", None)
    words = [word for word in range(min(found.words, _TRIED + 1)) if word != padding]
    return [words[place % len(words)] for place in range(_TRIED)] if words else [0] * _TRIED


def _output_bias(model: Any) -> Tensor | None:
    """Bias of a model's output layer, with the one that BART adds to its logits; None for no bias."""
    bias: Tensor | None = model.get_output_embeddings().bias
    if (added := getattr(model, "final_logits_bias", None)) is not None and bool(added.any()):
        bias = added[0] if bias is None else bias + added[0]
    return None if bias is None else bias.detach()


@contextmanager
def _its_own_code(folder: Path) -> Iterator[None]:
    """Context for code of transformers on a model, which raises any exception. It becomes StorageError."""
    try:
        yield
    except HighrankError:
        raise
    except Exception as error:
        raise StorageError(
            f"{folder}: the model cannot be a trunk, which reads a text in parts ({brief(error)}); "
            "choose another"
        ) from error


def _copy_vectors(words: Any, embedding: nn.Embedding, count: int) -> None:
    """Copy the vectors that a model's embedding returns, which some kinds scale.

    Further words begin with the mean of the ``count`` vectors.
    """
    for ids in torch.arange(count).split(_TOGETHER):
        embedding.weight[ids] = words(ids)
    embedding.weight[count:] = embedding.weight[:count].mean(0)


def _opened(folder: Path, config: Any) -> Any:
    """The model of a folder in float32, in evaluation mode."""
    opened: Any
    try:
        with silence():
            opened = auto_class(config).from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # refused below, with a name
                output_loading_info=True,
            )
    except Exception as error:  # the library raises any exception
        raise StorageError(
            f"{folder}: its weights cannot be loaded ({brief(error)}); download it again"
        ) from error
    model, found = opened
    for problem in ("missing_keys", "mismatched_keys"):
        if names := found.get(problem):
            first = sorted(name if isinstance(name, str) else name[0] for name in names)[0]
            raise StorageError(
                f"{folder}: its weights are not those of its config.json, as at {first}; download it again"
            )
    model.eval()
    return model
