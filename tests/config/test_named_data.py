"""Early checks of the corpora that a config names."""

from pathlib import Path

import pytest

from lm.config.named_data import require_splits, split_of_run
from lm.errors import DataError
from lm.language.config import DataConfig


def test_a_training_text_behind_a_broken_link_is_absent(tmp_path: Path) -> None:
    (tmp_path / "text").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"text: no such file or folder; check data\.train"):
        require_splits(DataConfig(train=str(tmp_path / "text")), "lm prepare")


def test_a_split_in_a_folder_without_permission_is_not_called_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.lstat", denied)
    monkeypatch.setattr("os.stat", denied)
    for act in (
        lambda: split_of_run(DataConfig(valid="/a/b"), "valid"),
        lambda: require_splits(DataConfig(train="/a/b"), "lm prepare"),
    ):
        with pytest.raises(DataError, match=r"/a/b: cannot be read \(Permission denied\); check path"):
            act()
