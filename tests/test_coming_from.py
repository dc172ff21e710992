"""The page for users of other systems: each of our names in it exists, each setting of their scripts is on it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rewardsmith.config import Choice, Chosen, Settings, import_name, settings_of
from rewardsmith.recipe import Recipe, parse_recipe
from rewardsmith.rewards import REWARDS
from rewardsmith.runs.preflight import RewardTrees
from rewardsmith.runs.preflight import warnings as recipe_warnings
from rewardsmith.trainers import STAGES
from tests.command_line import call
from tests.test_docs import ROOT, blocks

PAGE = "docs/coming_from.md"


# ---- the tables of the page ----------------------------------------------------------------------------------------


def text() -> str:
    return (ROOT / PAGE).read_text(encoding="utf-8")


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row of each table but the first, which says how to read the others."""
    *_, others = text().partition("\n## ")
    for line in others.splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|\- ]+", line):
            yield tuple(cell.strip() for cell in line.strip("|").split(" | "))


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


OURS = sorted({code for row in rows() for cell in row[1:] for code in codes(cell)})
THEIRS = {code for row in rows() for code in codes(row[0])}


def test_every_row_says_what_is_here_or_why_nothing_is() -> None:
    assert len(THEIRS) > 200
    for row in rows():
        theirs, here, *note = row
        header = not codes(theirs)
        assert header or codes(here) or (here == "—" and note[0]), row


# ---- our names -----------------------------------------------------------------------------------------------------


def kinds_in(annotation: Any, marks: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the settings classes that a value may be, and ("any", classes) for a table whose names are free."""
    for mark in marks:
        if isinstance(mark, Choice):
            yield from (settings_of(target) for target in import_name(mark.table).values())
            if mark.slot is not None:
                yield mark.slot
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from kinds_in(inner[0], inner[1:])
    elif origin in (Union, UnionType, list):
        for kind in inner:
            yield from kinds_in(kind, ())
    elif origin is dict:
        yield ("any", tuple(kinds_in(inner[1], ())))
    elif isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation


def fields_at(kinds: list[Any], path: list[str]) -> Iterator[tuple[FieldInfo, bool]]:
    """Yield the settings at a path below some classes, and whether the path ends with the `type` of a choice."""
    for kind in kinds:
        if isinstance(kind, tuple):
            if len(path) > 1:
                yield from fields_at(list(kind[1]), path[1:])
            continue
        info = kind.model_fields.get(path[0])
        if info is None:
            continue
        inner = list(kinds_in(info.annotation, tuple(info.metadata)))
        if len(path) == 1:
            yield info, False
        elif path[1:] == ["type"] and any(isinstance(mark, Choice) for mark in info.metadata):
            yield info, True
        else:
            yield from fields_at(inner, path[1:])


def chosen_at(kinds: list[Any], path: list[str], name: str) -> bool:
    """Whether a part of a reward, whose table stands in a dictionary, may have a type."""
    return path[-1] == "type" and name in REWARDS and any(fields_at(kinds, [*path[:-1], "weight"]))


def is_setting(code: str) -> bool:
    """Whether a path is one of a recipe, or of a stage or a reward after its type; a value must be accepted there."""
    path, equals, value = code.partition(" = ")
    first, *rest = path.split(".")
    wanted = tomllib.loads(f"value = {value}")["value"] if equals else None
    if path == "type":
        return wanted in {*STAGES, *REWARDS}
    starts: list[tuple[list[Any], list[str]]] = [([Recipe], [first, *rest])]
    if rest:
        starts += [([settings_of(names[first])], rest) for names in (STAGES, REWARDS) if first in names]
    return any(_is_setting(kinds, keys, wanted, bool(equals)) for kinds, keys in starts)


def _is_setting(kinds: list[Any], keys: list[str], wanted: Any, valued: bool) -> bool:
    found = list(fields_at(kinds, keys))
    if not valued:
        return bool(found)
    if isinstance(wanted, str) and chosen_at(kinds, keys, wanted):
        return True
    return any(accepts(info, wanted, of_choice) for info, of_choice in found)


def accepts(info: FieldInfo, value: Any, of_choice: bool) -> bool:
    if of_choice or info.annotation is Chosen:
        (choice,) = (mark for mark in info.metadata if isinstance(mark, Choice))
        return value in import_name(choice.table)
    try:
        TypeAdapter(Annotated[info.annotation, Field(), *info.metadata]).validate_python(value)
    except ValidationError:
        return False
    return True


def is_command(code: str) -> bool:
    """Whether `rewardsmith WORDS … --FLAG` is a command with that flag."""
    words = code.split()[1:]
    names = list(takewhile(lambda word: re.fullmatch(r"[a-z][a-z-]*", word), words))
    shown = call(*names, "--help")
    flags = [word for word in words if word.startswith("--")]
    known = f"rewardsmith {' '.join(names)}" in shown.out
    return shown.status == 0 and known and all(flag in shown.out for flag in flags)


@pytest.mark.parametrize("code", [one for one in OURS if not one.startswith("rewardsmith ")])
def test_every_setting_on_the_page_exists(code: str) -> None:
    if code.startswith("recipes/"):
        assert (ROOT / code).is_file()
    else:
        assert is_setting(code)


def test_every_command_on_the_page_exists() -> None:
    commands = [code for code in codes(re.sub(r"```.*?```", "", text(), flags=re.S)) if code.startswith("rewardsmith ")]
    assert len(commands) > 10
    for code in dict.fromkeys(commands):
        assert is_command(code), code
    assert not is_command("rewardsmith prepare nothing")
    assert not is_command("rewardsmith run --folders")


def test_settings_in_the_prose_exist_too() -> None:
    prose = "\n".join(line for line in re.sub(r"```.*?```", "", text(), flags=re.S).splitlines() if line[:1] != "|")
    for code in codes(prose):
        if code.startswith("recipes/"):
            assert (ROOT / code).is_file(), code
        elif not code.startswith("rewardsmith "):
            assert is_setting(code), code


def test_a_name_that_does_not_exist_is_noticed() -> None:
    for code in (
        "policy.rollout_per_prompt", "models.judge.urlz", "policy.reward.parts.judge.wait", "nothing",
        "policy.loss.type", "policy.loss.type = \"gpso\"", "policy.overlong_prompts = \"cut\"",
        "policy.reward.parts.judge.type = \"x\"",
    ):  # fmt: skip
        assert is_setting(code) == (code == "policy.loss.type"), code


def test_the_recipes_on_the_page_are_valid() -> None:
    recipes = [parse_recipe(tomllib.loads(block)) for block in blocks(PAGE, "toml")]
    assert len(recipes) == 5
    for recipe in recipes:
        RewardTrees(recipe)
        assert not list(recipe_warnings(recipe))


# ---- their names ---------------------------------------------------------------------------------------------------

# What the launch scripts and documented command lines of the originals set.
SCRIPTS = """
data: train_files val_files train_batch_size val_batch_size max_prompt_length max_response_length shuffle truncation
data: filter_overlong_prompts n_samples filter_accuracy accuracy_lower_bound accuracy_upper_bound
actor_rollout_ref.model: path use_remove_padding enable_gradient_checkpointing
actor_rollout_ref.actor: shuffle ppo_mini_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz
actor_rollout_ref.actor: ppo_max_token_len_per_gpu use_kl_loss kl_loss_coef kl_loss_type clip_ratio_low clip_ratio_high
actor_rollout_ref.actor: strategy ulysses_sequence_parallel_size loss_agg_mode entropy_coeff sft_coef
actor_rollout_ref.actor: policy_loss.loss_mode
actor_rollout_ref.actor.optim: lr lr_scheduler_type min_lr_ratio lr_warmup_steps
actor_rollout_ref.actor.fsdp_config: param_offload optimizer_offload grad_offload model_dtype
actor_rollout_ref.rollout: name mode n temperature top_p top_k calculate_log_probs log_prob_micro_batch_size
actor_rollout_ref.rollout: log_prob_micro_batch_size_per_gpu tensor_model_parallel_size gpu_memory_utilization
actor_rollout_ref.rollout: max_num_batched_tokens log_prob_use_dynamic_bsz
actor_rollout_ref.rollout.val_kwargs: temperature top_p top_k do_sample
actor_rollout_ref.ref: log_prob_use_dynamic_bsz log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu strategy
actor_rollout_ref.ref: ulysses_sequence_parallel_size fsdp_config.param_offload
critic: optim.lr model.path ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu forward_max_token_len_per_gpu
algorithm: adv_estimator kl_ctrl.kl_coef use_kl_in_reward norm_adv_by_std_in_grpo
algorithm.adv_params: verifier_gamma reward_model_gamma
reward_model: enable reward_manager tinyv_setup tinyv_weight strategy keep_group prompt_length score_scale_factor
reward_model: default_reward model.path reward_function micro_batch_size reward_combine_func reward_model_type
reward_model: reward_weight combine_reward rm_type rm_coef prime_granularity model.input_tokenizer
reward_model: model.fsdp_config.param_offload model.tensor_model_parallel_size
reward_model.reward_vllm_rollout: temperature gpu_memory_utilization tensor_model_parallel_size
reward_model.rollout: free_cache_engine name mode gpu_memory_utilization tensor_model_parallel_size temperature top_p
reward_model.rollout: max_num_batched_tokens top_k response_length
reward_model.custom_processor: path name extractor_type overlong_buffer.enable overlong_buffer.max_resp_len
reward_model.custom_processor: overlong_buffer.len overlong_buffer.penalty_factor
reward_model.reward_kwargs: max_resp_len overlong_buffer_cfg.enable overlong_buffer_cfg.len
reward_model.reward_kwargs: overlong_buffer_cfg.penalty_factor overlong_buffer_cfg.log
reward_model.prime_model: path ref_path use_remove_padding update beta_train optim.lr optim.grad_clip input_tokenizer
custom_reward_function: path name
trainer: critic_warmup logger project_name experiment_name nnodes n_gpus_per_node default_local_dir default_hdfs_dir
trainer: save_freq test_freq resume_mode total_epochs val_before_train rollout_data_dir validation_data_dir
: model_name_or_path flash_attn stage do_train finetuning_type deepspeed dataset template cutoff_len overwrite_cache
: preprocessing_num_workers dataloader_num_workers output_dir logging_steps save_steps plot_loss overwrite_output_dir
: report_to per_device_train_batch_size gradient_accumulation_steps learning_rate num_train_epochs lr_scheduler_type
: warmup_ratio bf16 ddp_timeout resume_from_checkpoint max_samples save_total_limit run_name push_to_hub hub_strategy
: hub_always_push hub_model_id hub_token hub_private_repo
"""


def test_every_setting_of_the_originals_is_on_the_page() -> None:
    lines = [line.split(": ") if ": " in line else line.split(":") for line in SCRIPTS.strip().splitlines()]
    names = {f"{head}.{name}".lstrip(".") for head, names in lines for name in names.split()}
    assert len(names) > 150
    assert names - THEIRS == set()
