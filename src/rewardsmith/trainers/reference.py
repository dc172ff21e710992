"""The policy that a KL penalty keeps near: a named model, or the policy as it was when the stage began.

Where the policy is an adapter that has learned nothing yet, that is the same weights with the adapter switched off.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.protocol import Row
from rewardsmith.files import new_folder, writing
from rewardsmith.trainers.protocol import Context
from rewardsmith.trainers.stages import PolicyStage


class Reference:
    """Gives the log-probabilities of the reference policy, where the stage has a KL penalty.

    Args:
        stage: the penalty and which model it is about.
        policy: the model that learns.
        context: of the run. The policy as it was is kept in a folder of its own, so that a resumed run has it too.
    """

    def __init__(self, stage: PolicyStage, policy: EmbeddedEngine, context: Context) -> None:
        self._stage = stage
        self._policy = policy
        self._folder = context.folder / "references" / stage.name
        self._context = context
        self._engine: EmbeddedEngine | None = None

    def begin(self, *, resumed: bool) -> None:
        """Make the reference from the policy as it is now; in a resumed stage, as it was when the stage began."""
        kl = self._stage.kl
        if not kl.coefficient:
            return
        if kl.reference is not None:
            self._engine = self._context.engine(kl.reference)
            return
        without_adapter = self._policy.settings.lora is not None and (
            not self._folder.exists() if resumed else self._policy.adapter_is_fresh
        )
        if without_adapter:
            return
        self._engine = self._policy.copy(name=f"{self._stage.name}.reference")
        if resumed:
            self._engine.load(self._folder)
        else:
            with writing(self._context.folder), new_folder(self._folder) as folder:
                self._engine.save(folder)

    def logprobs(self, rows: Sequence[Row]) -> Tensor | None:
        """Return log-probabilities [B, T], or None without a penalty."""
        if not self._stage.kl.coefficient:
            return None
        temperature = self._stage.sampling.temperature
        if self._engine is None:
            return self._policy.reference_logprobs(rows, temperature=temperature)
        return self._engine.logprobs(rows, temperature=temperature)
