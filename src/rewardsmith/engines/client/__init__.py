"""The client of OpenAI-compatible servers. Importing it loads no torch.

Reading order: `served` is the model that others see; `sending` tries again; `addresses` says who may send when;
`wire` is one HTTP request; `replies` and `stream` read what came, `payloads` writes what goes; `finding` asks the
servers what they have; `faults` says what each failure means.
"""

from rewardsmith.engines.client.served import ServedModel

__all__ = ["ServedModel"]
