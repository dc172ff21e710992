"""From a file of rankings or annotations to a file of pairs or groups: nothing half-written, and its origin beside it.

bad = BadRows(skip=False)
given = scored("scores.jsonl", {"candidates": "outputs"}, by="scores")
prepared = prepare(given, "pairs.parquet", Building(Pairing("adjacent")), bad)
print(prepared.counts["pairs"], prepared.skipped)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rewardsmith.data.files import Jsonl, Parquet
from rewardsmith.data.mqm import Annotations, agreement, read_annotations, read_averages
from rewardsmith.data.preferences.building import Builder, Building, source_of
from rewardsmith.data.preferences.translations import Translations, rankings_of
from rewardsmith.data.preparing import BadRows, Skipped, all_rows_to, file_facts, require_output, write_provenance
from rewardsmith.data.preparing.splitting import limit_of_count, limit_of_share, source_key
from rewardsmith.data.row_items import RankingRows
from rewardsmith.data.rows import DEFAULT_COLUMNS, RowError, printable
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.types import Ranking

FIELDS = {"prompt": "prompt_column", "id": "id_column", "data_source": "source_column"}
"""What may be named beside the columns of `DEFAULT_COLUMNS`, and the setting of a file that names it."""

_KEYS = ("candidates", "scores", "ranking", "analysis", "source_text")

_REMEDIES = (
    (re.compile(r"\bcolumns\.(\w+) says"), r"--column \1=NAME says"),
    (re.compile(r"\b(prompt|id)_column says"), r"--column \1=NAME says"),
    (re.compile('set id_column = "" to number the rows'), "say --column id=NAME for another column"),
    (re.compile('id_column = "" numbers the rows instead'), "--column id=NAME says where else it is"),
)
"""From the settings of a recipe, which readers of rows name, to the options of this command."""


@dataclass(frozen=True)
class Given:
    """What pairs are made of.

    Attributes:
        groups: yields where a group is, and the group or what is wrong with it.
        files: that were read.
        settings: how they are read, for the provenance.
        facts: what is known of them beside, for the provenance and the summary; filled in while they are read.
        repeats: whether a group may be there twice; if not, the second is a bad row.
    """

    groups: Callable[[BadRows], Iterable[tuple[str, Ranking | RowError]]]
    files: Sequence[Path]
    settings: Mapping[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    repeats: bool = False


def scored(path: str, columns: Mapping[str, str], *, by: Literal["scores", "ranking"]) -> Given:
    """Return groups of a JSONL or Parquet file.

    Args:
        path: a file, a folder, or a pattern.
        columns: from `prompt`, `id`, `data_source`, `candidates`, `scores`, `ranking`, `analysis` or `source_text` to
            the column that holds it, where it is not the usual one.
        by: what says how good the candidates are.
    """
    for key in columns:
        known = (*FIELDS, *_KEYS)
        if key not in known:
            raise UserError(f"there is no column for {key!r} here.{nearest(key, known)} Known: {listing(known)}")
    named = {key: name for key, name in columns.items() if key in DEFAULT_COLUMNS}
    others: dict[str, Any] = {FIELDS[key]: name for key, name in columns.items() if key in FIELDS}
    kind = Parquet if _is_parquet(path) else Jsonl
    source = kind(path=path, shuffle=False, columns=named, **others)
    rows = RankingRows(source.layout, source.columns, by)

    def groups(_: BadRows) -> Iterator[tuple[str, Ranking | RowError]]:
        try:
            for where, found in source.each(rows.read):
                assert isinstance(found, Ranking | RowError)
                yield where, RowError(_with_options(str(found))) if isinstance(found, RowError) else found
        except UserError as error:
            raise UserError(_with_options(str(error))) from None

    return Given(groups, source.files(), {"from": "scores" if by == "scores" else "rankings", "columns": dict(columns)})


def _with_options(message: str) -> str:
    for setting, option in _REMEDIES:
        message = setting.sub(option, message)
    return message


def _is_parquet(path: str) -> bool:
    here = _place(path)
    try:
        return any(file.suffix.lower() == ".parquet" for file in (here.iterdir() if here.is_dir() else [here]))
    except OSError as error:
        raise UserError(f"cannot look into {printable(path, 200)}: {error.strerror or error}") from None


def _place(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # there is no such user
        raise UserError(f"cannot look for {printable(path, 200)}: {error}") from None


def annotated(
    path: str, how: Translations, *, averages: str | None = None, rename: Mapping[str, str] | None = None
) -> Given:
    """Return groups of translations from a file of MQM annotations.

    Args:
        path: of the annotations.
        how: what is made of a segment.
        averages: a file with scores per segment to take instead of those that the annotations say.
        rename: from the name of a system in the annotations to its name in the averages.
    """
    file = _place(path)
    rename = rename or {}
    if rename and averages is None:
        raise UserError("--rename says what a system is called in --averages: give both, or none")
    facts: dict[str, Any] = {}

    def groups(bad: BadRows) -> Iterator[tuple[str, Ranking | RowError]]:
        annotations = read_annotations(file, bad)
        facts.update(lines=annotations.lines, left_out=annotations.left_out)
        scores = None
        if averages is not None:
            scores = _averages(averages, annotations, rename)
            facts.update(zip(("averages_agree", "averages_compared"), agreement(annotations, scores), strict=True))
        where = printable(str(file), 200)
        for ranking in rankings_of(annotations, file.stem, how, scores):
            yield f"{where}, segment {ranking.prompt.id.removeprefix(f'{file.stem}-')}", ranking

    files = [file] if averages is None else [file, _place(averages)]
    settings = {"from": "mqm", **asdict(how), "averages": averages, "rename": dict(rename)}
    return Given(groups, files, settings, facts, repeats=True)


def _averages(path: str, annotations: Annotations, rename: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """Return the averages by the names that the annotations have for the systems, and by segment."""
    file, systems = printable(path, 200), annotations.systems
    for name in rename:
        if name not in systems:
            known = [printable(known, 40) for known in systems]
            raise UserError(
                f"--rename {printable(name, 60)}={printable(rename[name], 60)}: there is no such system in INPUT."
                f"{nearest(name, known)} There is: {listing(known)}"
            )
    back: dict[str, str] = {}
    for name in systems:
        other = back.setdefault(rename.get(name, name), name)
        if other != name:
            both = printable(f"{other} and {name}", 200)
            raise UserError(f"--rename: {both} would be one system of {file}: give each a name of its own")
    twice = next((at for at, count in Counter(s.id for s in annotations.segments).items() if count > 1), None)
    if twice is not None:
        raise UserError(
            f"segment {printable(twice, 60)} of INPUT is in several documents, and {file} does not say in which: leave"
            " --averages out, or give one document at a time"
        )
    scores = read_averages(_place(path))
    missing = [name for called, name in back.items() if not any(called == system for system, _ in scores)]
    if missing:
        there = sorted({system for system, _ in scores})
        raise UserError(
            f"{file} has no scores of {printable(listing(missing), 200)}: --rename {missing[0]}=NAME says what it is"
            f" called there. There is: {listing(there[:40])}"
        )
    return {(back[system], at): score for (system, at), score in scores.items() if system in back}


@dataclass(frozen=True)
class Prepared:
    """What came of it.

    Attributes:
        counts: of the builder.
        written: rows of each output.
        skipped: what was left out.
        facts: of the input.
    """

    counts: Mapping[str, int]
    written: Mapping[str, int]
    skipped: Skipped
    facts: Mapping[str, Any]


def held_out_below(given: Given, held_out: float) -> int:
    """Return the key of `source_key` below which a source text is held out.

    The hash of its text decides, so that all groups of a source are on one side, in every run, and in the data that
    other commands prepare from the same sources.

    Args:
        given: the groups; they are read once more where a number of sources is asked for.
        held_out: a share below 1, or a number of sources; 0 holds out none.
    """
    if not held_out >= 0 or (held_out > 1 and held_out % 1):
        raise UserError(f"--held-out is {held_out:g}: a share below 1, such as 0.05, or a number of source texts")
    if held_out < 1:
        return limit_of_share(held_out)
    groups = (found for _, found in given.groups(BadRows(skip=True)))
    keys = (source_key(source_of(found.prompt)) for found in groups if isinstance(found, Ranking))
    return limit_of_count(keys, int(held_out))


def prepare(
    given: Given,
    out: str | Path,
    building: Building,
    bad: BadRows,
    *,
    held_out: float = 0.0,
    held_out_to: str | Path | None = None,
    overwrite: bool = False,
    command: str = "prepare preferences",
    tick: Callable[[], None] = lambda: None,
) -> Prepared:
    """Write pairs or groups, and beside each file where they came from.

    Args:
        given: of `scored` or `annotated`.
        out: where the rows go, in JSON lines or Parquet by its ending.
        building: what is made.
        bad: notes the groups that cannot be used.
        held_out: share or number of the source texts whose rows go to `held_out_to`.
        held_out_to: the other file; there is one exactly when `held_out` is above 0.
        overwrite: replace files that are there.
        command: for the provenance.
        tick: called after each group.

    Raises:
        UserError: there are bad rows and they may not be skipped, nothing came of it, or a file cannot be written.
    """
    if bool(held_out) != (held_out_to is not None):
        raise UserError("--held-out says how much is held out, --held-out-out where it goes: give both, or none")
    outs = [str(out)] if held_out_to is None else [str(out), str(held_out_to)]
    for path in outs:
        require_output(path, given.files)
    limit = held_out_below(given, held_out)
    builder = Builder(building, repeats=given.repeats)
    written = dict.fromkeys(outs, 0)
    total = 0
    with all_rows_to(outs, overwrite=overwrite) as writes:
        for where, found in given.groups(bad):
            total += 1
            tick()
            try:
                if isinstance(found, RowError):
                    raise found
                side = int(source_key(source_of(found.prompt)) < limit)
                for row in builder.rows(found, where):
                    if not bad.fatal:
                        writes[side](row)
                        written[outs[side]] += 1
            except RowError as error:
                bad.note(where, error)
        skipped = bad.settle(given.facts.get("lines", total))
        _require_rows(written, builder, held_out)
    rows = total if len(given.files) == 1 else None
    facts = {
        "command": command,
        "settings": {**given.settings, **asdict(building), "held_out": held_out},
        "inputs": [
            file_facts(file, given.facts.get("lines", rows) if i == 0 else None) for i, file in enumerate(given.files)
        ],
        "input": given.facts,
        "counts": dict(builder.counts),
        "skipped": skipped.as_json(),
        "outputs": written,
    }
    for path in outs:
        write_provenance(path, facts | {"this": file_facts(path, written[path])})
    return Prepared(dict(builder.counts), written, skipped, given.facts)


def _require_rows(written: Mapping[str, int], builder: Builder, held_out: float) -> None:
    empty = [path for path, rows in written.items() if not rows]
    if not empty:
        return
    counted = ", ".join(f"{count:,} {name}" for name, count in builder.counts.items())
    if len(empty) < len(written):
        raise UserError(f"no rows for {printable(empty[0], 200)}: held out is {held_out:g}; choose another")
    if not counted:
        raise UserError("nothing came of it: there is no group of two answers or more")
    raise UserError(f"nothing came of it ({counted}): use a smaller least margin, keep ties, or other scores")
