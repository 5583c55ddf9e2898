"""Keep what a study measured with --json FILE, so that pages and pictures are drawn from a file.

python scripts/study_results.py runs/bottleneck.json --machine '2-core AMD EPYC' --out results/bottleneck.json

Studies are `lm bottleneck` and `lm reverse-copy`. Each file becomes an entry, labelled by the name of the
file. Its numbers are the result of the command. The hash of its config is that of all settings except the
seeds.
"""

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from command_line import Options, run_script
from pages.result_entries import sha256_of

from lm.disk.jsonfile import JSON, read_json, write_json
from lm.errors import require

ABOUT = {  # by command
    "bottleneck": "Heads on languages whose true distributions are known; lm bottleneck.",
    "reverse-copy": "Cells on the reverse copy task; lm reverse-copy.",
}
MEASURED = ("settings", "heads", "swept_components", "truth", "rows", "corpora")  # keys of a result


def study_entry(path: Path, machine: str) -> dict[str, Any]:
    """The entry of a result; ConfigError if the file has none."""
    found: Any = read_json(path)
    whole = isinstance(found, dict) and {"command", "versions", "settings", "rows"} <= found.keys()
    command = shlex.split(found["command"])[1] if whole else ""
    require(command in ABOUT, f"{path}: is no result of a study with --json; name another file")
    return {
        "label": path.stem,
        "config": command,
        "config_sha256": settings_sha256(found["settings"]),
        "command": found["command"],
        "seeds": found["settings"]["seeds"],
        "machine": machine,
        "torch": found["versions"]["torch"].partition("+")[0],
        "date": datetime.now(UTC).date().isoformat(),
        "numbers": {key: found[key] for key in MEASURED if key in found},
    }


def settings_sha256(settings: Mapping[str, JSON]) -> str:
    """Hash of the settings of a study, for all seeds."""
    return sha256_of({key: value for key, value in settings.items() if key != "seeds"})


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what the command wrote with --json")
    parser.add_argument("--machine", required=True, help="the machine, as the results name it")
    parser.add_argument("--out", type=Path, required=True, help="file of results to write")
    options = parser.parse_args()
    entries = [study_entry(path, options.machine) for path in options.files]
    require(
        len({entry["config"] for entry in entries}) == 1 and len({*options.files}) == len(options.files),
        "the files are of several studies, or one is named twice; name each of one study once",
    )
    about = ABOUT[entries[0]["config"]]
    if options.out.exists():
        before: Any = read_json(options.out)
        same = isinstance(before, dict) and before.get("about") == about
        require(same, f"{options.out}: has no results of this study; choose another file with --out")
    write_json(options.out, {"about": about, "entries": entries})
    print(f"{options.out}: written")


if __name__ == "__main__":
    run_script(main)
