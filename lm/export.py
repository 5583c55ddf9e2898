"""Exchange of trained language models with Hugging Face: from a run to a folder of transformers, and back."""

from pathlib import Path

from lm.engine.shapes import shapes_only
from lm.hf import HighrankLanguageModel, HighrankLmConfig
from lm.huggingface.card import CardFamily, Exported, model_card
from lm.huggingface.folder import require_exportable, write_export
from lm.huggingface.run_files import import_model, own_files
from lm.huggingface.tokenizer import fast_tokenizer
from lm.language.config import LmConfig
from lm.language.model import LanguageModel
from lm.language.sizes import sized
from lm.language.tables import MEASURE_LABELS
from lm.language.trained import TrainedLm
from lm.runs.inputs import config_of
from lm.text.vocabulary import Codec

_CARD = CardFamily(
    command="lm",
    module="lm.hf",
    auto="AutoModelForCausalLM",
    measures={
        "perplexity": ("perplexity",),
        **{f"perplexity, {label}": (key, "perplexity") for key, label in MEASURE_LABELS.items()},
    },
)


def export_run(run: Path, out: Path, checkpoint: str = "best", licence: str | None = None) -> None:
    """Write the model of a run as a folder that transformers opens after ``import lm.hf``.

    Raises:
        ConfigError: a tokenizer that transformers cannot have.
        StorageError: a bad run, a folder that holds anything but an unchanged export, or a full disk.
    """
    require_exportable(out)
    trained = TrainedLm.load(run, checkpoint)
    tokenizer = fast_tokenizer(trained.codec)
    with shapes_only():
        model = HighrankLanguageModel(HighrankLmConfig.of(trained.config, trained.codec.vocabulary))
    model.model = trained.model.cpu()
    count = sum(parameter.numel() for parameter in model.parameters())
    exported = Exported(run, checkpoint, config_of(run, LmConfig).config, count, licence)
    card = model_card(exported, out.absolute().name, _CARD)
    write_export(out, model, tokenizer, card, own_files(run))


def import_run(folder: Path, run: Path) -> None:
    """Write an exported folder as a run, with the same weights bit for bit.

    The run can be evaluated, continued from by ``train.start_from``, and exported, but not resumed.
    StorageError if the folder is not of ``lm export``, or the run exists.
    """
    import_model(folder, run, "lm", LmConfig, _built)


def _built(config: LmConfig, codec: Codec) -> LanguageModel:
    vocabulary = codec.vocabulary
    return LanguageModel(sized(config, len(vocabulary)), len(vocabulary), vocabulary.eos)
