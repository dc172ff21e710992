"""Tests of recipes/headlines, whose scripts are not part of the package."""

import sys
from pathlib import Path

HEADLINES = Path(__file__).parents[2] / "recipes" / "headlines"
sys.path.append(str(HEADLINES))
