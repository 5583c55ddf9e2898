"""Dialog models on a pretrained model: a causal network reads one stream, an encoder-decoder has two."""

from torch import nn

from dialog.causal import CausalContext, CausalDecoder
from dialog.config import DialogConfig
from dialog.decoder import AnyDecoder
from dialog.encoder_decoder import PretrainedDecoder, PretrainedEncoder
from lm.errors import DataError
from lm.heads.head import Head
from lm.huggingface.architecture import Architecture
from lm.huggingface.starting import start_pretrained


def pretrained_parts(
    config: DialogConfig, found: Architecture, vocab_size: int
) -> tuple[nn.Embedding, nn.Module, AnyDecoder]:
    """Embedding, encoder and decoder of a model on a pretrained trunk, with random weights.

    DataError if the vocabulary lacks words of the pretrained model.
    """
    if vocab_size < found.words:
        raise DataError(
            f"the vocabulary has {vocab_size:,} tokens, but the model of model.trunk has {found.words:,};"
            " use the tokenizer of its folder"
        )
    embedding = nn.Embedding(vocab_size, found.embedding_size)
    if found.start is None:
        return (
            embedding,
            CausalContext(found.embedding_size, config.model.dropout),
            CausalDecoder(config, found),
        )
    from lm.huggingface.encoder_decoder import encoder_decoder  # loads transformers

    pair = encoder_decoder(found, len(config.head.lower_components), config.model.recompute)
    return embedding, PretrainedEncoder(config, found, pair), PretrainedDecoder(config, found, pair)


def start_dialog(
    config: DialogConfig, embedding: nn.Embedding, decoder: AnyDecoder, head: Head
) -> str | None:
    """Load the weights of a pretrained trunk. Return their hash, None for a model without one."""
    network = decoder.trunk if isinstance(decoder, CausalDecoder) else getattr(decoder, "pair", None)
    return None if network is None else start_pretrained(config, network, embedding, head)
