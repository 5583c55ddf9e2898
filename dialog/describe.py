"""Parameter counts and estimated memory of a config, without reading data."""

from functools import cache
from itertools import chain
from typing import Any

from torch import nn

from dialog.causal import CausalContext, CausalDecoder
from dialog.config import WHOLE_DIALOG, DialogConfig
from dialog.corpora.sources import SMALLTALK
from dialog.encoder_decoder import PretrainedDecoder, PretrainedEncoder
from dialog.seq2seq import Seq2Seq
from dialog.transformer import TransformerDecoder, TransformerEncoder
from lm.engine.device import chosen_device
from lm.engine.memory import head_floats, training_memory
from lm.engine.optim import freeze
from lm.engine.shapes import shapes_only
from lm.huggingface.architecture import read_architecture
from lm.text.vocabulary import BOS, DIALOG, EOS, PAD, SPECIALS, UNK
from lm.trunks.names import pretrained_path

_PARTS = ("embedding", "encoder", "decoder", "head")


def describe(config: DialogConfig, vocab_size: int | None = None) -> dict[str, Any]:
    """Parameter counts by part (``parameters`` is the total) and estimated memory in bytes.

    Without ``vocab_size`` the vocabulary has the largest size that the config or the built-in corpus allows,
    and ``vocabulary_assumed`` is true. A smaller vocabulary has fewer parameters. A tied output matrix counts
    as embedding. Raises ConfigError for inconsistent sizes.
    """
    vocabulary = largest_vocabulary(config) if vocab_size is None else vocab_size
    with shapes_only():
        model = Seq2Seq(config, vocabulary)
    freeze(config.train, model)
    counts = dict.fromkeys(_PARTS, 0)
    for name, parameter in model.named_parameters():
        counts[name.split(".")[0]] += parameter.numel()
    total = sum(counts.values())
    return {
        "parameters": total,
        "parameters_by_part": counts,
        "sizes": {"contexts": model.head.size},
        "vocabulary": vocabulary,
        "vocabulary_assumed": vocab_size is None,
        "memory": memory(config, model),
    }


def largest_vocabulary(config: DialogConfig) -> int:
    """Maximum size of a vocabulary for the training split, including special tokens."""
    data, words = config.data, config.data.vocab_size
    if path := pretrained_path(config.model.trunk):
        return read_architecture(path, dialog=True).words + len(SPECIALS)
    if data.train.startswith(SMALLTALK) and data.tokenizer == "wordpunct":
        words = min(words, len(_smalltalk_words()) + len((BOS, EOS, DIALOG)))
    return words + len((PAD, UNK))


@cache
def _smalltalk_words() -> frozenset[str]:
    from dialog.smalltalk.process import default_process

    process = default_process()
    listed = (word for words in process.lexicon.lists.values() for phrase in words.phrases for word in phrase)
    templates = (template for act in process.grammar.acts.values() for template in act.templates)
    literal = (
        element for template in templates for element in template.elements if not element.startswith("{")
    )
    return frozenset(chain(listed, literal))


def memory(config: DialogConfig, model: Seq2Seq) -> dict[str, int]:
    """Bytes of training. ``activations`` assume ``data.max_tokens`` tokens for every utterance."""
    activations = (
        _encoder_floats(config, model)
        + _decoder_floats(config, model)
        + head_floats(model.head, _responses(config) * config.data.max_tokens)
    )
    return training_memory(model, config.optim, activations, shards=config.train.shards)


def _responses(config: DialogConfig) -> int:
    """Maximum number of responses in a shard of a batch."""
    return config.train.shard_size * (config.data.segment or WHOLE_DIALOG)


def _encoder_floats(config: DialogConfig, model: Seq2Seq) -> int:
    """Number of floats kept for backpropagation through the encoder."""
    data, encoder, size = config.data, config.encoder, config.model.embedding_size
    responses = _responses(config)
    if isinstance(model.encoder, CausalContext | PretrainedEncoder):
        tokens = responses * data.context * data.max_tokens
        inside = 0
        if isinstance(model.encoder, PretrainedEncoder) and _trains(model.encoder):
            inside = model.encoder.network.activations(
                responses,
                data.context * data.max_tokens,
                model.embedding.embedding_dim,
                chosen_device(config.train),
                recompute=config.model.recompute,
            )
        return tokens * 2 * model.embedding.embedding_dim + inside
    if isinstance(model.encoder, TransformerEncoder):
        tokens = responses * data.context * data.max_tokens
        return round(tokens * (2 * size + model.encoder.stack.floats(1)))
    floats = config.cell.of(encoder.cell).floats
    per_step = floats * encoder.context_size * encoder.layers
    if encoder.kind == "flat":
        return responses * data.context * data.max_tokens * (2 * size + per_step)
    utterances = (
        responses + config.train.shard_size * data.context
    )  # distinct ones: neighbours share contexts
    words = 2 * size + 2 * floats * encoder.utterance_size
    return utterances * data.max_tokens * words + responses * data.context * (
        2 * encoder.utterance_size + 2 + per_step
    )


def _trains(part: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in part.parameters())


def _decoder_floats(config: DialogConfig, model: Seq2Seq) -> int:
    data, encoder, decoder = config.data, config.encoder, config.decoder
    device = chosen_device(config.train)
    if isinstance(model.decoder, CausalDecoder):
        trunk = model.decoder.trunk
        trains = _trains(model.decoder)
        return trunk.activations(trunk.span, _responses(config), device) if trains else 0
    if isinstance(model.decoder, PretrainedDecoder):
        if not _trains(model.decoder):
            return 0
        sizes = (_responses(config), data.max_response, data.context * data.max_tokens)
        return model.decoder.network.activations(
            *sizes, model.embedding.embedding_dim, device, recompute=config.model.recompute
        )
    positions = data.context * (1 if encoder.kind == "hierarchical" else data.max_tokens)
    if isinstance(model.decoder, TransformerDecoder):
        each = 2 * config.model.embedding_size + model.decoder.stack.floats(1, positions / data.max_tokens)
        return round(_responses(config) * data.max_tokens * each)
    inputs = config.model.embedding_size + (encoder.context_size if decoder.feed_context else 0)
    floats = config.cell.of(decoder.cell).floats
    per_token = 2 * inputs + (floats * decoder.layers + 1) * decoder.hidden_size
    if decoder.attention != "none":
        width = decoder.hidden_size if decoder.attention == "additive" else 1
        per_token += positions * (2 + 2 * width) + encoder.context_size + 2 * decoder.hidden_size
    return _responses(config) * data.max_tokens * per_token
