"""Rewards: scores for groups of rollouts. One protocol, one literal dictionary of names."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from rewardsmith.config import problems_in
from rewardsmith.errors import RecipeError
from rewardsmith.rewards.accuracy import GradeAccuracy, RankingAccuracy
from rewardsmith.rewards.base import CannotScore, Halt, Reward
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.compose import Cascade, Fallback, Gate, Mixed, Product, Route, Sum
from rewardsmith.rewards.failures import in_place
from rewardsmith.rewards.http_service import HttpService
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.judges.custom import CustomJudge
from rewardsmith.rewards.judges.graders import Rubric, Verifier
from rewardsmith.rewards.judges.pairwise import Pairwise
from rewardsmith.rewards.judges.plugin import Plugin
from rewardsmith.rewards.judges.ranking import RankingJudge
from rewardsmith.rewards.judges.scalar_judges import Classifier, Similarity
from rewardsmith.rewards.people_labels import PeopleLabels
from rewardsmith.rewards.remote import RemoteReward
from rewardsmith.rewards.rule import Rule
from rewardsmith.rewards.step_rewards import Steps
from rewardsmith.rewards.transform import Clip, Scale, Shape, Standardise
from rewardsmith.rewards.trl_function import TrlFunction
from rewardsmith.rewards.verifiers_tasks import VerifiersTasks
from rewardsmith.rewards.verl_function import VerlFunction

REWARDS: dict[str, type[Reward]] = {
    "rule": Rule,
    "remote": RemoteReward,  # `rewardsmith serve` on another machine
    "labels": PeopleLabels,
    # written for other systems
    "verl_function": VerlFunction,
    "trl_function": TrlFunction,
    "verifiers": VerifiersTasks,
    # a reward for each step
    "steps": Steps,
    # a model scores each answer
    "rubric": Rubric,
    "verifier": Verifier,
    "judge": CustomJudge,
    "plugin": Plugin,
    "classifier": Classifier,
    "similarity": Similarity,
    # a model scores a whole group
    "ranking": RankingJudge,
    "pairwise": Pairwise,
    # a model that learns with the policy
    "implicit": Implicit,
    # compares a judge's verdict with the truth
    "grade_accuracy": GradeAccuracy,
    "ranking_accuracy": RankingAccuracy,
    # compositions
    "sum": Sum,
    "product": Product,
    "gate": Gate,
    "fallback": Fallback,
    "addon": Fallback,  # what TinyV calls it
    "mixed": Mixed,
    "cascade": Cascade,
    "route": Route,
    # transformations
    "clip": Clip,
    "scale": Scale,
    "shape": Shape,
    "standardise": Standardise,
}

REWARD = in_place()
"""The choice of a reward in a stage."""


def make_reward(table: str | dict[str, Any], models: Mapping[str, Any] | None = None) -> Component:
    """Return the reward that a recipe table describes: `make_reward({"type": "rule", "rule": "exact"})`."""
    try:
        return Component.root(REWARD.choose(table), models=None if models is None else models.__getitem__)
    except PydanticCustomError as error:
        raise RecipeError("reward", problems_in(error, "reward")) from None


__all__ = ["REWARD", "REWARDS", "CannotScore", "Component", "Halt", "HttpService", "Reward", "make_reward"]
