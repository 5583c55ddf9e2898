"""Schema of a dialog run's config, free of torch."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from lm.cells.config import CellKind, CellSettings
from lm.config.section import MAX_LAYERS, MAX_SEED, MAX_SIZE, Section
from lm.engine.config import OptimConfig, TrainConfig
from lm.heads.config import HeadConfig
from lm.text.tokenizers import TokenizerKind

WHOLE_DIALOG = 100  # assumed responses of a whole dialog
_CELLS = "lstm, gru, mogrifier, mogrifier_gru or mlstm"


class DataConfig(Section):
    """Sources of the conversations, and their conversion to tokens and examples."""

    train: str = Field(
        "smalltalk:train", description="training corpus: a file, a prepared folder, or smalltalk:train"
    )
    valid: str = Field("smalltalk:valid", description="validation corpus, used for early stopping")
    test: str = Field("smalltalk:test", description="test corpus, used by evaluate without --data")
    tokenizer: TokenizerKind = Field(
        "wordpunct", description="tokenizer: wordpunct, whitespace, char, or sentencepiece unigram or bpe"
    )
    lowercase: bool = Field(True, description="convert text to lower case before tokenization")
    vocab_size: int = Field(
        10_000,
        ge=1,
        le=MAX_SIZE,
        description="number of most frequent training tokens in the vocabulary, besides <pad> and <unk>",
    )
    max_tokens: int = Field(
        40,
        ge=3,
        le=MAX_SIZE,
        description="maximum tokens of an utterance in the context, with <s> and </s> (Zhao et al.: 40)",
    )
    max_response: int = Field(
        0,
        ge=0,
        le=MAX_SIZE,
        description="maximum number of tokens of a response in training and scoring, with <s> and </s>"
        " (Zhao et al.: 40); 0 = no limit",
    )
    context: int = Field(
        9, ge=1, le=MAX_SIZE, description="number of utterances before the response that the encoder reads"
    )
    last_response: bool = Field(
        False, description="use the last utterance of a dialog as a response, too (Zhao et al.: no)"
    )
    segment: int = Field(
        16,
        ge=0,
        le=MAX_SIZE,
        description="number of consecutive responses that share their encoded utterances; 0 = whole dialogs",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if 0 < self.max_response < 3:
            raise ValueError(f"max_response = {self.max_response}: <s>, a word and </s> need 3; 0 = no cap")
        return self

    @property
    def padded(self) -> int:
        """The tokens that the responses of a segment are taken to have at most, padding counted."""
        return (self.segment or WHOLE_DIALOG) * self.max_tokens


class EncoderConfig(Section):
    """Encoder of the context: flat (one long sequence) or hierarchical (utterances, then the dialog)."""

    kind: Literal["flat", "hierarchical"] = Field(
        "hierarchical", description="kind of encoder: flat or hierarchical"
    )
    cell: CellKind = Field("gru", description=f"recurrent cell: {_CELLS}; its options are in [cell]")
    utterance_size: int = Field(
        300, ge=1, le=MAX_SIZE, description="hierarchical: hidden size per direction of the utterance encoder"
    )
    context_size: int = Field(
        600, ge=1, le=MAX_SIZE, description="hidden size of the context encoder, or of the flat encoder"
    )
    layers: int = Field(
        1, ge=1, le=MAX_LAYERS, description="number of layers of the context encoder, or of the flat encoder"
    )


class DecoderConfig(Section):
    """Recurrent decoder below the output head."""

    cell: CellKind = Field("lstm", description=f"recurrent cell: {_CELLS}; its options are in [cell]")
    hidden_size: int = Field(400, ge=1, le=MAX_SIZE, description="hidden size H")
    layers: int = Field(1, ge=1, le=MAX_LAYERS, description="number of layers")
    attention: Literal["none", "dot", "additive"] = Field(
        "none", description="attention over the encoder's states"
    )
    feed_context: bool = Field(
        False, description="feed the encoded context to every step instead of only the first"
    )
    layer_sum: bool = Field(False, description="use the sum of the outputs of all layers as hidden state")


class ModelConfig(Section):
    """Shared sizes and regularisation of encoder and decoder."""

    embedding_size: int = Field(200, ge=1, le=MAX_SIZE, description="size of the shared word embedding")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout rate of embeddings, encoder and decoder outputs"
    )
    word_dropout: float = Field(0.0, ge=0, lt=1, description="share of decoder input words replaced by <unk>")
    init_range: float = Field(
        0.08,
        gt=0,
        description="bound of the uniform initialisation of embedding, encoder and decoder. The head,"
        " mogrifiers' gates and truncated cells have their own",
    )


class DecodeConfig(Section):
    """Decoding of responses: beam search or sampling."""

    method: Literal["beam", "sample"] = Field("beam", description="decoding method: beam search or sampling")
    beam: int = Field(10, ge=1, le=MAX_SIZE, description="beam width; 1 = greedy")
    nbest: int = Field(5, ge=1, le=MAX_SIZE, description="responses kept")
    max_length: int = Field(
        30, ge=1, le=MAX_SIZE, description="maximum length of a response in tokens without </s>"
    )
    min_length: int = Field(
        0, ge=0, le=MAX_SIZE, description="minimum length of a response in tokens without </s>"
    )
    length_penalty: float = Field(
        0.0,
        ge=0,
        le=10,
        description="exponent of the length that divides a score; 0 = plain sum (the papers)",
    )
    no_repeat_ngram: int = Field(
        0, ge=0, le=MAX_SIZE, description="size n of n-grams that must not repeat within a response; 0 = off"
    )
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    temperature_on: Literal["mixture", "components"] = Field(
        "mixture", description="target of the temperature: the mixed distribution or every component's logits"
    )
    top_k: int = Field(0, ge=0, le=MAX_SIZE, description="sample among the k most probable tokens; 0 = all")
    top_p: float = Field(1.0, gt=0, le=1, description="sample among the smallest set with this probability")
    products: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="precision of the head's products: float32, bfloat16, which changes some words, or auto,"
        " the faster one at training",
    )
    seed: int = Field(1, ge=0, le=MAX_SEED, description="seeds sampling")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length = {self.min_length}: must be at most max_length = {self.max_length}; "
                "lower decode.min_length or raise decode.max_length"
            )
        return self


class DialogConfig(Section):
    """A whole dialog run, as ``dialog train`` reads it."""

    family: ClassVar[str] = "dialog"
    before: ClassVar[Mapping[str, str]] = {"data.max_response": "data.max_tokens"}
    extends: str = Field("", description="parent config, relative to this file")
    about: str = Field("", description="description in one line, shown by `dialog presets`")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    encoder: EncoderConfig = EncoderConfig()
    decoder: DecoderConfig = DecoderConfig()
    cell: CellSettings = CellSettings()
    head: HeadConfig = HeadConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    decode: DecodeConfig = DecodeConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        kinds = (self.encoder.cell, self.decoder.cell)
        if wrong := self.cell.misplaced("kind", kinds):
            raise ValueError(
                f"cell.{wrong}; neither encoder.cell = {kinds[0]} nor decoder.cell = {kinds[1]} has it"
            )
        if self.train.start_from:
            raise ValueError("train.start_from: dialog models begin with random weights; leave it out")
        return self
