"""Source formats with a help line for each. docs/data.md shows an example of every format."""

from datetime import timedelta

DETECTED = {
    "zhao": "JSONL of Zhao et al. (2017): utts with speaker, text, features",
    "dialogs": "JSONL: list of utterances, or a script of lines `A: text`",
    "turns": "JSONL: dialog, speaker, text, one utterance per line",
    "messages": "JSONL: messages with role and content (OpenAI)",
    "pairs": "JSONL: question and answer, prompt and completion …",
    "telegram": "result.json of Telegram Desktop",
    "discord": "JSON of DiscordChatExporter",
    "whatsapp": "export of a WhatsApp chat, Android or iOS",
    "irc": "log of an IRC channel",
    "srt": "subtitles",
    "ranking": "TSV: context, response, label (Ubuntu corpus)",
    "csv": "table with named columns and any delimiter",
    "tsv": "tab-separated: dialog, speaker, text, optional act",
    "pipes": "speaker|text|act, one dialog per file",
    "eou": "one dialog per line, __eou__ ends utterances (DailyDialog)",
    "text": "one utterance per line, a blank line between dialogs",
    "parquet": "table with named columns",
    "swda": "Switchboard Dialog Act Corpus: folder or zip of CSV files",
    "pickle": "Zhao et al.'s pickle",
}
FORMATS = {
    "auto": "detect from the content",
    **DETECTED,
    "datasets": "folder saved by the datasets library, or hf:NAME on its hub",
    "prepared": "folder written by dialog prepare",
}
PAGE = "docs/data.md"
PAUSE = timedelta(hours=6)  # a longer one begins a new dialog in a chat log
SCENE = timedelta(seconds=15)  # a longer time between the starts of two subtitles begins a new dialog
_BEGINNINGS = {  # of a dialog; formats that are resolved before, as auto, have none
    **dict.fromkeys(("zhao", "dialogs", "messages", "pairs", "pickle"), "each object is a dialog"),
    **dict.fromkeys(
        ("telegram", "discord", "whatsapp", "irc"),
        f"a pause of over {PAUSE // timedelta(hours=1)} hours begins a dialog",
    ),
    "srt": f"a pause of over {SCENE // timedelta(seconds=1)} seconds begins a dialog",
    "ranking": "each row with label 1 is a dialog",
    **dict.fromkeys(("pipes", "swda"), "each file is a dialog"),
    "eou": "each line is a dialog",
    "text": "a blank line begins a dialog",
    **dict.fromkeys(("turns", "tsv"), "a new value in the column of dialogs begins a dialog"),
    **dict.fromkeys(
        ("csv", "parquet", "datasets"),
        "a new value in the column of dialogs, or without one a long pause, begins a dialog",
    ),
}


def beginning_of_dialogs(format: str) -> str:
    """The rule of a format that ends one dialog and begins the next, for messages."""
    return _BEGINNINGS[format]
