"""The typed configuration of a dialog run; free of torch."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from lm.cells.config import CellKind, CellSettings
from lm.config.section import MAX_LAYERS, MAX_SEED, MAX_SIZE, Section
from lm.engine.config import OptimConfig, TrainConfig
from lm.heads.config import HeadConfig
from lm.text.tokenizers import TokenizerKind

WHOLE_DIALOG = 100  # responses that a whole dialog is taken to have
_CELLS = "lstm, gru, mogrifier, mogrifier_gru or mlstm"


class DataConfig(Section):
    """Where conversations come from and how they become tokens and examples."""

    train: str = Field("smalltalk:train", description="file, prepared folder, or smalltalk:train")
    valid: str = Field("smalltalk:valid", description="the split that decides early stopping")
    test: str = Field("smalltalk:test", description="the split that evaluate uses without --data")
    tokenizer: TokenizerKind = Field(
        "wordpunct", description="wordpunct, whitespace, char, or sentencepiece unigram, bpe"
    )
    lowercase: bool = Field(True, description="lower-case the text first")
    vocab_size: int = Field(
        10_000, ge=1, le=MAX_SIZE, description="most frequent training tokens kept, besides <pad> and <unk>"
    )
    max_tokens: int = Field(
        40,
        ge=3,
        le=MAX_SIZE,
        description="cap of an utterance of the context, <s> and </s> counted (Zhao et al.: 40)",
    )
    max_response: int = Field(
        0,
        ge=0,
        le=MAX_SIZE,
        description="cap of a response that is learnt and scored, <s> and </s> counted (Zhao et al.: 40);"
        " 0 = none",
    )
    context: int = Field(
        9, ge=1, le=MAX_SIZE, description="utterances before the response that the encoder sees"
    )
    last_response: bool = Field(
        False, description="the last utterance of a dialog is a response, too (Zhao et al.: it is not)"
    )
    segment: int = Field(
        16,
        ge=0,
        le=MAX_SIZE,
        description="responses in a row that share their encoded utterances; 0: whole dialogs",
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
    """How the context becomes the decoder's start: one long sequence, or utterances and then the dialog."""

    kind: Literal["flat", "hierarchical"] = Field("hierarchical", description="flat or hierarchical")
    cell: CellKind = Field("gru", description=f"{_CELLS}; [cell] says more")
    utterance_size: int = Field(
        300, ge=1, le=MAX_SIZE, description="hierarchical: hidden size per direction of the utterance encoder"
    )
    context_size: int = Field(
        600, ge=1, le=MAX_SIZE, description="hidden size of the context encoder, or of the flat encoder"
    )
    layers: int = Field(
        1, ge=1, le=MAX_LAYERS, description="layers of the context encoder, or of the flat encoder"
    )


class DecoderConfig(Section):
    """The recurrent decoder that the head sits on."""

    cell: CellKind = Field("lstm", description=f"{_CELLS}; [cell] says more")
    hidden_size: int = Field(400, ge=1, le=MAX_SIZE, description="H, the hidden size")
    layers: int = Field(1, ge=1, le=MAX_LAYERS, description="number of layers")
    attention: Literal["none", "dot", "additive"] = Field(
        "none", description="attention over the encoder's states"
    )
    feed_context: bool = Field(
        False, description="give the encoded context to every step, not only to the first"
    )
    layer_sum: bool = Field(False, description="the decoder's output is the sum of the outputs of all layers")


class ModelConfig(Section):
    """Sizes and regularisation that encoder and decoder share."""

    embedding_size: int = Field(200, ge=1, le=MAX_SIZE, description="size of the shared word embedding")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of embeddings, encoder and decoder outputs")
    word_dropout: float = Field(0.0, ge=0, lt=1, description="share of decoder input words replaced by <unk>")
    init_range: float = Field(
        0.08,
        gt=0,
        description="embedding, encoder and decoder start uniform in ± this; the head, mogrifiers' gates and"
        " truncated cells have their own",
    )


class DecodeConfig(Section):
    """How a response is searched for or sampled."""

    method: Literal["beam", "sample"] = Field("beam", description="beam search or sampling")
    beam: int = Field(10, ge=1, le=MAX_SIZE, description="beam width; 1 is greedy")
    nbest: int = Field(5, ge=1, le=MAX_SIZE, description="responses kept")
    max_length: int = Field(30, ge=1, le=MAX_SIZE, description="longest response in tokens, </s> not counted")
    min_length: int = Field(0, ge=0, le=MAX_SIZE, description="shortest response in tokens, </s> not counted")
    length_penalty: float = Field(
        0.0, ge=0, le=10, description="scores are divided by length^this; 0 sums (the papers)"
    )
    no_repeat_ngram: int = Field(
        0, ge=0, le=MAX_SIZE, description="block n-grams that repeat within a response; 0 blocks none"
    )
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    temperature_on: Literal["mixture", "components"] = Field(
        "mixture", description="temper the mixed distribution or every component's logits"
    )
    top_k: int = Field(0, ge=0, le=MAX_SIZE, description="sample among the k most probable tokens; 0 is all")
    top_p: float = Field(1.0, gt=0, le=1, description="sample among the smallest set with this probability")
    products: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="precision of the head's products: float32, bfloat16, which changes some words, or auto,"
        " the faster when the run was trained",
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
    extends: str = Field("", description="config that this one starts from, relative to its file")
    about: str = Field("", description="one line for `dialog presets`")
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
