"""Formats of sources, each with a line for the help; docs/data.md has an example of each."""

DETECTED = {
    "zhao": "JSONL of Zhao et al. (2017): utts with speaker, text, features",
    "dialogs": "JSONL: id, utterances with speaker and text",
    "turns": "JSONL: dialog, speaker, text, one utterance a line",
    "messages": "JSONL: messages with role and content, as of OpenAI",
    "pairs": "JSONL: question and answer, prompt and completion …",
    "telegram": "result.json of Telegram Desktop",
    "whatsapp": "export of a WhatsApp chat, Android or iOS",
    "irc": "log of an IRC channel",
    "srt": "subtitles",
    "ranking": "TSV: context, response, label, as of the Ubuntu corpus",
    "csv": "table with named columns and any delimiter",
    "tsv": "dialog, speaker, text and perhaps act, between tabs",
    "pipes": "speaker|text|act, one dialog a file",
    "text": "one utterance a line, a blank line between dialogs",
    "parquet": "table with named columns",
    "swda": "Switchboard Dialog Act Corpus: folder or zip of CSV files",
    "pickle": "Zhao et al.'s pickle",
}
FORMATS = {
    "auto": "looks at the content",
    **DETECTED,
    "datasets": "what the datasets library saved, or hf:NAME of its hub",
    "prepared": "folder that dialog prepare wrote",
}
PAGE = "docs/data.md"
