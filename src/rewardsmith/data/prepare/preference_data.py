"""Pairs of answers, or groups with scores, from scores, rankings and human annotations of translations (MQM).

Pairs have the form that TRL reads: `prompt`, `chosen` and `rejected`, as text or, with `chat`, as messages.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from rewardsmith.data.mqm import Annotations, read_annotations
from rewardsmith.data.prepare.pairing import Group, Which, draw_key, group_of, pairs_in
from rewardsmith.data.prepare.prepare_job import (
    Preparation,
    ReadRow,
    SplitJob,
    chat_rows,
    digest_of,
    held_out_limit,
    source_key,
    source_text,
)
from rewardsmith.data.prepare.row_files import require_outputs
from rewardsmith.data.rollout_rows import RolloutSelection
from rewardsmith.data.row_items import RankingRows
from rewardsmith.data.rows import ID, PROMPT, Columns, Layout, Row, RowError, printable
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.jobs import JobContext, Result
from rewardsmith.text.judge_prompts import LANGUAGES, language
from rewardsmith.text.rankings import MAX_CANDIDATES
from rewardsmith.types import Message, Prompt, Ranking

PLACEHOLDER = "{source}"


class PreferencesJob(SplitJob, RolloutSelection):
    """Pairs of answers, one better than the other, that a reward model learns from.

    The input has groups of answers: rows with a prompt, candidates and scores or a ranking; scored rollouts, of a run
    or of `rewardsmith score`; or annotations of translations as WMT publishes them (TSV). The pairs have `prompt`,
    `chosen`, `rejected`, `margin` and `tied`: the stage `reward_model` reads them, and TRL does.

    Pairs whose scores differ by 2 or more, at most 8 of each group:

    `rewardsmith prepare preferences scores.jsonl pairs.parquet --sample 8 --min-margin 2`

    The best and the worst answer of every group of a run, from step 100 on:

    `rewardsmith prepare preferences runs/rrm pairs.jsonl --chat --pairs best-worst --kind train --step 100-999`

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
    def _check_languages(self) -> PreferencesJob:
        if self.labels == "mqm" and self.write == "groups" and not (self.source_language and self.target_language):
            raise ValueError("write = groups needs source_language and target_language: a judge is shown them")
        for code in (self.source_language, self.target_language):
            if code and language(code) is None:
                raise ValueError(f"{code!r} is not a known language.{nearest(code, LANGUAGES)} Use its English name")
        return self

    async def run(self, context: JobContext) -> Result:
        """Read the groups, and write their pairs or parts in the order of the input."""
        mqm = Path(self.input).expanduser() if self.labels == "mqm" else None
        prepared = Preparation(self, files=None if mqm is None else [mqm], scored_only=True)
        require_outputs(self.outs, prepared.files, replace=context.fresh)
        builder, facts = PreferenceBuilder(self, prepared.counts), dict[str, Any]()
        if mqm is None:
            groups = await prepared.read(self._parser(builder))
        else:
            annotations = read_annotations(mqm, prepared.bad)
            facts |= {"lines": annotations.lines, "left_out": annotations.left_out}
            groups = []
            for ranking in mqm_rankings(annotations, mqm.stem, self):
                where = f"{printable(str(mqm), 200)}, segment {ranking.prompt.id.removeprefix(f'{mqm.stem}-')}"
                try:
                    groups += builder.groups(ranking, where)
                except RowError as error:
                    prepared.bad.note(where, error)
            prepared.bad.settle(annotations.lines)
        limit = held_out_limit(self.held_out, (group.source_key for group in groups))
        rows = ((int(group.source_key < limit), row) for group in groups for row in builder.rows(group))
        return await prepared.write(context, self.outs, rows, facts)

    def _parser(self, builder: PreferenceBuilder) -> Any:
        """Return a function that gives the group of a row; several rows may be about one prompt, and share its id."""
        by = "scores" if self.labels == "scores" else "ranking"
        rows = RankingRows(Layout(prompt=self.prompt_column, id=self.id_column), Columns(self.columns), by)
        first: dict[str, tuple[str, str]] = {}

        def parse(read: ReadRow) -> Sequence[PreferenceGroup]:
            ranking = rows.read(read.row, read.file, read.number)
            messages = digest_of(ranking.prompt.messages)
            other, same = first.setdefault(ranking.prompt.id, (read.where, messages))
            if same != messages:
                which = f"{ranking.prompt.id[:100]!r} is also that of {other}, with another prompt"
                raise RowError(f"the id {which}: make the ids unique, or set id_column")
            return builder.groups(ranking, read.where)

        return parse


@dataclass(frozen=True)
class PreferenceGroup:
    """A ranking, its distinct answers, and its prompt as a row has it."""

    ranking: Ranking
    where: str
    group: Group
    prompt: str | list[dict[str, str]]

    @property
    def source_key(self) -> int:
        """What decides the split."""
        return source_key(source_text(self.ranking.prompt))

    @property
    def translates(self) -> bool:
        """Whether the answers are translations."""
        return "src_text" in self.ranking.prompt.info

    def systems(self, places: Sequence[int]) -> str:
        """Return who wrote a text; "" where that is not known, so that a column has one type in all rows."""
        systems = self.ranking.prompt.info.get("systems")
        if not isinstance(systems, tuple) or len(systems) != len(self.ranking.candidates):
            return ""
        return ", ".join(str(systems[i]) for i in places)

    def translation(self) -> dict[str, str]:
        """Return what a judge of translations is shown, "" for what is not known."""
        info = self.ranking.prompt.info
        values = {name: info.get(name) for name in ("src_text", "trg_text", "src_lang", "trg_lang")}
        return {name: value if isinstance(value, str) else "" for name, value in values.items()}


class PreferenceBuilder:
    """Builds the rows of groups, and counts groups, copies, pairs and ties."""

    def __init__(self, job: PreferencesJob, counts: Counter[str]) -> None:
        self._job = job
        self._counts, self._first = counts, dict[str, str]()
        self._translates: bool | None = None

    def groups(self, ranking: Ranking, where: str) -> list[PreferenceGroup]:
        """Return a group, or none of a repeated group of annotations; a `RowError` if it cannot be written."""
        found = PreferenceGroup(
            ranking, where, group_of(ranking.candidates, ranking.scores.tolist()), self._prompt(ranking)
        )
        group = found.group
        if not math.isfinite((max(group.scores) - min(group.scores)) / self._job.margin_unit):
            raise RowError("the difference of the scores is not a finite number: scale them")
        content = digest_of(found.prompt, sorted(zip(group.candidates, group.scores, strict=True)))
        if (other := self._first.setdefault(content, where)) is not where:
            if self._job.labels != "mqm":
                raise RowError(f"the same prompt, candidates and scores as in {other}: leave one of the two out")
            self._counts["repeated groups"] += 1  # a short sentence may come twice in a talk
            return []
        if self._job.write == "groups":
            if self._translates not in (None, found.translates):
                raise RowError("some rows have a src_text and others have none: prepare the two kinds apart")
            self._translates = found.translates
            count = len(group.candidates)
            if self._job.group_size is None and count > MAX_CANDIDATES:
                raise RowError(f"{count} different candidates: at most {MAX_CANDIDATES} have a letter; set group_size")
        copies = len(ranking.candidates) - len(group.candidates)
        self._counts.update({"groups": 1, "candidates": len(ranking.candidates), "copies merged": copies})
        return [found]

    def rows(self, group: PreferenceGroup) -> Iterator[Row]:
        """Yield the rows of a group."""
        if len(group.group.candidates) < 2:
            self._counts["groups of one text"] += 1
            return
        prompt = group.ranking.prompt
        head = {"id": "", "data_source": prompt.source, "prompt": group.prompt}
        facts = {"group": prompt.id, "row": group.where}
        yield from (self._pairs if self._job.write == "pairs" else self._parts)(group, head, facts)

    def _pairs(self, group: PreferenceGroup, head: dict[str, Any], facts: dict[str, Any]) -> Iterator[Row]:
        answers, options = (
            group.group,
            {name: getattr(self._job, name) for name in ("sample", "min_margin", "keep_ties")},
        )
        pairs = pairs_in(answers, self._job.pairs, key=draw_key(group.ranking, self._job.seed), **options)
        ties = sum(pair.margin == 0 for pair in pairs)
        self._counts.update({"pairs": len(pairs), "ties": ties, "groups without a pair": not pairs})
        for pair in pairs:
            texts = answers.candidates[pair.chosen], answers.candidates[pair.rejected]
            chosen, rejected = ([{"role": "assistant", "content": t}] if self._job.chat else t for t in texts)
            places = {"chosen": answers.places[pair.chosen], "rejected": answers.places[pair.rejected]}
            yield head | {
                "id": f"{group.ranking.prompt.id}-{places['chosen'][0]}-{places['rejected'][0]}",
                "chosen": chosen,
                "rejected": rejected,
                "margin": pair.margin / self._job.margin_unit,
                "tied": pair.margin == 0,
                "extra_info": {
                    **facts,
                    "chosen_score": answers.scores[pair.chosen],
                    "rejected_score": answers.scores[pair.rejected],
                    **{f"{side}_places": list(at) for side, at in places.items()},
                    **{f"{side}_system": group.systems(at) for side, at in places.items()},
                    **group.translation(),
                },
            }

    def _parts(self, group: PreferenceGroup, head: dict[str, Any], facts: dict[str, Any]) -> Iterator[Row]:
        ranking = group.ranking
        written = [i for i, text in enumerate(group.group.candidates) if text.strip()]
        self._counts["blank candidates"] += len(group.group.candidates) - len(written)
        parts = self._cut(group.group.only(written), draw_key(ranking, self._job.seed)) if len(written) > 1 else []
        self._counts["groups written"] += len(parts)
        for number, part in enumerate(parts):
            scores = [float(f"{score:.6g}") for score in part.scores]  # as many digits as a judge writes
            self._counts["scores made equal by rounding"] += len({*part.scores}) - len({*scores})
            texts: dict[str, Any] = {"mt_texts" if group.translates else "candidates": list(part.candidates)}
            yield head | {
                "id": ranking.prompt.id if len(parts) == 1 else f"{ranking.prompt.id}-part{number}",
                **(group.translation() if group.translates else {}),
                **texts,
                "scores": scores,
                # The analysis has the letters of the original group.
                "analysis": ranking.analysis if part.candidates == tuple(ranking.candidates) else "",
                "extra_info": {
                    **facts,
                    "places": [list(places) for places in part.places],
                    "systems": [group.systems(places) for places in part.places],
                },
            }

    def _cut(self, group: Group, key: str) -> list[Group]:
        """Return a group in parts of at most `group_size`; a single candidate that is left over is in none of them."""
        size, count = self._job.group_size, len(group.candidates)
        if size is None or count <= size:
            return [group]
        order = sorted(range(count), key=lambda i: group.candidates[i])
        random.Random(f"parts {key}").shuffle(order)
        parts = [order[at : at + size] for at in range(0, count, size)]
        self._counts["left over"] += sum(len(part) == 1 for part in parts)
        return [group.only(sorted(part)) for part in parts if len(part) > 1]

    def _prompt(self, ranking: Ranking) -> str | list[dict[str, str]]:
        messages = ranking.prompt.messages
        if self._job.chat:
            return chat_rows(messages)
        if len(messages) != 1 or messages[0].role != "user":
            raise RowError(f"the prompt has {len(messages)} messages: text is one of the user; set chat")
        return messages[0].content


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
