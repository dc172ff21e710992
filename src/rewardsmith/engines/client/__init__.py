"""The client of OpenAI-compatible servers; importing it loads no torch.

Reading order: `served_model` is the model that others use; `dispatcher` takes a slot and retries; `http_client` is one
HTTP request; `replies` are errors and parsed bodies; `probes` tell weights apart.
"""

from rewardsmith.engines.client.served_model import ServedModel

__all__ = ["ServedModel"]
