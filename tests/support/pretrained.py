"""Folders of pretrained models with random weights, as a download would leave them."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    T5Config,
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


def tiny_pairs(words: int) -> dict[str, Any]:
    """Configs of encoder-decoders, whose parts have different numbers of layers.

    The first T5 and BART scale things: T5 hidden states before its output layer, this BART its word vectors.
    """
    marks: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 2}
    t5 = {"vocab_size": words, "d_model": SIZE, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    t5 |= {"num_decoder_layers": 3, "relative_attention_num_buckets": 8, **marks, "decoder_start_token_id": 2}
    sizes = {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "encoder_layers": 1, "decoder_layers": 3}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 4}
    bart = {"vocab_size": words, "d_model": SIZE, "max_position_embeddings": POSITIONS, **sizes, **heads}
    return {
        "t5": T5Config(**t5),
        "t5 1.1": T5Config(**t5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        "bart": BartConfig(**bart, **marks, decoder_start_token_id=0),
        "scaled bart": BartConfig(**bart, **marks, decoder_start_token_id=0, scale_embedding=True),
    }


def save_tokenizer(folder: Path, text: str, pieces: int = 300, *, special: tuple[str, ...] = (END,)) -> int:
    """Save a byte-level tokenizer, trained on a text, as GPT-2 has one. Return its number of pieces.

    The first of the ``special`` pieces ends a text, and ``<s>`` or else the first begins it.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=pieces,
        special_tokens=list(special),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([text], trainer)
    begin = "<s>" if "<s>" in special else special[0]
    named = {"bos_token": begin, "eos_token": special[0]}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    count: int = tokenizer.get_vocab_size()
    return count


def save_model(folder: Path, config: Any, **options: Any) -> PreTrainedModel:
    """Save a model of random weights, and open it as transformers does."""
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    torch.manual_seed(1)
    model = kind.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    model.save_pretrained(folder, **options)
    opened: PreTrainedModel = kind.from_pretrained(folder, local_files_only=True).eval()
    return opened


def save_pretrained(folder: Path, text: str, kind: str = "gpt2", spare: int = 5) -> PreTrainedModel:
    """Save a tokenizer and a model with ``spare`` more ids."""
    words = save_tokenizer(folder, text) + spare
    return save_model(folder, tiny_configs(words)[kind])


def edit(path: Path, **values: Any) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")
