"""Stored singular values: round trip, damage, figure."""

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lm.errors import ConfigError, DataError, StorageError
from lm.spectra.figure import curve, draw_spectra
from lm.spectra.spectrum import RankResult


def spectrum_of(rank: int) -> RankResult:
    return RankResult(np.where(np.arange(20) < rank, np.logspace(2, -3, 20), 1e-17), (30, 20))


def test_a_spectrum_comes_back_as_it_was(tmp_path: Path) -> None:
    path, result = tmp_path / "spectrum.npz", spectrum_of(9)
    result.save(path)
    loaded = RankResult.load(path)
    assert np.array_equal(loaded.singular_values, result.singular_values)
    assert (loaded.shape, loaded.ranks) == (result.shape, result.ranks)
    first = path.read_bytes()
    result.save(path)
    assert path.read_bytes() == first
    with np.load(path) as arrays:
        assert arrays["shape"].tolist() == [30, 20]


def test_a_spectrum_names_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "spectrum.npz"
    replace(spectrum_of(9), checkpoint="step-3", fingerprint="f").save(path)
    loaded = RankResult.load(path)
    assert (loaded.checkpoint, loaded.fingerprint) == ("step-3", "f")


def test_a_damaged_or_foreign_spectrum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spectrum.npz"
    spectrum_of(9).save(path)
    good = path.read_bytes()
    middle = len(good) // 8
    flipped = good[:middle] + bytes([good[middle] ^ 0x40]) + good[middle + 1 :]
    for bad in (b"", b"no archive", good[: len(good) // 2], flipped):
        path.write_bytes(bad)
        with pytest.raises(StorageError, match=r"not a stored spectrum .*; measure the rank again"):
            RankResult.load(path)
    values = np.logspace(1, 0, 4)
    fields = {
        "singular_values": values,
        "shape": np.array([4, 5]),
        "weights_sha256": np.array("w"),
        "ids_sha256": np.array("i"),
        "checkpoint": np.array("last"),
        "fingerprint": np.array("f"),
    }
    changes: list[dict[str, np.ndarray]] = [
        {"singular_values": values[::-1]},
        {"singular_values": values.astype(np.float32)},
        {"singular_values": -values[::-1]},
        {"singular_values": np.full(4, np.nan)},
        {"shape": np.array([4, 3])},
        {"shape": np.array([4])},
        {"weights_sha256": np.array(["w", "x"])},
        {"fingerprint": np.array(["w", "x"])},
        {"singular_values": np.array([{}] * 4, dtype=object)},
    ]
    for change in changes:
        np.savez(path, **(fields | change), allow_pickle=True)
        with pytest.raises(StorageError, match="not a stored spectrum"):
            RankResult.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("singular_values.npy", b"\x93NUMPY")
    with pytest.raises(StorageError):
        RankResult.load(path)
    np.savez(path, **fields)
    loaded = RankResult.load(path)
    assert (loaded.rank, loaded.weights_sha256, loaded.ids_sha256) == (4, "w", "i")


def test_the_figure_shows_every_run_and_is_reproducible(tmp_path: Path) -> None:
    spectra = {"softmax $\\nonsense$": spectrum_of(6), "mos <&>": spectrum_of(20)}
    paths = [tmp_path / "a.svg", tmp_path / "a.png"]
    draw_spectra(spectra, paths)
    first = [path.read_bytes() for path in paths]
    draw_spectra(spectra, paths)
    assert [path.read_bytes() for path in paths] == first
    assert first[1].startswith(b"\x89PNG")
    assert b"<svg" in first[0]
    assert b"<dc:date>" not in first[0]
    with pytest.raises(DataError, match="zero"):
        draw_spectra({"zero": RankResult(np.zeros(3), (3, 3))}, paths)
    with pytest.raises(ConfigError, match="end in"):
        draw_spectra(spectra, [tmp_path / "a.pdf"])
    assert not (tmp_path / "a.pdf").exists()


def test_the_curve_counts_the_values_below() -> None:
    shares, percentages = curve(RankResult(np.array([4.0, 2.0, 2.0, 1.0, 0.0]), (5, 5)))
    assert shares.tolist() == [0.25, 0.5, 0.5, 1.0]
    assert percentages.tolist() == [20.0, 40.0, 40.0, 80.0]
