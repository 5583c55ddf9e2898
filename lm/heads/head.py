"""The output head: hidden states in, a distribution over the vocabulary out.

One class covers every kind. A row of ``HEADS`` names what a kind mixes, and its link function.

    softmax, sigsoftmax   g(W h + b)
    sigmoid, relu         g(W h + b), the baselines of Kanai et al. (2018, Eq. 35, 34)
    moc                   softmax(W Σ_k π_k c_k + b)    (Yang et al. 2018, §2.5)
    mos, moss             Σ_k π_k g(W c_k + b)    (Yang et al. 2018, Eq. 2; Kanai et al. 2018, Eq. 19)
    mixtape               softmax of logits mixed by gates of every word    (:mod:`lm.heads.mixtape`)
    plif                  softmax(f(W h + b)) with a learned f    (:mod:`lm.heads.plif`)
    doc                   mos with contexts of several layers    (Takase et al. 2018)
    mfs                   mos whose first component has contexts of its own for parts of the vocabulary; all
                          contexts may read several layers    (:mod:`lm.heads.facets`)
    cpr                   the same, with parts that depend on the token: its most probable words, and words of
                          the text that is answered    (:mod:`lm.heads.cpr`)

with contexts c_k = s · tanh(W_k h + b_k), or without tanh, and π = softmax of U h (sigsoftmax for moss), with
a bias if ``prior_bias``.

All computations stay in the log domain. There is no log(p + ε), which would cap the loss, falsify gradients
and raise the measured rank. A temperature may divide the logits z of any kind: one number, or one for every
word in its context (:mod:`lm.heads.temperature`).

N tokens · H hidden size · K components · E context size · V words.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lm.errors import ConfigError
from lm.heads.config import HeadConfig
from lm.heads.cpr import source_reader
from lm.heads.facets import FacetInputs
from lm.heads.links import LINKS
from lm.heads.loss_options import LossOptions, Output
from lm.heads.mixer import Mixer, Mixture, rows_of_last
from lm.heads.mixtape import WordGates
from lm.heads.output_layer import OutputLayer, PastDecoder
from lm.heads.plif import PiecewiseLinear
from lm.heads.precision import precise
from lm.heads.registry import HEADS
from lm.heads.states import Layers, States
from lm.heads.temperature import WordTemperature

__all__ = ["HEADS", "Head", "HeadConfig"]


class Head(nn.Module):
    """A decoder head of any kind.

    It owns every parameter, under the names in checkpoints. Its ``mixer`` maps hidden states to contexts, and
    its ``output`` maps contexts to probabilities.

    Logits and probabilities are float32 or better regardless of the precision of the model. For
    log-probabilities in float64 throughout, as ranks need them, use ``copy.deepcopy(head).double()``.

    Args:
        config: kind, K, E, tying, bias, dropout; see :class:`lm.heads.config.HeadConfig`.
        hidden_size: H, the size of the last layer's hidden states.
        vocab_size: V.
        embedding: the (V, E) parameter to share when ``config.tied``.
        lower_sizes: sizes of the layers below the last that the model provides, the highest first. The head
            reads the first ``config.lower_layers`` of them from its ``Layers``. A head that reads none also
            takes a plain tensor.
        word_size: size of the encoder's states of the words of the source; 0 = the model has no source.

    Raises:
        ConfigError: if ``config.tied`` lacks an embedding of the right shape, ``config.lower_components``
            or ``config.facet_layers`` lacks layers of the model, or ``config.source`` lacks a source.
    """

    bias: nn.Parameter | None  # (V,)
    shift: nn.Parameter | None  # () of sigsoftmax

    def __init__(
        self,
        config: HeadConfig,
        hidden_size: int,
        vocab_size: int,
        embedding: nn.Parameter | None = None,
        lower_sizes: Sequence[int] = (),
        word_size: int = 0,
    ) -> None:
        super().__init__()
        self.config, self.row = config, HEADS[config.kind]
        self.link = LINKS[self.row.link]
        self.hidden_size, self.vocab_size = hidden_size, vocab_size
        self.size = config.embedding_size or hidden_size
        bf16 = config.products == "bfloat16"
        self.options = LossOptions(self.link, bf16_products=bf16, skip_below=config.skip_below)
        self._add_mixer(tuple(lower_sizes))
        self._add_output(embedding)
        if config.candidates and config.candidates[-1] > vocab_size:
            raise ConfigError(
                f"head.candidates = {list(config.candidates)}: the vocabulary has {vocab_size:,} words; set"
                " smaller numbers, since each token takes time for all of them"
            )
        if config.partitions > vocab_size:
            raise ConfigError(
                f"head.partitions = {config.partitions:,}: the vocabulary has {vocab_size:,} words; set a"
                " smaller number, since a part without words has a context in vain"
            )
        self.source_reader = source_reader(config.source, word_size, self.size)
        self.scale: nn.Parameter | float = config.context_scale
        if config.learn_context_scale:
            self.scale = nn.Parameter(torch.tensor(config.context_scale))

    def _add_mixer(self, lower_sizes: tuple[int, ...]) -> None:
        config, size, read = self.config, self.size, self.hidden_size
        self._choose_layers(lower_sizes)
        self.facets: FacetInputs | None = None
        if config.facet_layers:
            self.facets = FacetInputs(self.hidden_size, self.lower_sizes)
            read = 2 * self.hidden_size
        self.projection: nn.Linear | None = None
        self.latent: nn.Linear | None = None
        self.prior: nn.Linear | None = None
        if not self.row.is_mixture:
            if size != self.hidden_size:
                self.projection = nn.Linear(self.hidden_size, size, bias=False)
        else:
            self.latent = nn.Linear(read, (config.contexts - sum(config.lower_components)) * size)
            if config.components > 1 and self.row.mixes != "logits":
                self.prior = nn.Linear(read, config.components, bias=config.prior_bias)
        self.lower = nn.ModuleList(
            _linear(lower, count * size)
            for lower, count in zip(self.lower_sizes, config.lower_components, strict=False)  # none for mfs
        )

    def _choose_layers(self, provided: tuple[int, ...]) -> None:
        config = self.config
        self.lower_sizes = provided[: config.lower_layers]
        if len(self.lower_sizes) < config.lower_layers:
            key = "facet_layers" if config.facet_layers else "lower_components"
            raise ConfigError(
                f"head.{key}: {config.kind} reads {config.lower_layers} layers below the last, but the model"
                f" provides {len(provided)}; ask for fewer by head.{key}, or choose another head.kind"
            )

    def _add_output(self, embedding: nn.Parameter | None) -> None:
        config, shape = self.config, (self.vocab_size, self.size)
        if not config.tied:
            self.weight = nn.Parameter(torch.empty(shape).uniform_(-0.1, 0.1))
        elif embedding is None or embedding.shape != shape:
            remedy = "set head.embedding_size to the model's embedding size"
            found = "none" if embedding is None else tuple(embedding.shape)
            raise ConfigError(
                f"head.tied: needs an embedding of shape {shape}, found {found};"
                f" {remedy if embedding is not None else 'pass one, or set head.tied = false'}"
            )
        else:
            self.weight = embedding
        self.bias = nn.Parameter(torch.zeros(self.vocab_size)) if config.output_bias else None
        self.shift = nn.Parameter(torch.zeros(())) if config.learn_shift else None
        self.gates: WordGates | None = None
        self.pointwise: PiecewiseLinear | None = None
        self.temperature: WordTemperature | None = None
        self.past: PastDecoder | None = None
        if self.row.mixes == "logits" and config.components > 1:
            self.gates = WordGates(config, self.hidden_size, self.vocab_size)
        if "intervals" in self.row.fields:
            self.pointwise = PiecewiseLinear(config.intervals, config.interval_range)
        if config.temperature not in ("none", "constant"):
            self.temperature = WordTemperature(config, self.hidden_size, self.vocab_size)
        if config.past_decode:
            self.past = PastDecoder(self.size, self.vocab_size)

    def _mixture(self, hidden: States, streams: Tensor | None = None) -> Mixture:
        """Contexts and prior of the tokens, and logits of the words of their sources."""
        mixture = self.mixer.mixture(hidden, streams)
        if self.source_reader is None:
            return mixture
        first, count = 1 + len(self.config.candidates), self.config.source_contexts
        output = Output(precise(self.weight), None if self.bias is None else precise(self.bias), None)
        with torch.autocast(mixture.contexts.device.type, enabled=False):
            contexts = mixture.contexts[:, first : first + count]
            words, logits = self.source_reader.logits(Layers.of(hidden).source, contexts, output)
        return mixture._replace(words=words, word_logits=logits)

    def matrix_blocks(self) -> dict[str, int]:
        """Number of components whose contexts are blocks of rows; none for prior and output."""
        counts = self.config.lower_components
        lower = {f"lower.{layer}.weight": count for layer, count in enumerate(counts)}
        return {"latent.weight": self.config.contexts - sum(counts), "prior.weight": 0, "weight": 0} | lower

    @property
    def mixer(self) -> Mixer:
        """The part of the head from hidden states to contexts, with its current parameters."""
        return Mixer(
            config=self.config,
            size=self.size,
            training=self.training,
            projection=self.projection,
            facets=self.facets,
            latent=self.latent,
            lower=self.lower,
            prior=self.prior,
            prior_link=LINKS[self.row.prior_link],
            scale=self.scale,
            mixes_contexts=self.row.mixes == "contexts",
        )

    @property
    def output(self) -> OutputLayer:
        """The part of the head from contexts to probabilities, with its current parameters."""
        return OutputLayer(
            config=self.config,
            options=self.options,
            rows_per_token=self.config.components if self.row.logits_by_component else 1,
            weight=self.weight,
            bias=self.bias,
            shift=self.shift,
            gates=self.gates,
            pointwise=self.pointwise,
            temperature=self.temperature,
            past=self.past,
        )

    def objective(
        self,
        hidden: States,
        targets: Tensor,
        streams: Tensor | None = None,
        repeated: Tensor | None = None,
        present: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The training objective and :meth:`loss`, both scalar sums over tokens in nats.

        They differ only by ``config.temperature_loss_scaling``, ``prior_penalty``, ``label_smoothing``,
        ``unlikelihood`` and ``past_decode``. Unlikelihood has an effect only with ``repeated``, (..., C), as
        of :func:`lm.heads.output_layer.words_before`. ``past_decode`` needs the ``present`` words (...), each
        the one before its target.
        """
        mixture, output, config = self._mixture(hidden, streams), self.output, self.config
        weights = mixture.contexts.new_ones(targets.numel())
        if output.penalised:
            words = None if repeated is None else repeated.flatten(0, -2)
            inputs = None if present is None else present.reshape(-1)
            objective, loss = output.penalised_loss(mixture, targets.reshape(-1), weights, words, inputs)
        else:
            objective = loss = output.loss(mixture, targets.reshape(-1), weights)
        if not targets.numel():
            return objective, loss
        if config.temperature_loss_scaling:
            objective = objective * output.mean_word_temperature(mixture.states)
        if config.prior_penalty:
            of_streams = config.prior_penalty_of == "streams"
            penalty = prior_penalty(
                mixture.log_prior, _streams(Layers.of(hidden).last, streams) if of_streams else None
            )
            objective = objective + targets.numel() * config.prior_penalty * penalty
        return objective, loss

    def loss(
        self,
        hidden: States,
        targets: Tensor,
        weights: Tensor | None = None,
        streams: Tensor | None = None,
        component_temperature: float = 1.0,
    ) -> Tensor:
        """Σ w·(−log P(target)) in nats, a scalar. Scratch memory does not depend on the number of tokens.

        Only the logits of words of a source are computed for all tokens at once.

        Args:
            hidden: (..., H).  targets: (...) word ids.  weights: (...) or None for ones.
            streams: see ``mixer.contexts``.  component_temperature: that of :meth:`log_probs`.
        """
        mixture = self._mixture(hidden, streams)
        flat = mixture.contexts.new_ones(targets.numel()) if weights is None else weights.reshape(-1)
        flat = flat.to(mixture.contexts.dtype)
        return self.output.loss(mixture, targets.reshape(-1), flat, component_temperature)

    def nll(self, hidden: States, targets: Tensor, component_temperature: float = 1.0) -> Tensor:
        """−log P(target) of every token in nats, shaped like ``targets``; exact products, no gradients.

        ``component_temperature`` is that of :meth:`log_probs`.
        """
        mixture = self._mixture(hidden)
        return self.output.nll(mixture, targets.reshape(-1), component_temperature).view(targets.shape)

    def log_probs(
        self, hidden: States, component_temperature: float = 1.0, operand: Tensor | None = None
    ) -> Tensor:
        """log P(v) of every word, (..., V), normalised and at least float32.

        Without gradients, scratch memory does not depend on the number of tokens. Products are then in
        bfloat16 if ``operand``, the result of ``output.rounded()``, is given.

        ``component_temperature`` divides the logits of every component. For a mixture, this differs from
        tempering the mixed distribution, which callers do on the result.
        """
        mixture = self._mixture(hidden)
        log_probs = self.output.log_probs(mixture, component_temperature, operand)
        return log_probs.view(*Layers.of(hidden).last.shape[:-1], self.vocab_size)

    def component_log_probs(self, hidden: States) -> Tensor:
        """log π_k + log p_k(v), (..., K, V), at least float32; K = 1 unless mos, moss, doc, mfs or cpr.

        The logsumexp over K is :meth:`log_probs`, and the logsumexp over V is the log prior.
        """
        joint = self.output.joint_log_probs(self._mixture(hidden))
        return joint.view(*Layers.of(hidden).last.shape[:-1], *joint.shape[1:])

    def temperatures(self, hidden: States) -> Tensor:
        """Temperatures that divide the logits, (..., V); ones for a head without temperature."""
        tau = self.output.word_temperatures(rows_of_last(hidden))
        return tau.view(*Layers.of(hidden).last.shape[:-1], self.vocab_size)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer, which may have no outputs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        return nn.Linear(inputs, outputs)


def prior_penalty(log_prior: Tensor, streams: Tensor | None = None) -> Tensor:
    """β of Takase et al. (2018): (std(B) / avg(B))² of B_k = Σ π_k over the tokens of log π (N, K).

    ``streams`` (N,) numbers the stream of every token. With it, the penalty is that of the authors' code
    (main.py of nttcslab-nlp/doc_lm). That code sums π over the tokens of each stream, and multiplies the
    unbiased variance of all these sums by K − 1.
    """
    shares, components = log_prior.exp(), log_prior.shape[-1]
    if streams is None:
        totals = shares.sum(0)
        return totals.var(correction=0) / totals.mean().square()
    totals = shares.new_zeros(int(streams.max()) + 1, components).index_add(0, streams, shares)
    return (components - 1) * totals.var() / totals.mean().square()


def _streams(hidden: Tensor, streams: Tensor | None) -> Tensor:
    """Stream of every token, (N,): its column in (T, B, H), or a stream of its own in (N, H)."""
    if streams is not None:
        return streams
    columns = torch.arange(hidden.shape[-2], device=hidden.device)
    return columns.repeat(hidden.numel() // (hidden.shape[-1] * len(columns)))
