"""From a group to rows: demonstrations for a cold start, or prompts with a ground truth for RL.

Prompts come from `text.judge_prompts` and answers from `text.rankings`, which the `ranking` reward uses too: a judge
that was trained on these rows is asked with the very same words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase
from typing import Any, Literal

from rewardsmith.data.gqm.letters import Doubtful, Mentions, find_mentions
from rewardsmith.data.gqm.prompts import Prompts
from rewardsmith.data.gqm.reading import language_name
from rewardsmith.data.gqm.variants import Variant
from rewardsmith.text.judge_prompts import RankingFormat, ranking_values
from rewardsmith.text.quoting import quote
from rewardsmith.text.rankings import levels_of, write_levels, write_ranking
from rewardsmith.text.templates import Template
from rewardsmith.types import Ranking

Form = Literal["sft", "rl"]
"""Demonstrations, or prompts with a ground truth."""

NAMES_LEFT_OUT = "the analysis speaks of candidates that the subgroup leaves out"
CANNOT_RENAME = "the letters of the analysis cannot be renamed for sure"


@dataclass(frozen=True)
class Origin:
    """Where a group comes from.

    Attributes:
        file: the input file.
        row: the number of the row or line in it, from 1.
        source: a hash of the source text, the same in all rows of one source.
        split: `train` or `held-out`.
    """

    file: str
    row: int
    source: str
    split: str


class RowBuilder:
    """Makes rows.

    Args:
        form: what for.
        template: of `load_ranking_template`.
        verdicts: what the judge is asked for.
        criteria: what matters most, in the words of the user.
        data_source: the name under which rows are known, for `route` and for metrics.
        keep_subgroups: keep demonstrations for subgroups whose analysis speaks of those left out.

    Attributes:
        dropped: how many variants were left out, by reason.
    """

    def __init__(
        self,
        form: Form,
        template: Template,
        verdicts: RankingFormat,
        *,
        criteria: str = "",
        data_source: str = "gqm",
        keep_subgroups: bool = False,
    ) -> None:
        self._form, self._verdicts, self._criteria = form, verdicts, criteria
        self._data_source, self._keep_subgroups = data_source, keep_subgroups
        self._places = template.places
        self._prompts = Prompts(template, verdicts)
        self.dropped: Counter[str] = Counter()

    def rows(
        self, ranking: Ranking, variants: Iterable[Variant], origin: Origin
    ) -> Iterator[tuple[Variant, dict[str, Any]]]:
        """Yield a row for each variant of a group; one whose analysis cannot be told is left out, and counted."""
        shown = self._shown(ranking)
        analysis = _Analysis(ranking.analysis, len(ranking.candidates), self._keep_subgroups)
        quoted = [quote(text) for text in ranking.candidates]
        scores = [int(score) if score % 1 == 0 else score for score in ranking.scores.tolist()]
        provenance = self._provenance(ranking, origin)
        for variant in variants:
            order = variant.order
            named = dict(zip(ascii_uppercase, [scores[i] for i in order], strict=False))
            info = {
                **provenance,
                "variant": variant.kind,
                "candidates": list(order),
                "permutation": list(variant.permutation),
                "scores": [float(score) for score in named.values()],
            }
            head = {"id": f"{ranking.prompt.id}/{_called(order)}", "data_source": self._data_source}
            asked = self._prompts.of(shown, [quoted[i] for i in order])
            if self._form == "rl":
                info["mt_texts"] = [ranking.candidates[i] for i in order]
                # It calls the candidates by the letters of the original order.
                info["analysis"] = ranking.analysis if variant.kind == "original" else ""
                truth = {"style": "rule", "ground_truth": self._truth(named)}
                yield (
                    variant,
                    {**head, "prompt": asked, "ability": "ranking", "reward_model": truth, "extra_info": info},
                )
                continue
            try:
                answer = write_ranking(named, analysis.of(variant), self._verdicts.output)
            except _Dropped as reason:
                self.dropped[str(reason)] += 1
            else:
                asked.append({"role": "assistant", "content": answer})
                yield variant, {**head, "messages": asked, "extra_info": info}

    def _shown(self, ranking: Ranking) -> dict[str, str]:
        info = ranking.prompt.info
        source, target = (info.get(key) for key in ("src_lang", "trg_lang"))
        return ranking_values(
            question=info.get("question"),
            source_text=info.get("src_text"),
            source_language=None if source is None else language_name(source),
            target_language=None if target is None else language_name(target),
            references=[info["trg_text"]] if "reference" in self._places else (),
            criteria=self._criteria,
        )

    def _truth(self, scores: Mapping[str, float]) -> str:
        """Return a ranking, or the scores as JSON."""
        if self._verdicts.output == "ranking":
            return write_levels(levels_of(scores))
        return "{" + ", ".join([f'"{letter}": {score}' for letter, score in scores.items()]) + "}"

    def _provenance(self, ranking: Ranking, origin: Origin) -> dict[str, Any]:
        """Return what all variants of a group have in common."""
        return {
            "split": origin.split,
            "index": origin.row,
            "file": origin.file,
            "group": ranking.prompt.id,
            "source": origin.source,
            "src_lang": ranking.prompt.info.get("src_lang", ""),
            "trg_lang": ranking.prompt.info.get("trg_lang", ""),
            "output": self._verdicts.output,
        }


def _called(order: Sequence[int]) -> str:
    """Return the letters that the candidates had in the original order: CAB."""
    return "".join([ascii_uppercase[i] for i in order])


class _Dropped(Exception):  # noqa: N818 it is what becomes of a variant
    """A variant has no analysis that can be trusted."""


@dataclass(frozen=True)
class _Analysis:
    """The analysis of a group, for any of its variants."""

    text: str
    count: int
    keep_subgroups: bool

    @cached_property
    def _mentions(self) -> Mentions:
        return find_mentions(self.text, self.count)

    def of(self, variant: Variant) -> str:
        """Return the analysis with the letters that a variant gives to the candidates."""
        if variant.kind == "original":
            return self.text
        left_out = [i for i in range(self.count) if i not in variant.picked]
        if left_out and not self.keep_subgroups:
            if self._mentions.counted or self._mentions.named & {*left_out}:
                raise _Dropped(NAMES_LEFT_OUT)
            if self._mentions.doubt:  # it may name them all the same
                raise _Dropped(CANNOT_RENAME)
        try:
            # Those left out get the letters after the others, so that no two candidates share one.
            return self._mentions.renamed((*variant.order, *left_out))
        except Doubtful:
            raise _Dropped(CANNOT_RENAME) from None


__all__ = ["CANNOT_RENAME", "NAMES_LEFT_OUT", "Form", "Origin", "RowBuilder"]
