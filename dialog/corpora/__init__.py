"""Readers of other people's conversations: messengers, logs, subtitles, tables, question and answer."""
