"""The command ``lm prepare``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lm.console.options import BadLineOption, Join, OnePart, Processes, nonempty, output_folder
from lm.console.output import show


def prepare(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            parser=nonempty,
            help="File, folder, hf:NAME[:CONFIG] for a dataset, or reverse-copy.",
        ),
    ],
    out: Annotated[Path, output_folder("Folder to write.")],
    format: Annotated[
        str, typer.Option(help="Format of the source; auto = detect by names and content.")
    ] = "auto",
    language: Annotated[str, typer.Option(help="Language of the corpus, if a folder has several.")] = "",
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="auto (as published), wordpunct, whitespace, char, unigram, bpe, or hf:FOLDER for that of a"
            " pretrained model.",
        ),
    ] = "auto",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Convert the text to lower case.")] = False,
    vocab_size: Annotated[
        int, typer.Option(min=0, help="Maximum size of the vocabulary, with <eos> and <unk>; 0 = all.")
    ] = 0,
    vocabulary: Annotated[
        Literal["train", "train+valid+test"],
        typer.Option(metavar="SPLITS", help="Splits that give the vocabulary: train, or train+valid+test."),
    ] = "train",
    blank_lines: Annotated[
        Literal["keep", "drop"], typer.Option(help="keep: a blank line becomes an <eos>.")
    ] = "keep",
    valid_fraction: Annotated[
        float, typer.Option(help="Share of the text for a missing valid split.")
    ] = 0.05,
    test_fraction: Annotated[float, typer.Option(help="Share of the text for a missing test split.")] = 0.05,
    text_column: Annotated[str, typer.Option(help="Text column of a dataset.")] = "text",
    length: Annotated[int, typer.Option(metavar="L", help="reverse-copy: length of a sequence.")] = 50,
    vocab: Annotated[int, typer.Option(metavar="V", help="reverse-copy: number of different tokens.")] = 1000,
    shard_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of a stored file.")] = 10_000_000,
    on_bad_line: BadLineOption = "error",
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of reverse-copy, and of the text sample for sentencepiece.")
    ] = 1,
    processes: Processes = 1,
    part: OnePart = None,
    join: Join = False,
) -> None:
    """Read a text of any size and write train, valid and test splits as token ids, with a report.

    Detects the layouts of PTB (words and characters), WikiText, enwik8, text8, MWC and One Billion Word.
    The source reverse-copy generates random sequences, each followed by "|" and its reverse.

    Example: lm prepare path/to/ptb --out data/ptb
    """
    from lm.language.corpora.prepare import PrepareOptions, preparation, prepared_tables
    from lm.language.corpora.sources import ReadOptions
    from lm.text.prepared_parts import prepare_as_asked

    read = ReadOptions(format, language, valid_fraction, test_fraction, text_column, length, vocab, seed)
    options = PrepareOptions(
        read, on_bad_line, tokenizer, lowercase, vocab_size, vocabulary, blank_lines, shard_tokens, seed
    )
    prepared = prepare_as_asked(preparation(source, options), out, processes, part, join)
    state = f"{prepared.folder}: {'unchanged' if prepared.unchanged else 'written'}"
    show(*([] if part else prepared_tables(prepared.report)), state)
