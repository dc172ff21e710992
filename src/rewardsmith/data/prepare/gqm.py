"""Training data for a model that ranks groups (a group quality metric, GQM), from groups of candidates with scores.

    {"src_text": "你好", "src_lang": "zh", "trg_lang": "en", "mt_texts": ["Hello", "Bye"],
     "analysis": "A is right. B is not.", "scores": [9, 1]}

`GqmSft` writes demonstrations for a cold start, `GqmRl` prompts with a ground truth. Prompts and answers come from the
functions that the `ranking` reward uses: a judge that is trained on these rows is called with the same text. Groups are
augmented as in GRRM: parts of each group, and further orders of each. Groups are held in memory, rows are not.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase
from typing import Any, ClassVar

from pydantic import Field, model_validator

from rewardsmith.data.prepare.letters import AnalysisError, Mentions, find_mentions
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
from rewardsmith.data.row_items import RankingRows
from rewardsmith.data.rows import ABSENT, ID, PROMPT, Columns, Layout, Row, RowError, describe, find
from rewardsmith.errors import UserError, nearest
from rewardsmith.jobs import JobContext, Result
from rewardsmith.text.judge_prompts import (
    LANGUAGES,
    RankingFormat,
    language,
    load_ranking_template,
    question_of,
    ranking_identity,
    ranking_prompt,
    ranking_values,
)
from rewardsmith.text.quoting import quote
from rewardsmith.text.rankings import (
    MAX_CANDIDATES,
    NOUN,
    NOUN_PATTERN,
    PARSER,
    Output,
    levels_of,
    without_verdict,
    write_levels,
    write_ranking,
)
from rewardsmith.text.templates import Template

TRANSLATION_COLUMNS = {"reference": "trg_text", "source_language": "src_lang", "target_language": "trg_lang"}
"""Columns of translations that `columns` may rename, with their usual names."""

_LANGUAGE = re.compile(r"[\w ()'-]{3,40}")  # it stands in the prompt unquoted: it must look like a name

Order = tuple[int, ...]
"""Which candidates of a group are shown, in which order."""


class GqmJob(SplitJob):
    """Training data for a model that ranks groups."""

    needs_analysis: ClassVar[bool]

    verdict: Output = Field(default="both", description="what the judge writes: a ranking, scores or both")
    template: str = Field(
        default="ranking_translation", min_length=1, description="built-in template (ranking for questions), or a path"
    )
    noun: str = Field(
        default=NOUN, pattern=NOUN_PATTERN, description="what the prompt calls candidates: Translation A:"
    )
    criteria: str = Field(default="", description="what matters most; added to the text of the template")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="other names for columns: candidates, scores, analysis, source_text, reference, source_language,"
        " target_language",
    )
    prompt_column: str = Field(
        default=PROMPT, min_length=1, description="the question, where groups are not translations"
    )
    id_column: str = Field(default=ID, description='unique name of a row; "" numbers the rows')
    source_language: str | None = Field(default=None, description="of all rows, such as zh, instead of a column")
    target_language: str | None = Field(default=None, description="of all rows, such as en, instead of a column")
    min_score: float = Field(default=0.0, gt=-1e6, description="lowest score possible")
    max_score: float = Field(default=10.0, lt=1e6, description="highest score possible")
    decimals: bool = Field(default=False, description="allow scores between integers")
    subgroups: int = Field(default=0, ge=0, le=1000, description="parts of each group that become groups of their own")
    shuffles: int = Field(default=0, ge=0, le=1000, description="further orders of each group and part")
    data_source: str = Field(default="gqm", min_length=1, description="data_source of all rows")

    @model_validator(mode="after")
    def _score_range(self) -> GqmJob:
        if not self.min_score < self.max_score:
            raise ValueError(f"min_score is {self.min_score:g} and max_score {self.max_score:g}: the range is empty")
        if not self.decimals and (self.min_score % 1 or self.max_score % 1):
            raise ValueError("min_score and max_score must be integers, or set decimals")
        return self

    @cached_property
    def verdicts(self) -> RankingFormat:
        """What the judge writes, and the range of the scores."""
        return RankingFormat(self.verdict, self.min_score, self.max_score, self.decimals, self.noun)

    @cached_property
    def ranking_template(self) -> Template:
        """The template of the prompt."""
        template = load_ranking_template(self.template)
        if self.criteria and "criteria" not in template.places:
            raise UserError(f"{template.where} has no {{{{criteria}}}}: remove the setting criteria, or add it there")
        return template

    async def run(self, context: JobContext) -> Result:
        """Read the groups, and write their rows in an order that the seed and the contents decide."""
        prepared = Preparation(self)
        require_outputs(self.outs, prepared.files, replace=context.fresh)
        reader = GqmReader(self)

        def parse(read: ReadRow) -> Iterator[GqmGroup]:
            group = reader.read(read)
            prepared.require_new(read.where, group=group.digest, id=group.id)
            yield group

        groups = await prepared.read(parse)
        identity = ranking_identity(self.ranking_template, self.verdicts, self.criteria)
        prepared.judge_prompts = dict.fromkeys(self.outs, identity)
        facts = {**self.ranking_template.facts(), "parser": PARSER}
        return await prepared.write(context, self.outs, self._rows(groups, prepared), facts)

    def _rows(self, groups: Sequence[GqmGroup], prepared: Preparation) -> Iterator[tuple[int, Row]]:
        limit = held_out_limit(self.held_out, (group.source_key for group in groups))
        drawn: list[tuple[str, int, Order]] = []
        for i, group in enumerate(groups):
            augment = group.source_key >= limit  # held-out groups stay as they are
            rng = random.Random(f"{self.seed} {group.digest}")
            orders = draw_orders(len(group.candidates), self.subgroups * augment, self.shuffles * augment, rng)
            drawn += [(digest_of(self.seed, group.digest, order), i, order) for order in orders]
        drawn.sort()
        for _, i, order in drawn:
            held_out = groups[i].source_key < limit
            try:
                row = self.row(groups[i], order, "held-out" if held_out else "train")
            except AnalysisError as error:
                prepared.counts[f"variants left out: {error}"] += 1
            else:
                prepared.counts[f"rows: {variant_name(order, len(groups[i].candidates))}"] += 1
                yield held_out, row

    def row(self, group: GqmGroup, order: Order, split: str) -> Row:
        """Return the row of a group in an order; `AnalysisError` if a demonstration has no analysis for it."""
        raise NotImplementedError

    def _parts(self, group: GqmGroup, order: Order, split: str) -> tuple[Row, list[dict[str, str]], dict[str, Any]]:
        """Return what rows of both forms have: the first columns, the prompt, and extra_info."""
        quoted = [group.quoted[i] for i in order]
        prompt = ranking_prompt(self.ranking_template, group.placeholders, quoted, self.verdicts, quoted=True)
        picked = sorted(order)
        head = {"id": f"{group.id}/{''.join(ascii_uppercase[i] for i in order)}", "data_source": self.data_source}
        info = {
            "split": split,
            "index": group.number,
            "file": group.file,
            "group": group.id,
            "source": f"{group.source_key:016x}",
            "src_lang": group.languages[0],
            "trg_lang": group.languages[1],
            "output": self.verdict,
            "variant": variant_name(order, len(group.candidates)),
            "candidates": list(order),
            "permutation": [picked.index(i) for i in order],
            "scores": [group.scores[i] for i in order],
        }
        return head, chat_rows(prompt), info


class GqmRl(GqmJob):
    """Prompts with a ground truth for RL of a model that ranks groups.

    The rows have verl's columns. The ground truth is what the reward `ranking_accuracy` compares with: the scores as
    JSON, or with verdict = ranking a ranking such as A > B = C.

    Example: `rewardsmith prepare gqm-rl groups.jsonl train.parquet --held-out 0.1 --held-out-file held_out.parquet`
    """

    command = "prepare gqm-rl"
    needs_analysis = False

    def row(self, group: GqmGroup, order: Order, split: str) -> Row:
        """Return a prompt with its ground truth."""
        head, prompt, info = self._parts(group, order, split)
        scores = group.by_letter(order)
        truth = write_levels(levels_of(scores)) if self.verdict == "ranking" else json.dumps(scores)
        info["mt_texts"] = [group.candidates[i] for i in order]
        original = order == tuple(range(len(group.candidates)))
        info["analysis"] = group.analysis if original else ""  # it has the letters of the original order
        reward_model = {"style": "rule", "ground_truth": truth}
        return {**head, "prompt": prompt, "ability": "ranking", "reward_model": reward_model, "extra_info": info}


class GqmSft(GqmJob):
    """Demonstrations for the cold start of a model that ranks groups.

    The rows have messages: the prompt that the reward `ranking` sends to its model, and the analysis with the verdict.

    Example: `rewardsmith prepare gqm-sft groups.jsonl sft.jsonl --shuffles 2`
    """

    command = "prepare gqm-sft"
    needs_analysis = True

    def row(self, group: GqmGroup, order: Order, split: str) -> Row:
        """Return a demonstration: the analysis with the letters of this order, and the verdict."""
        answer = write_ranking(group.by_letter(order), group.mentions.renamed(order), self.verdict, self.noun)
        head, prompt, info = self._parts(group, order, split)
        return {**head, "messages": [*prompt, {"role": "assistant", "content": answer}], "extra_info": info}


# ---- one group ----------------------------------------------------------------------------------------------------


@dataclass
class GqmGroup:
    """A group of candidates with all that its rows need; `digest` depends on source, candidates and scores alone."""

    id: str
    file: str
    number: int
    source_key: int
    digest: str
    candidates: tuple[str, ...]
    scores: list[float]
    analysis: str
    languages: tuple[str, str]
    placeholders: dict[str, str]
    noun: str = NOUN

    def by_letter(self, order: Order) -> dict[str, float]:
        """Return the scores by the letters of an order, whole numbers as integers."""
        scores = (self.scores[i] for i in order)
        return {a: int(score) if score % 1 == 0 else score for a, score in zip(ascii_uppercase, scores, strict=False)}

    @cached_property
    def quoted(self) -> list[str]:
        """The candidates as a prompt shows them."""
        return [quote(text) for text in self.candidates]

    @cached_property
    def mentions(self) -> Mentions:
        """The letters in the analysis."""
        return find_mentions(self.analysis, len(self.candidates), self.noun)


class GqmReader:
    """Reads rows, which are untrusted: what is wrong is a `RowError` with the field, its value and the remedy."""

    def __init__(self, settings: GqmJob) -> None:
        self._settings = settings
        self._places = settings.ranking_template.places
        self._own = TRANSLATION_COLUMNS | {k: v for k, v in settings.columns.items() if k in TRANSLATION_COLUMNS}
        columns = Columns({k: v for k, v in settings.columns.items() if k not in TRANSLATION_COLUMNS})
        self._columns = columns
        self._rows = RankingRows(Layout(prompt=settings.prompt_column, id=settings.id_column), columns, "scores")

    def read(self, read: ReadRow) -> GqmGroup:
        """Return the group of a row."""
        ranking = self._rows.read(read.row, read.file, read.number)
        name, _ = self._columns.find(read.row, "candidates")
        candidates = tuple(text.strip() for text in ranking.candidates)  # judges are shown answers without it
        if len(candidates) > MAX_CANDIDATES:
            raise RowError(
                f"{name} has {len(candidates)}: at most {MAX_CANDIDATES} candidates have a letter; split the group"
            )
        for i, text in enumerate(candidates):
            if not text:
                raise RowError(f"{name}[{i}] is blank: leave the candidate and its score out")
        scores = [self._score(f"{self._columns.names('scores')[0]}[{i}]", s) for i, s in enumerate(ranking.scores)]
        first: dict[str, int] = {}
        for i, text in enumerate(candidates):
            if scores[first.setdefault(text, i)] != scores[i]:
                raise RowError(f"{name}[{first[text]}] and {name}[{i}] are one text with two scores: leave one out")
        placeholders, languages = self._placeholders(read.row, question_of(ranking.prompt))
        source = source_text(ranking.prompt)
        return GqmGroup(
            id=ranking.prompt.id,
            file=read.where.rpartition(", ")[0],
            number=read.number,
            source_key=source_key(source),
            digest=digest_of(source, candidates, scores),
            candidates=candidates,
            scores=scores,
            analysis=self._analysis(ranking.analysis),
            languages=languages,
            placeholders=placeholders,
            noun=self._settings.noun,
        )

    def _score(self, name: str, value: float) -> float:
        settings, score = self._settings, float(value) + 0.0  # no -0
        if not settings.min_score <= score <= settings.max_score:
            between = f"{settings.min_score:g} to {settings.max_score:g}"
            raise RowError(f"{name} is {score:g}: not in {between}; min_score and max_score set the range")
        if not settings.decimals and score % 1:
            raise RowError(f"{name} is {score:g}: it must be an integer; decimals allows others")
        if "e" in f"{score:g}" or float(f"{score:g}") != score:
            raise RowError(f"{name} is {score!r}: it has more than 6 digits; round it")
        return score

    def _analysis(self, text: str) -> str:
        analysis = without_verdict(text, self._settings.noun)
        if self._settings.needs_analysis and not analysis:
            kind = "nothing but a verdict" if text.strip() else "missing or empty"
            raise RowError(f"{self._columns.names('analysis')[0]} is {kind}: there is no comparison to learn from")
        return analysis

    def _placeholders(self, row: Row, question: str) -> tuple[dict[str, str], tuple[str, str]]:
        """Return what the template shows of a row, and the languages."""
        values: dict[str, Any] = {}
        if "question" in self._places:
            values["question"] = self._text("the question", question, "prompt_column")
        if "source_text" in self._places:
            name, text = self._columns.find(row, "source_text")
            values["source_text"] = self._text(name, text, f"columns.source_text; {self._settings.template!r} shows it")
        codes = []
        for key in ("source_language", "target_language"):
            column, given = self._own[key], getattr(self._settings, key)
            value = find(row, column) if given is None else given
            if key in self._places:
                code = self._text(column, value, f"columns.{key}; or set {key} for all rows").strip()
                known = language(code)
                if known is None or not _LANGUAGE.fullmatch(known):
                    hint = nearest(code, LANGUAGES)
                    raise RowError(f"{column} is {describe(code)}: not a known language.{hint} Write its English name")
                values[key] = known
            codes.append(value.strip() if isinstance(value, str) else "")
        if "reference" in self._places:
            column = self._own["reference"]
            values["references"] = [self._text(column, find(row, column), "columns.reference; the template shows it")]
        return ranking_values(**values, criteria=self._settings.criteria), (codes[0], codes[1])

    def _text(self, column: str, value: object, remedy: str) -> str:
        if value is ABSENT or not isinstance(value, str) or not value.strip():
            found = "missing" if value is ABSENT else f"{describe(value)}, not text"
            raise RowError(f"{column} is {found}: name the column with {remedy}")
        return value


# ---- augmentation -------------------------------------------------------------------------------------------------


def draw_orders(count: int, subgroups: int, shuffles: int, rng: random.Random) -> Iterator[Order]:
    """Yield the group of `count` as it is, then parts of it, and after each its further orders; none comes twice."""
    for picked in (tuple(range(count)), *_draw_parts(count, subgroups, rng)):
        yield picked
        orders = {picked: None}
        while len(orders) < 1 + min(shuffles, math.factorial(len(picked)) - 1):
            orders[tuple(rng.sample(picked, len(picked)))] = None
        yield from list(orders)[1:]


def variant_name(order: Order, count: int) -> str:
    """Return what was done to a group of `count`: original, shuffled, subgroup or shuffled subgroup."""
    shuffled, part = list(order) != sorted(order), len(order) < count
    return " ".join(["shuffled"] * shuffled + ["subgroup"] * part) or "original"


def _draw_parts(count: int, number: int, rng: random.Random) -> Iterable[Order]:
    """Return parts of 2 to `count` - 1 candidates, in their order; all of them where there are no more."""
    parts: dict[Order, None] = {}
    while len(parts) < min(number, 2**count - count - 2):
        bits = rng.getrandbits(count)
        if 2 <= bits.bit_count() < count:
            parts[tuple(i for i in range(count) if bits >> i & 1)] = None
    return parts
