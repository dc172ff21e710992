"""Ray and verl on this machine's CPU; without verl (it has an environment of its own) these tests are skipped."""

from __future__ import annotations

import os
from importlib.util import find_spec

os.environ |= {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "rewardsmith.scale.cpu", "OMP_NUM_THREADS": "1"}
collect_ignore_glob = [] if find_spec("verl") and find_spec("ray") else ["test_*.py"]  # make test-scale has them
