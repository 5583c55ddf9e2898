"""Safetensors files, written tensor by tensor."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from lm.disk.storage import CHUNK, Part
from lm.errors import StorageError, visible

if TYPE_CHECKING:
    from torch import Tensor

# names of torch's dtypes and of the format's, in the order in which the library safetensors sorts tensors
_DTYPES = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_PLACES = {dtype: place for place, dtype in enumerate(_DTYPES)}
_ALIGNMENT = 8  # bytes


def tensor_file(
    tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str] | None = None
) -> tuple[int, Iterator[Part]]:
    """Size in bytes of a safetensors file, and its content in parts: the bytes of ``safetensors.torch.save``.

    Tensors may be on any device, strided or shared. Only one of them is copied at a time. StorageError for a
    dtype that torch can keep and this file cannot, as float8.
    """
    ordered = sorted(tensors.items(), key=lambda item: (_PLACES[_dtype(*item)], item[0]))
    header = _header(ordered, metadata)

    def parts() -> Iterator[Part]:
        yield header
        for _, tensor in ordered:
            yield tensor_bytes(tensor)

    return len(header) + sum(tensor.nbytes for _, tensor in ordered), _joined(parts())


def tensor_bytes(tensor: "Tensor") -> memoryview:
    """The bytes of a tensor; those of a dense tensor on the CPU are not copied."""
    import torch

    dense = tensor.detach().cpu().contiguous()
    return dense.reshape(-1).view(torch.uint8).numpy().data


def sha256_of(tensors: Iterable[tuple[str, "Tensor"]]) -> str:
    """SHA-256 of the name and bytes of every tensor."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(name.encode() + b"\0")
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def _header(ordered: Iterable[tuple[str, "Tensor"]], metadata: Mapping[str, str] | None) -> bytes:
    """Length and JSON of names, dtypes, shapes and places, padded with blanks."""
    fields: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        code = _DTYPES[_dtype(name, tensor)]
        fields[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Join neighbouring small parts, so that a file takes few writes. No part is kept after its turn."""
    small = bytearray()
    for part in parts:
        if len(small) + len(part) <= CHUNK:
            small += part
        else:
            yield small
            small = bytearray()
            yield part
        del part
    yield small


def _dtype(name: str, tensor: "Tensor") -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise StorageError(f"{visible(name)}: dtype {dtype} cannot be saved; convert the tensor to float32")
    return dtype
