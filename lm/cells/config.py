"""Config schema of recurrent cells."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from lm.config.section import MAX_LAYERS, MAX_SIZE, Above, Count, Owner, Section

CellKind = Literal["lstm", "mogrifier", "mlstm", "gru", "mogrifier_gru"]
_MOGRIFIERS = Owner("the mogrifier", ("mogrifier", "mogrifier_gru"))
_LSTMS = Owner("LSTM cells", ("lstm", "mogrifier", "mlstm"))


class CellSettings(Section):
    """Settings of recurrent cells, without their kind."""

    owners: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "kind": dict.fromkeys(("rounds", "rank", "gate_bias", "zigzag"), _MOGRIFIERS)
        | dict.fromkeys(("cap_input_gate", "layer_norm"), _LSTMS)
    }
    readers: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "rounds": dict.fromkeys(("rank", "gate_bias"), Owner("cell.rounds above 0", Above(0)))
        | {"zigzag": Owner("cell.rounds above 1", Above(1))}
    }

    rounds: int = Field(
        5,
        ge=0,
        le=MAX_LAYERS,
        description="mogrifiers: number of rounds in which input and state gate each other before a step",
    )
    rank: int = Field(0, ge=0, le=MAX_SIZE, description="mogrifiers: rank of the gates' matrices; 0 = full")
    gate_bias: bool = Field(True, description="mogrifiers: give the gates biases")
    zigzag: bool = Field(
        True, description="mogrifiers: gates read the latest input and state, not the original ones"
    )
    cap_input_gate: bool = Field(False, description="LSTM cells: limit the input gate to 1 - the forget gate")
    input_scale: bool = Field(False, description="multiply every unit of the inputs by a learned factor")
    weight_rank: Count = Field(
        0, description="largest rank of W_ih and W_hh as products of two matrices; 0 = no factorisation"
    )
    layer_norm: bool = Field(
        False, description="LSTM cells: apply layer normalisation to the argument of each gate"
    )
    init: Literal["uniform", "truncated"] = Field(
        "uniform",
        description="initialisation: uniform, or truncated normal scaled by fan-in with the forget gate's"
        " bias around 1, as in the Mogrifier's code",
    )

    def of(self, kind: CellKind) -> "CellConfig":
        """The config of a cell of a kind, which ignores settings of other kinds."""
        return CellConfig.model_construct(kind=kind, **self.model_dump())


class CellConfig(CellSettings):
    """Recurrent cell of every layer of a language model, or of a part of a dialog model."""

    kind: CellKind = Field("lstm", description="kind of cell: lstm, mogrifier, mlstm, gru or mogrifier_gru")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if wrong := self.misplaced("kind", (self.kind,)):
            raise ValueError(f"{wrong}; remove it from a {self.kind} cell")
        return self

    @property
    def mogrifies(self) -> bool:
        """True if input and state gate each other."""
        return self.kind in ("mogrifier", "mogrifier_gru")

    @property
    def is_gru(self) -> bool:
        """True for the equations of a GRU, which has no c."""
        return self.kind in ("gru", "mogrifier_gru")

    @property
    def is_plain(self) -> bool:
        """True if torch has this cell."""
        other_gates = (self.cap_input_gate or self.layer_norm) and not self.is_gru
        other_weights = self.input_scale or self.weight_rank > 0 or self.init != "uniform"
        return self.kind in ("lstm", "gru") and not other_gates and not other_weights

    @property
    def floats(self) -> int:
        """Numbers kept for backpropagation per unit and step: gates, outputs and gating."""
        gating = 2 * self.rounds if self.mogrifies else 3 * (self.kind == "mlstm")
        normalised = 4 if self.layer_norm and not self.is_gru else 0
        return (4 if self.is_gru else 6) + gating + normalised + self.input_scale
