"""Run folders: config, checkpoints, metrics, evaluations."""
