"""What cannot work is refused before anything is learned, with the remedy."""

from pathlib import Path
from typing import Any

import pytest

from rewardsmith.cli import main
from rewardsmith.errors import UserError
from tests.trainers.process.process_cases import ProcessWorld, alone, implicit, policy
from tests.trainers.world import steps

DIGIT = "tests.trainers.process.process_cases:AnyDigit"
BEFORE = {"type": "rloo", "combine": "before"}
REINFORCE = {"type": "reinforce", "combine": "before"}
VALUES = {"advantage": {"type": "process_value"}}
ONE = {"advantage": REINFORCE, "rollouts_per_prompt": 1}
SHARE = "tests.trainers.process.process_cases:Share"


def parts(process: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    return {"reward": {"type": "sum", "parts": {"answer": DIGIT, "process": process or implicit(), **others}}}


def nested(kind: str) -> dict[str, Any]:
    inner = {"type": kind, "parts": {"answer": DIGIT, "process": implicit(outcome="answer")}}
    return {"reward": {"type": "sum", "parts": {"inner": inner}}}


# What is wrong, and the setting and the remedy that the message names.
PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "the policy itself": (parts(implicit(model="policy")), 'parts.process.model = "policy".*copy_of = "policy"'),
    "itself as its reference": (parts(implicit(reference_model="prm")), 'reference_model is "prm" itself'),
    "two references": (parts(implicit(reference="policy", reference_model="other")), "leave one out"),
    "a pass that is made anyway": (parts(implicit(exact_reference=True)), 'goes with reference = "policy"'),
    "no adapter": (parts(implicit(reference="adapter-off")), "models.prm has no adapter: set its lora, or reference ="),
    "no outcome": ({"reward": {"type": "sum", "parts": {"process": implicit()}}}, "process.outcome is not set"),
    "two outcomes": (parts(share=SHARE), "process.outcome is not set.*Known: answer, share"),
    "unknown outcome": (parts(implicit(outcome="anser")), 'process.outcome = "anser".*Did you mean "answer"?'),
    "itself as outcome": (parts(implicit(outcome="process")), 'process.outcome = "process" is no part of the reward'),
    "a condition": (parts(implicit() | {"when": "answer"}), 'parts.process.when = "answer".*Remove it'),
    "a condition that comes too late": (
        parts(share={"type": SHARE, "when": "process"}, process=implicit(outcome="answer", weight=0.0)),
        'parts.share.when = "process".*Name another part',
    ),
    "an outcome that is not computed": (
        parts(implicit(outcome="share"), share={"type": SHARE, "weight": 0.0}),
        "parts.share is not computed, and process learns from it: set its watch = true",
    ),
    "what never differs from its reference": (
        parts(implicit(outcome="answer"), again=implicit(outcome="answer", model="third", update="none")),
        'parts.again has update = "none" and reference = "start".*Set reference_model',
    ),
    "a loss of pairs in one pass": (
        parts(implicit(update="after", learn={"loss": "pairwise"})),
        'the loss "pairwise" needs the statistics of groups before the update: set update = "reverse"',
    ),
    "an offset of pairs": (
        parts(implicit(update="reverse", learn={"loss": "pairwise", "offset": "group-mean"})),
        "offset is about the cross-entropy",
    ),
    "one model for two": (
        parts(implicit(outcome="answer"), again=implicit(outcome="answer")),
        "models.prm learns for another part: use one of its own",
    ),
    "a reference that learns": (
        parts(implicit(outcome="answer"), again=implicit(outcome="answer", model="other", reference_model="prm")),
        "parts.again: models.prm learns for another part.*copy_of",
    ),
    "more than the replay buffer": (
        parts(implicit(learn={"replay": {"groups": 1, "per_step": 2}})),
        "a step draws at most all groups",
    ),
    "another tokenizer": (parts(implicit(model="bytes")), "'process' reads tokens.*models.bytes has another tokenizer"),
    "another tokenizer of the reference": (parts(implicit(reference_model="bytes")), "models.bytes has another token"),
    "a model that gives numbers": (parts(implicit(model="critic")), "critic"),
    "no such truth": (parts(implicit(truth="arithmetik")), 'Did you mean "arithmetic"?'),
    "a product": (
        {"reward": {"type": "product", "parts": {"answer": DIGIT, "process": implicit()}}},
        "must be a part of a sum that is the whole reward",
    ),
    "deep in a sum": (nested("sum"), "must be a part of a sum that is the whole reward"),
    "alone": ({"reward": implicit()}, "must be a part of a sum that is the whole reward"),
    "a selection by what is not known yet": (
        {"select": {"part": "process", "lowest": 0.2}},
        'select.part = "process".*Name another part. Known: answer',
    ),
    "a comparison of the sum": ({"advantage": BEFORE}, '"rloo" compares answers: set advantage.combine = "after"'),
    "two discounts of one sum": (
        parts(implicit() | {"discount": 0.9}) | {"advantage": REINFORCE},
        'different discounts: set advantage.combine = "after"',
    ),
    "values of no weight": (parts(implicit() | {"weight": 0.0, "watch": True}) | VALUES, 'type = "implicit" and a wei'),
    "values of nothing": (
        parts(implicit(), answer={"type": DIGIT, "weight": 0.0, "watch": True}) | VALUES,
        "and a second one with a weight that is not implicit",
    ),
    "values on the scale of the batch": (parts(implicit()) | VALUES, 'set reward.parts.process.normalise = "none"'),
    "values of steps": (parts(implicit(normalise="none", granularity="step")) | VALUES, 'granularity = "token"'),
    "trust in what is never measured": (
        parts(implicit(trust={"by": "gate"})) | ONE,
        'process.trust.by = "gate".*set rollouts_per_prompt to at least 2, or',
    ),
    "a reference of the policy that learns": (
        {"kl": {"coefficient": 0.1, "reference": "prm"}},
        'kl.reference = "prm" learns in this stage.*copy_of = "prm"',
    ),
}

PROBLEMS_OF_THE_MODEL_STAGE: dict[str, tuple[dict[str, Any], str]] = {
    "what is not computed": (parts(implicit(weight=0.0)), "and a weight that is not 0 or watch = true"),
    "nothing learns": (
        parts(implicit(update="none", reference_model="other")),
        "nothing learns in this stage: its reward is a sum, one part o",
    ),
    "nothing to learn": ({"reward": DIGIT}, "nothing learns in this stage"),
    "a product": ({"reward": {"type": "product", "parts": {"a": DIGIT, "p": implicit()}}}, "must be a part of a sum"),
}

CASES = {f"policy: {name}": (policy, *case) for name, case in PROBLEMS.items()} | {
    f"process_model: {name}": (alone, *case) for name, case in PROBLEMS_OF_THE_MODEL_STAGE.items()
}


@pytest.mark.parametrize(("make", "changes", "message"), CASES.values(), ids=CASES)
def test_it_is_refused(make: Any, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path, {"bytes": {"init": "tiny-llama-bytes"}, "third": {"copy_of": "policy"}})
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        make(world, **changes)


@pytest.mark.parametrize(("make", "update"), [(policy, "before"), (policy, "after"), (alone, "reverse")])
def test_a_model_that_diverged_is_reported_with_the_remedy(make: Any, update: str, tmp_path: Path) -> None:
    process = implicit(update=update, optimizer={"lr": 1e30, "clip_norm": 1e30})
    with pytest.raises(UserError, match=r"'process' gives numbers that are not usable.*lower parts.process.learn.opti"):
        steps(make(ProcessWorld(tmp_path), process), 3)


# ---- on the command line ---------------------------------------------------------------------------------------------

RECIPE = """
[models.policy]
init = "tiny-llama"
[models.prm]
init = "tiny-llama-bytes"
[data.train]
type = "arithmetic"
[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 1
prompts_per_step = 2
advantage = {{ type = "{advantage}", combine = "after" }}
[stages.reward]
type = "sum"
parts.answer = {{ type = "rule", rule = "arithmetic" }}
parts.process = {{ type = "implicit", model = "prm", outcome = "{outcome}" }}
"""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "the implicit reward 'process' reads tokens as policy writes them, but models.prm has another tokenizer"),
        ({"outcome": "answr"}, 'process.outcome = "answr" is no part of the reward to learn from. Did you mean "answe'),
        ({"advantage": "gae"}, 'the advantage "gae" needs a critic'),
    ],
    ids=["tokenizer", "outcome", "advantage"],
)
def test_a_mistake_never_ends_in_a_traceback(
    settings: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(RECIPE.format(**{"advantage": "rloo", "outcome": "answer"} | settings))
    monkeypatch.setattr("sys.argv", ["rewardsmith", "run", "small.toml"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    errors = " ".join(capsys.readouterr().err.split())
    assert message in errors
    assert "Traceback" not in errors
