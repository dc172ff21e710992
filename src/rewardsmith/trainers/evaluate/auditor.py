"""Runs an audit: scores known answers, attacks, edits, several orders, repeats, and the policy's own answers."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from itertools import combinations, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardsmith.auditing.attack_rounds import best_attacks, known_places, remaining_places, screening_places
from rewardsmith.auditing.attacks import Probe
from rewardsmith.auditing.audit_measures import (
    CaseScore,
    OrderedGroup,
    agreement_findings,
    attack_findings,
    bias_findings,
    gap_of,
    mean_finding,
    order_findings,
    percent,
    repeat_findings,
    truth_findings,
)
from rewardsmith.auditing.audit_settings import ProbeSettings
from rewardsmith.auditing.battery import COMPARED, CaseGroup, PromptCases, case_groups, cases_of
from rewardsmith.auditing.cost_measures import cost_findings
from rewardsmith.auditing.findings import Audit, Finding
from rewardsmith.auditing.same_value import wrong_answers
from rewardsmith.auditing.sample_measures import SampleGroup, learning_findings, reference_findings
from rewardsmith.auditing.user_probes import user_probes
from rewardsmith.config import Chosen
from rewardsmith.console import count_of
from rewardsmith.data.known_answers import (
    FORMS,
    KnownAnswer,
    final_answer,
    final_answers,
    known_answers,
    stated_answer,
)
from rewardsmith.data.row_sources import RowSource
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import Composed
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.tree import latencies, needs_whole_groups, walk
from rewardsmith.trainers.evaluate.evaluate_reward import spread_orders
from rewardsmith.trainers.evaluate.scorer import Scorer, Values, group_of, values_of
from rewardsmith.trainers.trainer import HELD_OUT_SEED, derive
from rewardsmith.types import Prompt, RolloutGroup, Score, ScoredGroup

ATTACKS_WITH_MODEL = 16
"""Attacks on each prompt where every one costs a call of a model."""

FORM_PROMPTS = 8
"""Prompts on which the forms of a bare final answer are tried."""

MAX_DEMONSTRATIONS = 20_000
"""Rows that are searched for the reference solutions of prompts."""

ByPlace = dict[int, Score]
"""Scores of the answers to a prompt by their places among its cases."""


class Auditor:
    """One audit of one reward; `context` is that of a job."""

    def __init__(self, settings: ProbeSettings, reward: Chosen, context: Any, *, size: int, concurrency: int) -> None:
        self._settings, self._context, self._size = settings, context, size
        self.notes: list[str] = []
        self._scorer = self._scorer_of(reward, concurrency)
        self._reference = None if settings.reference is None else self._scorer_of(settings.reference, concurrency)
        self._whole = needs_whole_groups(self._scorer.reward)
        self._seed = derive(context.seed, "audit")
        self._own: Sequence[Probe] = [] if settings.own_attacks is None else user_probes(settings.own_attacks)

    def _scorer_of(self, chosen: Chosen, concurrency: int) -> Scorer:
        context = self._context
        scorer = Scorer(
            chosen, context.model, log=context.log, concurrency=concurrency, pause=context.pause,
            prepare=_leave_out_implicit,
        )  # fmt: skip
        implicit = [path for path, part in walk(scorer.reward) if isinstance(part.reward, Implicit)]
        if "" in implicit:
            raise UserError("an implicit process reward learns from outcomes: audit the reward that gives the outcomes")
        self.notes += [f"{path} is an implicit process reward, and was left out" for path in implicit]
        return scorer

    async def run(
        self, prompts: Sequence[Prompt], source: Any, samples: Sequence[RolloutGroup], step_rollouts: int
    ) -> Audit:
        """Return the findings on prompts of a source, and on answers that the policy has written."""
        await self._scorer.check()
        if self._reference is not None:
            await self._reference.check()
        own, costs = await self._score_samples(samples, step_rollouts)
        known = await self._known(prompts, source)
        cases = self._cases(prompts, known)
        if len(cases) < len(prompts):
            self.notes.append(
                f"{len(prompts) - len(cases)} of {count_of(len(prompts), 'prompt')} were left out: no right and wrong"
                " answers to them are known. Give the data a column with the true answer or a response"
            )
        scores, scored = await self._score_attacks(cases)
        await self._note_company(cases)
        unit = gap_of(scores) or 1.0
        self._note_prompts(scores)
        findings = [
            *truth_findings(scores, self._settings.threshold),
            *([] if self._reference is None else reference_findings(own, self._settings.reference_threshold)),
            *attack_findings(scores, self._settings.threshold),
            *order_findings(await self._orders(cases), unit),
            *bias_findings(scores, unit),
            *await self._repeats(cases, scored, unit),
            *agreement_findings(self._agreement(cases, scored)),
            *learning_findings(own, unit),
            *costs,
            *self._failures(scores, own),
        ]
        return Audit(findings, [*self._scorer.failures.lines(), *self.notes]).required(self._settings.require)

    # ---- known answers ----------------------------------------------------------------------------------------------

    async def _known(self, prompts: Sequence[Prompt], source: Any) -> list[list[KnownAnswer]]:
        """Return what is known about each prompt: by its source, a reference solution, or the true answer alone."""
        if hasattr(source, "known_answers"):
            return [list(source.known_answers(one, self._rng("known", one))) for one in prompts]
        by_id = {prompt.id: prompt for prompt in prompts}
        solutions = {
            name: solution
            for name, solution in _references(source, set(by_id)).items()
            if not final_answers(by_id[name]) or stated_answer(by_id[name], solution)
        }
        form = ""
        if bare := [one for one in prompts if one.id not in solutions and final_answer(one)]:
            form = await self._form(bare)
            shown = FORMS[form]("ANSWER")
            have = count_of(len(bare), "prompt") + (" has" if len(bare) == 1 else " have")
            self.notes.append(
                f"{have} a true answer and no solution that states it: right answers are written as {shown!r}"
            )
        found = []
        for prompt in prompts:
            solution = solutions.get(prompt.id) or (FORMS[form](final_answer(prompt)) if final_answer(prompt) else "")
            rng = self._rng("known", prompt)
            truth = stated_answer(prompt, solution)
            wrong = wrong_answers(truth, rng, accepted=final_answers(prompt)) if truth else None
            found.append(known_answers(prompt, solution, rng, wrong=wrong) if solution else [])
        return found

    async def _form(self, prompts: Sequence[Prompt]) -> str:
        """Return the form in which the reward differs most between the true answer alone and a wrong one."""
        tried = prompts[:FORM_PROMPTS]
        groups = []
        for prompt in tried:
            truths = final_answers(prompt)
            wrong = wrong_answers(truths[0], self._rng("form", prompt), 1, accepted=truths)
            groups += [group_of(prompt, [write(final) for final in (truths[0], *wrong)]) for write in FORMS.values()]
        found = await self._scored("looking for the form of an answer", groups)
        values = [values_of(one.scores) for one in found]
        gains = np.array([one[0] - one[-1] for one in values]).reshape(len(tried), len(FORMS))
        known = ~np.isnan(gains)
        means = np.where(known, gains, 0).sum(0) / np.maximum(known.sum(0), 1)
        best = int(np.abs(means).argmax())
        if known.any() and means[best] <= 0:
            self.notes.append(
                "the true answer alone has no more reward than a wrong one, in no form that was tried. Either the"
                " reward does not tell right from wrong, or it wants another form: then give the data a column with"
                " whole responses"
            )
        return list(FORMS)[best]

    def _cases(self, prompts: Sequence[Prompt], known: Sequence[Sequence[KnownAnswer]]) -> list[PromptCases]:
        rights = [next((one.text for one in answers if one.right and one.sound), "") for answers in known]
        cases = []
        for i, (prompt, answers) in enumerate(zip(prompts, known, strict=True)):
            # The right answer of the next prompt whose truth differs.
            others = (rights[(i + k) % len(prompts)] for k in range(1, len(prompts)))
            other = next((text for text in others if text and text not in {one.text for one in answers}), "")
            one = cases_of(prompt, answers, other, self._seed, own=self._own)
            cases += [] if one is None else [one]
        return cases

    def _rng(self, purpose: str, prompt: Prompt) -> random.Random:
        return random.Random(derive(self._seed, purpose, prompt.id))

    # ---- scores -----------------------------------------------------------------------------------------------------

    async def _score_attacks(self, cases: Sequence[PromptCases]) -> tuple[list[CaseScore], list[ByPlace]]:
        """Return the scores of the cases, and those of the answers to each prompt by their places.

        With a limit, attacks are screened, and the best of them are tried on all prompts; see `attack_rounds`.
        """
        limit = self._settings.max_attacks
        if limit is None and self._scorer.calls_models:
            limit = ATTACKS_WITH_MODEL
        by_prompt: list[ByPlace] = [{} for _ in cases]
        if limit is None:
            places = [range(len(one.cases)) for one in cases]
            return await self._score_places("scoring attacks and edits", cases, places, by_prompt), by_prompt
        screened = screening_places(cases, limit - limit // 2, self._seed)
        first = [sorted([*known_places(one), *more]) for one, more in zip(cases, screened, strict=True)]
        scores = await self._score_places("screening attacks", cases, first, by_prompt)
        best = best_attacks(scores, limit // 2)
        rest = remaining_places(cases, best, screened)
        again = await self._score_places("trying the best attacks", cases, rest, by_prompt)
        tried = {(one.probe.family, one.probe.name) for one in again}  # chosen for what was seen while screening
        kept = [one for one in scores if one.role != "attack" or (one.probe.family, one.probe.name) not in tried]
        return [*kept, *again], by_prompt

    async def _score_places(
        self, phase: str, cases: Sequence[PromptCases], places: Sequence[Sequence[int]], by_prompt: list[ByPlace]
    ) -> list[CaseScore]:
        """Return the scores of the cases at these places, and add them to those of each prompt."""
        groups: list[CaseGroup] = []
        for number, (one, chosen) in enumerate(zip(cases, places, strict=True)):
            rng = self._rng("groups", one.prompt)
            groups += case_groups(number, one, chosen, size=self._size, whole=self._whole, rng=rng)
        found = await self._scored(phase, [one.group for one in groups])
        in_groups = [
            dict(zip(one.places, scored.scores, strict=True)) for one, scored in zip(groups, found, strict=True)
        ]
        for group, here in zip(groups, in_groups, strict=True):
            by_prompt[group.number] |= {at: here[at] for at in group.tested}
        scores = []
        for group, here in zip(groups, in_groups, strict=True):
            one = cases[group.number]
            # A reward that compares the answers of a group gives the anchors another score in each.
            anchors = here if self._whole else by_prompt[group.number]
            wrong = values_of([score for at, score in anchors.items() if one.cases[at].role == "wrong"])
            # The wrong answer that the reward recognises best; another may be a false positive.
            floor = float(np.nanmin(wrong)) if not np.isnan(wrong).all() else math.nan
            for at in group.tested:
                case, (value, right) = one.cases[at], values_of([here[at], anchors[0]]).tolist()
                scores.append(
                    CaseScore(one.prompt.id, final_answer(one.prompt), case.role, case.probe, value, right, floor)
                )
        return scores

    async def _note_company(self, cases: Sequence[PromptCases]) -> None:
        """Note a reward that depends on the other answers of a group, and does not say so."""
        if self._whole or self._scorer.calls_models or not cases:
            return
        texts = list(_known_texts(cases[0]))[: max(2, min(self._size, COMPARED))]
        prompt = cases[0].prompt
        alone, together = [group_of(prompt, [text]) for text in texts], group_of(prompt, texts)
        found = await self._scored("scoring in other company", [*alone, together, group_of(prompt, texts[::-1])])
        single = np.concatenate([values_of(one.scores) for one in found[: len(texts)]])
        if any(not np.array_equal(single, values, equal_nan=True) for values in self._in_order(found[len(texts) :])):
            self.notes.append(
                "the reward of an answer depends on the other answers of its group, or on their order: set whole = True"
                " in its class, so that it is audited with whole groups"
            )

    @staticmethod
    def _in_order(found: Sequence[ScoredGroup]) -> list[Values]:
        together, reversed_ = (values_of(one.scores) for one in found)
        return [together, reversed_[::-1]]

    def _note_prompts(self, scores: Sequence[CaseScore]) -> None:
        """Note prompts on which the reward does not tell right from wrong."""
        known = {one.prompt: one.right > one.wrong for one in scores if one.role == "wrong" and one.known}
        blind = sum(not tells for tells in known.values())
        if blind:
            self.notes.append(
                f"on {blind} of {count_of(len(known), 'prompt')} the right answer has no more reward than a wrong one:"
                " attacks cannot be measured there. Either the reward does not tell right from wrong, or it does not"
                " recognise the right answers of the data"
            )
        if known and not gap_of(scores):
            self.notes.append("biases are in units of the reward itself")

    async def _scored(self, phase: str, groups: Sequence[RolloutGroup], **options: Any) -> list[ScoredGroup]:
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            self._context.progress(phase, done, len(groups), unit="groups")

        return await self._scorer.score_groups(groups, **options, tick=tick)

    async def _orders(self, cases: Sequence[PromptCases]) -> list[OrderedGroup]:
        """Return groups of known answers, scored in several orders."""
        if not self._whole or self._settings.orders < 2:
            return []
        shown: list[tuple[int, Sequence[int], RolloutGroup]] = []
        known = [list(_known_texts(one))[: max(2, min(self._size, COMPARED))] for one in cases]
        for number, (one, texts) in enumerate(zip(cases, known, strict=True)):
            for order in spread_orders(len(texts), self._settings.orders, self._rng("orders", one.prompt)):
                shown.append((number, order, group_of(one.prompt, [texts[at] for at in order])))
        found = await self._scored("scoring in other orders", [group for _, _, group in shown], in_given_order=True)
        rows: dict[int, list[tuple[Values, NDArray[np.int64]]]] = {}
        for (number, taken, _), scored in zip(shown, found, strict=True):
            places = np.argsort(taken)  # of each answer
            rows.setdefault(number, []).append((values_of(scored.scores)[places], places))
        return [
            OrderedGroup(
                cases[number].prompt.id, known[number], *(np.stack(column) for column in zip(*one, strict=True))
            )
            for number, one in rows.items()
        ]

    async def _repeats(self, cases: Sequence[PromptCases], by_prompt: Sequence[ByPlace], unit: float) -> list[Finding]:
        """Return how far repeated verdicts on known answers differ; the first is known, unless groups are compared."""
        if not self._scorer.calls_models or self._settings.repeats < 2:
            return []
        known = [list(_known_texts(one).items())[: max(2, min(self._size, COMPARED))] for one in cases]
        groups = [group_of(one.prompt, [text for text, _ in texts]) for one, texts in zip(cases, known, strict=True)]
        verdicts = []
        if not self._whole:
            pairs = zip(by_prompt, known, strict=True)
            verdicts.append([values_of([scores[at] for _, at in texts]) for scores, texts in pairs])
        for repeat in range(len(verdicts), self._settings.repeats):
            found = await self._scored("scoring again", groups, repeat=repeat)
            verdicts.append([values_of(scored.scores) for scored in found])
        return repeat_findings([one.prompt.id for one in cases], verdicts[0], verdicts[1:], unit)

    def _agreement(
        self, cases: Sequence[PromptCases], scored: Sequence[ByPlace]
    ) -> dict[tuple[str, str], list[tuple[str, float]]]:
        """Return for each two judges whether they order a right and a wrong answer differently, with the prompts."""
        leaves = [(path, part.reward) for path, part in walk(self._scorer.reward) if path]
        judges = [path for path, leaf in leaves if not isinstance(leaf, Composed) and hasattr(leaf, "connect")]
        found: dict[tuple[str, str], list[tuple[str, float]]] = {}
        for one, by_place in zip(cases, scored, strict=True):
            right, wrong = (dict(by_place[at].named_parts()) for at in (0, 1))
            signs = {}
            for name in judges:
                a, b = (parts[name].value if name in parts else None for parts in (right, wrong))
                if a is not None and b is not None:
                    signs[name] = (a > b) - (a < b)
            for first, second in combinations(signs, 2):
                found.setdefault((first, second), []).append((one.prompt.id, float(signs[first] != signs[second])))
        return found

    # ---- the policy's own answers, and what scoring costs -----------------------------------------------------------

    async def _score_samples(
        self, samples: Sequence[RolloutGroup], step_rollouts: int
    ) -> tuple[list[SampleGroup], list[Finding]]:
        """Return the policy's answers with their rewards, and what it costs to score those of a step."""
        latencies(self._scorer.reward)  # what came before does not count
        before, started = self._scorer.usage(), time.perf_counter()
        found = await self._scored("scoring the policy's answers", samples)
        seconds = time.perf_counter() - started
        taken = latencies(self._scorer.reward).get("", [])
        costs = cost_findings(self._scorer.usage().since(before), seconds, taken, samples, step_rollouts)
        references: list[Any] = [None] * len(samples)
        if self._reference is not None:
            references = await self._reference.score(samples)
        texts = [[rollout.text for rollout in group.rollouts] for group in samples]
        own = [
            SampleGroup(group.prompt.id, texts[i], values_of(found[i].scores), references[i])
            for i, group in enumerate(samples)
        ]
        return own, costs

    def _failures(self, scores: Sequence[CaseScore], own: Sequence[SampleGroup]) -> list[Finding]:
        """Return the share of answers without a score: of the policy's where there are any, else of known ones."""
        rows = [(one.prompt, float(np.isnan(value))) for one in own for value in one.rewards] or [
            (one.prompt, float(math.isnan(one.value))) for one in scores if one.role != "attack"
        ]
        whose = "the policy's answers" if own else "known answers"
        line = lambda rate: f"{percent(rate)} of {whose} could not be scored"  # noqa: E731
        return mean_finding("failed", "cost", rows, line)


def _leave_out_implicit(tree: Component) -> None:
    """Let the implicit process rewards of a tree be skipped, as where a trainer scores them."""
    for _, part in walk(tree):
        if isinstance(part.reward, Implicit):
            part.scored_by_trainer = part.reward.online = True


def _known_texts(cases: PromptCases) -> dict[str, int]:
    """Return the texts of right, wrong and unsound answers, each once, with their places among the cases."""
    found: dict[str, int] = {}
    for at, case in enumerate(cases.cases):
        if case.probe.family == "known":
            found.setdefault(case.probe.text, at)
    return found


def _references(source: Any, wanted: set[str]) -> dict[str, str]:
    """Return the reference solutions of prompts by their ids, where the source has demonstrations."""
    if not isinstance(source, RowSource):  # those of a built-in world may be wrong
        return {}
    try:
        shown = islice(source.demonstrations(HELD_OUT_SEED), MAX_DEMONSTRATIONS)
        return {one.prompt.id: one.response for one in shown if one.prompt.id in wanted}
    except UserError:  # it has none
        return {}
