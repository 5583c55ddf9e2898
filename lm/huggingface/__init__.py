"""The bridge to Hugging Face's transformers that both families share."""
