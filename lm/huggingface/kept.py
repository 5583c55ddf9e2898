"""Numbers that a network of transformers keeps for backpropagation, counted on tensors without memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from transformers.modeling_layers import GradientCheckpointingLayer

from lm.engine.memory import FLOAT
from lm.errors import StorageError, brief


def kept_floats(
    network: Any, read: Callable[[], object], tokens: int, device: torch.device, *, recompute: bool
) -> int:
    """Approximate number of numbers that ``read`` keeps on a device. It runs a network on the meta device.

    With ``recompute``, those of one layer and the inputs of all layers. A kind of network whose computation
    depends on the values of its inputs is counted by its matrices: their inputs and outputs for each of the
    ``tokens``. Raises StorageError for a kind whose own checks refuse the inputs.
    """
    try:
        found = _kept_bytes(network, read, device) // FLOAT
    except ValueError as error:
        kind = network.config.model_type
        raise StorageError(
            f"model.trunk: a model of the kind {kind} cannot be a trunk ({brief(error)}); choose another"
        ) from error
    except RuntimeError:  # torch's, where a kind's code asks a tensor without values for them
        found = tokens * sum(sum(weight.shape) for weight in network.parameters() if weight.dim() == 2)
    layers = max(1, len(recomputable(network)))
    size: int = network.config.hidden_size
    return found // layers + tokens * layers * size if recompute else found


def recomputable(network: nn.Module) -> list[Any]:
    """Layers of a network that can compute their activations again."""
    return [part for part in network.modules() if isinstance(part, GradientCheckpointingLayer)]


def _kept_bytes(network: nn.Module, read: Callable[[], object], device: torch.device) -> int:
    """Bytes of all tensors except parameters that autograd keeps of a computation."""
    known = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.device("meta"), saved_tensors_hooks(pack, lambda tensor: tensor), _Shapes(device):
        read()
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in known)


class _Shapes(TorchFunctionMode):
    """Lets attention keep what its kernels keep: no matrix of queries and keys, except dropout on CPUs.

    No tensor has values. Torch says so by a RuntimeError, except where NumPy asks for them.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._kernels_drop = device.type != "cpu"

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func in (Tensor.numpy, Tensor.__array__):
            raise RuntimeError("a tensor without values")
        if func is F.scaled_dot_product_attention and len(args) == 3:
            mask, dropped = given.get("attn_mask"), given.get("dropout_p", 0.0) > 0
            learned = mask is not None and mask.requires_grad
            if not learned and (not dropped or self._kernels_drop):
                return _Kernel.apply(*args)  # type: ignore[no-untyped-call]
        return func(*args, **given)


class _Kernel(torch.autograd.Function):
    """Shapes of an attention kernel, which keeps inputs, output and a sum for each query."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        outputs = queries.new_empty(*queries.shape[:-1], values.shape[-1])
        ctx.save_for_backward(queries, keys, values, outputs, queries.new_empty(queries.shape[:-1]))
        return outputs
