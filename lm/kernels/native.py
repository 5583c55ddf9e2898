"""Compiles the C++ sources of this folder with the C++ compiler of the machine, at first use, and opens it.

Without a compiler, or with ``HIGHRANK_NATIVE=0`` in the environment, everything works in tensor operations,
more slowly. The library is kept in the cache folder of the user, under a name that holds a hash of the
sources, the options of the compiler and the processor: a new one is made wherever the old one would not fit.
Once it is there no compiler is needed any more, and a new one changes no bit of a run that is resumed.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCES = sorted(Path(__file__).parent.glob("*.cpp"))
FLAGS = ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-fopenmp")
# Names of environment variables
SWITCH = "HIGHRANK_NATIVE"  # 0: without any compiled kernel
FUSED = "HIGHRANK_FUSED"  # 1: the Triton kernels of fused.py, on a GPU


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where they are switched off or cannot be had.

    They share torch's pool of threads: torch has loaded the OpenMP runtime before, under the same name.
    """
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        return ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError):
        return None


def _built() -> Path:
    parts = (*(source.read_bytes() for source in SOURCES), " ".join(FLAGS).encode(), _processor().encode())
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    target = _cache_folder() / f"kernels-{name}.so"
    if target.exists():
        return target
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return _compile(compiler, target)
    except OSError:  # a read-only or full home
        return _compile(compiler, Path(tempfile.mkdtemp(prefix="highrank-")) / target.name)


def _compile(compiler: str, target: Path) -> Path:
    """Compiles to a name of its own first: two processes may do so at once."""
    handle, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        subprocess.run(
            [compiler, *FLAGS, *map(str, SOURCES), "-o", name],
            capture_output=True,
            check=True,
            timeout=300,
        )
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
    return target


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "highrank"


def _processor() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {flags}"
