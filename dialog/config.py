"""Schema of a dialog run's config, free of torch."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from dialog.decoding.config import DecodeConfig, require_choice
from lm.cells.config import CellKind, CellSettings
from lm.config.load import Resolved, override, require_read
from lm.config.section import MAX_SIZE, Count, LayerCount, Owner, Positive, Rate, Section, Size
from lm.config.settings import keys_of
from lm.engine.config import OptimConfig, TrainConfig
from lm.errors import require, visible
from lm.heads.config import HeadConfig
from lm.text.tokenizers import TokenizerKind
from lm.trunks.config import TransformerConfig
from lm.trunks.names import PRETRAINED, Kinds, trunk_kind, unfit

FRAME = 2  # tokens around a response, <s> and </s>
WHOLE_DIALOG = 100  # assumed responses of a whole dialog
_CELLS = "lstm, gru, mogrifier, mogrifier_gru or mlstm"


class DataConfig(Section):
    """Sources of the conversations, and their conversion to tokens and examples."""

    train: str = Field(
        "smalltalk:train", description="training corpus: a file, a prepared folder, or smalltalk:train"
    )
    valid: str = Field("smalltalk:valid", description="validation corpus, used for early stopping")
    test: str = Field("smalltalk:test", description="test corpus, used by evaluate without --data")
    tokenizer: TokenizerKind | Literal["hf"] = Field(
        "wordpunct",
        description="tokenizer: wordpunct, whitespace, char, or sentencepiece unigram or bpe. hf: that of the"
        " folder of model.trunk",
    )
    chat_template: bool = Field(
        True,
        description="use the chat template of the tokenizer of a causal model.trunk, if it has one; false ="
        " enclose utterances in <s> and </s>. Encoder-decoders take none",
    )
    lowercase: bool = Field(True, description="convert text to lower case before tokenization")
    vocab_size: Size = Field(
        10_000,
        description="number of most frequent training tokens in the vocabulary, besides <pad> and <unk>",
    )
    max_tokens: int = Field(
        40,
        ge=3,
        le=MAX_SIZE,
        description="maximum tokens of an utterance in the context, with <s> and </s> (Zhao et al.: 40)",
    )
    max_response: Count = Field(
        0,
        description="maximum number of tokens of a response in training and scoring, with <s> and </s>"
        " (Zhao et al.: 40); 0 = no limit",
    )
    context: Size = Field(9, description="number of utterances before the response that the encoder reads")
    last_response: bool = Field(
        False, description="use the last utterance of a dialog as a response, too (Zhao et al.: no)"
    )
    direction: Literal["forward", "backward"] = Field(
        "forward",
        description="direction of the conversations: forward, or backward for a model of the last utterance"
        " given the response, with context = 1",
    )
    segment: Count = Field(
        16,
        description="number of consecutive responses that share their encoded utterances; 0 = whole dialogs",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if 0 < self.max_response < 3:
            raise ValueError(f"max_response = {self.max_response}: <s>, a word and </s> need 3; 0 = no cap")
        return self

    @property
    def padded(self) -> int:
        """Upper bound of the tokens of the responses of a segment, padding included."""
        return (self.segment or WHOLE_DIALOG) * self.max_tokens


class EncoderConfig(Section):
    """Encoder of the context: of one long sequence (flat, transformer), or of utterances, then the dialog."""

    readers: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "kind": {
            "cell": Owner("a recurrent encoder", ("flat", "hierarchical")),
            "utterance_size": Owner("--set encoder.kind=hierarchical", ("hierarchical",)),
        }
    }

    kind: Literal["flat", "hierarchical", "transformer"] = Field(
        "hierarchical",
        description="kind of encoder: flat or hierarchical, which are recurrent, or transformer",
    )
    cell: CellKind = Field(
        "gru", description=f"cell of a recurrent encoder: {_CELLS}; its options are in [cell]"
    )
    utterance_size: Size = Field(
        300, description="hierarchical: hidden size per direction of the utterance encoder"
    )
    context_size: Size = Field(
        600, description="hidden size of the context encoder, or of the flat encoder or transformer"
    )
    layers: LayerCount = Field(
        1, description="number of layers of the context encoder, or of the flat encoder or transformer"
    )


class DecoderConfig(Section):
    """Decoder below the output head."""

    owners: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "kind": dict.fromkeys(
            ("attention", "feed_context", "layer_sum"), Owner("recurrent decoders", ("recurrent",))
        )
    }
    readers: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "kind": {"cell": Owner("--set decoder.kind=recurrent", ("recurrent",))}
    }

    kind: Literal["recurrent", "transformer"] = Field(
        "recurrent",
        description="kind of decoder: recurrent, or transformer, which attends to all states of the encoder",
    )
    cell: CellKind = Field(
        "lstm", description=f"cell of a recurrent decoder: {_CELLS}; its options are in [cell]"
    )
    hidden_size: Size = Field(400, description="hidden size H")
    layers: LayerCount = Field(1, description="number of layers")
    attention: Literal["none", "dot", "additive"] = Field(
        "none", description="attention of a recurrent decoder over the encoder's states"
    )
    feed_context: bool = Field(
        False, description="feed the encoded context to every step instead of only the first"
    )
    layer_sum: bool = Field(False, description="use the sum of the outputs of all layers as hidden state")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if wrong := self.misplaced("kind", (self.kind,)):
            raise ValueError(f"{wrong}; remove it from a {self.kind}")
        if self.layer_sum and self.layers == 1:
            raise ValueError("layer_sum does nothing with layers = 1; leave it out, or raise decoder.layers")
        return self


class ModelConfig(Section):
    """Shared sizes and regularisation of encoder and decoder, or a pretrained model instead of both."""

    owners: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "trunk": {"recompute": Owner("a pretrained trunk", Kinds(PRETRAINED))}
        | dict.fromkeys(("embedding_size", "vectors", "init_range"), Owner("encoder and decoder", Kinds("")))
    }

    embedding_size: Size = Field(200, description="size of the shared word embedding")
    vectors: str = Field(
        "",
        description="text file of pretrained word vectors, as of GloVe or word2vec, for the initial"
        " embedding; empty = random",
    )
    dropout: Rate = Field(
        0.0,
        description="dropout rate of embeddings, utterance vectors of a hierarchical encoder, decoder"
        " outputs, and each part of a transformer's layer",
    )
    word_dropout: Rate = Field(0.0, description="share of decoder input words replaced by <unk>")
    init_range: Positive = Field(
        0.08,
        description="bound of the uniform initialisation of embedding, encoder and decoder. The head,"
        " mogrifiers' gates, truncated cells and transformers have their own",
    )
    trunk: str = Field(
        "",
        description="pretrained model of transformers: hf:FOLDER; empty = encoder and decoder. A causal"
        " language model reads context and response as one stream, an encoder-decoder as two texts",
    )
    recompute: bool = Field(
        False,
        description="trunk: compute the activations of the layers again in the backward pass, which saves"
        " memory and takes more time",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        kind = trunk_kind(self.trunk)
        if kind not in ("", PRETRAINED):
            raise ValueError(f"trunk = {visible(self.trunk)}: must be hf:FOLDER, or empty")
        if wrong := self.misplaced("trunk", (self.trunk,)):
            raise unfit(self.trunk, wrong) if self.trunk else ValueError(f"{wrong}; leave it out")
        return self


class DialogConfig(Section):
    """A whole dialog run, as ``dialog train`` reads it."""

    family: ClassVar[str] = "dialog"
    extends: str = Field("", description="parent config: a preset, or a file relative to this one")
    about: str = Field("", description="description in one line, shown by `dialog presets`")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    encoder: EncoderConfig = EncoderConfig()
    decoder: DecoderConfig = DecoderConfig()
    cell: CellSettings = CellSettings()
    transformer: TransformerConfig = TransformerConfig()
    head: HeadConfig = HeadConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    decode: DecodeConfig = DecodeConfig()

    def idle(self) -> Mapping[str, str]:
        """Tables of parts that the model lacks, each with the reason."""
        if self.model.trunk:
            return dict.fromkeys(("encoder", "decoder", "transformer", "cell"), "model.trunk")
        kinds = {"encoder.kind": self.encoder.kind, "decoder.kind": self.decoder.kind}
        transformers = [*kinds.values()].count("transformer")
        unread = {0: ["transformer"], 1: [], 2: ["cell"]}[transformers]
        return dict.fromkeys(unread, " and ".join(f"{key} = {kind}" for key, kind in kinds.items()))

    def unread(self) -> Mapping[str, Sequence[str]]:
        """The rate of a trunk that is not trained."""
        return {"optim.trunk_lr_ratio": ("train.freeze",)} if self.train.freeze == "trunk" else {}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.train.start_from:
            raise ValueError("train.start_from: dialog models begin with random weights; leave it out")
        return self

    @model_validator(mode="after")
    def _trunk_fits(self) -> Self:
        if not self.model.trunk:
            needing = (
                ("head.start", self.head.start),
                ("train.freeze", self.train.freeze),
                ("data.tokenizer", self.data.tokenizer),
            )
            for key, value in needing:
                if value in ("pretrained", "trunk", PRETRAINED):
                    raise ValueError(f'{key} = "{value}": needs a pretrained trunk; set model.trunk')
            if not self.data.chat_template:
                raise ValueError(
                    "data.chat_template = false: has no effect without model.trunk; leave it out"
                )
            return self
        for table, reason in self.idle().items():
            if name := getattr(self, table).changed():
                raise unfit(self.model.trunk, f"{table}.{name}: has no effect with {reason}")
        wanted = {
            'data.tokenizer = "hf"': self.data.tokenizer == PRETRAINED,
            "data.lowercase = false": not self.data.lowercase,
            f"data.max_response = {self.decode.max_length + FRAME}": (
                self.data.max_response >= self.decode.max_length + FRAME
            ),
            "head.gated_words = 0": not self.head.gated_words,
            "data.vocab_size = 10000": self.data.vocab_size == DataConfig.model_fields["vocab_size"].default,
        }
        for setting, held in wanted.items():
            if not held:
                raise ValueError(f"{setting.split(' =')[0]}: a pretrained trunk needs {setting}")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        encoder, decoder = self.encoder, self.decoder
        parts = (("encoder", encoder, encoder.context_size), ("decoder", decoder, decoder.hidden_size))
        cells = {name: part.cell for name, part, _ in parts if part.kind != "transformer"}
        if wrong := self.cell.misplaced("kind", cells.values()):
            kinds = " nor ".join(f"{name}.cell = {cell}" for name, cell in cells.items())
            raise ValueError(
                f"cell.{wrong}; " + (f"neither {kinds} has it" if cells else "no part has cells")
            )
        for table, reason in self.idle().items():
            if name := getattr(self, table).changed():
                raise ValueError(f"{table}.{name}: has no effect with {reason}; leave it out")
        for name, part, size in parts:
            if part.kind == "transformer" and (misfit := self.transformer.misfit(size)):
                raise ValueError(f"the size of the {name}, {misfit}")
        return self


def with_decoding(resolved: Resolved[DialogConfig], overrides: Sequence[str]) -> Resolved[DialogConfig]:
    """A config after overrides of decoding. ConfigError for bad ones, and a selection without a choice."""
    asked = override(resolved, overrides, DialogConfig, sections=("decode",))
    measured = asked.config.decode.products != "auto" or resolved.config.decode.products == "auto"
    require(measured, "--set decode.products=auto: only a training measures it; choose float32 or bfloat16")
    require_choice(asked.config.decode, keys_of(overrides))
    return asked


def require_decode_read(before: DecodeConfig, after: DecodeConfig, key: str, where: str) -> None:
    """Raise ConfigError with ``where`` if ``key``, as in ``decode.beam``, has changed but nothing reads it.

    The default of a key is always allowed, unless it leaves a selection a single candidate.
    """
    name = key.removeprefix("decode.")
    value = getattr(after, name)
    if value not in (getattr(before, name), DecodeConfig.model_fields[name].default):
        require_read(DialogConfig(decode=after), key, where)
    require_choice(after, [name])
