"""Our codecs as fast tokenizers of transformers, which give the same ids.

A language model's text begins with ``<eos>``, and each line end becomes ``<eos>``. An utterance of a dialog
stands between ``<s>`` and ``</s>``.
"""

import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from lm.errors import ConfigError
from lm.huggingface.chat import dated
from lm.text.pretrained_tokenizer import PretrainedTokenizer
from lm.text.tokenizers import BOS, DIALOG, EOS, EOS_WORD, PAD, SPACE, UNK, SentencePiece
from lm.text.vocabulary import Codec, Vocabulary

_WORD = r"[\p{L}\p{N}_]"  # of Python's \w, which has no combining marks
_SPACE = r"\s\x1c-\x1f"
_PUNCTUATION = rf"[^\p{{L}}\p{{N}}_{_SPACE}]"
_LAST = r"\p{Cased}\p{Case_Ignorable}*\KΣ(?!\p{Case_Ignorable}*\p{Cased})"  # the sigma that ends a word
_LOWER = [normalizers.Replace(Regex(_LAST), "ς"), normalizers.Lowercase()]  # as Python does


def fast_tokenizer(codec: Codec) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers with the ids of a codec.

    ConfigError for sentencepiece's bpe, whose merges transformers applies in another order.
    """
    if isinstance(codec.tokenizer, PretrainedTokenizer):
        adapted = _stream if codec.vocabulary.framed else _pretrained
        return adapted(codec.tokenizer, codec.vocabulary)
    framed, vocabulary = codec.vocabulary.framed, codec.vocabulary
    begin, end = (BOS, EOS) if framed else (EOS_WORD, EOS_WORD)
    tokenizer = Tokenizer(_model(codec))
    lower = _LOWER if codec.tokenizer.lowercase else []
    spaces = _spaces(codec.tokenizer.kind)
    line_ends = [] if framed else [normalizers.Replace("\n", EOS_WORD)]
    tokenizer.normalizer = normalizers.Sequence([*lower, *spaces, *line_ends])
    tokenizer.pre_tokenizer = _splits(codec.tokenizer.kind)
    tokenizer.decoder = _decoder(codec.tokenizer.kind)
    marks = [PAD, UNK, BOS, EOS, DIALOG] if framed else [EOS_WORD, UNK]
    known = [AddedToken(mark, normalized=True, special=True) for mark in marks if mark in vocabulary]
    tokenizer.add_special_tokens(known)
    template = f"{BOS} $A {EOS}" if framed else f"{EOS_WORD} $A"
    ids = [(mark, vocabulary.ids([mark])[0]) for mark in {begin, end}]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, pair=None, special_tokens=ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=end,
        unk_token=UNK if vocabulary.unk is not None else None,
        pad_token=PAD if framed else EOS_WORD,
        padding_side="right" if framed else "left",
        clean_up_tokenization_spaces=False,
    )


def _pretrained(stored: PretrainedTokenizer, vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """A pretrained model's own tokenizer, which begins a text and ends lines as ours does.

    ConfigError if its normalizer or its splits change line ends.
    """
    tokenizer = stored.library
    begin, end = (tokenizer.id_to_token(index) for index in (vocabulary.bos, vocabulary.eos))
    splits, normalizer = tokenizer.pre_tokenizer, tokenizer.normalizer
    if tokenizer.decode([vocabulary.eos], skip_special_tokens=False) == "\n":
        alone = pre_tokenizers.Split("\n", "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([alone, *([splits] if splits else [])])
    else:
        line_end = normalizers.Replace("\n", end)
        tokenizer.normalizer = normalizers.Sequence([*([normalizer] if normalizer else []), line_end])
        tokenizer.add_special_tokens([AddedToken(end, normalized=True, special=True)])
    before, after = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("a", "a\n\n\n"))
    if after != [*before, *[vocabulary.eos] * 3]:
        raise ConfigError(
            'data.tokenizer = "hf": it changes line ends, so that transformers would read other tokens; train'
            " with another to export the model"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[begin, "$A"], pair=None, special_tokens=[(begin, vocabulary.bos)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=begin,
        pad_token=begin,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _stream(stored: PretrainedTokenizer, vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """A pretrained model's own tokenizer with the special tokens of dialogs, and its chat template if used.

    ConfigError if it cannot have our ids.
    """
    tokenizer, names = stored.library, vocabulary.tokens
    first = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names[first:]])
    if any(tokenizer.token_to_id(name) != index for index, name in enumerate(names[first:], first)):
        raise ConfigError('data.tokenizer = "hf": its ids have gaps; train with another to export the model')
    tokenizer.post_processor = processors.TemplateProcessing(single=["$A"], pair=None, special_tokens=[])
    ids = {"bos": vocabulary.bos, "eos": vocabulary.eos, "unk": vocabulary.unk, "pad": vocabulary.pad}
    form, template = stored.chat, None
    if form:
        lead = json.dumps(tokenizer.decode(form.lead, skip_special_tokens=False))
        template = (
            dated(form.template.removesuffix("\n"))
            + f"{{% if add_generation_prompt %}}{{{{ {lead} }}}}{{% endif %}}"
        )
    named = {f"{name}_token": tokenizer.id_to_token(index) for name, index in ids.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=template,
        **(named | (form.marks if form else {})),
    )


def _model(codec: Codec) -> models.Model:
    vocabulary, tokenizer = codec.vocabulary, codec.tokenizer
    if isinstance(tokenizer, SentencePiece):
        if tokenizer.kind == "bpe":
            raise ConfigError("data.tokenizer = bpe: cannot be exported; train with unigram or another kind")
        scores = tokenizer.scores()
        floor = min(scores.values()) - 100  # of special tokens, which no text becomes
        pieces = [(token, scores.get(token, floor)) for token in vocabulary.tokens]
        return models.Unigram(pieces, unk_id=vocabulary.unk, byte_fallback=False)
    tokens = vocabulary.tokens
    if tokenizer.kind == "byte":
        tokens = tuple(_BYTES[ord(token)] if len(token) == 1 else token for token in tokens)
    ids = {token: index for index, token in enumerate(tokens)}
    return models.WordLevel(ids, unk_token=UNK)


def _bytes() -> list[str]:
    """The printable character for each byte in byte-level tokenizers: itself, or one from 256 on."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = (chr(number) for number in range(256, 512))
    return [chr(byte) if byte in shown else next(hidden) for byte in range(256)]


_BYTES = _bytes()


def _spaces(kind: str) -> list[Any]:
    """Normalizers that drop blanks at the ends of lines, and merge those inside."""
    blank = {"char": r"[^\S\n]|[\x1c-\x1f]", "unigram": " "}.get(kind)
    if blank is None:
        return []
    run = f"(?<!{blank})(?>(?:{blank})+)"  # from its first blank on, or the time grows with its square
    ends = normalizers.Replace(Regex(f"^(?:{blank})+|{run}$|{run}(?=\n)|(?<=\n)(?:{blank})+"), "")
    return [ends, normalizers.Replace(Regex(f"(?:{blank})+"), SPACE if kind == "char" else " ")]


def _splits(kind: str) -> Any:
    each = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    match kind:
        case "wordpunct":
            return pre_tokenizers.Split(Regex(f"{_WORD}+|{_PUNCTUATION}+"), "removed", invert=True)
        case "whitespace":
            return pre_tokenizers.Split(Regex(f"[^{_SPACE}]+"), "removed", invert=True)
        case "char":
            return each
        case "byte":
            return pre_tokenizers.Sequence(
                [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), each]
            )
        case _:
            return pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")


def _decoder(kind: str) -> Any:
    match kind:
        case "char":
            return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse()])
        case "byte":
            return decoders.ByteLevel()
        case "unigram":
            return decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
        case _:
            return None
