"""Divergence detection: too many updates skipped because of non-finite numbers."""

from dataclasses import dataclass, field

IN_A_ROW = 10
GUARD_WINDOW = 1_000
IN_WINDOW = 50  # 5 % of the window


@dataclass
class Guard:
    """Counts the updates skipped because the loss or the gradient norm was not finite."""

    in_a_row: int = 0
    recent: list[list[int]] = field(default_factory=list)  # [step, epoch, batch] of the last 1,000 steps
    recoveries: int = 0  # returns to the last good checkpoint

    def passed(self) -> None:
        self.in_a_row = 0

    def skipped(self, step: int, epoch: int, batch: int) -> None:
        self.in_a_row += 1
        self.recent = [entry for entry in self.recent if entry[0] > step - GUARD_WINDOW]
        self.recent.append([step, epoch, batch])

    @property
    def exhausted(self) -> bool:
        """True if ten updates in a row, or 5 % of the last 1,000, were skipped."""
        return self.in_a_row >= IN_A_ROW or len(self.recent) >= IN_WINDOW

    def describe(self) -> str:
        """The skipped updates, newest last: ``step 7 (epoch 1, batch 6), …``."""
        shown = self.recent[-IN_A_ROW:]
        text = ", ".join(f"step {step} (epoch {epoch}, batch {batch})" for step, epoch, batch in shown)
        return text if len(shown) == len(self.recent) else f"… {text}"
