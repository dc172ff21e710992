"""What is made of groups, and how."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from rewardsmith.data.gqm.building import Form
from rewardsmith.data.gqm.reading import GroupColumns, GroupReader
from rewardsmith.errors import UserError
from rewardsmith.text.judge_prompts import RankingFormat, load_ranking_template
from rewardsmith.text.rankings import PARSER
from rewardsmith.text.templates import Template


@dataclass(frozen=True, kw_only=True)
class GqmSettings:
    """How data for a group ranker are made.

    Attributes:
        form: demonstrations (`sft`), or prompts with a ground truth (`rl`).
        columns: where a row has what.
        verdicts: what the judge is asked for, and the range of the scores.
        template: a built-in template or a path; None: `ranking` where there is a question, else `ranking_translation`.
        criteria: what matters most, added to the template's own words.
        languages: of source and target, for rows without columns for them.
        subgroups: how many parts of a group become groups of their own.
        shuffles: how many further orders each group and part is shown in.
        keep_subgroups: keep demonstrations for parts whose analysis speaks of candidates left out.
        held_out: a share of the sources below 1, or a number of sources; 0 holds out none.
        augment_held_out: whether what is held out is augmented too.
        data_source: the name of the rows.
        seed: decides what is drawn and the order of the rows.
    """

    form: Form
    columns: GroupColumns = field(default_factory=GroupColumns)
    verdicts: RankingFormat = field(default_factory=RankingFormat)
    template: str | None = None
    criteria: str = ""
    languages: tuple[str | None, str | None] = (None, None)
    subgroups: int = 0
    shuffles: int = 0
    keep_subgroups: bool = False
    held_out: float = 0
    augment_held_out: bool = False
    data_source: str = "gqm"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.held_out >= 0 or (self.held_out > 1 and self.held_out % 1):
            raise UserError(f"--held-out is {self.held_out:g}: a share below 1, such as 0.05, or a number of sources")
        if not self.data_source:
            raise UserError("--data-source is empty: name the rows")
        if not -(2**63) <= self.seed < 2**63:
            raise UserError(f"--seed is {self.seed}: it must fit 64 bits")

    @cached_property
    def ranking_template(self) -> Template:
        """The template, checked against the columns."""
        asks = self.columns.question is not None
        template = load_ranking_template(self.template or ("ranking" if asks else "ranking_translation"))
        lacking = {"source_text", "source_language", "target_language"} if asks else {"question"}
        if lost := sorted(template.places & lacking):
            has = "a question" if asks else "a source text and its languages"
            remedy = "choose another template" if asks else "--question-column names one, or choose another template"
            raise UserError(f"{template.where} shows {{{{{lost[0]}}}}}, and the rows have {has}: {remedy}")
        if self.criteria and "criteria" not in template.places:
            raise UserError(f"{template.where} has no {{{{criteria}}}}: leave --criteria out, or add it there")
        return template

    @cached_property
    def reader(self) -> GroupReader:
        """Reads rows."""
        return GroupReader(
            columns=self.columns,
            verdicts=self.verdicts,
            languages=self.languages,
            analysed=self.form == "sft",
            referenced="reference" in self.ranking_template.places,
        )

    def facts(self) -> dict[str, Any]:
        """Return all settings as JSON values, with what decides the words of prompts and answers."""
        return asdict(self) | self.ranking_template.facts() | {"parser": PARSER}


__all__ = ["GqmSettings"]
