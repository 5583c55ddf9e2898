"""Global random number generators: seeded together, saved and restored together, without pickle."""

import random
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch; call it before building the model."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_tensors() -> dict[str, Tensor]:
    """States of all generators: Python's, NumPy's, torch's on the CPU and on each GPU."""
    _, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    tensors = {
        "python": torch.from_numpy(np.array(words, dtype=np.int64)),
        "python_gauss": torch.tensor([gauss is not None, gauss or 0.0], dtype=torch.float64),
        "numpy": torch.from_numpy(numpy["state"]["key"].astype(np.int64)),
        "numpy_rest": torch.tensor(
            [numpy["state"]["pos"], numpy["has_gauss"], numpy["gauss"]], dtype=torch.float64
        ),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states = torch.cuda.get_rng_state_all()
        tensors |= {f"cuda{device}": state for device, state in enumerate(states)}
    return tensors


def load_rng(tensors: Mapping[str, Tensor]) -> None:
    """Restore the result of :func:`rng_tensors`, except for GPUs that are absent now."""
    has_gauss, gauss = tensors["python_gauss"].tolist()
    random.setstate((3, tuple(tensors["python"].tolist()), gauss if has_gauss else None))
    keys = tensors["numpy"].numpy().astype(np.uint32)
    position, has_numpy_gauss, numpy_gauss = tensors["numpy_rest"].tolist()
    np.random.set_state(("MT19937", keys, int(position), int(has_numpy_gauss), numpy_gauss))
    torch.set_rng_state(tensors["torch"])
    for device in range(torch.cuda.device_count()):
        if f"cuda{device}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda{device}"], device)
