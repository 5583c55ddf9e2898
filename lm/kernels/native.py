"""Compiles the C++ sources of this folder with the C++ compiler of the machine, at first use, and opens it.

Without a compiler, or with ``HIGHRANK_NATIVE=0`` in the environment, everything works in tensor operations,
more slowly. The library is kept in the cache folder of the user, or one for temporary files, under a name
that holds a hash of the sources, the options of the compiler and the processor: a new one is made wherever
the old one would not fit. Once it is there no compiler is needed any more, and a new one changes no bit of a
run that is resumed.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_LOGGER = logging.getLogger(__name__)
SOURCES = sorted(Path(__file__).parent.glob("*.cpp"))
FLAGS = ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-fopenmp")
# Names of environment variables
SWITCH = "HIGHRANK_NATIVE"  # 0: without any compiled kernel
FUSED = "HIGHRANK_FUSED"  # 0: without the Triton kernels of fused.py, which serve a GPU otherwise


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where they are switched off or, which is logged, cannot be had.

    They share torch's pool of threads: torch has loaded the OpenMP runtime before, under the same name.
    """
    if os.environ.get(SWITCH, "1") == "0":
        return None
    try:
        return ctypes.CDLL(str(_built()))
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        _LOGGER.warning(
            "no compiled kernels (%s): heads and cells take longer; install g++, name a compiler in CXX, or"
            " set %s=0 to be told no more", error, SWITCH,
        )  # fmt: skip
        return None


def kind(device_type: str) -> str:
    """Which kernels losses and cells may use on a type of device; bit-identical results depend on it."""
    if device_type == "cuda":
        return "in tensor operations" if fused_kernels() is None else "fused"
    return "compiled" if device_type == "cpu" and library() is not None else "in tensor operations"


def fused_kernels() -> ModuleType | None:
    """:mod:`lm.kernels.fused`; None if switched off, or if Triton is missing or, which is logged, broken."""
    if os.environ.get(SWITCH) == "0" or os.environ.get(FUSED) == "0":
        return None
    return _fused_kernels()


@cache
def _fused_kernels() -> ModuleType | None:
    if find_spec("triton") is None:
        return None
    try:
        from lm.kernels import fused
    except Exception as error:  # a Triton of another Python, driver or compiler may raise anything
        tell_without_fused(f"{type(error).__name__}: {error}".splitlines()[0])
        return None
    return fused


def tell_without_fused(reason: str) -> None:
    """Logs why losses on a GPU do without the Triton kernels."""
    _LOGGER.warning(
        "no Triton kernels (%s): losses go in tensor operations; set %s=0 to be told no more", reason, FUSED
    )


def _built() -> Path:
    parts = (*(source.read_bytes() for source in SOURCES), " ".join(FLAGS).encode(), _processor().encode())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    name = f"kernels-{digest[:16]}.so"
    folders = _cache_folders()
    for folder in folders:
        with suppress(OSError):
            if (folder / name).exists() and folder.stat().st_uid == os.getuid():
                return folder / name
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++" if shutil.which("g++") else "clang++"]
    if shutil.which(compiler[0]) is None:
        raise FileNotFoundError(f"no C++ compiler {compiler[0]}")
    for folder in folders:
        with suppress(OSError):  # a read-only or full home
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid == os.getuid():
                return _compile(compiler, folder / name)
    raise FileNotFoundError("no folder to keep them in")


def _compile(compiler: Sequence[str], target: Path) -> Path:
    """Compiles to a name of its own first: two processes may do so at once."""
    if sys.stderr.isatty():
        _LOGGER.warning("compiling kernels for this machine, once: half a minute")
    handle, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        subprocess.run(
            [*compiler, *FLAGS, *map(str, SOURCES), "-o", name],
            capture_output=True,
            check=True,
            timeout=300,
        )
        os.replace(name, target)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{compiler[0]} fails: {error.stderr.decode(errors='replace')[:200]!r}") from error
    finally:
        Path(name).unlink(missing_ok=True)
    return target


def _cache_folders() -> list[Path]:
    """Where the library is looked for, and made: the user's cache, or a folder for temporary files."""
    folders = [Path(tempfile.gettempdir()) / f"highrank-{os.getuid()}"]
    with suppress(RuntimeError):  # a user without a home
        folders.insert(0, Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "highrank")
    return folders


def _processor() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {flags}"
