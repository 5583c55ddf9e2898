"""A build of our own code with one safeguard taken out."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """A piece of source in a file, its replacement, and the test that fails then."""

    about: str
    file: str
    old: str
    new: str
    test: str

    def spoil(self, root: Path) -> None:
        """Apply it to a copy of the packages; ValueError where its text is not there exactly once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.about}: {self.file} has its text {text.count(self.old)} times")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
