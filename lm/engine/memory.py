"""Memory estimates of a training, and the check against the memory of the machine."""

import torch
from torch import nn

from lm.disk.storage import readable
from lm.engine.config import OptimConfig
from lm.engine.optim import commit_bytes, optimizer_numbers, trained_bytes
from lm.errors import ConfigError
from lm.heads.head import Head
from lm.machine import memory_limit

FLOAT = 4  # bytes


def training_memory(
    model: nn.Module, optim: OptimConfig, activations: int, carried: int = 0, shards: int = 1
) -> dict[str, int]:
    """Bytes of training in a process, and of a checkpoint.

    ``activations`` counts the numbers kept for backpropagation, of one shard. Several ``shards`` take a
    gradient in one vector for each level of their sum. ``carried`` has the bytes of the state
    between batches, which a checkpoint holds too. A checkpoint holds a tied matrix under both of its names,
    and so do its averages.
    """
    trained = trained_bytes(model)
    averages = int(optim.average != "none")
    sizes = {
        "weights": sum(parameter.nbytes for parameter in model.parameters()),
        "gradients": trained * (1 + shards.bit_length() if shards > 1 else 1),
        "optimizer": optimizer_numbers(optim) * trained,
        "averages": averages * trained,
        "activations": FLOAT * activations,
    }
    checkpoint = commit_bytes(optim, model) + carried
    return {**sizes, "training": sum(sizes.values()), "checkpoint": checkpoint}


def head_floats(head: Head, tokens: int) -> int:
    """Numbers of a head in training: contexts of all tokens with their gradients, and those of the loss."""
    vectors = head.config.contexts * head.size * (3 if head.latent is not None else 1)
    return tokens * vectors + head_scratch(head, tokens)


def head_scratch(head: Head, tokens: int) -> int:
    """Numbers of the loss's temporary memory: logit buffers of a chunk and gradients of parameters."""
    output = head.output
    chunk = min(tokens, output.chunk)
    logits = chunk * output.rows_per_token * head.vocab_size * output.logit_buffers
    gathered = chunk * output.gathered
    return (
        logits * output.logit_bytes // FLOAT
        + gathered
        + 2 * sum(parameter.numel() for parameter in output.learned())
    )


def require_memory(needed: int, device: torch.device, remedy: str) -> None:
    """Raise ConfigError if ``needed`` bytes exceed the memory of the device or the process's limit."""
    total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else memory_limit()
    if needed > total:
        raise ConfigError(
            f"training needs about {readable(needed)} of memory, but only "
            f"{readable(total, up=False)} are available; {remedy}"
        )
