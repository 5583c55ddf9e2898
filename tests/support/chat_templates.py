"""Chat templates, and models whose tokenizers have them."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tests.support.pretrained import save_model, save_tokenizer, tiny_configs
from tests.support.tiny_dialog import SAID

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INSTRUCT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]{% else %}"
    " {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
THINKING = CHATML.replace(
    "{{ m.content }}", "{% if m.role != 'user' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}"
)
TEMPLATES = {"chatml": CHATML, "instruct": INSTRUCT, "plain": PLAIN, "thinking": THINKING}
CONTROLS = ["<|im_start|>", "<|im_end|>"]


def folder_with(folder: Path, template: str, kind: str = "gpt2") -> Any:
    """A model with a tokenizer with this chat template."""
    save_tokenizer(folder, "\n".join(SAID) * 3)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": CONTROLS})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    settings = tiny_configs(len(tokenizer))[kind]
    settings.max_position_embeddings = 128
    save_model(folder, settings)
    return tokenizer
