"""The kernels in Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU")
@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_the_kernels_pass_the_tests_of_their_torch_versions() -> None:
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-x"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
