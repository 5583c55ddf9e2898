"""A language model on the pretrained network in the folder ``folder``: its config, texts and start."""

from pathlib import Path
from typing import Any

from lm.huggingface.starting import start_pretrained
from lm.language.config import LmConfig
from lm.language.model import LanguageModel
from lm.language.sizes import sized
from tests.support.pretrained import save_pretrained
from tests.support.tiny_lm import text_of

SPAN = 16
CALM: dict[str, Any] = dict.fromkeys(
    ("embedding_dropout", "input_dropout", "output_dropout", "weight_dropout"), 0.0
) | {"activation_penalty": 0.0, "slowness_penalty": 0.0}
PLAIN: dict[str, Any] = {"context_activation": "none", "components": 4}
CONFIG = f"""
[data]
train = "data/train"
valid = "data/valid"
test = "data/test"
valid_streams = 3
[window]
length = 7
shortest = 2
[model]
trunk = "hf:folder"
attention_span = {SPAN}
{chr(10).join(f"{name} = {value}" for name, value in CALM.items())}
[head]
kind = "mos"
components = 2
context_activation = "none"
start = "pretrained"
latent_dropout = 0.1
products = "float32"
[optim]
name = "adamw"
lr = 0.01
[train]
batch_size = 4
max_steps = 9
validate_every = 3
checkpoint_every = 4
"""


def write_pretrained_corpus(folder: Path) -> Path:
    """Write ``run.toml``, its texts ``text`` and the pretrained model ``folder``."""
    text = folder / "text"
    text.mkdir()
    for seed, (split, lines) in enumerate({"train": 60, "valid": 12, "test": 20}.items()):
        (text / f"{split}.txt").write_text(text_of(lines, seed), "utf-8")
    save_pretrained(folder / "folder", text_of(90, 7))
    (folder / "run.toml").write_text(CONFIG, "utf-8")
    return folder


def started(folder: Path, head: dict[str, Any], **model: Any) -> tuple[LmConfig, LanguageModel]:
    """A model in evaluation mode that begins as the pretrained one."""
    config = LmConfig.model_validate(
        {
            "model": {"trunk": f"hf:{folder}", "attention_span": SPAN, **CALM, **model},
            "head": head | {"start": "pretrained"},
        }
    )
    words = 305
    config = sized(config, words)
    began = LanguageModel(config, words, 1)
    start_pretrained(config, began.layers, began.embedding, began.head)
    return config, began.eval()
