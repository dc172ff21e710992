"""What a model is kept near, or is measured against: a named model, or the model as it was when the stage began.

Where the model is an adapter that has learned nothing yet, that is the same weights with the adapter switched off.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rewardsmith.engines.protocol import Engine, Row
from rewardsmith.errors import UserError
from rewardsmith.storage import SUMS, damaged, new_folder, write_sums, writing
from rewardsmith.trainers.trainer import Context


class Reference:
    """Gives the log-probabilities of what the model `engine` is compared with.

    `model` is the recipe's name of the reference; None is the model as it is when the stage begins, which is kept under
    `name` in the run folder. `adapter_off` is the model without its adapter, also when that has learned already.
    """

    def __init__(
        self, engine: Engine, context: Context, *, name: str, model: str | None = None, adapter_off: bool = False
    ) -> None:
        self._engine, self._context, self._name = engine, context, name
        self._model, self._adapter_off = model, adapter_off
        self._folder = context.folder / "references" / name
        self._other: Engine | None = None

    def begin(self, *, resumed: bool) -> None:
        """Make the reference from the model as it is now; in a resumed stage, as it was when the stage began."""
        if self._model is not None:
            self._other = self._context.engine(self._model)
            return
        without_adapter = self._engine.settings.lora is not None and (
            not self._folder.exists() if resumed else self._engine.adapter_is_fresh
        )
        if self._adapter_off or without_adapter:
            return
        self._other = self._engine.copy(name=f"{self._name}.reference")
        if resumed:
            if (self._folder / SUMS).exists() and (problem := damaged(self._folder)):
                raise UserError(f"{problem}. Put it back from a copy, or start a new run with --resume never")
            self._other.load(self._folder)
        else:
            with writing(self._context.folder), new_folder(self._folder) as folder:
                self._other.save(folder)
                write_sums(folder)

    def logprobs(self, rows: Sequence[Row], *, temperature: float = 1.0, max_rows: int | None = None) -> Tensor:
        """Return log-probabilities on the model's device, float32 [B, T]; `max_rows` limits the rows of a pass."""
        if self._other is None:
            return self._engine.reference_logprobs(rows, temperature=temperature, max_rows=max_rows)
        return self._other.logprobs(rows, temperature=temperature, max_rows=max_rows).to(self._engine.device)
