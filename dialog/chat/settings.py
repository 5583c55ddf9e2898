"""Settings of decoding in a chat: changes of them, and their words."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dialog.chat.ctrl_c import CTRL_C
from dialog.config import DialogConfig, require_decode_read
from dialog.decoding.config import DecodeConfig
from dialog.trained import TrainedModel
from lm.config.load import Resolved, override
from lm.config.section import known_keys
from lm.config.settings import keys_of, named_keys, require_distinct
from lm.config.write import setting_text
from lm.errors import ConfigError

MOST_IN_CHAT = 1000  # maximum of requested beams, responses and tokens, because of memory
LONGEST_SETTING = 200  # characters of KEY=VALUE
_SETTING = re.compile(  # the begin of a setting, or a value that may hold what looks like one
    r"""(?:^|(?<=\s))(?P<key>[\w.]+)(?P<blank>\s*)=\s*|"[^"]*"|'[^']*'|\[(?:"[^"]*"|'[^']*'|[^]"'])*\]"""
)
_KEYS = DecodeConfig.model_fields
_LIMITED = {f"decode.{key}" for key in ("beam", "nbest", "candidates", "max_length")}
SCORES = {  # by decode.select
    "score": "A score is the sum of the log-probabilities of a reply's words and of its end, in nats, divided"
    " by length^length_penalty. The nearer to 0, the likelier.",
    "mbr": "A score is the mean similarity of a reply to all candidates, by mbr_metric, from 0 to 100. The"
    " higher, the better.",
    "mmi": "A score is the sum of the log-probabilities of a reply's words and of its end, in nats, divided"
    " by length^length_penalty, plus mmi_weight times log P(last line | reply). The nearer to 0, the better.",
}


def split_settings(text: str) -> list[str]:
    """``KEY=VALUE`` texts of a line. Quotes and brackets keep their blanks and equals signs.

    Blanks may stand around the equals sign of the first key, and of other keys of decoding.
    """
    if len(text) > LONGEST_SETTING * len(_KEYS):
        raise ConfigError(f"{text[:40]}…: no setting is longer than {LONGEST_SETTING} characters")
    begun = [
        found
        for found in _SETTING.finditer(text)
        if found["key"] and (not found["blank"] or found["key"].removeprefix("decode.") in _KEYS)
    ]
    if not begun or text[: begun[0].start()].strip():
        return [re.sub(r"\s*=\s*", "=", text, count=1)]
    ends = [*(found.start() for found in begun[1:]), len(text)]
    return [
        f"{found['key']}={text[found.end() : end].strip()}" for found, end in zip(begun, ends, strict=True)
    ]


def changed(model: TrainedModel, decode: DecodeConfig, command: str, settings: Sequence[str]) -> DecodeConfig:
    """Decoding settings after ``KEY=VALUE`` texts, which apply all or none.

    ConfigError names the command. It is raised for settings without effect or beyond the limits of a chat,
    and for those by which the model cannot decode.
    """
    if long := next((text for text in settings if len(text) > LONGEST_SETTING), ""):
        raise ConfigError(f"/{command} {long[:40]}…: no setting is longer than {LONGEST_SETTING} characters")
    config = model.config.model_copy(update={"decode": decode})
    known = known_keys(DialogConfig)
    names = [text.partition("=")[0] for text in settings]
    keys = [
        text if "." in name or name in known else f"decode.{text}"
        for name, text in zip(names, settings, strict=True)
    ]
    require_distinct(named_keys(f"/{command}", keys))
    _require_few(command, keys)
    found = override(Resolved(config, {}), keys, DialogConfig, sections=("decode",), place=f"/{command}")
    for key in keys_of(keys):
        require_decode_read(decode, found.config.decode, key, f"/{command} ")
    with CTRL_C.ends_reply():  # a backward run takes a while to load
        model.require(found.config.decode)
    return found.config.decode


def _require_few(command: str, keys: Sequence[str]) -> None:
    """Raise ConfigError for a number beyond those of a chat, before the larger limit of its key is told."""
    for text in keys:
        key, _, value = text.partition("=")
        with suppress(ValueError):  # no whole number, which is told later
            if key in _LIMITED and int(value, 0) > MOST_IN_CHAT:
                raise ConfigError(f"/{command}: {key} must be at most {MOST_IN_CHAT:,} in a chat")


def setting_rows(decode: DecodeConfig) -> Iterator[tuple[str, str]]:
    """``KEY=VALUE`` and description of every setting."""
    for key, field in DecodeConfig.model_fields.items():
        yield setting_text(key, getattr(decode, key)), field.description or ""


def summary(decode: DecodeConfig) -> str:
    """The method of decoding and its main settings in a line."""
    if decode.method == "beam":
        greedy = decode.beam == 1 and not decode.length_penalty and decode.select == "score"
        return "greedy" if greedy else f"beam search, {decode.beam} beam{'s' * (decode.beam > 1)}"
    return (
        f"sampling: T={decode.temperature:g} on={decode.temperature_on} top_k={decode.top_k} "
        f"top_p={decode.top_p:g} seed={decode.seed}, best of {decode.searched}"
    )


def without(before: DecodeConfig, usual: Mapping[str, Any]) -> list[str]:
    """A line with the settings that ``usual`` has ended, besides those of :func:`summary`; [] if none."""
    ended = [key for key in usual if key not in ("method", "beam") and getattr(before, key) != usual[key]]
    return [f"(without {', '.join(ended)})"] * bool(ended)
