"""The client of OpenAI-compatible servers; importing it loads no torch.

Reading order: `served_model` is the model that others use; `dispatcher` takes a slot and retries;
`rewardsmith.http` is one HTTP request and its errors; `replies` are parsed bodies; `probes` tell weights apart.
"""

from rewardsmith.engines.client.served_model import ServedModel

__all__ = ["ServedModel"]
