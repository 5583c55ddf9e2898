"""Settings as text that the loader reads back."""

from hypothesis import given
from hypothesis import strategies as st

from dialog.config import DialogConfig
from lm.config.load import load_config
from lm.config.write import setting_text

TEXTS = st.text(alphabet=" \t'\"=[]{}x1ü.#\\,", max_size=8)


@given(TEXTS)
def test_a_setting_is_read_back(text: str) -> None:
    override = setting_text("decode.begin", text)
    config = load_config("smalltalk_mos", DialogConfig, family="dialog", overrides=[override]).config
    assert config.decode.begin == text
