"""The config loader: TOML, presets, strict sections."""
