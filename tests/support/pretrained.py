"""Folders of pretrained models with random weights, as a download would leave them."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)
from transformers.utils import logging

logging.disable_progress_bar()

SIZE, POSITIONS, END = 16, 32, "<|endoftext|>"
LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": SIZE}


def tiny_configs(words: int) -> dict[str, Any]:
    """Configs of four kinds. Qwen 2 and Gemma 3 slide a window over the text; Gemma 3 scales its vectors."""
    marks: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    shared = {"vocab_size": words, "max_position_embeddings": POSITIONS, **LAYERS, **marks}
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    return {
        "gpt2": GPT2Config(
            vocab_size=words, n_embd=SIZE, n_layer=2, n_head=2, n_positions=POSITIONS, **marks
        ),
        "gemma3": Gemma3TextConfig(
            intermediate_size=24, num_key_value_heads=1, head_dim=8, sliding_window=4, **shared
        ),
        "llama": LlamaConfig(intermediate_size=24, **shared),
        "qwen2": Qwen2Config(intermediate_size=24, num_key_value_heads=1, **window, **shared),
    }


def save_tokenizer(folder: Path, text: str, pieces: int = 300) -> int:
    """Save a byte-level tokenizer, trained on a text, as GPT-2 has one. Return its number of pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=pieces,
        special_tokens=[END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([text], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END).save_pretrained(folder)
    count: int = tokenizer.get_vocab_size()
    return count


def save_model(folder: Path, config: Any, **options: Any) -> PreTrainedModel:
    """Save a model of random weights, and open it as transformers does."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder, **options)
    opened: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    return opened


def save_pretrained(folder: Path, text: str, kind: str = "gpt2", spare: int = 5) -> PreTrainedModel:
    """Save a tokenizer and a model with ``spare`` more ids."""
    words = save_tokenizer(folder, text) + spare
    return save_model(folder, tiny_configs(words)[kind])


def edit(path: Path, **values: Any) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")
