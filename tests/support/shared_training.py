"""Trainings that several processes share, in one process and in several."""

from pathlib import Path

from tests.support.forked import ranks
from tests.support.outcomes import outcome

LM = """
[data]
train = "train.txt"
valid = "valid.txt"
test = "valid.txt"
valid_streams = 2
[window]
length = 7
[model]
embedding_size = 6
hidden_sizes = [7, 6]
hidden_dropout = 0.3
input_dropout = 0.2
weight_dropout = 0.2
[head]
kind = "mos"
components = 3
latent_dropout = 0.2
[optim]
lr = 0.01
average = "ema"
[train]
batch_size = 9
max_steps = 6
validate_every = 4
checkpoint_every = 2
shards = 4
device = "cpu"
"""


def trained(
    folder: Path, run: str, processes: int, *overrides: str, config: str = "tiny.toml"
) -> tuple[str, bytes]:
    """All that the last commit holds, as a hash, and the log."""
    settings = [part for override in overrides for part in ("--set", override)]
    family = "lm" if config == "tiny.toml" else "dialog"
    with ranks(folder, processes, family, "train", config, "--run", run, *settings) as started:
        assert started.ended().codes == [0] * processes, started.output
    return outcome(folder / run)
