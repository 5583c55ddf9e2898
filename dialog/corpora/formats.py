"""Source formats with a help line for each. docs/data.md shows an example of every format."""

DETECTED = {
    "zhao": "JSONL of Zhao et al. (2017): utts with speaker, text, features",
    "dialogs": "JSONL: id, utterances with speaker and text",
    "turns": "JSONL: dialog, speaker, text, one utterance per line",
    "messages": "JSONL: messages with role and content (OpenAI)",
    "pairs": "JSONL: question and answer, prompt and completion …",
    "telegram": "result.json of Telegram Desktop",
    "whatsapp": "export of a WhatsApp chat, Android or iOS",
    "irc": "log of an IRC channel",
    "srt": "subtitles",
    "ranking": "TSV: context, response, label (Ubuntu corpus)",
    "csv": "table with named columns and any delimiter",
    "tsv": "tab-separated: dialog, speaker, text, optional act",
    "pipes": "speaker|text|act, one dialog per file",
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
_BEGINNINGS = {  # of a dialog, in formats without a column of dialogs
    **dict.fromkeys(("zhao", "dialogs", "messages", "pairs"), "each object is a dialog"),
    **dict.fromkeys(("telegram", "whatsapp", "irc"), "a pause of over 6 hours begins a dialog"),
    "srt": "a pause of over 15 seconds begins a dialog",
    "ranking": "each row with label 1 is a dialog",
    **dict.fromkeys(("pipes", "swda"), "each file is a dialog"),
    "text": "a blank line begins a dialog",
}


def beginning_of_dialogs(format: str) -> str:
    """The rule of a format that ends one dialog and begins the next, for messages."""
    return _BEGINNINGS.get(format, "a new value in the column of dialogs begins a dialog")
