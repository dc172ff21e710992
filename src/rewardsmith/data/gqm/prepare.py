"""From files of groups to files of rows, in constant memory.

    prepared = prepare_gqm("rankings.parquet", "train.parquet", GqmSettings(form="rl", shuffles=4))

Rows are read, checked, augmented and split, go through a shuffle on disk, and are written in an order that the seed and
the contents decide. Nothing appears unless all of it does.
"""

from __future__ import annotations

import marshal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rewardsmith.data.gqm.crew import make_all
from rewardsmith.data.gqm.inputs import Inputs
from rewardsmith.data.gqm.making import Made
from rewardsmith.data.gqm.seen import Seen
from rewardsmith.data.gqm.settings import GqmSettings
from rewardsmith.data.preparing.bad_rows import BadRows, Skipped
from rewardsmith.data.preparing.output import Write, all_rows_to, beside, file_facts, require_output, write_provenance
from rewardsmith.data.preparing.shuffling import Shuffle
from rewardsmith.data.preparing.splitting import limit_of_count, limit_of_share, source_key
from rewardsmith.data.rows import RowError
from rewardsmith.errors import UserError

Watch = Callable[[str, int, int], None]
"""Is told what is going on: `reading` or `writing`, how many rows are done, and how many there are."""

_EVERY = 500  # rows after which the watcher is told


@dataclass(frozen=True)
class Prepared:
    """What was made.

    Attributes:
        read: rows of the input, good and bad.
        written: rows of the output.
        held_out: rows of the held-out output.
        variants: rows of both by what was done to the group.
        dropped: variants that were left out, by reason.
        twins: groups in which one text stands twice, with one score.
        tied: groups whose scores are all equal: there is nothing to rank.
        skipped: bad rows that were left out.
    """

    read: int
    written: int
    held_out: int
    variants: dict[str, int]
    dropped: dict[str, int]
    twins: int
    tied: int
    skipped: Skipped

    def as_json(self) -> dict[str, Any]:
        """Return the counts for a file."""
        return asdict(self) | {"skipped": self.skipped.as_json()}


def prepare_gqm(
    inputs: str | Sequence[str],
    out: str | Path,
    settings: GqmSettings,
    *,
    held_out_out: str | Path | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    workers: int = 1,
    watch: Watch | None = None,
) -> Prepared:
    """Make training data for a judge that ranks groups.

    Args:
        inputs: JSON lines or Parquet: a file, a folder, a pattern, or several.
        out: where the rows go; .jsonl or .parquet.
        settings: what is made.
        held_out_out: where the rows of held-out sources go.
        skip_bad: leave bad rows out, instead of refusing all.
        overwrite: replace files that are there.
        workers: processes that make rows; what comes out is the same. More than one needs a script that can be
            imported without doing anything.
        watch: is told about progress.

    Raises:
        UserError: for whatever a user can mend.
    """
    if bool(settings.held_out) != (held_out_out is not None):
        raise UserError("--held-out says how much is held out, --held-out-out where it goes: give both, or none")
    given = Inputs(inputs, settings.reader)
    job = _Job(given, settings, BadRows(skip=skip_bad), watch or (lambda *_: None))
    outs = [Path(out).expanduser(), *([] if held_out_out is None else [Path(held_out_out).expanduser()])]
    for file in outs:
        require_output(file, given.files)
    with ExitStack() as stack:
        writes = stack.enter_context(all_rows_to(outs, overwrite=overwrite))
        shuffles = [stack.enter_context(Shuffle(beside(file, "shuffle"))) for file in outs]
        prepared = job.read(shuffles, workers)
        for file, shuffle in zip(outs, shuffles, strict=True):
            if not shuffle.count:
                raise UserError(_nothing(file, settings, prepared))
        job.write(shuffles, writes)
    facts = {
        "command": f"prepare gqm-{settings.form}",
        "settings": settings.facts(),
        "inputs": [file_facts(file, rows) for file, rows in job.files],
        "counts": prepared.as_json(),
    }
    for file, rows in zip(outs, (prepared.written, prepared.held_out), strict=False):
        write_provenance(file, facts | {"output": file_facts(file, rows)})
    return prepared


def _nothing(file: Path, settings: GqmSettings, prepared: Prepared) -> str:
    one = prepared.read == 1
    rows = f"{prepared.read:,} row{'' if one else 's'}"
    known = f"there {'is' if one else 'are'} {rows}"
    if settings.held_out:
        return f"no row for {str(file)!r}: --held-out is {settings.held_out:g}, and {known}; choose another"
    return f"no row for {str(file)!r} is left of {rows}"


class _Job:
    """Two passes: from the input to the shuffles, and from there to the output."""

    def __init__(self, inputs: Inputs, settings: GqmSettings, bad: BadRows, watch: Watch) -> None:
        self._inputs, self._settings, self._bad, self._watch = inputs, settings, bad, watch
        self._groups, self._names = Seen(), Seen()  # the row that had something first
        self._rows = [0] * len(inputs.files)

    @property
    def files(self) -> Iterator[tuple[Path, int]]:
        """The files of the input, and how many rows each had."""
        return zip(self._inputs.files, self._rows, strict=True)

    def read(self, shuffles: Sequence[Shuffle], workers: int) -> Prepared:
        """Read all rows, and put what is made of them into the shuffle of their split."""
        bad, total, read = self._bad, self._inputs.count(), 0
        kinds, dropped, odd = Counter[str](), Counter[str](), Counter[str]()
        made_of = make_all(
            self._inputs.rows(), self._settings, self._limit(), workers=workers, only_check=lambda: bad.fatal
        )
        with closing(made_of):
            for read, (raw, made) in enumerate(made_of, start=1):
                self._rows[raw.at] += 1
                if read % _EVERY == 0:
                    self._watch("reading", read, total)
                wrong = made if isinstance(made, RowError) else self._repeated(made, read)
                if wrong is not None:
                    bad.note(self._inputs.where(raw), wrong)
                    continue
                assert isinstance(made, Made)
                kinds.update(made.kinds)
                dropped.update(made.dropped)
                odd.update(twins=made.twins, tied=made.tied)
                if not bad.fatal:
                    for key, record in made.records:
                        shuffles[made.split].add(key, record)
        self._watch("reading", read, read)
        skipped = bad.settle(read)
        written, *held_out = (shuffle.count for shuffle in shuffles)
        return Prepared(read, written, sum(held_out), dict(kinds), dict(dropped), odd["twins"], odd["tied"], skipped)

    def write(self, shuffles: Sequence[Shuffle], writes: Sequence[Write]) -> None:
        """Write the rows of each shuffle in the order of their keys."""
        done, total = 0, sum(shuffle.count for shuffle in shuffles)
        for shuffle, write in zip(shuffles, writes, strict=True):
            for record in shuffle.sorted():
                write(marshal.loads(record))
                done += 1
                if done % _EVERY == 0 or done == total:
                    self._watch("writing", done, total)

    def _limit(self) -> int:
        """Return the source key below which sources are held out; a number of them takes a pass of its own."""
        held_out, reader = self._settings.held_out, self._settings.reader
        if held_out < 1:
            return limit_of_share(held_out)

        def keys() -> Iterator[int]:
            for raw in self._inputs.rows():
                try:
                    group = reader.read(raw.row(), raw.name)
                except RowError:
                    continue
                yield source_key(group.prompt.messages[0].content)

        return limit_of_count(keys(), int(held_out))

    def _repeated(self, made: Made, number: int) -> RowError | None:
        """Return what is wrong with a group that, or whose id, was there before."""
        other = self._groups.first(made.key, number)
        if other != number:
            return RowError(f"the same source, candidates and scores as in row {other:,} of the input: leave one out")
        other = self._names.first(made.name, number)
        if other != number:
            return RowError(f'the id "{made.id[:100]}" is also that of row {other:,} of the input: make ids unique')
        return None


__all__ = ["Prepared", "Watch", "prepare_gqm"]
