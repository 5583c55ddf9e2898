"""Time and memory of what costs most, each way to do it beside the others in one process.

python scripts/bench.py head
python scripts/bench.py step --rounds 15 --json step.json
python scripts/bench.py head step --check      # against the stored ratios
python scripts/bench.py scaling --memory --picture docs/scaling.svg
python scripts/bench.py scale --rounds 7 --results results   # processes, for docs/processes.md

Times are medians over rounds in which the variants take turns; the spread is half the distance between the
quartiles. The floor is the time that the matrix products alone take at the best speed that this machine
shows for them; load, serve and scaling have none. Memory is the peak above inputs and parameters, without
the code of libraries, of one run in a process of its own. Of heads there is also the resident set of two
runs in another process, above that before the first, which counts the code of libraries.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from benchmarks import beam, cuda, dialog, head, load, rank, recurrent, scale, scaling, serve, step, trunks
from benchmarks.timing import Case, Ceiling, Timing, ceilings, measure, peak_megabytes, resident_megabytes
from command_line import Options, run_script
from rich.console import Console

from lm.console.tables import Table
from lm.disk.jsonfile import write_json
from lm.disk.storage import require_writable
from lm.errors import HighrankError, require

SUBJECTS = {
    "head": head, "step": step, "recurrent": recurrent, "beam": beam, "rank": rank, "load": load,
    "dialog": dialog, "serve": serve, "scale": scale, "scaling": scaling, "cuda": cuda, "trunks": trunks,
}  # fmt: skip
STORED = Path(__file__).parent / "benchmarks" / "ratios.json"
INTERRUPTED = 130  # exit code, as shells have it
SLOWER = 1.15  # times the stored ratio that count as slower
TUNED = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}
UNKNOWN = Ceiling(1.0, 1.0, 1.0)  # of a machine, where nothing is measured
Record = dict[str, Any]


def main() -> None:
    options = _options()
    if options.malloc == "tuned" and not TUNED.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | TUNED)
    if options.joeynmt:
        os.environ[dialog.PEER] = str(options.joeynmt)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.memory_of:
        print(_memory_here(*options.memory_of, options.resident))
        return
    ceiling = ceilings()
    console = Console()
    console.print(
        f"{_processor()}: {_features()}; {torch.get_num_threads()} threads, torch {torch.__version__}, malloc"
        f" {options.malloc}; products reach {ceiling.float32 / 1e9:.0f} GFLOP/s in float32,"
        f" {ceiling.bfloat16 / 1e9:.0f} in bfloat16"
    )
    records, complete = _measured(options, ceiling, console)
    report = {
        "processor": f"{_processor()}: {_features()}",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "malloc": options.malloc,
        "gflops": {precision: speed / 1e9 for precision, speed in ceiling._asdict().items()},
        "records": records,
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if not complete:
        sys.exit(INTERRUPTED)
    if options.picture:
        scaling.draw(records, options.picture)
    if options.results:
        _publish(records, options)
    found = _ratios(records, options.malloc)
    code = _check(found, console) if options.check else 0
    if options.store:
        stored = json.loads(STORED.read_text()) if STORED.exists() else {}
        STORED.write_text(json.dumps(stored | found, indent=1, sort_keys=True) + "\n")
    if options.check:
        sys.exit(code)


def _options() -> argparse.Namespace:
    parser = Options(__doc__)
    parser.add_argument("subjects", nargs="+", choices=SUBJECTS, help="what to measure")
    parser.add_argument("--rounds", type=int, default=9, help="rounds after the warm-up, at least 2")
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--without", help="no variants whose name has this in it, such as bfloat16")
    parser.add_argument("--threads", type=int, help="CPU threads; torch's choice if left out")
    parser.add_argument(
        "--malloc",
        choices=["default", "tuned"],
        default="default",
        help="tuned: glibc keeps freed memory, which spares the naive formula most of its page faults",
    )
    parser.add_argument("--memory", action="store_true", help="measure peaks too, a process for each")
    parser.add_argument(
        "--joeynmt",
        type=Path,
        metavar="PYTHON",
        help="dialog: an interpreter that has joeynmt, measured beside ours; see docs/speed.md",
    )
    parser.add_argument("--json", type=Path, help="write every number here")
    parser.add_argument("--picture", type=Path, help="draw the records of scaling; needs --memory")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="folder for the tables of all that scale measures"
    )
    parser.add_argument("--busy", action="store_true", help="--results: the machine does other work, too")
    parser.add_argument("--store", action="store_true", help=f"keep the ratios in {STORED.name}")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a stored ratio got worse")
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)  # subject, case, variant
    parser.add_argument("--resident", action="store_true", help=argparse.SUPPRESS)  # of --memory-of
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: a spread needs at least 2")
    if options.only:
        names = [case.name for subject in options.subjects for case in SUBJECTS[subject].cases(UNKNOWN)]
        if not any(options.only in name for name in names):
            parser.error(f"--only: none of these has {options.only!r} in its name: {'; '.join(names)}")
    if options.without and (options.store or options.check):
        parser.error("--without: stored ratios are to the first variant; leave out --without")
    if options.threads is not None and options.threads < 1:
        parser.error("--threads: must be at least 1")
    if options.results and ("scale" not in options.subjects or options.only or options.without):
        parser.error("--results replaces all numbers of scale; add scale, and leave out --only and --without")
    tables = [options.results / f"{name}.json" for name in scale.results([], {})] if options.results else []
    for path in (*filter(None, (options.json, options.picture)), *tables):
        try:
            require_writable(path)
        except HighrankError as error:
            parser.error(str(error))
    if options.picture and not (options.memory and "scaling" in options.subjects):
        parser.error("--picture draws the records of scaling --memory; add both")
    return options


def _measured(options: argparse.Namespace, ceiling: Ceiling, console: Console) -> tuple[list[Record], bool]:
    """A record of every variant, and whether all were measured: Ctrl-C ends it with those of whole cases."""
    records: list[Record] = []
    try:
        for subject in options.subjects:
            for case in SUBJECTS[subject].cases(ceiling):
                if options.only and options.only not in case.name:
                    continue
                kept = [one for one in case.variants if not (options.without and options.without in one.name)]
                case = replace(case, variants=kept)
                found = _records(subject, case, measure(case, options.rounds), options)
                console.print(_table(case, found))
                records += found
    except KeyboardInterrupt:
        console.print("interrupted: --json keeps what stands above, other options nothing")
        return records, False
    return records, True


def _publish(records: Sequence[Record], options: argparse.Namespace) -> None:
    """Write the tables of scale for scripts/pages/table_columns.py."""
    about = {
        "command": f"python scripts/bench.py scale --rounds {options.rounds} --results results",
        "seeds": [1],
        "machine": f"{os.cpu_count()}-core {_processor()}{', busy with other work' if options.busy else ''}",
        "torch": torch.__version__.partition("+")[0],
        "date": date.today().isoformat(),
    }
    for name, content in scale.results(records, about).items():
        write_json(options.results / f"{name}.json", content)


def _records(
    subject: str, case: Case, timings: Sequence[Timing], options: argparse.Namespace
) -> list[Record]:
    """A record a variant: seconds, and ratios to the floor and to the first variant."""
    found = []
    for timing in timings:
        record: Record = {"subject": subject, "case": case.name, "variant": timing.name}
        record |= {"seconds": timing.median, "spread": timing.spread}
        if timing.floor:
            record["over_floor"] = timing.median / timing.floor
        if timing is not timings[0]:
            record["speed_up"] = timings[0].median / timing.median
            if case.compare:
                record |= case.compare(timings[0].result, timing.result)
        if case.unit:
            record[f"{case.unit[0]} a second"] = case.unit[1] / timing.median
        if options.memory and case.memory:
            record["peak MB"] = _memory_apart(subject, case.name, timing.name, options)
            if subject == "head":
                record["resident MB"] = _memory_apart(subject, case.name, timing.name, options, "--resident")
        found.append(record)
    return found


def _memory_apart(subject: str, case: str, variant: str, options: argparse.Namespace, *more: str) -> float:
    command = [sys.executable, __file__, subject, "--memory-of", subject, case, variant, *more]
    command += ["--threads", str(torch.get_num_threads()), "--malloc", options.malloc]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _memory_here(subject: str, case: str, variant: str, resident: bool) -> float:
    require(subject in SUBJECTS, f"--memory-of {subject}: choose from {', '.join(SUBJECTS)}")
    cases = {found.name: found.variants for found in SUBJECTS[subject].cases(UNKNOWN)}
    require(case in cases, f"--memory-of {case}: choose from {'; '.join(cases)}")
    variants = {found.name: found for found in cases[case]}
    require(variant in variants, f"--memory-of {variant}: choose from {'; '.join(variants)}")
    chosen = variants[variant]
    if resident:
        return resident_megabytes(chosen.prepare())
    small = torch.randn(64, 64, requires_grad=True)
    for dtype in (torch.float32, torch.bfloat16):  # torch's own start-up
        (small.to(dtype) @ small.to(dtype)).float().log_softmax(1).sum().backward()
    peak = getattr(SUBJECTS[subject], "peak_megabytes", peak_megabytes)
    return float(peak(chosen.prepare()))


def _table(case: Case, records: Sequence[Record]) -> Table:
    """The records of a case, in pieces that fit the terminal. Heads wrap between words, numbers never."""
    keys = list(dict.fromkeys(key for record in records for key in record))[3:]
    return Table(
        case.name,
        [
            {"variant": record["variant"]}
            | {key.replace("_", " "): _rounded(record.get(key)) for key in keys}
            for record in records
        ],
    )


def _rounded(value: float | None) -> float | None:
    """A value with three significant digits."""
    return None if value is None else float(f"{value:.3g}")


def _ratios(records: Sequence[Record], malloc: str) -> dict[str, float]:
    """Times relative to the floor or to the first variant, for comparisons between days.

    They are kept apart by what they depend on besides the code: processor, threads, behaviour of malloc.
    """
    found = {}
    where = f"{_processor()}, {torch.get_num_threads()} threads, malloc {malloc}"
    for record in records:
        name = f"{where}: {record['subject']}: {record['case']}: {record['variant']}"
        if "over_floor" in record:
            found[f"{name}, over its floor"] = record["over_floor"]
        if "speed_up" in record:
            found[f"{name}, over the first"] = 1 / record["speed_up"]
    return {name: round(ratio, 3) for name, ratio in found.items()}


def _processor() -> str:
    return _cpuinfo("model name") or platform.machine()


def _features() -> str:
    """CPU properties that affect matrix products: instructions, those that torch uses, caches of a core."""
    flags = set(_cpuinfo("flags").split())
    known = {"AVX2": "avx2", "AVX-512": "avx512f", "AVX-512 bfloat16": "avx512_bf16", "AMX": "amx_tile"}
    has = ", ".join(name for name, flag in known.items() if flag in flags) or "no vector instructions known"
    sizes = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    caches = " + ".join(path.read_text().strip() for path in sizes) or "of unknown size"
    return f"{has} (torch takes {torch.backends.cpu.get_cpu_capability()}); caches {caches}"


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _check(ratios: dict[str, float], console: Console) -> int:
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    slower = [name for name, ratio in ratios.items() if ratio > SLOWER * stored.get(name, float("inf"))]
    for name in slower:
        console.print(f"slower: {name}: {ratios[name]} where {stored[name]} is stored")
    known = sum(name in stored for name in ratios)
    if not known:
        console.print(
            f"nothing of this is stored in {STORED.name}, where --store keeps it: nothing to compare"
        )
        return 1
    console.print(f"{known} of {len(ratios)} ratios are stored; {len(slower)} got slower by more than 15 %")
    return int(bool(slower))


if __name__ == "__main__":
    run_script(main)
