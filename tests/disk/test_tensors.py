"""Files of tensors: the bytes of the library, in the memory of one tensor."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from lm.disk.storage import write_parts
from lm.disk.tensors import tensor_file
from lm.errors import StorageError
from lm.runs.checkpoint import CheckpointStore

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.bfloat16,
    torch.int32, torch.uint32, torch.float32, torch.complex64, torch.float64, torch.int64, torch.uint64,
)  # fmt: skip
MB = 1 << 20
STATUS, REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_the_bytes_are_those_of_the_library(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    base = torch.arange(40.0).reshape(5, 8)
    tensors = {
        **{f"{name}.{dtype}": torch.arange(7).to(dtype) for name in ("b", "a") for dtype in DTYPES},
        'quote " back \\ é \n \x1b': torch.ones(2),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "large": torch.randn(3 * MB, generator=torch.Generator().manual_seed(1)),
        "tied": base,
        "transposed": base.t(),
        "slice": base[1:3, ::2],
        "expanded": base[:1].expand(5, 8),
    }
    expected = save({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, metadata)
    size, parts = tensor_file(tensors, metadata)
    write_parts(tmp_path / "file", size, parts)
    assert size == len(expected)
    assert (tmp_path / "file").read_bytes() == expected


def test_a_dtype_without_a_code_is_named_with_its_tensor() -> None:
    with pytest.raises(StorageError, match=r"layer\.weight: dtype float8_e4m3fn cannot be saved; convert"):
        tensor_file({"layer.weight": torch.zeros(2, dtype=torch.float8_e4m3fn)})


def resident(line: str) -> int:
    """A size in /proc/self/status in bytes."""
    found = next(row for row in STATUS.read_text().splitlines() if row.startswith(line))
    return 1024 * int(found.split()[1])


def test_a_commit_takes_the_memory_of_its_largest_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    largest = 36 * MB  # above 32 MB, the C library gives memory back at once
    model = {f"layer{number}": torch.ones(1).expand(9, MB) for number in range(4)}
    store = CheckpointStore(tmp_path)
    store.commit(0, {"model": {"small": torch.ones(9, 2).t()}}, {}, {})  # loads what it needs
    try:
        REFS.write_text("5")  # the peak begins anew
    except OSError:
        pytest.skip("needs /proc/self/clear_refs")
    before = resident("VmRSS")
    commit = store.commit(1, {"model": model}, {}, {})
    assert commit.size > 4 * largest
    assert resident("VmHWM") - before < largest + 8 * MB
