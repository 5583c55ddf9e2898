"""A trained language model for inference: scoring, analysis, generation.

Text is read as one stream: ``<eos>``, then every token, each predicted from all before it. So each token is
scored once, including the first. Results depend neither on windows nor on batches, up to the rounding of
matrix products.
"""

import copy
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lm.engine.device import device_here
from lm.engine.state import load_model_tensors
from lm.errors import DataError
from lm.heads.states import Layers
from lm.huggingface.starting import local
from lm.language.config import LmConfig
from lm.language.model import LanguageModel, Outputs
from lm.language.sizes import sized
from lm.language.windows import Ids
from lm.parallel.group import ALONE, Group
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import opened_run
from lm.text.vocabulary import Codec

READ_LENGTH = 256  # tokens that the trunk reads at once
WINDOWS = range(sys.maxsize)  # numbers of all windows of a text


class Reader:
    """A position in a text, held as the last token and the state of the trunk."""

    def __init__(self, model: LanguageModel, last: Tensor) -> None:
        self._model, self._last = model, last
        self._state = model.initial_state(1)

    def read(self, targets: Tensor) -> Layers:
        """Hidden states (n, 1, H) that predict the next n tokens, ``targets`` (n,).

        The state before is detached, so gradients stay within the n tokens.
        """
        outputs: Outputs = self._model(torch.cat((self._last, targets[:-1]))[:, None], self._state)
        self._last, self._state = targets[-1:], outputs.state.detached()
        return outputs.hidden

    def readings(
        self, tokens: Tensor, window: int = READ_LENGTH, only: range = WINDOWS
    ) -> Iterator[tuple[Layers, Tensor]]:
        """Yield :meth:`read` of each window of the next tokens (N,), and the window; without gradients.

        Only the windows of ``only`` are yielded, and those after it are not read.
        """
        for number, targets in enumerate(tokens.split(window)[: only.stop]):
            with torch.no_grad():
                hidden = self.read(targets)
            if number >= only.start:
                yield hidden, targets


@dataclass(frozen=True)
class TrainedLm:
    """A model with the codec and config of its run."""

    config: LmConfig
    codec: Codec
    model: LanguageModel
    device: torch.device
    group: Group = ALONE  # whose processes share what the head computes

    @classmethod
    def load(cls, run: Path, checkpoint: str = "best", device: torch.device | None = None) -> Self:
        """Open a run at a checkpoint: ``best``, ``last``, ``average-best`` (of the k best) or ``step-N``.

        Without ``device``, it is that of the run's own config. StorageError if the folder is not a language
        model's run, or its checkpoint is missing, corrupt or foreign.
        """
        config, codec = opened_run(run, LmConfig)
        config = local(config, run)
        exact = {"products": "float32", "skip_below": 0.0}  # approximations are for training only
        head = config.head.model_copy(update=exact)
        words, eos = len(codec.vocabulary), codec.vocabulary.eos
        model = LanguageModel(sized(config.model_copy(update={"head": head}), words), words, eos)
        load_model_tensors(model, CheckpointStore.of(run).weights(checkpoint))
        device = device or device_here(config.train)
        return cls(config, codec, model.to(device).eval(), device)

    def begin(
        self, ids: Ids, *, paper: bool = False, model: LanguageModel | None = None
    ) -> tuple[Reader, Tensor]:
        """A reader at the beginning of a text, and the tokens to predict, on its device.

        In the authors' code (``paper``) the first token is read but not predicted. ``model`` replaces the
        trained model. DataError if there is no token to predict.
        """
        if len(ids) <= paper:
            raise DataError(f"{len(ids)} tokens are too few to score; give a longer text")
        tokens = torch.from_numpy(ids.astype(np.int64)).to(self.device)
        begin = torch.tensor([self.codec.vocabulary.bos], device=self.device)
        model = model or self.model
        return (Reader(model, tokens[:1]), tokens[1:]) if paper else (Reader(model, begin), tokens)

    def readings(
        self,
        ids: Ids,
        *,
        paper: bool = False,
        model: LanguageModel | None = None,
        window: int = READ_LENGTH,
        only: range = WINDOWS,
    ) -> Generator[tuple[Layers, Tensor]]:
        """Yield the hidden states (n, 1, H) of each window and the tokens (n,) to predict from them.

        ``paper``, ``model`` and DataError: see :meth:`begin`. ``only``: see :meth:`Reader.readings`.
        """
        reader, tokens = self.begin(ids, paper=paper, model=model)
        yield from reader.readings(tokens, window, only)

    def log_probs(
        self,
        ids: Ids,
        rows: int = READ_LENGTH,
        only: range = WINDOWS,
    ) -> Iterator[Tensor]:
        """log P of every word at every position, in float64, in blocks (n, V) in text order."""
        head = copy.deepcopy(self.model.head).double()
        for hidden, _ in self.readings(ids, window=rows, only=only):
            with torch.no_grad():
                block = head.log_probs(hidden.map(lambda states: states[:, 0].double()))
            yield block
