"""Heads of ours under networks of transformers, trained by its trainer."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    Qwen2Config,
)

from lm.errors import ConfigError
from lm.heads.config import HeadConfig
from lm.huggingface.causal import HighrankForCausalLM
from lm.huggingface.tokenizer import fast_tokenizer
from tests.support.pretrained import save_model, tiny_pairs
from tests.support.tiny_lm import text_of, tiny_codec

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"

WORDS, SIZE = 60, 16
LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": SIZE}
CONFIGS = [
    GPT2Config(vocab_size=WORDS, n_embd=SIZE, n_layer=2, n_head=2, n_positions=32),
    LlamaConfig(vocab_size=WORDS, intermediate_size=24, **LAYERS),
    Qwen2Config(vocab_size=WORDS, intermediate_size=24, num_key_value_heads=1, **LAYERS),
]
HEADS: list[dict[str, Any]] = [
    {"kind": "softmax"},
    {"kind": "moc", "components": 3, "context_activation": "none"},
    {"kind": "mos", "components": 3, "context_activation": "none"},
    {"kind": "moss", "components": 3, "context_activation": "none", "learn_shift": True},
    {"kind": "mixtape", "components": 4, "context_activation": "none"},
]


def saved(folder: Path, config: Any) -> PreTrainedModel:
    """A model of random weights that went through its folder, as a downloaded one has."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    opened: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    return opened


def test_a_sequence_has_one_mask_of_latent_dropout() -> None:
    config = GPT2Config(
        vocab_size=WORDS, n_embd=SIZE, n_layer=1, n_head=1, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    head = HeadConfig(kind="mos", components=2, context_activation="none", latent_dropout=0.5)
    ours = HighrankForCausalLM(AutoModelForCausalLM.from_config(config), head).train()
    ids = torch.randint(0, WORDS, (3, 7))
    with torch.no_grad():
        torch.manual_seed(1)
        found = ours(ids, labels=ids).loss
        torch.manual_seed(1)
        streams = ours.trunk(input_ids=ids)[0][:, :-1].transpose(0, 1)  # (T, B, H), as the head reads them
        expected = ours.head.loss(streams, ids[:, 1:].T) / ids[:, 1:].numel()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_perplexity_before_the_first_update_is_the_models(tmp_path: Path, config: Any) -> None:
    model: Any = saved(tmp_path, config)
    ids = torch.randint(0, WORDS, (3, 12))
    labels = ids.masked_fill(torch.rand(ids.shape) < 0.2, -100)
    with torch.no_grad():
        expected = float(model(input_ids=ids, labels=labels).loss.exp())
        logits = model(input_ids=ids).logits.log_softmax(-1)
        for head in HEADS:
            ours = HighrankForCausalLM(model, HeadConfig(**head)).eval()
            assert float(ours(ids, labels=labels).loss.exp()) == pytest.approx(expected, rel=1e-5)
            assert torch.allclose(ours(ids).logits, logits, atol=1e-3)


def test_a_model_of_half_precision_is_read(tmp_path: Path) -> None:
    saved(tmp_path, CONFIGS[1]).bfloat16().save_pretrained(tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert opened.dtype == torch.bfloat16
    model, ids = HighrankForCausalLM(opened, HeadConfig(kind="softmax")), torch.randint(0, WORDS, (2, 9))
    model(ids, labels=ids).loss.backward()
    assert model(ids).logits.dtype == torch.float32


def test_checkpointing_changes_no_gradient(tmp_path: Path) -> None:
    ids = torch.randint(0, WORDS, (2, 9))
    gradients = []
    for wanted in (False, True):
        model = HighrankForCausalLM(saved(tmp_path, CONFIGS[1]), HeadConfig(kind="softmax")).train()
        if wanted:
            model.activation_checkpointing_enable()
        model(ids, labels=ids).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) > 10
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_model_that_caps_its_logits_is_refused(tmp_path: Path) -> None:
    config = Gemma2Config(
        vocab_size=WORDS,
        intermediate_size=24,
        num_key_value_heads=1,
        head_dim=8,
        final_logit_softcapping=1.0,
        **LAYERS,
    )
    model = saved(tmp_path, config)
    with pytest.raises(ConfigError, match='set start = "random"'):
        HighrankForCausalLM(model, HeadConfig())
    HighrankForCausalLM(model, HeadConfig(), start="random")


def test_a_network_without_an_output_layer_is_refused(tmp_path: Path) -> None:
    model = saved(tmp_path, CONFIGS[0])
    with pytest.raises(ConfigError, match="no output layer"):
        HighrankForCausalLM(model.base_model, HeadConfig())
    with pytest.raises(ConfigError, match="tied = false"):
        HighrankForCausalLM(model, HeadConfig(tied=True))
    for key, value in {"label_smoothing": 0.1, "unlikelihood": 1.0, "past_decode": 0.001}.items():
        with pytest.raises(ConfigError, match=rf"head\.{key}: the loss of this class is that of the labels"):
            HighrankForCausalLM(model, HeadConfig(**{key: value}))
    with pytest.raises(ConfigError, match="an encoder-decoder"):
        HighrankForCausalLM(save_model(tmp_path, tiny_pairs(WORDS)["bart"]), HeadConfig())


@pytest.mark.filterwarnings("default")  # of the trainer and its libraries
def test_the_example_of_the_page_trains(in_tmp: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The loss before training is the pretrained model's, and training lowers it."""
    (code,) = re.findall(r"^```python\n(from pathlib.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    codec, folder = tiny_codec(), in_tmp / "path" / "to" / "gpt2"
    words = len(codec.vocabulary)
    saved(folder, GPT2Config(vocab_size=words, n_embd=SIZE, n_layer=1, n_head=2, n_positions=32))
    tokenizer = fast_tokenizer(codec)
    tokenizer.pad_token = None  # as GPT-2 has none
    tokenizer.save_pretrained(folder)
    (in_tmp / "path" / "to" / "train.txt").write_text(text_of(40, seed=2))
    names: dict[str, Any] = {}
    exec(compile(code, PAGE, "exec"), names)
    rows = [row["input_ids"] for row in names["rows"]]
    again: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        losses = [again(torch.tensor([row]), labels=torch.tensor([row])).loss for row in rows if len(row) > 1]
    assert names["after"] < names["before"]
    assert names["before"] == pytest.approx(float(torch.stack(losses).mean()), rel=0.2)  # a mean of means
