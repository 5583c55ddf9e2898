"""Gradients that the trainer of transformers accumulates over batches."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from dialog.config import DialogConfig
from dialog.hf import HighrankDialogConfig, HighrankDialogModel
from lm.heads.config import HeadConfig
from lm.hf import HighrankLanguageModel, HighrankLmConfig
from lm.huggingface.causal import HighrankForCausalLM
from lm.text.tokenizers import DIALOG
from lm.text.vocabulary import build_codec
from tests.support.tiny_lm import tiny_codec, tiny_config

TEXTS = ["well i think we saw that film", "is it raining now or was it long"]


def on_gpt2() -> nn.Module:
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=2, n_positions=16, **rates))
    return HighrankForCausalLM(model, HeadConfig(output_bias=False))


def language_model() -> nn.Module:
    return HighrankLanguageModel(HighrankLmConfig.of(tiny_config(dropout=0.0), tiny_codec().vocabulary))


def dialog_model() -> nn.Module:
    sizes = {"encoder": {"utterance_size": 6, "context_size": 8}, "decoder": {"hidden_size": 8}}
    config = DialogConfig.model_validate(sizes | {"model": {"embedding_size": 6, "dropout": 0.0}})
    codec = build_codec("wordpunct", TEXTS, vocab_size=60, extra_counts={"<s>": 3, "</s>": 3, DIALOG: 1})
    return HighrankDialogModel(HighrankDialogConfig.of(config, codec.vocabulary))


def change(model: nn.Module, batch: int, folder: Path) -> Tensor:
    """The change of all parameters by one update on two sequences, of few and of many scored tokens."""
    trained = copy.deepcopy(model)
    ids = torch.randint(6, 12, (2, 12), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, 3:] = -100
    rows: Any = [{"input_ids": row, "labels": wanted} for row, wanted in zip(ids, labels, strict=True)]
    options: dict[str, Any] = {"max_steps": 1, "learning_rate": 1.0, "optim": "sgd", "max_grad_norm": 0.0}
    options |= {"per_device_train_batch_size": batch, "gradient_accumulation_steps": 2 // batch}
    quiet: dict[str, Any] = {
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    Trainer(trained, TrainingArguments(str(folder), **options, **quiet), train_dataset=rows).train()
    pairs = zip(trained.parameters(), model.parameters(), strict=True)
    return torch.cat([(after - before).detach().flatten() for after, before in pairs])


@pytest.mark.filterwarnings("default")  # of the trainer and its libraries
@pytest.mark.parametrize("built", [on_gpt2, language_model, dialog_model])
def test_batches_of_unequal_length_accumulate_to_the_gradient_of_one(
    tmp_path: Path, built: Callable[[], nn.Module]
) -> None:
    torch.manual_seed(1)
    model = built()
    one, two = (change(model, batch, tmp_path) for batch in (2, 1))
    assert float(one.norm()) > 0.01
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("built", [on_gpt2, language_model, dialog_model])
def test_a_given_number_of_items_divides_the_summed_loss(built: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    model: Any = built().eval()
    ids = torch.tensor([[7, 6, 8, 9, 11]])
    first = 0 if isinstance(model, HighrankDialogModel) else 1  # a language model predicts no first token
    mean = model(input_ids=ids, labels=ids).loss
    summed = model(input_ids=ids, labels=ids, num_items_in_batch=1).loss
    torch.testing.assert_close(summed, mean * (ids.shape[1] - first))
    nothing = torch.full_like(ids, -100)
    for items in (None, 0, torch.tensor(0)):
        assert model(input_ids=ids, labels=nothing, num_items_in_batch=items).loss.item() == 0
