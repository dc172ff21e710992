"""What all commands that prepare data share: output that is whole or absent, and what becomes of bad rows."""

from rewardsmith.data.preparing.bad_rows import BadRows, Skipped
from rewardsmith.data.preparing.output import (
    all_rows_to,
    file_facts,
    provenance_path,
    require_output,
    rows_to,
    write_provenance,
)

__all__ = [
    "BadRows",
    "Skipped",
    "all_rows_to",
    "file_facts",
    "provenance_path",
    "require_output",
    "rows_to",
    "write_provenance",
]
