"""Parameter counts and estimated memory of a config, without reading data."""

from functools import cache
from itertools import chain
from typing import Any

from dialog.config import WHOLE_DIALOG, DialogConfig
from dialog.corpora.sources import SMALLTALK
from dialog.encoders import Workload
from dialog.seq2seq import Seq2Seq
from lm.engine.device import chosen_device
from lm.engine.memory import head_floats, training_memory
from lm.engine.optim import freeze
from lm.engine.shapes import shapes_only
from lm.huggingface.architecture import read_architecture
from lm.text.tokenizers import BOS, DIALOG, EOS, PAD, SPECIALS, UNK
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
    data, dialogs = config.data, config.train.shard_size
    work = Workload(
        dialogs,
        responses=dialogs * (data.segment or WHOLE_DIALOG),
        context=data.context,
        words=data.max_tokens,
        longest=data.max_response,
        device=chosen_device(config.train),
    )
    activations = (
        model.encoder.activations(work)
        + model.decoder.activations(work, model.encoder.positions(work))
        + head_floats(model.head, work.responses * work.words)
    )
    return training_memory(model, config.optim, activations, shards=config.train.shards)
