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
