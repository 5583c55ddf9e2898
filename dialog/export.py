"""Exchange of trained dialog models with Hugging Face: from a run to a folder of transformers, and back."""

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from dialog.config import DialogConfig
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Marks
from dialog.hf import HighrankDialogConfig, HighrankDialogModel
from dialog.task import build_model
from dialog.trained import TrainedModel
from lm.config.load import read_config
from lm.engine.shapes import shapes_only
from lm.engine.state import load_model_tensors
from lm.errors import ConfigError
from lm.huggingface.card import CardFamily, Exported, model_card
from lm.huggingface.folder import read_export, require_exportable, whole_tensors, write_export
from lm.huggingface.run_files import own_files, write_run
from lm.huggingface.tokenizer import fast_tokenizer
from lm.runs.inputs import CONFIG
from lm.text.vocabulary import BOS, EOS, Codec

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
_CHAT = f"{{% for message in messages %}}{BOS}{{{{ message['content'] }}}}{EOS}{{% endfor %}}"


def export_run(run: Path, out: Path, checkpoint: str = "best", licence: str | None = None) -> None:
    """Write the model of a run as a folder that transformers opens after ``import dialog.hf``.

    Raises:
        ConfigError: a tokenizer that transformers cannot have.
        StorageError: a bad run, a folder that holds anything but an unchanged export, or a full disk.
    """
    require_exportable(out)
    trained = TrainedModel.load(run, checkpoint)
    if trained.config.model.trunk:
        raise ConfigError(f"{run}: its trunk is a pretrained model, which is not exported; name another run")
    tokenizer = fast_tokenizer(trained.codec)
    tokenizer.chat_template = _CHAT
    with shapes_only():
        model = HighrankDialogModel(HighrankDialogConfig.of(trained.config, trained.codec.vocabulary))
    network: Any = trained.model
    model.model = network.cpu()
    model.generation_config = generation_config(trained.config.decode, trained.marks)
    model.generation_config.pad_token_id = trained.codec.vocabulary.pad
    count = sum(parameter.numel() for parameter in model.parameters())
    card = model_card(Exported(run, checkpoint, trained.config, count, licence), out.absolute().name, _CARD)
    write_export(out, model, tokenizer, card, own_files(run))


def generation_config(decode: DecodeConfig, marks: Marks) -> GenerationConfig:
    """Decoding settings of a run, as far as transformers has them."""
    rules: dict[str, Any] = {
        "min_new_tokens": decode.min_length,
        "max_new_tokens": decode.max_length + 1,  # </s> is a new token too
        "forced_eos_token_id": marks.eos,  # at full length
        "no_repeat_ngram_size": decode.no_repeat_ngram,
        "suppress_tokens": list(marks.forbidden),
        "bos_token_id": marks.bos,
        "decoder_start_token_id": marks.bos,
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
    own, tensors = read_export(folder, "dialog")
    resolved, codec = read_config(own / CONFIG, DialogConfig), Codec.load(own)
    model = build_model(resolved.config, codec)
    load_model_tensors(model, whole_tensors(model, tensors))
    write_run(run, resolved, codec, model)
