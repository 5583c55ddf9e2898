"""The typed configuration of a language-model run; free of torch."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lm.cells.config import CellConfig
from lm.config.section import MAX_LAYERS, MAX_SIZE, Section, Size
from lm.engine.config import OptimConfig, TrainConfig
from lm.heads.config import HeadConfig
from lm.text.tokenizers import TokenizerKind

Rate = Annotated[float, Field(ge=0, lt=1)]


class DataConfig(Section):
    """Where text comes from and how it becomes tokens and streams."""

    train: str = Field(
        "data/ptb/train", description="split of a folder that `lm prepare` wrote, or a text file"
    )
    valid: str = Field("data/ptb/valid", description="the split that decides early stopping")
    test: str = Field("data/ptb/test", description="the split that evaluate uses without --data")
    tokenizer: TokenizerKind = Field(
        "whitespace", description="of text files; a prepared corpus brings its own"
    )
    lowercase: bool = Field(False, description="lower-case text files first")
    vocab_size: int = Field(
        0, ge=0, le=1_000_000_000, description="most frequent training tokens kept of a text file; 0 is all"
    )
    valid_streams: int = Field(
        10, ge=1, le=MAX_SIZE, description="streams that validation reads side by side"
    )


class WindowConfig(Section):
    """How streams are cut into windows for truncated backpropagation (Merity et al. 2018, §5)."""

    length: int = Field(70, ge=1, le=MAX_SIZE, description="tokens of a stream in a window")
    random: bool = Field(True, description="vary the length: mostly near length, sometimes near half of it")
    half_share: float = Field(0.05, ge=0, le=1, description="share of the windows near half the length")
    spread: float = Field(5.0, ge=0, le=MAX_SIZE, description="standard deviation of the length")
    shortest: int = Field(5, ge=1, le=MAX_SIZE, description="no window is drawn shorter")
    max_delta: int = Field(
        0, ge=0, le=MAX_SIZE, description="no window is longer than length by more; 0 is no limit"
    )
    rescale_lr: bool = Field(True, description="the learning rate of an update is times its length / length")
    order: Literal["streams", "read_heads"] = Field(
        "streams",
        description="streams: contiguous pieces of the text; read_heads: every stream reads all of it, from a"
        " sentence that is drawn anew each time (lamb)",
    )
    jitter: int = Field(
        100,
        ge=0,
        le=MAX_SIZE,
        description="read_heads: sentences by which a beginning is moved at most, either way",
    )
    state_reset: Rate = Field(0.0, description="share of the streams that start a window from a zero state")


class ModelConfig(Section):
    """Sizes of the language model, its dropout and its penalties (Merity et al. 2018, §3-4)."""

    embedding_size: int = Field(400, ge=1, le=MAX_SIZE, description="size of the input word embedding")
    hidden_sizes: tuple[Size, ...] = Field(
        (1150, 1150, 400),
        min_length=1,
        max_length=MAX_LAYERS,
        description="hidden size of every recurrent layer, the first one first",
    )
    budget: int = Field(
        0,
        ge=0,
        description="most parameters: layers are as large as it allows, hidden_sizes being their proportions,"
        " as in [1, 1]; 0: hidden_sizes are the sizes",
    )
    input_embedding_ratio: float | None = Field(
        None,
        gt=0,
        description="size of the word embedding, and of the head's contexts, as a share of the last layer's,"
        " at most 1; none: embedding_size and head.embedding_size",
    )
    layer_sum: bool = Field(False, description="the network's output is the sum of the outputs of all layers")
    embedding_init: Literal["uniform", "scaled"] = Field(
        "uniform",
        description="uniform: the embedding in ± init_range; scaled: embedding and output matrix normal with"
        " variance 1 / their width, the head's projection orthogonal (lamb)",
    )
    init_range: float = Field(0.1, gt=0, description="the embedding starts uniform in ± this")
    embedding_dropout: Rate = Field(0.1, description="share of the words that a window does without")
    input_dropout: Rate = Field(0.4, description="locked dropout of the embedded words")
    hidden_dropout: Rate = Field(0.25, description="locked dropout between layers")
    output_dropout: Rate = Field(0.4, description="locked dropout of the last layer")
    episodic: bool = Field(
        False, description="whether every sentence is read from a zero state: it is forgotten at each <eos>"
    )
    state_dropout: Rate = Field(
        0.0,
        description="dropout of the state that a step reads, one mask for all steps of a layer; an LSTM has"
        " one bias vector then",
    )
    dropout_masks: Literal["shared", "per_step"] = Field(
        "shared",
        description="masks of input, hidden, output and latent dropout: one for all steps of a window, or one"
        " for each",
    )
    weight_dropout: Rate = Field(0.5, description="dropout of the recurrent weights")
    activation_penalty: float = Field(2.0, ge=0, description="AR: weight of the mean square of the outputs")
    slowness_penalty: float = Field(1.0, ge=0, description="TAR: weight of the mean square of their changes")
    weight_penalty: float = Field(
        0.0,
        ge=0,
        description="L2: weight of half the square norm of all parameters; a part of the gradient that is"
        " clipped, which optim.weight_decay is not",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.layer_sum and len(set(self.hidden_sizes)) > 1:
            sizes = ", ".join(map(str, self.hidden_sizes))
            raise ValueError(
                f"layer_sum adds the outputs of all layers; give them one size in hidden_sizes, not {sizes}"
            )
        return self


class LmConfig(Section):
    """A whole language-model run, as ``lm train`` reads it."""

    family: ClassVar[str] = "lm"
    extends: str = Field("", description="config that this one starts from, relative to its file")
    about: str = Field("", description="one line for `lm presets`")
    data: DataConfig = DataConfig()
    window: WindowConfig = WindowConfig()
    model: ModelConfig = ModelConfig()
    cell: CellConfig = CellConfig()
    head: HeadConfig = HeadConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _streams_known(self) -> Self:
        if self.head.prior_penalty_of == "streams" and self.model.dropout_masks == "per_step":
            raise ValueError(
                'head.prior_penalty_of = "streams" needs the streams, which model.dropout_masks = "per_step"'
                ' hides; set one of them to "batch" or "shared"'
            )
        return self
