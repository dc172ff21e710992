"""Pairs of answers, or groups with scores, from scores, rankings and human annotations of translations (MQM).

Pairs have the form that TRL reads: `prompt`, `chosen` and `rejected`, as text or, with `chat`, as messages.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from rewardsmith.data.mqm import Annotations, read_annotations
from rewardsmith.data.prepare.pairing import Group, Pairing, ScoredPair, Which, draw_key, group_of, pairs_in
from rewardsmith.data.prepare.prepare_job import SplitJob, chat_rows, write_prepared
from rewardsmith.data.prepare.row_files import RowFiles, require_outputs
from rewardsmith.data.prepare.splits import digest_of, held_out_limit, source_key, source_text
from rewardsmith.data.row_items import RankingRows
from rewardsmith.data.rows import ID, PROMPT, BadRows, Columns, Layout, Row, RowError, printable
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.jobs import JobContext, Result
from rewardsmith.storage import file_facts
from rewardsmith.text.judge_prompts import LANGUAGES, language
from rewardsmith.text.rankings import MAX_CANDIDATES
from rewardsmith.types import Message, Prompt, Ranking

Rankings = Iterable[tuple[str, Ranking | RowError]]
"""Where a group is, and the group or what is wrong with it."""

PLACEHOLDER = "{source}"

_OF_MQM = ("reference", "exclude_systems", "source_language", "target_language", "instruction")
_OF_PAIRS = ("pairs", "sample", "min_margin", "keep_ties", "margin_unit")
_OF_FILES = ("columns", "prompt_column", "id_column")


class PreferencesJob(SplitJob):
    """Pairs of answers, one better than the other, that a reward model learns from.

    The input has groups of answers: rows with a prompt, candidates and scores or a ranking, or annotations of
    translations as WMT publishes them (TSV). The pairs have `prompt`, `chosen`, `rejected`, `margin` and `tied`: the
    stage `reward_model` reads them, and TRL does.

    Pairs whose scores differ by 2 or more, at most 8 of each group:

    `rewardsmith prepare preferences scores.jsonl pairs.parquet --sample 8 --min-margin 2`

    Groups of four from human annotations, for a model that ranks:

    `rewardsmith prepare preferences mqm_zhen.tsv groups.jsonl --labels mqm --write groups --group-size 4
    --source-language zh --target-language en`
    """

    command = "prepare preferences"

    labels: Literal["scores", "rankings", "mqm"] = Field(
        default="scores", description="what orders the answers: scores, rankings such as A > B = C, or MQM annotations"
    )
    write: Literal["pairs", "groups"] = Field(default="pairs", description="pairs, or the groups themselves")
    pairs: Which = Field(
        default="all", description="all pairs; adjacent: one level of quality and the next; best-worst: the outer two"
    )
    sample: int | None = Field(default=None, ge=1, description="draw at most so many pairs of a group")
    min_margin: float = Field(default=0.0, ge=0, description="leave out pairs whose scores differ by less")
    keep_ties: bool = Field(default=False, description="keep pairs of equal scores, as ties")
    margin_unit: float = Field(default=1.0, gt=0, description="margins are divided by this, such as 5 for MQM")
    group_size: int | None = Field(
        default=None, ge=2, le=MAX_CANDIDATES, description="cut groups into parts of at most so many"
    )
    chat: bool = Field(default=False, description="write messages instead of text")
    columns: dict[str, str] = Field(
        default_factory=dict, description="other names for columns: candidates, scores, ranking, analysis, source_text"
    )
    prompt_column: str = Field(default=PROMPT, min_length=1, description="messages, or text")
    id_column: str = Field(default=ID, description='unique name of a row; "" numbers the rows')
    reference: str | None = Field(default=None, description="mqm: a system that is the reference, and no candidate")
    exclude_systems: list[str] = Field(default=[], description="mqm: systems that are no candidates")
    source_language: str = Field(default="", description="mqm: a code such as zh")
    target_language: str = Field(default="", description="mqm: a code such as en")
    instruction: str = Field(
        default=PLACEHOLDER, pattern=r"\{source\}", description="mqm: prompt of a translator, with {source}"
    )

    @model_validator(mode="after")
    def _check_together(self) -> PreferencesJob:
        unused = {
            f"write = {self.write}": _OF_PAIRS if self.write == "groups" else ("group_size",),
            f"labels = {self.labels}": _OF_FILES if self.labels == "mqm" else _OF_MQM,
        }
        for why, names in unused.items():
            given = [
                n
                for n in names
                if getattr(self, n) != type(self).model_fields[n].get_default(call_default_factory=True)
            ]
            if given:
                raise ValueError(f"{why} does not use {' and '.join(given)}: leave it out")
        if self.labels == "mqm" and self.write == "groups" and not (self.source_language and self.target_language):
            raise ValueError("write = groups needs source_language and target_language: a judge is shown them")
        for code in (self.source_language, self.target_language):
            if code and language(code) is None:
                raise ValueError(f"{code!r} is not a known language.{nearest(code, LANGUAGES)} Use its English name")
        return self

    async def run(self, context: JobContext) -> Result:
        """Read the groups, and write their pairs or parts in the order of the input."""
        bad, facts = BadRows(skip=self.skip_bad), dict[str, Any]()
        if self.labels == "mqm":
            file = Path(self.input).expanduser()
            paths = [file]
            rankings: Callable[[BadRows], Rankings] = lambda bad: self._annotated(file, bad, facts)  # noqa: E731
            inputs: Callable[[], list[dict[str, Any]]] = lambda: [file_facts(file)]  # noqa: E731
        else:
            files = RowFiles(self.input)
            paths, inputs = files.files, files.facts
            rankings = lambda _: self._read(files)  # noqa: E731
        require_outputs(self.outs, paths, replace=context.fresh)
        limit = held_out_limit(self.held_out, lambda: _source_keys(rankings(BadRows(skip=True))))
        builder = PreferenceBuilder(self)

        def rows() -> Iterator[tuple[int, Row]]:
            total = 0
            for where, ranking in rankings(bad):
                total += 1
                try:
                    if isinstance(ranking, RowError):
                        raise ranking
                    side = int(source_key(source_text(ranking.prompt)) < limit)
                    yield from ((side, row) for row in builder.rows(ranking, where))
                except RowError as error:
                    bad.note(where, error)
            bad.settle(facts.get("lines", total))

        return await write_prepared(
            self, context, self.outs, rows(), inputs=inputs, counts=builder.counts, bad=bad, facts=facts
        )

    def _read(self, files: RowFiles) -> Rankings:
        """Yield the groups of rows; several rows may be about one prompt, and share its id."""
        by = "scores" if self.labels == "scores" else "ranking"
        rows = RankingRows(Layout(prompt=self.prompt_column, id=self.id_column), Columns(self.columns), by)
        first: dict[str, tuple[str, str]] = {}
        for where, file, number, row in files:
            try:
                if isinstance(row, RowError):
                    raise row
                ranking = rows.read(row, file, number)
                messages = digest_of(ranking.prompt.messages)
                other, same = first.setdefault(ranking.prompt.id, (where, messages))
                if same != messages:
                    which = f"{ranking.prompt.id[:100]!r} is also that of {other}, with another prompt"
                    raise RowError(f"the id {which}: make the ids unique, or set id_column")
                yield where, ranking
            except RowError as error:
                yield where, error

    def _annotated(self, file: Path, bad: BadRows, facts: dict[str, Any]) -> Rankings:
        """Yield the groups of a file of annotations; lines that cannot be used are noted in `bad`."""
        annotations = read_annotations(file, bad)
        facts |= {"lines": annotations.lines, "left_out": annotations.left_out}
        for ranking in mqm_rankings(annotations, file.stem, self):
            yield f"{printable(str(file), 200)}, segment {ranking.prompt.id.removeprefix(f'{file.stem}-')}", ranking


def _source_keys(rankings: Rankings) -> Iterator[int]:
    return (source_key(source_text(found.prompt)) for _, found in rankings if isinstance(found, Ranking))


class PreferenceBuilder:
    """Builds the rows of groups; `counts` has how many groups, copies, pairs and ties there were so far."""

    def __init__(self, job: PreferencesJob) -> None:
        self._job = job
        self._pairing = Pairing(job.pairs, job.sample, job.min_margin, job.keep_ties)
        self.counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self._translates: bool | None = None

    def rows(self, ranking: Ranking, where: str) -> Iterator[Row]:
        """Yield the rows of a group; a `RowError` if the group was there before, or cannot be written."""
        group = group_of(ranking.candidates, ranking.scores.tolist())
        if not math.isfinite((max(group.scores) - min(group.scores)) / self._job.margin_unit):
            raise RowError("the difference of the scores is not a finite number: scale them")
        prompt = self._prompt(ranking.prompt)
        other = self._first.setdefault(
            digest_of(prompt, sorted(zip(group.candidates, group.scores, strict=True))), where
        )
        if other is not where:
            if self._job.labels != "mqm":
                raise RowError(f"the same prompt, candidates and scores as in {other}: leave one of the two out")
            self.counts["repeated groups"] += 1  # a short sentence may come twice in a talk
            return
        copies = len(ranking.candidates) - len(group.candidates)
        self.counts.update({"groups": 1, "candidates": len(ranking.candidates), "copies merged": copies})
        if len(group.candidates) < 2:
            self.counts["groups of one text"] += 1
            return
        head = {"id": "", "data_source": ranking.prompt.source, "prompt": prompt}
        yield from (self._pairs if self._job.write == "pairs" else self._groups)(ranking, group, head, where)

    def _pairs(self, ranking: Ranking, group: Group, head: dict[str, Any], where: str) -> Iterator[Row]:
        for pair in self._chosen(ranking, group):
            texts = group.candidates[pair.chosen], group.candidates[pair.rejected]
            chosen, rejected = ([{"role": "assistant", "content": t}] if self._job.chat else t for t in texts)
            places = {"chosen": group.places[pair.chosen], "rejected": group.places[pair.rejected]}
            yield head | {
                "id": f"{ranking.prompt.id}-{places['chosen'][0]}-{places['rejected'][0]}",
                "chosen": chosen,
                "rejected": rejected,
                "margin": pair.margin / self._job.margin_unit,
                "tied": pair.margin == 0,
                "extra_info": {
                    "group": ranking.prompt.id,
                    "row": where,
                    "chosen_score": group.scores[pair.chosen],
                    "rejected_score": group.scores[pair.rejected],
                    **{f"{side}_places": list(at) for side, at in places.items()},
                    **{f"{side}_system": _systems(ranking, at) for side, at in places.items()},
                    **_translation(ranking.prompt),
                },
            }

    def _chosen(self, ranking: Ranking, group: Group) -> list[ScoredPair]:
        """Return the pairs of a group that are taken, and count them."""
        pairs = pairs_in(group, self._pairing, draw_key(ranking, self._job.seed))
        ties = sum(pair.margin == 0 for pair in pairs)
        self.counts.update({"pairs": len(pairs), "ties": ties, "groups without a pair": not pairs})
        return pairs

    def _groups(self, ranking: Ranking, group: Group, head: dict[str, Any], where: str) -> Iterator[Row]:
        translates = "src_text" in ranking.prompt.info
        self._translates = translates if self._translates is None else self._translates
        if translates != self._translates:
            raise RowError("some rows have a src_text and others have none: prepare the two kinds apart")
        shown = [i for i, text in enumerate(group.candidates) if text.strip()]
        self.counts["blank candidates"] += len(group.candidates) - len(shown)
        parts = self._parts(group.only(shown), draw_key(ranking, self._job.seed)) if len(shown) > 1 else []
        self.counts["groups written"] += len(parts)
        for number, part in enumerate(parts):
            scores = [float(f"{score:.6g}") for score in part.scores]  # as many digits as a judge writes
            self.counts["scores made equal by rounding"] += len({*part.scores}) - len({*scores})
            yield head | {
                "id": ranking.prompt.id if len(parts) == 1 else f"{ranking.prompt.id}-part{number}",
                **(_translation(ranking.prompt) if translates else {}),
                "mt_texts" if translates else "candidates": list(part.candidates),
                "scores": scores,
                # The analysis has the letters of the original group.
                "analysis": ranking.analysis if part.candidates == tuple(ranking.candidates) else "",
                "extra_info": {
                    "group": ranking.prompt.id,
                    "row": where,
                    "places": [list(places) for places in part.places],
                    "systems": [_systems(ranking, places) for places in part.places],
                },
            }

    def _parts(self, group: Group, key: str) -> list[Group]:
        """Return a group in parts of at most `group_size`; a single candidate that is left over is in none of them."""
        size, count = self._job.group_size, len(group.candidates)
        if size is None or count <= size:
            if count > MAX_CANDIDATES:
                raise RowError(f"{count} different candidates: at most {MAX_CANDIDATES} have a letter; set group_size")
            return [group]
        order = sorted(range(count), key=lambda i: group.candidates[i])
        random.Random(f"parts {key}").shuffle(order)
        parts = [order[at : at + size] for at in range(0, count, size)]
        self.counts["left over"] += sum(len(part) == 1 for part in parts)
        return [group.only(sorted(part)) for part in parts if len(part) > 1]

    def _prompt(self, prompt: Prompt) -> str | list[dict[str, str]]:
        if self._job.chat:
            return chat_rows(prompt.messages)
        if len(prompt.messages) != 1 or prompt.messages[0].role != "user":
            raise RowError(f"the prompt has {len(prompt.messages)} messages: text is one of the user; set chat")
        return prompt.messages[0].content


def _systems(ranking: Ranking, places: Sequence[int]) -> str:
    """Return who wrote a text; "" where that is not known, so that a column has one type in all rows."""
    systems = ranking.prompt.info.get("systems")
    if not isinstance(systems, tuple) or len(systems) != len(ranking.candidates):
        return ""
    return ", ".join(str(systems[i]) for i in places)


def _translation(prompt: Prompt) -> dict[str, str]:
    """Return what a judge of translations is shown, "" for what is not known."""
    values = {name: prompt.info.get(name) for name in ("src_text", "trg_text", "src_lang", "trg_lang")}
    return {name: value if isinstance(value, str) else "" for name, value in values.items()}


# ---- MQM ----------------------------------------------------------------------------------------------------------


def mqm_rankings(annotations: Annotations, name: str, job: PreferencesJob) -> Iterator[Ranking]:
    """Yield a group for each segment with two candidates or more; a score is minus the penalty, 0 is the best.

    `name` is the source of the prompts, and the beginning of their ids.
    """
    excluded = [*job.exclude_systems, *([] if job.reference is None else [job.reference])]
    known = [printable(system, 40) for system in annotations.systems]
    for system in excluded:
        if system not in annotations.systems:
            there = f"{nearest(system, known)} There is: {listing(known)}"
            raise UserError(f"reference or exclude_systems: there is no system {system!r}.{there}")
    unique = len({segment.id for segment in annotations.segments}) == len(annotations.segments)
    for segment in annotations.segments:
        scores = {system: 0.0 - by for system, by in segment.penalties().items() if system not in excluded}
        systems = list(scores)
        if len(systems) > 1:
            reference = None if job.reference is None else segment.outputs.get(job.reference)
            info = {
                "src_text": segment.source,
                "trg_text": reference.text if reference else "",
                "src_lang": job.source_language,
                "trg_lang": job.target_language,
                "systems": systems,
            }
            key = f"{name}-{segment.id}" if unique else f"{name}-{segment.doc}-{segment.id}"
            message = Message("user", job.instruction.replace(PLACEHOLDER, segment.source))
            prompt = Prompt(key, [message], source=name, info=info)
            texts = [segment.outputs[system].text for system in systems]
            yield Ranking(prompt, texts, [*scores.values()])  # type: ignore[arg-type]


__all__ = ["PreferenceBuilder", "PreferencesJob", "mqm_rankings"]
