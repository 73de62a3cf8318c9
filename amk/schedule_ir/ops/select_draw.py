"""Choose the next token from the workers' draws."""

from __future__ import annotations

from typing import ClassVar, Literal

from amk.schedule_ir.ops.select import Selection


class SelectDrawOp(Selection):
    """As `select`, but the candidates are draws."""

    op: Literal["select_draw"] = "select_draw"
    candidate: ClassVar[str] = "draw"
