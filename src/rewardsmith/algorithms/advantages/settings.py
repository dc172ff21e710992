"""Settings that several estimators share, with the bounds and the one-line description that a recipe shows."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Discount = Annotated[float, Field(ge=0, le=1, description="γ: how much a reward counts one token earlier")]
Epsilon = Annotated[float, Field(gt=0, description="added to the standard deviation before dividing by it")]
