"""The language model: embedding, a trunk of any kind, and a head of any kind.

T time · B streams · H size of the trunk's hidden states · V words.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lm.heads.head import Head
from lm.heads.states import Layers
from lm.huggingface.architecture import Architecture, read_architecture
from lm.language.bigrams import BigramState, HashedBigrams
from lm.language.config import LmConfig
from lm.regularize import masked, word_dropout
from lm.trunks.names import pretrained_path
from lm.trunks.recurrent import RecurrentRates, RecurrentTrunk
from lm.trunks.transformer import TransformerTrunk
from lm.trunks.trunk import AnyTrunk, TrunkState

_TRUNCATED = 0.87962566103423978  # standard deviation of a standard normal truncated at ± 2


class Outputs(NamedTuple):
    """Outputs of the trunk for a window."""

    hidden: Layers  # (T, B, H) after dropout, and lower layers for the head
    raw: Tensor  # (T, B, H) before dropout
    state: TrunkState  # after the window


class LanguageModel(nn.Module):
    """Embedding, trunk and replaceable head.

    By default it is AWD-LSTM (Merity et al. 2018) with another head, as in Yang et al. (2018).
    With other settings it is the model of Melis et al. (2020), see docs/reproduction.md. ``layers`` is the
    trunk, in a name that the parameters of saved models have.

    Args:
        config: sizes, resolved by :func:`lm.language.sizes.sized`, and regularisation. Dropout applies only
            in the published places.
        vocab_size: V.
        eos: id of ``<eos>``, at which an episodic model resets its state. Only reading needs it.
        trunk: a trunk of the kind and sizes of the config; default: a new one.

    Raises:
        ConfigError: a tied head whose context size is not the embedding size.
        ValueError: sizes that a budget or a ratio leaves unresolved.
    """

    def __init__(
        self, config: LmConfig, vocab_size: int, eos: int | None = None, trunk: AnyTrunk | None = None
    ) -> None:
        super().__init__()
        if config.model.budget or config.model.input_embedding_ratio is not None:
            raise ValueError("the config has unresolved sizes; call sized() first")
        self.config, self.eos = config.model, eos
        self.embedding = nn.Embedding(vocab_size, config.model.embedding_size)
        self.bigrams: HashedBigrams | None = None
        if config.model.bigrams:
            self.bigrams = HashedBigrams(config.model.bigrams, config.model.embedding_size)
        self.layers: AnyTrunk = trunk or new_trunk(config)
        embedding = self.embedding.weight
        assert isinstance(embedding, nn.Parameter)
        self.head = Head(config.head, self.layers.size, vocab_size, embedding, self.layers.lower_sizes)
        if config.model.embedding_init == "scaled":
            self._scale()
        else:
            nn.init.uniform_(self.embedding.weight, -config.model.init_range, config.model.init_range)

    def _scale(self) -> None:
        """The initial embedding, output matrix and projection of Melis et al. (2020)."""
        for weight in dict.fromkeys((self.embedding.weight, self.head.weight)):  # once where they are tied
            deviation = weight.shape[1] ** -0.5 / _TRUNCATED
            nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        if self.head.projection is not None:
            nn.init.orthogonal_(self.head.projection.weight)

    def initial_state(self, streams: int) -> TrunkState:
        """The state before the first token of a number of streams."""
        state: TrunkState = self.layers.initial_state(streams)
        return BigramState.initial(state, self.embedding.weight.device) if self.bigrams else state

    def state_from(self, tensors: dict[str, Tensor], device: torch.device) -> TrunkState:
        """The state from the result of its ``tensors``."""
        state: TrunkState = self.layers.state_from(tensors, device)
        return BigramState.of(state, tensors, device) if self.bigrams else state

    def forward(self, tokens: Tensor, state: TrunkState) -> Outputs:
        """Read a window of tokens (T, B) from a state, with new dropout masks."""
        rates = self.config
        words, kept = self.embedding(tokens), self._kept(tokens)
        trunk = state
        if self.bigrams is not None:
            assert isinstance(state, BigramState)
            words, trunk = words + self.bigrams(tokens, state.last, kept), state.trunk
        words = word_dropout(words, tokens, self.head.vocab_size, rates.embedding_dropout, self.training)
        read = self.layers(self._drop(words, rates.input_dropout), trunk, kept)
        last = self._drop(read.outputs, rates.output_dropout)
        after = read.state if trunk is state else BigramState(read.state, tokens[-1])
        return Outputs(Layers(last, read.lower[: len(self.head.lower_sizes)]), read.outputs, after)

    def for_head(self, hidden: Layers) -> Layers:
        """Hidden states (T, B, H) in the shape for the head's own dropout: (T · B, H) for per-step masks."""
        per_step = self.config.dropout_masks == "per_step"
        return hidden.map(lambda states: states.flatten(0, 1)) if per_step else hidden

    def _drop(self, states: Tensor, rate: float) -> Tensor:
        return masked(states, rate, self.config.dropout_masks, self.training)

    def _kept(self, tokens: Tensor) -> Tensor | None:
        """Mask (T, B) of the steps at which an episodic model keeps its state: all except at ``<eos>``."""
        if not self.config.episodic:
            return None
        if self.eos is None:
            raise ValueError("an episodic model needs the id of <eos> to read; pass eos")
        return tokens != self.eos


def pretrained_trunk(config: LmConfig, found: Architecture) -> AnyTrunk:
    """A new trunk of an architecture of transformers, with random weights."""
    from lm.huggingface.trunk import PretrainedTrunk

    model, lower = config.model, config.head.lower_layers
    return PretrainedTrunk(found, model.attention_span, lower, model.recompute)


def new_trunk(config: LmConfig) -> AnyTrunk:
    """A new trunk of the kind and sizes of a config."""
    model, sizes = config.model, (config.model.embedding_size, *config.model.hidden_sizes)
    if path := pretrained_path(model.trunk):
        return pretrained_trunk(config, read_architecture(path))
    if model.trunk == "transformer":
        return TransformerTrunk(
            config.transformer, sizes, model.attention_span, model.hidden_dropout, model.dropout_masks
        )
    return RecurrentTrunk(
        config.cell,
        sizes,
        RecurrentRates(model.hidden_dropout, model.state_dropout, model.weight_dropout),
        model.dropout_masks,
        resettable=model.episodic,
        layer_sum=model.layer_sum,
    )
