"""Tests with a real model server, vLLM on a CPU: `make test-servers`. It lives in an environment of its own.

`REWARDSMITH_SERVER_PYTHON` names that environment's interpreter; without it, nothing here is collected.
"""

import os

collect_ignore_glob = [] if os.environ.get("REWARDSMITH_SERVER_PYTHON") else ["test_*.py"]
