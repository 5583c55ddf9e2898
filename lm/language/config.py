"""Schema of a language-model run's config, free of torch."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from lm.cells.config import CellConfig
from lm.config.section import MAX_LAYERS, MAX_SIZE, Count, NotNegative, Owner, Positive, Rate, Section, Size
from lm.engine.config import OptimConfig, TrainConfig
from lm.errors import visible
from lm.heads.config import HeadConfig
from lm.text.tokenizers import TokenizerKind
from lm.trunks.config import TransformerConfig
from lm.trunks.names import PRETRAINED, Kinds, trunk_kind, unfit

_OWN = ("recurrent", "transformer")  # kinds of trunks that are trained from scratch
_RECURRENT = Owner("the recurrent trunk", Kinds("recurrent"))
_DROPS_WEIGHTS = _RECURRENT._replace(off=(0.0,))
_TRANSFORMER = Owner("the transformer and hf trunks", Kinds("transformer", PRETRAINED))
_PRETRAINED = Owner("the hf trunk", Kinds(PRETRAINED))
_SIZED = Owner("the recurrent and transformer trunks", Kinds(*_OWN))
_SIZES = (
    "embedding_size", "bigrams", "vectors", "hidden_sizes", "budget", "input_embedding_ratio",
    "embedding_init", "init_range", "hidden_dropout",
)  # fmt: skip


class DataConfig(Section):
    """Sources of the text, and its conversion to tokens and streams."""

    train: str = Field(
        "data/ptb/train",
        description="training text: a split of a folder that `lm prepare` wrote, or a text file",
    )
    valid: str = Field("data/ptb/valid", description="validation text, used for early stopping")
    test: str = Field("data/ptb/test", description="test text, used by evaluate without --data")
    tokenizer: TokenizerKind | Literal["hf"] = Field(
        "whitespace",
        description="tokenizer of text files; a prepared corpus has its own. hf: that of the folder of"
        " model.trunk",
    )
    lowercase: bool = Field(False, description="convert text files to lower case before tokenization")
    vocab_size: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="number of most frequent training tokens in the vocabulary of a text file; 0 = all",
    )
    valid_streams: Size = Field(10, description="number of parallel streams in validation: its batch size")


class WindowConfig(Section):
    """Windows of truncated backpropagation through time (Merity et al. 2018, §5)."""

    readers: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "order": {"jitter": Owner("--set window.order=read_heads", ("read_heads",))},
        "random": dict.fromkeys(
            ("half_share", "spread", "shortest", "max_delta"), Owner("--set window.random=true", (True,))
        ),
    }

    length: Size = Field(70, description="number of tokens of each stream in a window")
    random: bool = Field(True, description="vary the length: mostly near length, sometimes near half of it")
    half_share: float = Field(0.05, ge=0, le=1, description="share of the windows near half the length")
    spread: float = Field(5.0, ge=0, le=MAX_SIZE, description="standard deviation of the length")
    shortest: Size = Field(5, description="minimum number of tokens of a drawn length")
    max_delta: Count = Field(0, description="maximum number of tokens above length; 0 = no limit")
    rescale_lr: bool = Field(
        True, description="multiply the learning rate of an update by the window's own length / length"
    )
    order: Literal["streams", "read_heads"] = Field(
        "streams",
        description="order of the text. streams: each stream reads a contiguous piece. read_heads: each"
        " stream reads the whole text, from a sentence that is drawn again each time it has read all"
        " (Melis et al. 2020)",
    )
    partial_shuffle: bool = Field(
        False,
        description="streams: rotate every stream at a random place in each pass, which exchanges its two"
        " parts (Press 2019)",
    )
    jitter: Count = Field(
        100, description="read_heads: maximum number of sentences by which a beginning is moved, either way"
    )
    state_reset: Rate = Field(
        0.0, description="probability that a stream starts a window from a zero state; 0 = off"
    )

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        if self.random and self.max_delta and self.shortest > self.length + self.max_delta:
            most = self.length + self.max_delta
            raise ValueError(
                f"shortest = {self.shortest:,}: more than length + max_delta = {most:,}; lower it"
            )
        return self

    @model_validator(mode="after")
    def _shuffles_streams(self) -> Self:
        if self.partial_shuffle and self.order != "streams":
            raise ValueError(
                f'partial_shuffle: has no effect with order = "{self.order}"; set order = "streams"'
            )
        return self


class ModelConfig(Section):
    """Sizes of the language model, its dropout and its penalties (Merity et al. 2018, §3-4)."""

    owners: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "trunk": {"attention_span": _TRANSFORMER, "recompute": _PRETRAINED, "weight_dropout": _DROPS_WEIGHTS}
        | dict.fromkeys(("layer_sum", "state_dropout"), _RECURRENT)
        | dict.fromkeys(_SIZES, _SIZED)
    }
    readers: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "embedding_init": {"init_range": Owner("--set model.embedding_init=uniform", ("uniform",))}
    }

    trunk: str = Field(
        "recurrent",
        description="network between word vectors and head: recurrent, with cells of [cell]; transformer,"
        " with layers of [transformer]; or hf:FOLDER, a pretrained model of transformers",
    )
    embedding_size: Size = Field(400, description="size of the input word embedding")
    bigrams: Count = Field(
        0,
        description="number of vectors of hashed bigrams, zero at the start, one of which is added to each"
        " word embedding; 0 = off",
    )
    vectors: str = Field(
        "",
        description="text file of pretrained word vectors, as of GloVe or word2vec, for the initial"
        " embedding; empty = random",
    )
    hidden_sizes: tuple[Size, ...] = Field(
        (1150, 1150, 400),
        min_length=1,
        max_length=MAX_LAYERS,
        description="hidden sizes of the layers, from first to last; those of a transformer are equal",
    )
    budget: int = Field(
        0,
        ge=0,
        description="maximum number of parameters. Layers become as large as it allows, with hidden_sizes as"
        " proportions, as in [1, 1]. 0 = hidden_sizes are the sizes",
    )
    input_embedding_ratio: float | None = Field(
        None,
        gt=0,
        description="size of word embedding and head contexts as a share of the last layer's size, at most 1;"
        " none = embedding_size and head.embedding_size",
    )
    attention_span: Size = Field(
        256,
        description="transformer: number of tokens that attention reaches back, through cached keys and"
        " values of earlier windows. hf: number of tokens after which the model begins a stream anew",
    )
    recompute: bool = Field(
        False,
        description="hf: compute the activations of the layers again in the backward pass, which saves memory"
        " and takes more time",
    )
    layer_sum: bool = Field(False, description="use the sum of the outputs of all layers as hidden state")
    embedding_init: Literal["uniform", "scaled"] = Field(
        "uniform",
        description="initialisation. uniform: the embedding in ± init_range. scaled: embedding and output"
        " matrix normal with variance 1 / width, and the head's projection orthogonal"
        " (Melis et al. 2020)",
    )
    init_range: Positive = Field(0.1, description="bound of the uniform initialisation of the embedding")
    embedding_dropout: Rate = Field(0.1, description="dropout rate of words: whole rows of the embedding")
    input_dropout: Rate = Field(0.4, description="rate of locked dropout of the embedded words")
    hidden_dropout: Rate = Field(
        0.25,
        description="rate of locked dropout between layers; in a transformer, of the outputs of attention and"
        " feed-forward parts",
    )
    output_dropout: Rate = Field(0.4, description="rate of locked dropout of the last layer's output")
    episodic: bool = Field(
        False,
        description="reset the state at each <eos>, so that sentences are independent. An LSTM then has one"
        " bias instead of two",
    )
    state_dropout: Rate = Field(
        0.0,
        description="dropout rate of the recurrent state, with one mask for all steps of a layer. An LSTM"
        " then has one bias vector",
    )
    dropout_masks: Literal["shared", "per_step"] = Field(
        "shared",
        description="masks of input, hidden, output and latent dropout: one for all steps of a window, or one"
        " for each step",
    )
    weight_dropout: Rate = Field(
        0.5, description="dropout rate of the recurrent weights; a transformer has none"
    )
    activation_penalty: NotNegative = Field(
        2.0, description="AR: weight of the mean square of the last layer's outputs"
    )
    slowness_penalty: NotNegative = Field(
        1.0, description="TAR: weight of the mean square of the outputs' changes from step to step"
    )
    weight_penalty: NotNegative = Field(
        0.0,
        description="L2: weight of half the squared norm of all parameters. Its gradient is clipped, unlike"
        " that of optim.weight_decay",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        kind = trunk_kind(self.trunk)
        if kind not in (*_OWN, PRETRAINED):
            raise ValueError(f"trunk = {visible(self.trunk)}: must be recurrent, transformer or hf:FOLDER")
        if kind == "transformer" and len(set(self.hidden_sizes)) > 1:
            sizes = ", ".join(map(str, self.hidden_sizes))
            raise ValueError(f"hidden_sizes: the layers of a transformer have one size, not {sizes}")
        if wrong := self.misplaced("trunk", (self.trunk,)):
            remedy = f"{wrong}; remove it from a trunk of the kind {kind}"
            raise unfit(self.trunk, wrong) if kind == PRETRAINED else ValueError(remedy)
        if self.layer_sum and len(self.hidden_sizes) == 1:
            raise ValueError("layer_sum does nothing with one layer; leave it out, or add layers")
        if self.layer_sum and len(set(self.hidden_sizes)) > 1:
            sizes = ", ".join(map(str, self.hidden_sizes))
            raise ValueError(
                f"layer_sum adds the outputs of all layers; give them one size in hidden_sizes, not {sizes}"
            )
        return self


class LmConfig(Section):
    """A whole language-model run, as ``lm train`` reads it."""

    family: ClassVar[str] = "lm"
    extends: str = Field("", description="parent config: a preset, or a file relative to this one")
    about: str = Field("", description="description in one line, shown by `lm presets`")
    data: DataConfig = DataConfig()
    window: WindowConfig = WindowConfig()
    model: ModelConfig = ModelConfig()
    cell: CellConfig = CellConfig()
    transformer: TransformerConfig = TransformerConfig()
    head: HeadConfig = HeadConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()

    def idle(self) -> Mapping[str, str]:
        """Tables of other trunks, each with the reason."""
        readers = {"cell": "recurrent", "transformer": "transformer"}
        trunk = self.model.trunk
        return {
            table: f'model.trunk = "{trunk}"' for table, kind in readers.items() if trunk_kind(trunk) != kind
        }

    def unread(self) -> Mapping[str, Sequence[str]]:
        """Sizes that others decide, dropout between the layers of one, replaced weights, and idle rates."""
        found: dict[str, Sequence[str]] = {}
        if self.model.input_embedding_ratio is not None:
            sizes = ("model.embedding_size", "head.embedding_size")
            found |= dict.fromkeys(sizes, ("model.input_embedding_ratio",))
        if trunk_kind(self.model.trunk) == "recurrent" and len(self.model.hidden_sizes) == 1:
            found["model.hidden_dropout"] = ("model.trunk", "model.hidden_sizes")
        if self.train.start_from:
            begun = ("model.vectors", "model.embedding_init", "model.init_range", "cell.init", "head.start")
            found |= dict.fromkeys(begun, ("train.start_from",))
        if self.train.freeze == "trunk":
            found["optim.trunk_lr_ratio"] = ("train.freeze",)
        return found

    @model_validator(mode="after")
    def _trunk_fits(self) -> Self:
        model, kind = self.model, trunk_kind(self.model.trunk)
        for table, reason in self.idle().items():
            if name := getattr(self, table).changed():
                problem = f"{table}.{name}: has no effect with {reason}"
                remedy = f"{problem}; leave it out"
                raise unfit(model.trunk, problem) if kind == PRETRAINED else ValueError(remedy)
        if (
            kind == "transformer"
            and not model.budget
            and (misfit := self.transformer.misfit(model.hidden_sizes[0]))
        ):
            raise ValueError(f"model.hidden_sizes: {misfit}")
        return self

    @model_validator(mode="after")
    def _pretrained_fits(self) -> Self:
        if trunk_kind(self.model.trunk) == PRETRAINED:
            if self.head.gated_words:
                raise ValueError("head.gated_words: pieces are not ordered by frequency; set it to 0")
            return self
        for key, value in (("data.tokenizer", self.data.tokenizer), ("head.start", self.head.start)):
            if value in (PRETRAINED, "pretrained"):
                raise ValueError(
                    f'{key} = "{value}": needs a pretrained trunk; set model.trunk = "hf:FOLDER"'
                )
        return self

    @model_validator(mode="after")
    def _streams_known(self) -> Self:
        of_streams = self.head.prior_penalty and self.head.prior_penalty_of == "streams"
        if of_streams and self.model.dropout_masks == "per_step":
            raise ValueError(
                'head.prior_penalty_of = "streams": needs the streams, which model.dropout_masks = "per_step"'
                ' hides; set one of them to "batch" or "shared"'
            )
        return self
