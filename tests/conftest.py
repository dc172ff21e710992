"""Every shape that an algorithm's signature declares is checked while the tests run."""

import os

# Tests run side by side; threads that wait for each other by spinning would take the processors from the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# What is printed is compared as text without colours.
os.environ.pop("FORCE_COLOR", None)

import hypothesis
import jaxtyping

# Before anything of ours is imported: annotations such as Float[Tensor, "B T"] become assertions.
jaxtyping.install_import_hook("rewardsmith.algorithms", "beartype.beartype")

# Random inputs, but the same ones in every run: a test that fails today fails tomorrow too.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")
