"""A trained language model, opened for use: scoring, analysing, generating.

Text is read as one stream: ``<eos>``, then every token, each predicted from all before it. So each token is
scored once, the first included, and the results depend neither on how the stream is cut into windows nor on
any batch (up to the rounding of matrix products).
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lm.checkpoint import CheckpointStore
from lm.config import read_config
from lm.inputs import codec_of, device_here
from lm.language.config import LmConfig
from lm.language.model import LanguageModel
from lm.language.windows import Ids
from lm.state import load_model_tensors
from lm.stop import no_poll
from lm.text import Codec

READ_LENGTH = 256  # tokens that the recurrent layers read at once


@dataclass(frozen=True)
class TrainedLm:
    """A model with the codec and config of its run."""

    config: LmConfig
    codec: Codec
    model: LanguageModel
    device: torch.device

    @classmethod
    def load(cls, run: Path, checkpoint: str = "best", device: torch.device | None = None) -> Self:
        """Open a run folder.

        Args:
            run: the folder that ``lm train`` wrote.
            checkpoint: ``best``, ``last``, ``average`` (of the k best) or ``step-N``.
            device: where to put the model; if left out, what the run's own config says.

        Raises:
            StorageError: not a language model's run, or its checkpoint is missing, corrupt or foreign.
        """
        config = read_config(run / "config.json", LmConfig).config
        codec = codec_of(run)
        model = LanguageModel(config, len(codec.vocabulary))
        load_model_tensors(model, CheckpointStore(run / "checkpoints").weights(checkpoint))
        device = device or device_here(config.train)
        return cls(config, codec, model.to(device).eval(), device)

    def hidden(
        self, ids: Ids, poll: Callable[[], None] = no_poll, window: int = READ_LENGTH
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Hidden states (n, H) and the tokens (n,) to be predicted from them, window by window."""
        before = np.concatenate(([self.codec.vocabulary.eos], ids[:-1])).astype(np.int64)
        state = self.model.initial_state(1)
        for start in range(0, len(ids), window):
            poll()
            inputs = torch.from_numpy(before[start : start + window]).to(self.device)
            with torch.no_grad():
                outputs = self.model(inputs[:, None], state)
            state = outputs.state
            targets = torch.from_numpy(ids[start : start + window].astype(np.int64)).to(self.device)
            yield outputs.hidden[:, 0], targets

    def log_probs(
        self,
        ids: Ids,
        poll: Callable[[], None] = no_poll,
        rows: int = READ_LENGTH,
        dtype: torch.dtype = torch.float64,
    ) -> Iterator[Tensor]:
        """log P of every word at every position, in blocks (n, V) in text order; ``dtype`` is the head's."""
        head = copy.deepcopy(self.model.head).to(dtype)
        for hidden, _ in self.hidden(ids, poll, rows):
            with torch.no_grad():
                block = head.log_probs(hidden.to(dtype))
            yield block

    def component_log_probs(
        self, ids: Ids, poll: Callable[[], None] = no_poll, rows: int = 64
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """log π_k + log p_k of every word in float64 blocks (n, K, V), and the targets (n,)."""
        head = copy.deepcopy(self.model.head).double()
        for hidden, targets in self.hidden(ids, poll, rows):
            with torch.no_grad():
                block = head.component_log_probs(hidden.double())
            yield block, targets
