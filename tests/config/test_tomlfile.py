"""Lines of the keys of a TOML file."""

import tomllib

import pytest

from lm.config.presets import preset_folder
from lm.config.tomlfile import key_lines

TOML = """\
top = 1
dotted.deep.key = 2
"quoted key" = 3
text = '''
fake = 1
[fake]
''' # the end
list = [
  1, # [no.table]
  "]", 2,
]

[table] # comment
x = {y = 1, z.w = "="}
[table.inner."quoted.name"]
k = \"\"\"
a = 1\\
\"\"\"
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_key_has_the_line_it_is_written_on(newline: str) -> None:
    assert key_lines(TOML.replace("\n", newline)) == {
        ("top",): 1,
        ("dotted",): 2,
        ("dotted", "deep"): 2,
        ("dotted", "deep", "key"): 2,
        ("quoted key",): 3,
        ("text",): 4,
        ("list",): 8,
        ("table",): 13,
        ("table", "x"): 14,
        ("table", "x", "y"): 14,
        ("table", "x", "z"): 14,
        ("table", "x", "z", "w"): 14,
        ("table", "inner"): 15,
        ("table", "inner", "quoted.name"): 15,
        ("table", "inner", "quoted.name", "k"): 16,
    }


def test_every_key_of_every_config_file_has_its_line() -> None:
    files = [path for family in ("lm", "dialog") for path in preset_folder(family).rglob("*.toml")]
    assert {"ptb_small.toml", "smalltalk.toml"} <= {path.name for path in files}
    for path in files:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for keys, number in key_lines(text).items():
            assert keys[-1] in lines[number - 1]
        assert {keys[0] for keys in key_lines(text)} == set(tomllib.loads(text))
