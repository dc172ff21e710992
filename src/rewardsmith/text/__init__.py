"""Strings in, strings out: finding answers and numbers in what models write. Imports nothing of ours."""

from rewardsmith.text.answers import WAYS, boxed, extract, final, hashed, stated, tagged
from rewardsmith.text.choices import choice
from rewardsmith.text.numbers import Number, first_number, last_number, read_number

__all__ = [
    "WAYS",
    "extract",
    "boxed",
    "stated",
    "hashed",
    "tagged",
    "final",
    "choice",
    "last_number",
    "first_number",
    "read_number",
    "Number",
]
