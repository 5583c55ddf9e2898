"""Pretrained networks, configs and installations that language models refuse."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, MambaConfig

from lm.cli import main
from lm.errors import StorageError
from lm.huggingface.architecture import read_architecture
from tests.support.pretrained import edit, save_model, save_pretrained, tiny_configs, tiny_pairs
from tests.support.pretrained_lm import started
from tests.support.tiny_lm import text_of


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def change(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / name, **values)


def shard(folder: Path) -> None:
    """Weights in several files, one of which is missing."""
    save_model(folder, tiny_configs(305)["gpt2"], max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    next(folder.glob("model-00002-of-*.safetensors")).unlink()


def pair(folder: Path) -> None:
    save_model(folder, tiny_pairs(305)["t5"])


def spoil_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    spoilt = {name: tensor / 0 for name, tensor in load_file(path).items()}
    save_file(spoilt, path, metadata={"format": "pt"})


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


BAD: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "no folder": (shutil.rmtree, 4, "no such folder; download the model there"),
    "no config": (remove("config.json"), 4, "config.json: no such file"),
    "no weights": (remove("model.safetensors"), 4, "no model.safetensors"),
    "code": (change("config.json", auto_map={"AutoModelForCausalLM": "own.Own"}), 4, "never run"),
    "code of the tokenizer": (
        change("tokenizer_config.json", auto_map={"AutoTokenizer": "own.Own"}), 4, "never run",
    ),
    "unknown kind": (change("config.json", model_type="nonsense"), 4, "no causal language model"),
    "no kind": (change("config.json", model_type=7), 4, "no causal language model"),
    "encoder-decoder": (pair, 4, "choose a causal language model, or use `dialog` instead of `lm`"),
    "no encoder-decoder": (change("config.json", is_encoder_decoder=True), 4, "no encoder-decoder of texts"),
    "quantised": (change("config.json", quantization_config={"bits": 4}), 4, "quantised"),
    "too many layers": (change("config.json", n_layer=10**9), 4, "n_layer = 1000000000"),
    "too wide": (change("config.json", n_embd=10**9), 4, "hidden_size = 1000000000"),
    "too long": (change("config.json", n_positions=10**12), 4, "wpe.weight of shape (1000000000000, 16)"),
    "too wide within": (change("config.json", n_inner=10**12), 4, "c_fc.weight of shape (16, 1000000000000)"),
    "odd width": (change("config.json", n_embd=17), 4, "its sizes make no model"),
    "text for a number": (change("config.json", n_embd="wide"), 4, "config.json"),
    "other width": (change("config.json", n_embd=32), 4, "are not those of its config.json"),
    "other vocabulary": (change("config.json", vocab_size=400), 3, "not that of the tokenizer"),
    "small vocabulary": (change("config.json", vocab_size=200), 4, "use the files of one model"),
    "adapter": (lambda folder: (folder / "adapter_config.json").write_text("{}"), 4, "merge it"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), 4, "config.json"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), 4, "no tokenizer"),
    "missing shard": (shard, 4, "missing; download all files"),
    "cut weights": (cut_weights, 4, "its weights cannot be loaded"),
    "NaN": (spoil_weights, 4, "hidden states that are not finite"),
    "no words": (change("config.json", vocab_size=0), 4, "vocab_size = 0: must be a number"),
}  # fmt: skip


def test_a_bad_folder_gets_one_line_with_the_remedy(
    pretrained_corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    assert ending(main, "prepare", "text", "--out", "data", "--tokenizer", "hf:folder")[0] == 0
    shutil.copytree("folder", "whole")
    for name, (damage, expected, said) in BAD.items():
        shutil.rmtree("folder", ignore_errors=True)
        shutil.copytree("whole", "folder")
        damage(Path("folder"))
        code, _, error = ending(main, "train", "run.toml", "--run", "run")
        assert (code, error.count("\n")) == (expected, 1), (name, error)
        assert said in error, (name, error)
        assert not Path("run", "checkpoints").exists()


def test_a_prepared_text_needs_no_tokenizer_of_the_folder(
    pretrained_corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    assert ending(main, "prepare", "text", "--out", "data", "--tokenizer", "hf:folder")[0] == 0
    Path("folder/tokenizer.json").unlink()
    assert ending(main, "train", "run.toml", "--run", "run", "--set", "train.max_steps=1")[0] == 0
    assert ending(main, "export", "run", "out")[0] == 0
    assert len(AutoTokenizer.from_pretrained("out")) == 300
    code, _, error = ending(main, "prepare", "text", "--out", "again", "--tokenizer", "hf:folder")
    assert (code, error.count("\n")) == (4, 1)
    assert "tokenizer.json: missing" in error


def test_a_kind_without_keys_and_values_is_refused(tmp_path: Path) -> None:
    """A recurrent network reads the second half of a text without the first."""
    save_model(tmp_path, MambaConfig(vocab_size=305, hidden_size=16, num_hidden_layers=2, state_size=4))
    edit(tmp_path / "config.json", num_attention_heads=2)
    with pytest.raises(StorageError, match="reads a text in parts"):
        started(tmp_path, {"kind": "softmax"})


def test_a_config_names_no_kernels_and_no_other_files(tmp_path: Path) -> None:
    """Transformers would download a kernel by this name, and read another file of weights."""
    save_pretrained(tmp_path, text_of(90, 7))
    names = {"attn_implementation": "org/kernel", "transformers_weights": "other.safetensors"}
    edit(tmp_path / "config.json", **names, num_labels=10**5)
    _, model = started(tmp_path, {"kind": "softmax"})
    config = model.layers.network.config
    assert config._attn_implementation == "sdpa"
    assert len(config.id2label) < 10, "memory for the labels of a classifier"


def test_a_number_of_layers_is_refused_before_transformers_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many kinds make a list of the kinds of their layers, which 10 billion layers would not fit."""
    monkeypatch.setattr("transformers.Qwen2Config.from_dict", lambda values: pytest.fail("was counted"))
    for values in ({"num_hidden_layers": 10**10}, {"text_config": {"num_hidden_layers": 10**10}}):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **values}), "utf-8")
        with pytest.raises(StorageError, match=r"num_hidden_layers = 10000000000: must be .* to 1,000$"):
            read_architecture(tmp_path)


UNFIT: list[tuple[list[str], int, str]] = [
    (["model.attention_span=33"], 2, "at most 32 tokens"),
    (["head.context_activation=tanh"], 2, "set head.context_activation = none"),
    (
        ["head.kind=softmax", "head.context_activation=tanh", "head.components=1", "head.tied=true"],
        2, "head.tied",
    ),
    (["model.hidden_dropout=0.5"], 2, "--set model.hidden_dropout: belongs to"),
    (["data.train=text/train.txt", "data.valid=text/valid.txt"], 3, 'data.tokenizer = "hf"'),
    (["model.trunk=recurrent", "model.attention_span=256"], 2, "needs a pretrained trunk"),
    (["model.trunk=hf:"], 2, "recurrent, transformer or hf:FOLDER"),
    (["model.trunk=hf"], 2, "recurrent, transformer or hf:FOLDER"),
]  # fmt: skip


def test_a_config_that_does_not_fit_the_model_is_refused(
    pretrained_corpus: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    save_pretrained(pretrained_corpus / "folder", text_of(90, 7), "llama")
    assert ending(main, "prepare", "text", "--out", "data", "--tokenizer", "hf:folder")[0] == 0
    for changes, expected, said in UNFIT:
        options = [text for change in changes for text in ("--set", change)]
        code, _, error = ending(main, "train", "run.toml", "--run", "run", *options)
        assert (code, error.count("\n")) == (expected, 1), (changes, error)
        assert said in error, (changes, error)


def test_a_missing_extra_is_named(
    pretrained_corpus: Path, ending: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm.libraries.installed_version", lambda name: "")
    for words in (
        ("prepare", "text", "--out", "data", "--tokenizer", "hf:folder"),
        ("describe", "run.toml"),
    ):
        code, _, error = ending(main, *words)
        assert (code, error.count("\n")) == (2, 1)
        assert "pip install -e '.[hf]'" in error
