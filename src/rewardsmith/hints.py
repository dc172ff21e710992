"""What other systems call our settings: verl (and VeRL-with-RMs, PRIME), TRL, OpenRLHF, LLaMA-Factory, TinyV.

A context is the name of a settings class, of a component's function or class, of what a table chooses ("advantage"), or
of a setting with a few words to choose from ("KlSettings.estimator"). Each entry has ours first, then the names of
others, in lower case with underscores.

Ours completes the sentence "Here that is …"; what begins with a capital is a sentence of its own. Only what is the same
is a bare name; where something differs, the entry says what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_PASSES = "tokens_per_pass of the model: passes are filled by tokens, and rows are never padded"
_NO_EPOCHS = "steps = epochs · prompts of the data / prompts_per_step: a policy stage counts no passes over its data"
_ONE_DEVICE = "There is no such setting: a model of this process is on one device, models on servers on others"
_VALIDATED = "There is no such setting: a validation is made before the first step, every few steps and after the last"
_VERL = "A table of verl. Here models, data and stages are tables of their own: see recipes/ and `rewardsmith explain`"

_ANY_STAGE = {
    "init of the model that `model` names": "model_path model_name_or_path pretrain",
    "optimizer.lr": "lr learning_rate actor_learning_rate",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.schedule": "lr_scheduler lr_scheduler_type",
    "optimizer.warmup": "warmup warmup_steps lr_warmup_steps",
    "optimizer.warmup, a number of optimizer steps and not a share": (
        "warmup_ratio lr_warmup_ratio lr_warmup_steps_ratio"
    ),
    "optimizer.clip_norm": "max_grad_norm grad_clip max_norm",
    "save.every": "save_freq save_steps",
    "save.keep": "save_total_limit max_ckpt_to_keep",
    "validation.every": "test_freq eval_steps eval_freq",
    "validation.data, the name of a [data] table": "val_files eval_dataset",
    "data, the name of a [data] table with the path": "train_files",
    "data, the name of a [data] table": "dataset train_dataset",
    _VALIDATED: "val_before_train",
    _PASSES: (
        "micro_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu "
        "gradient_accumulation_steps use_dynamic_bsz"
    ),
    "recompute of the model": "gradient_checkpointing enable_gradient_checkpointing",
    "lora.rank of the model": "lora_rank",
    "lora.alpha of the model": "lora_alpha",
    "seed of the recipe, at the top of the file": "seed",
    "trackers, at the top of the recipe": "logger report_to",
    _ONE_DEVICE: "n_gpus_per_node nnodes tensor_model_parallel_size vllm_tensor_parallel_size",
}

_STAGE_THAT_WRITES = {
    "rollouts_per_prompt": (
        "n rollout_n n_samples n_samples_per_prompt samples_per_prompt num_generations num_rollouts group_size"
    ),
    "prompts_per_step, a number of prompts": "batch_size",
    "prompts_per_step (verl). The size of an update, as in OpenRLHF, is set by mini_batches": "train_batch_size",
    "prompts_per_step": "rollout_batch_size",
    "prompts_per_step, times select.oversample": "gen_batch_size",
    "prompts_per_step, which counts prompts and not answers": "per_device_train_batch_size generation_batch_size",
    "mini_batches, a number of them and not a size: prompts_per_step / mini_batch_size": "mini_batch_size",
    "mini_batches, a number of them and not a size: prompts_per_step / ppo_mini_batch_size": "ppo_mini_batch_size",
    "epochs": "ppo_epochs num_ppo_epochs num_iterations",
    "epochs, if it is about passes over what was sampled, as in OpenRLHF": "max_epochs",
    _NO_EPOCHS: "total_epochs num_train_epochs num_epochs num_episodes",
    "steps": "total_training_steps total_steps training_steps max_steps num_steps",
    "sampling.temperature": "temperature",
    "sampling.top_p": "top_p",
    "sampling.top_k": "top_k",
    "sampling.max_tokens": (
        "max_tokens max_new_tokens max_response_length max_completion_length response_length generate_max_len"
    ),
    "max_prompt_tokens": "max_prompt_length prompt_max_len",
    'overlong_prompts = "drop", which is the default': "filter_overlong_prompts",
    'overlong_prompts = "drop" or "error": a prompt is never cut': "truncation",
    "reward; several are the parts of a sum": "reward_funcs",
    "reward": "reward_fn reward_function",
    'reward = { type = "rule", rule = "module:function" }': "custom_reward_function",
    'reward = { type = "classifier", model = "…" }, or a judge': "reward_model",
    'reward = { type = "classifier", model = "…" }': "reward_pretrain",
    'reward = { type = "classifier", model = "…" } with a model of type = "server"': "remote_rm_url",
    'reward = { type = "sum", … } with a weight in each of its parts': "reward_weights",
    "overlong.buffer": "overlong_buffer overlong_buffer_len",
    "overlong.factor": "overlong_penalty_factor",
    'select = { constant = "drop", rounds = … }': "filter_groups dynamic_filtering",
    "select.rounds": "max_num_gen_batches",
    "select.lowest and select.highest": "filter_accuracy",
    "select.lowest": "accuracy_lower_bound",
    "select.highest": "accuracy_upper_bound",
    "select.oversample, of what is missing": "oversample_factor",
    'select.truncated = "drop"': "filter_truncated",
    'select.truncated = "mask"': "mask_truncated_completions",
    "advantage": "adv_estimator advantage_estimator",
    "advantage.discount": "gamma discount",
    "advantage.lam": "lam lambd lambda",
    'advantage = { type = "grpo", scale = "none" } for false, which is "dr_grpo"': "norm_adv_by_std_in_grpo",
    'advantage = { type = "grpo", scale = "group", "batch" or "none" }': "scale_rewards",
    "advantage.whiten, of the advantages": "whiten_rewards",
    "loss": "policy_loss loss_mode",
    "reduction for the loss types of TRL, and loss for which loss it is": "loss_type",
    "reduction": "loss_agg_mode",
    'loss = "gspo" for "sequence"': "importance_sampling_level",
    "loss.low and loss.high": "clip_ratio cliprange eps_clip",
    "loss.low; loss.high has a default of its own, so set both": "epsilon",
    "loss.low": "clip_ratio_low epsilon_low",
    "loss.high": "clip_ratio_high epsilon_high",
    "loss.dual": "clip_ratio_c",
    "entropy": "entropy_coeff entropy_coef ent_coef",
    "importance": "rollout_is vllm_importance_sampling_correction",
    "importance.cap": "tis_imp_ratio_cap",
    "kl.coefficient, the weight of the distance from the reference": "beta",
    'kl.coefficient; with kl.place = "reward" if it is that of verl\'s algorithm.kl_ctrl': "kl_coef",
    'kl.coefficient, with kl.place = "reward"; it does not adapt': "init_kl_coef",
    'kl.coefficient, with kl.place = "loss", the default': "kl_loss_coef",
    "kl.estimator": "kl_penalty kl_loss_type",
    'kl.coefficient, with kl.place = "loss"': "use_kl_loss",
    'kl.coefficient, with kl.place = "reward"': "use_kl_in_reward",
    "kl.reference": "ref_model reference_model",
    "kl.reference, the name of a model": "ref_path",
    "critic.warmup": "critic_warmup",
    "critic.optimizer.lr": "critic_learning_rate",
    "critic.clip": "cliprange_value value_clip",
    "critic.model": "value_model",
}

_STAGE_THAT_LEARNS = {
    "epochs": "num_train_epochs num_epochs total_epochs max_epochs",
    "steps": "max_steps total_training_steps",
    "batch_size": "train_batch_size per_device_train_batch_size",
    "max_tokens, beyond which an item is dropped and not cut": "max_length max_seq_length max_len cutoff_len",
}

_CLIP = {
    "low and high": "clip_ratio cliprange eps_clip",
    "low; high has a default of its own, so set both": "epsilon",
    "low": "clip_ratio_low epsilon_low eps_clip_low",
    "high": "clip_ratio_high epsilon_high eps_clip_high",
}

_FILES = {
    "path": "files train_files data_files",
    "prompt_column": "prompt_key input_key",
    "answer_column": "answer_key label_key",
    "response_column": "response_key output_key",
    "source_column": "reward_fn_key",
    "system": "system_prompt",
    "limit": "max_samples",
    "max_prompt_tokens of the stage": "max_prompt_length",
    "prompts_per_step of the stage": "train_batch_size",
    "sampling.max_tokens of the stage": "max_response_length",
}

_PARTS = {
    "parts, a table of rewards by name": "rewards components reward_funcs",
    "weight, in the table of each part": "weights reward_weights",
}

_TABLE: dict[str, dict[str, str]] = {
    # ---- settings ----
    "Recipe": {
        _VERL: "actor_rollout_ref algorithm trainer",
        f"{_VERL}. A critic is `critic` of a policy stage": "critic",
        f"{_VERL}. A reward is `reward` of a policy stage": "reward_model",
        f'{_VERL}. A function is reward = {{ type = "rule", rule = "module:function" }}': "custom_reward_function",
        "trackers": "logger report_to",
        "project of a tracker": "project_name",
        "--folder of the command": "experiment_name output_dir",
        "workers": "num_workers",
    },
    "Stage": _ANY_STAGE,
    "RolloutStage": _STAGE_THAT_WRITES,
    "SftStage": _STAGE_THAT_LEARNS,
    "RewardModelStage": _STAGE_THAT_LEARNS,
    "OptimizerSettings": {
        "lr": "learning_rate",
        "beta1 and beta2": "betas",
        "beta1": "adam_beta1",
        "beta2": "adam_beta2",
        "schedule": "lr_scheduler lr_scheduler_type",
        "warmup": "warmup_steps lr_warmup_steps",
        "warmup, a number of optimizer steps and not a share": "warmup_ratio lr_warmup_steps_ratio",
        "clip_norm": "max_grad_norm grad_clip clip_grad",
        "floor": "min_lr_ratio min_lr_rate",
        "floor, as a share of lr": "min_lr",
        "There is one optimizer, AdamW": "type",
    },
    "Sampling": {
        "max_tokens": "max_new_tokens max_response_length max_completion_length response_length",
        "min_tokens": "min_new_tokens",
        "stop_tokens": "stop_token_ids",
        "temperature = 0 for false": "do_sample",
        "rollouts_per_prompt of the stage": "n",
    },
    "SelectSettings": {
        'constant = "drop"': "filter_groups",
        "lowest": "accuracy_lower_bound",
        "highest": "accuracy_upper_bound",
        "oversample, of what is missing": "oversample_factor",
        'truncated = "drop"': "filter_truncated",
        "rounds": "max_num_gen_batches",
    },
    "KlSettings": {
        "coefficient": "coef kl_coef kl_loss_coef init_kl_coef beta weight",
        "estimator": "type kl_loss_type kl_penalty",
        "reference": "ref_model",
        'place = "loss"': "use_kl_loss",
        'place = "reward"': "use_kl_in_reward",
    },
    "CriticSettings": {
        "optimizer.lr": "lr",
        "clip": "cliprange_value value_clip",
        "warmup": "critic_warmup",
    },
    "ValidationSettings": {
        "every": "test_freq eval_steps freq",
        "rollouts_per_prompt": "n",
        "data, the name of a [data] table": "val_files",
        "prompts; all of them are sampled together": "val_batch_size",
        "sampling": "val_kwargs",
        _VALIDATED: "val_before_train",
    },
    "Saving": {
        "every": "save_freq save_steps",
        "keep": "save_total_limit max_ckpt_to_keep",
    },
    "ModelSettings": {
        "init": "path model_path model_name_or_path pretrain",
        "lora.rank": "lora_rank",
        "lora.alpha": "lora_alpha",
        "lora.targets": "target_modules",
        "dtype": "torch_dtype",
        "recompute": "gradient_checkpointing enable_gradient_checkpointing",
        "offload, which moves weights and optimizer together": "param_offload optimizer_offload",
        "chat": "chat_template",
        "tokens_per_pass": "ppo_max_token_len_per_gpu",
        "tokens_per_pass, a number of tokens": "micro_batch_size",
        "rows, the answers that are written at a time": "gpu_memory_utilization",
    },
    "LoraSettings": {
        "rank": "r lora_rank",
        "alpha": "lora_alpha",
        "targets": "target_modules lora_target_modules",
    },
    "ClientSettings": {
        "retries": "tries max_retries num_retries",
        "urls, a list": "url base_url api_base",
        "api_key_env, the name of an environment variable": "key api_key key_from api_key_var",
        "deadline": "timeout",
    },
    "ManagedSettings": {
        "tensor_parallel_size": "tensor_parallel tensor_model_parallel_size tp_size",
        "gpu_memory_utilization": "memory mem_fraction_static",
        "max_model_len": "max_length context_length",
    },
    "clip": {**_CLIP, "dual": "clip_ratio_c"},
    "gspo": _CLIP,
    "gae": {
        "discount": "gamma",
        "lam": "lambd lambda gae_lambda",
    },
    "grpo": {
        'scale = "none" for false': "norm_adv_by_std_in_grpo",
        'scale = "group", "batch" or "none"': "scale_rewards",
        "discount": "gamma",
    },
    "Jsonl": _FILES,
    "Parquet": _FILES,
    "Sum": _PARTS,
    "Product": _PARTS,
    "Implicit": {
        "beta": "beta_train",
        "granularity": "prime_granularity",
        "normalise": "prime_norm",
        'reference: "start" for freeze': "ref_type",
        "reference_model, the name of a model": "ref_path",
        "model, the name of a model": "path",
        "learn.loss": "loss_type",
        "weight, in the same table": "rm_coef",
        "discount, in the same table": "reward_model_gamma",
        "learn.optimizer.lr": "lr",
    },
    "Rubric": {
        "request.temperature": "temperature",
        "request.max_tokens": "max_tokens",
        "votes": "n",
        "template": "prompt prompt_template",
    },
    # ---- what a table chooses ----
    "advantage": {
        'advantage = "gae" with loss = "clip" and a critic: see recipes/ppo.toml': "ppo",
        'advantage = "grpo" with loss.high = 0.28 and reduction = "token-mean": see recipes/dapo.toml': "dapo",
        'loss = "gspo" with advantage = "grpo": see recipes/gspo.toml': "gspo",
        'loss = "gmpo" with advantage = "grpo"': "gmpo",
        'loss = "cispo" with advantage = "grpo"': "cispo",
        'advantage = { type = "grpo", combine = "after", whiten = true }': "gdpo",
        'advantage = { type = "rloo", combine = "after", whiten = true } with an implicit reward: see recipes/prime': (
            "prime"
        ),
        '"dr_grpo"': "drgrpo dr.grpo",
        '"grpo"': "group_norm",
        '"reinforce_plus_plus"': "reinforce++ reinforce_pp",
        '"reinforce_plus_plus_baseline"': "reinforce++_baseline reinforce_baseline",
    },
    "policy loss": {
        '"clip"': "ppo vanilla",
        'loss = "clip" with advantage = "grpo", both of which are the defaults': "grpo",
        'loss = { type = "clip", high = 0.28 } with reduction = "token-mean": see recipes/dapo.toml': "dapo",
        'advantage = "dr_grpo" with reduction = "constant-length"': "dr_grpo",
        'loss = "clip" with reduction = "token-mean"': "bnpo",
        'advantage = "rloo"': "rloo",
        '"gmpo"': "geo_mean",
        '"reinforce"': "pg policy_gradient",
    },
    "reduction": {
        '"token-mean"': "mean token bnpo dapo",
        '"sequence-mean-token-mean"': "seq_mean_token_mean grpo",
        '"sequence-mean-token-sum"': "seq_mean_token_sum",
        '"constant-length"': "seq_mean_token_sum_norm",
        '{ type = "constant-length", length = … } with the token limit': "dr_grpo",
    },
    "reward": {
        '"sum"': "add weighted_sum",
        '"product"': "mul multiply",
        '"judge", "rubric" or "plugin"': "grm",
        '"judge" or "rubric"': "llm_judge",
        '"judge", "rubric" or "ranking"': "genrm",
        '"classifier"': "bt reward_model value",
        '"implicit"': "prime",
        '"similarity"': "bge",
        '{ type = "rule", rule = "module:function" }': "function",
        'reward = { type = "rule", rule = "math" }': "math",
        'reward = { type = "rule", rule = "gsm8k" }': "gsm8k",
        'reward = { type = "rule", rule = "exact" }': "exact",
        'reward = { type = "rule", rule = "code" }': "code",
    },
    "rule": {
        '"math"': "math_verify math_dapo prime_math",
        '"has_boxed" for whether there is a box, "math" for what is in it': "boxed",
        '"code"': "prime_code sandbox_fusion",
        '"math", "exact" or "numeric"': "accuracy",
        '"regex" or "tags"': "format",
        '"choice"': "multiple_choice",
    },
    "stage": {
        'type = "policy" with advantage = "gae": see recipes/ppo.toml': "ppo",
        'type = "policy", whose advantage is "grpo" by default: see recipes/grpo.toml': "grpo",
        '"policy"': "rl rlvr",
        '"reward_model"': "rm",
        '"reward_model", or "policy" to train against a reward': "reward",
        '"process_model"': "prm",
        "There is no pre-training; sft is imitation": "pt",
        "There is no DPO: a reward model and a policy stage learn from pairs": "dpo",
        '"evaluate"': "eval",
    },
    "model": {
        'type = "managed" with command = "vllm", or "server" for one that is running': "vllm",
        'type = "managed" with command = "sglang", or "server" for one that is running': "sglang",
        '"server"': "openai api remote",
        '"embedded"': "hf huggingface local",
    },
    "data source": {
        '"jsonl", one JSON object in each line': "json",
        'type = "parquet" with the files of the data set': "hf huggingface",
    },
    "tracker": {
        "Metrics are always shown and in metrics.jsonl: leave it out": "console",
    },
    # ---- settings with a few words to choose from ----
    "KlSettings.estimator": {
        '"k1"': "kl",
        '"k2"': "mse",
        '"k3"': "low_var_kl schulman",
        "There is no absolute difference: use k2, which has the same minimum and a gradient everywhere": "abs",
    },
    "ModelSettings.dtype": {
        '"bfloat16"': "bf16",
        '"float32"': "fp32",
        '"bfloat16": float16 is too narrow to learn in': "fp16 float16",
    },
    "OptimizerSettings.schedule": {
        '"constant" with warmup': "constant_with_warmup",
        '"cosine" with floor': "cosine_with_min_lr",
        '"cosine" with warmup': "cosine_with_warmup",
    },
}

NAMES: Mapping[str, Mapping[str, str]] = {
    context: {name: ours for ours, names in table.items() for name in names.split()}
    for context, table in _TABLE.items()
}
"""From a context and the name of another system to ours."""


def hint(contexts: Iterable[str], name: str) -> str:
    """Return ` Here that is …` for a name of another system in the first context that knows it; "" where none does."""
    key = name.lower().replace("-", "_")
    for context in contexts:
        ours = NAMES.get(context, {}).get(key)
        if ours is not None:
            return f" {ours}." if ours[:1].isupper() else f" Here that is {ours}."
    return ""
