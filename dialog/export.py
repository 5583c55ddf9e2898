"""Exchange of trained dialog models with Hugging Face: from a run to a folder of transformers, and back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from dialog.causal import CausalDecoder
from dialog.config import DialogConfig
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Marks
from dialog.hf import HighrankDialogConfig, HighrankDialogModel
from dialog.hf_causal import HighrankStreamConfig, HighrankStreamModel
from dialog.task import build_model
from dialog.trained import TrainedModel
from lm.engine.shapes import shapes_only
from lm.huggingface.card import CardFamily, Exported, model_card
from lm.huggingface.folder import require_exportable, write_export
from lm.huggingface.generation import ExportedModel
from lm.huggingface.run_files import import_model, own_files
from lm.huggingface.tokenizer import fast_tokenizer
from lm.runs.inputs import config_of
from lm.text.tokenizers import DIALOG

_CARD = CardFamily(
    command="dialog",
    module="dialog.hf",
    auto="AutoModelForSeq2SeqLM",
    measures={
        "perplexity": ("perplexity",),
        **{
            f"BLEU-{order} {side}": ("bleu", order, side)
            for order in ("2", "4")
            for side in ("precision", "recall")
        },
        "distinct-2": ("inter_distinct_2",),
    },
)
_SAID = "{{% set said = messages | selectattr('role', 'in', ['user', 'assistant']) | list %}}"
_CHAT = _SAID + "{{% for one in said %}}{{{{ '{bos}' + one['content'] + '{eos}' }}}}{{% endfor %}}"
_STREAM_CARD = replace(_CARD, auto="AutoModelForCausalLM")
_STREAM = (
    _SAID + "{{{{ '{bos}' }}}}{{% if said | length < {context} %}}{{{{ '{start}{eos}' }}}}{{% endif %}}"
    "{{% for one in said[-{context}:] %}}{{{{ one['content'] + '{eos}' }}}}{{% endfor %}}"
    "{{% if add_generation_prompt %}}{{{{ '{bos}' }}}}{{% endif %}}"
)


def export_run(run: Path, out: Path, checkpoint: str = "best", licence: str | None = None) -> None:
    """Write the model of a run as a folder that transformers opens after ``import dialog.hf``.

    Raises:
        ConfigError: a tokenizer that transformers cannot have.
        StorageError: a bad run, a folder that holds anything but an unchanged export, or a full disk.
    """
    require_exportable(out)
    trained = TrainedModel.load(run, checkpoint)
    network: Any = trained.model
    codec, config = trained.codec, trained.config
    tokenizer, stream = fast_tokenizer(codec), isinstance(network.decoder, CausalDecoder)
    model: ExportedModel
    with shapes_only():
        if stream:
            model, family = HighrankStreamModel(HighrankStreamConfig.of(config, codec)), _STREAM_CARD
            tokenizer.chat_template = tokenizer.chat_template or _template(_STREAM, config, tokenizer)
        else:
            model, family = HighrankDialogModel(HighrankDialogConfig.of(config, codec.vocabulary)), _CARD
            tokenizer.chat_template = _template(_CHAT, config, tokenizer)
    model.model = network.cpu()
    model.generation_config = generation_config(config.decode, trained.marks, stream=stream)
    model.generation_config.pad_token_id = codec.vocabulary.pad
    count = sum(parameter.numel() for parameter in model.parameters())
    exported = Exported(run, checkpoint, config_of(run, DialogConfig).config, count, licence)
    write_export(out, model, tokenizer, model_card(exported, out.absolute().name, family), own_files(run))


def _template(form: str, config: DialogConfig, tokenizer: Any) -> str:
    """A chat template in this form: the last utterances between marks."""
    marks = {"bos": tokenizer.bos_token, "eos": tokenizer.eos_token, "start": DIALOG}
    return form.format(context=config.data.context, **marks)


def generation_config(decode: DecodeConfig, marks: Marks, stream: bool = False) -> GenerationConfig:
    """Decoding settings of a run, as far as transformers has them.

    In a ``stream``, transformers would forbid n-grams of the context too, so none are.
    """
    rules: dict[str, Any] = {
        "min_new_tokens": decode.min_length,
        "max_new_tokens": decode.max_length + 1,  # </s> is a new token too
        "forced_eos_token_id": marks.eos,  # at full length
        "no_repeat_ngram_size": 0 if stream else decode.no_repeat_ngram,
        "suppress_tokens": list(marks.forbidden),
        "bos_token_id": marks.bos,
        "decoder_start_token_id": None if stream else marks.bos,
        "eos_token_id": marks.eos,
    }
    if decode.method == "sample":
        rules |= {"do_sample": True, "temperature": decode.temperature, "top_p": decode.top_p}
        rules["top_k"] = decode.top_k
    elif decode.beam > 1:
        rules |= {
            "num_beams": decode.beam,
            "length_penalty": decode.length_penalty,
            "early_stopping": "never",
        }
    return GenerationConfig(**rules)


def import_run(folder: Path, run: Path) -> None:
    """Write an exported folder as a run, with the same weights bit for bit.

    The run can be evaluated, talked to and exported, but not resumed. StorageError if the folder is not of
    ``dialog export``, or the run exists.
    """
    import_model(folder, run, "dialog", DialogConfig, build_model)
