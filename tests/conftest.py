"""Every shape that an algorithm's signature declares is checked while the tests run."""

import hypothesis
import jaxtyping

# Before anything of ours is imported: annotations such as Float[Tensor, "B T"] become assertions.
jaxtyping.install_import_hook("rewardsmith.algorithms", "beartype.beartype")

# Random inputs, but the same ones in every run: a test that fails today fails tomorrow too.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")
