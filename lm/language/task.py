"""Training task of a language model for the engine of :mod:`lm.engine.loop`."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from lm.engine.update import StepLoss
from lm.errors import MisfitError
from lm.heads.output_layer import words_before
from lm.language.config import LmConfig, WindowConfig
from lm.language.corpora.corpus import TokenSplit
from lm.language.model import LanguageModel
from lm.language.windows import Ids, ReadHeads, Streams, Window, mean_length
from lm.parallel.shards import slice_of
from lm.regularize import activation_penalty, slowness_penalty, weight_penalty
from lm.trunks.trunk import TrunkState

SCORED_LENGTH = 70  # tokens of a window in validation; the result does not depend on it


class LmTask:
    """Streams of a corpus, the model, and the hidden state carried between windows.

    ``eos`` is the id of line ends, and ``begin`` that of the token before the text, ``eos`` by default.
    """

    def __init__(
        self,
        config: LmConfig,
        eos: int,
        model: LanguageModel,
        train: TokenSplit,
        valid: TokenSplit,
        device: torch.device,
        begin: int | None = None,
    ) -> None:
        self.config, self.device, self._begin = config, device, eos if begin is None else begin
        self.model = model.to(device)
        self._paper = config.train.compat == "paper"
        self._valid = valid
        self._carried = model.initial_state(config.train.batch_size)
        self._length = sum(len(file) for file in train.files) // config.train.batch_size
        if not self._length:
            raise _too_few(config.data.train, train, "train.batch_size", config.train.batch_size)
        if Streams(valid.files, config.data.valid_streams, self._begin, paper=self._paper).empty:
            raise _too_few(config.data.valid, valid, "data.valid_streams", config.data.valid_streams)
        self._streams: Streams | ReadHeads
        if config.window.order == "read_heads":
            jitter, seed = config.window.jitter, config.train.seed
            self._streams = ReadHeads(train.files, config.train.batch_size, eos, jitter, seed)
        else:
            self._streams = Streams(train.files, config.train.batch_size, self._begin, paper=self._paper)
            if not self._streams.trainable:
                raise _too_few(config.data.train, train, "train.batch_size", config.train.batch_size)

    def epoch_length(self) -> int:
        """Approximate number of windows in a pass."""
        return max(1, round(self._length / mean_length(self.config.window)))

    def epoch(self, number: int, start: int) -> Iterator[Window]:
        """Yield the windows of a pass from ``start``; their lengths depend only on seed and pass."""
        generator, window = np.random.default_rng((self.config.train.seed, number)), self.config.window
        if isinstance(self._streams, ReadHeads):
            spans = self._streams.spans(number, window, generator)
        else:
            spans = self._streams.spans(window, generator, training=True)
        for span in islice(spans, start, None):
            yield self._streams.window(span).to(self.device)

    def loss(self, batch: Window) -> StepLoss:
        """The summed loss of a window; its last state is carried to the next window."""
        streams, rows = batch.tokens.shape[1], batch.rows
        carried = self._carried if rows is None else self._carried.select(rows)
        before = self.model.initial_state(streams) if batch.first else self._forgetful(carried)
        outputs = self.model(batch.tokens, before)
        after = outputs.state.detached()
        self._carried = after if rows is None else self._carried.replaced(rows, after)
        repeated: Tensor | None = None
        if self.config.head.unlikelihood:
            repeated = words_before(batch.targets.t()).transpose(0, 1)  # (T, B, T), within the window
        hidden = self.model.for_head(outputs.hidden)
        head = self.model.head
        objective, nll = head.objective(hidden, batch.targets, repeated=repeated, present=batch.tokens)
        tokens, model = batch.targets.numel(), self.config.model
        penalty = torch.zeros((), device=nll.device)
        if model.activation_penalty:
            penalty = penalty + model.activation_penalty * activation_penalty(outputs.hidden.last.float())
        if model.slowness_penalty:
            penalty = penalty + model.slowness_penalty * slowness_penalty(outputs.raw.float())
        if model.weight_penalty:
            penalty = penalty + model.weight_penalty * weight_penalty(self.model.parameters())
        return StepLoss(objective + tokens * penalty, nll.detach(), tokens, batch.scale)

    def skipped(self, batches: Sequence[Window]) -> None:
        """Forget the state of the text before, if another text begins in a skipped window."""
        if any(window.first for window in batches):
            self._carried = self.model.initial_state(self._carried.streams)

    def shard(self, batch: Window, index: int, count: int) -> Window | None:
        """Neighbouring streams of a window."""
        rows = slice_of(batch.tokens.shape[1], index, count)
        return batch.select(rows) if rows.stop > rows.start else None

    def _forgetful(self, state: TrunkState) -> TrunkState:
        """The state, with the initial one for each stream with probability ``window.state_reset``."""
        rate = self.config.window.state_reset
        if not rate:
            return state
        return state.forgetting(torch.rand(state.streams) >= rate)

    def validation(self) -> Iterator[tuple[float, int]]:
        """Σ nll and tokens of windows of the validation split, read as ``data.valid_streams`` streams."""
        streams = self.config.data.valid_streams
        return score_streams(self.model, self._valid.files, streams, self._begin, paper=self._paper)

    def state(self) -> dict[str, Tensor]:
        """The trunk's state of every stream."""
        return self._carried.tensors()

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore the tensors of :meth:`state`."""
        self._carried = self.model.state_from(tensors, self.device)


def _too_few(source: str, split: TokenSplit, key: str, streams: int) -> MisfitError:
    """The error of a text without a token for every stream in any of its files."""
    longest, files = max(len(file) for file in split.files), len(split.files)
    has = f"{longest:,}" if files == 1 else f"the longest of {files:,} files has {longest:,}"
    more = "" if files == 1 else ", or prepare the text again with a larger --shard-tokens"
    return MisfitError(f"{source}: {has} tokens for {key} = {streams} streams; lower {key}{more}", [key])


@torch.no_grad()
def score_streams(
    model: LanguageModel, files: Sequence[Ids], streams: int, begin: int, *, paper: bool = False
) -> Iterator[tuple[float, int]]:
    """Yield Σ nll in nats and its divisor in tokens of windows of all tokens except a last incomplete row.

    The authors' code (``paper``) scores N − 1 tokens of each stream and divides by N.
    """
    device = model.embedding.weight.device
    config = WindowConfig(length=SCORED_LENGTH, random=False, rescale_lr=False)
    laid_out = Streams(files, streams, begin, paper=paper)
    state = model.initial_state(streams)
    for span in laid_out.spans(config, np.random.default_rng(0)):
        window = laid_out.window(span).to(device)
        outputs = model(window.tokens, model.initial_state(streams) if span.first else state)
        state = outputs.state
        left_out = streams * (paper and span.first)
        nll = float(model.head.nll(outputs.hidden, window.targets).double().sum())
        yield nll, window.targets.numel() + left_out
