"""Kill processes again and again, in every case of both programs, and compare each end with one undisturbed.

    python scripts/crash_test.py                     200 kills at random times and steps, 3 to 4 minutes
    python scripts/crash_test.py --only lm           the same of language models alone
    python scripts/crash_test.py --every-step mos    one kill at every single step of a training on the disk
    python scripts/crash_test.py --kills 2000 --seed 2 --json crash.json

A kill is a SIGKILL to a real command: trainings of both programs, `lm finetune`, `lm dynamic`, `lm prepare`.
The same command then goes on, is killed again in two trials of three, and finally runs to its end. A failure
is an end with any bit different from the one that was never killed, or something lost or damaged on the way.
Exit code 1 if there is any.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from crash_dialog import dialog_cases  # noqa: E402
from crash_driver import Case, Lab, Outcome, crash_lab, random_blows  # noqa: E402
from crash_lm import lm_cases  # noqa: E402
from crash_process import Blow  # noqa: E402


def random_trials(lab: Lab, cases: Sequence[Case], kills: int, seed: int) -> Iterator[Outcome]:
    """Trials with one to three blows, case after case, until so many kills are reached."""
    rng = random.Random(seed)
    done = trials = 0
    while done < kills:
        case = cases[trials % len(cases)]
        outcome = lab.trial(case, random_blows(lab.reference(case), rng, 1 + trials % 3))
        trials += 1
        done += outcome.kills
        yield outcome


def step_trials(lab: Lab, cases: Sequence[Case]) -> Iterator[Outcome]:
    """One trial with one kill for every step of an undisturbed process."""
    for case in cases:
        for step in range(1, len(lab.reference(case).steps) + 1):
            yield lab.trial(case, [Blow(at=step)])


def named(cases: Sequence[Case], text: str) -> list[Case]:
    """The cases whose names contain the text."""
    return [case for case in cases if text in case.name]


def summarise(outcomes: Sequence[Outcome], seconds: float) -> dict[str, object]:
    """Counts, and the failures in full."""
    return {
        "trials": len(outcomes),
        "kills": sum(outcome.kills for outcome in outcomes),
        "resumed_runs": sum(outcome.kills > 0 for outcome in outcomes),
        "failures": sum(bool(outcome.failure) for outcome in outcomes),
        "seconds": round(seconds, 1),
        "trials_by_case": dict(Counter(outcome.case for outcome in outcomes)),
        "failed": [asdict(outcome) for outcome in outcomes if outcome.failure],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="kills at random times and steps (200)")
    parser.add_argument("--only", metavar="TEXT", default="", help="the cases whose names contain it")
    parser.add_argument(
        "--every-step", metavar="TEXT", action="append", help="every step of the first case that contains it"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random trials (1)")
    parser.add_argument(
        "--dir", type=Path, help="folder for the runs; failed ones stay there (a temporary one)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result to FILE")
    options = parser.parse_args()
    cases = named([*dialog_cases(), *lm_cases()], options.only)
    if options.list:
        print(*(case.name for case in cases), sep="\n")
        return 0
    wanted = [case for text in options.every_step or () for case in named(cases, text)[:1]]
    if len(wanted) < len(options.every_step or ()) or not cases:
        parser.error("no case has such a name; --list prints them")
    folder = options.dir or Path(tempfile.mkdtemp(prefix="highrank-crash-"))
    started = time.monotonic()
    outcomes: list[Outcome] = []
    with crash_lab(folder) as lab:
        trials = (
            step_trials(lab, wanted) if wanted else random_trials(lab, cases, options.kills, options.seed)
        )
        for outcome in trials:
            outcomes.append(outcome)
            if outcome.failure:
                print(
                    f"FAILED {outcome.case}: {outcome.blows} on {outcome.struck}: {outcome.failure}",
                    flush=True,
                )
            elif len(outcomes) % 20 == 0:
                print(f"{len(outcomes)} trials, {sum(o.kills for o in outcomes)} kills", flush=True)
    result = summarise(outcomes, time.monotonic() - started)
    if not options.dir and not result["failures"]:
        shutil.rmtree(folder)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("{kills} kills, {resumed_runs} resumed runs, {failures} failures in {seconds} s".format_map(result))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
