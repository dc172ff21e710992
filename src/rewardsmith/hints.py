"""What verl, PRIME, TRL, OpenRLHF and LLaMA-Factory call our settings and the names that a table chooses.

Each entry has ours first, then the names of others, in lower case with underscores. Ours completes the sentence "Here
that is …"; what begins with a capital is a sentence of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

_SETTINGS = {
    # models
    "init of a model": "model_path model_name_or_path pretrain",
    "init of a model, path of data": "path",
    "lora.rank of the model": "lora_rank r",
    "lora.alpha of the model": "lora_alpha",
    'lora.base = "int8" of the model': "load_in_8bit load_in_4bit quantization_bit quantization",
    "recompute of the model": "gradient_checkpointing enable_gradient_checkpointing",
    "offload of the model, which moves weights and optimizer while another model works": "param_offload",
    "optimizer.offload, which keeps the states in host memory": "optimizer_offload offload_optimizer adam_offload",
    'optimizer.states = "8bit"': "optim_bits use_8bit_adam adam_8bit optimizer_impl",
    "device of the model; devices of a managed one": "device_map cuda_visible_devices gpu_ids gpus",
    "tokens_per_pass of the model: passes are filled by tokens, and rows are never padded": (
        "micro_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu "
        "gradient_accumulation_steps use_dynamic_bsz"
    ),
    "tensor_parallel_size of a managed model; a model of this process is on one device": (
        "n_gpus_per_node nnodes tensor_parallel tensor_model_parallel_size vllm_tensor_parallel_size tp_size"
    ),
    "gpu_memory_utilization of a managed model; rows of one in this process": (
        "memory mem_fraction_static gpu_memory_utilization"
    ),
    "urls, a list": "url base_url api_base",
    "api_key_env, the name of an environment variable": "key api_key key_from api_key_var",
    "deadline": "timeout",
    # data
    "path": "files data_files",
    "data of the stage, the name of a [data] table": "dataset train_dataset train_files",
    "validation.data, the name of a [data] table": "val_files eval_dataset",
    "prompt_column": "prompt_key input_key",
    "answer_column": "answer_key label_key",
    "response_column": "response_key output_key",
    # the recipe
    "A table of verl. Here models, data and stages are tables of their own: see recipes/ and `rewardsmith explain`": (
        "actor_rollout_ref algorithm trainer"
    ),
    "critic of a policy stage": "critic",
    "seed of the recipe, at the top of the file": "seed",
    "trackers, at the top of the recipe": "logger report_to",
    "--folder of the command": "experiment_name output_dir",
    # every stage
    "optimizer.lr": "lr learning_rate actor_learning_rate",
    "optimizer.beta1 and optimizer.beta2": "betas adam_beta1 adam_beta2",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.schedule": "lr_scheduler lr_scheduler_type",
    "optimizer.warmup": "warmup warmup_steps lr_warmup_steps",
    "optimizer.warmup, where a number below 1 is a share of the steps": (
        "warmup_ratio lr_warmup_ratio lr_warmup_steps_ratio"
    ),
    "optimizer.clip_norm": "max_grad_norm grad_clip clip_grad max_norm",
    "save.every": "save_freq save_steps",
    "save.keep": "save_total_limit max_ckpt_to_keep",
    "validation.every": "test_freq eval_steps eval_freq",
    "validation.at_start": "val_before_train eval_on_start",
    "steps": "total_training_steps total_steps training_steps max_steps num_steps",
    "epochs, passes over the data": "total_epochs num_train_epochs num_epochs num_episodes",
    "epochs for passes over the data, ppo_epochs for those over the answers of a step": "max_epochs",
    "prompts_per_step of a policy stage, batch_size of others": "batch_size per_device_train_batch_size",
    "prompts_per_step of a policy stage, whose updates are set by mini_batches; batch_size of others": (
        "train_batch_size"
    ),
    "max_tokens, beyond which an item is dropped and not cut": "max_length max_seq_length max_len cutoff_len",
    # stages that write
    "rollouts_per_prompt of a stage, votes of a judge": "n",
    "rollouts_per_prompt": (
        "rollout_n n_samples n_samples_per_prompt samples_per_prompt num_generations num_rollouts group_size"
    ),
    "prompts_per_step": "rollout_batch_size generation_batch_size",
    "prompts_per_step, times select.oversample": "gen_batch_size",
    "mini_batches, a number of them and not a size": "mini_batch_size ppo_mini_batch_size",
    "ppo_epochs": "num_ppo_epochs num_iterations",
    "sampling.temperature of a stage, request.temperature of a judge": "temperature",
    "sampling.top_p": "top_p",
    "sampling.top_k": "top_k",
    "sampling.max_tokens of a stage, request.max_tokens of a judge": (
        "max_tokens max_new_tokens max_response_length max_completion_length response_length generate_max_len"
    ),
    "max_prompt_tokens": "max_prompt_length prompt_max_len",
    'overlong_prompts = "drop" or "error": a prompt is never cut': "filter_overlong_prompts truncation",
    "reward; several are the parts of a sum": "reward_funcs reward_fn reward_function",
    'reward = { type = "verl_function", path = "…", name = "…" }, or a rule of your own': "custom_reward_function",
    'reward = { type = "classifier", model = "…" }, or a judge': "reward_model reward_pretrain remote_rm_url",
    'reward = { type = "sum", … } with a weight in each of its parts': "weights reward_weights rewards components",
    "overlong.buffer": "overlong_buffer overlong_buffer_len soft_punish_cache",
    "overlong.limit": "max_resp_len",
    "overlong.factor": "penalty_factor overlong_penalty_factor",
    'select = { constant = "drop", rounds = … }': "filter_groups dynamic_filtering",
    "select.rounds": "max_num_gen_batches",
    "select.lowest and select.highest": "filter_accuracy accuracy_lower_bound accuracy_upper_bound",
    "select.oversample, of what is missing": "oversample_factor",
    'select.truncated = "drop"': "filter_truncated",
    'select.truncated = "mask"': "mask_truncated_completions",
    "advantage": "adv_estimator advantage_estimator",
    "advantage.discount": "gamma discount",
    "advantage.lam": "lam lambd lambda gae_lambda",
    'advantage = { type = "grpo", scale = "group", "batch" or "none" }': "norm_adv_by_std_in_grpo scale_rewards",
    "advantage.whiten, of the advantages": "whiten_rewards",
    "loss": "policy_loss loss_mode",
    "reduction for the loss types of TRL, and loss for which loss it is": "loss_type",
    "reduction": "loss_agg_mode",
    'loss = "gspo" for "sequence"': "importance_sampling_level",
    "loss.low and loss.high": "clip_ratio cliprange eps_clip epsilon",
    "loss.low": "clip_ratio_low epsilon_low eps_clip_low",
    "loss.high": "clip_ratio_high epsilon_high eps_clip_high",
    "loss.dual": "clip_ratio_c",
    "entropy": "entropy_coeff entropy_coef ent_coef",
    "importance": "rollout_is vllm_importance_sampling_correction",
    'kl.coefficient; kl.place = "reward" is verl\'s algorithm.kl_ctrl': "coef beta kl_coef init_kl_coef",
    'kl.coefficient, with kl.place = "loss", the default': "kl_loss_coef use_kl_loss",
    'kl.coefficient, with kl.place = "reward", or "both" where the loss has one too': "use_kl_in_reward",
    "kl.estimator": "kl_penalty kl_loss_type",
    "kl.reference": "ref_model reference_model",
    "critic.warmup": "critic_warmup",
    "critic.clip": "cliprange_value value_clip",
    # rewards
    "reference or reference_model of the implicit reward": "ref_type ref_path",
}

_KL_ESTIMATORS = {
    '"k1"': "kl",
    '"k2"': "mse",
    '"k3"': "low_var_kl schulman",
    '"k1" with unbiased = true': "kl+ k1+",
    '"k3" with unbiased = true': "low_var_kl+ k3+",
    'There is no absolute difference, whose gradient is that of no KL: use "k2"': "abs",
}

_CHOICES: dict[str, dict[str, str]] = {
    "advantage": {
        'advantage = "gae" with loss = "clip" and a critic: see recipes/ppo.toml': "ppo",
        'advantage = "grpo" with loss.high = 0.28 and reduction = "token-mean": see recipes/dapo.toml': "dapo",
        'loss = "gspo" with advantage = "grpo": see recipes/gspo.toml': "gspo",
        'loss = "gmpo" or "cispo" with advantage = "grpo"': "gmpo cispo",
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
        '"constant-length"': "seq_mean_token_sum_norm dr_grpo",
    },
    "reward": {
        '"sum"': "add weighted_sum",
        '"product"': "mul multiply",
        '"judge", "rubric" or "ranking"': "grm genrm llm_judge",
        '"classifier"': "bt reward_model value",
        '"implicit"': "prime",
        '"similarity"': "bge",
        'reward = { type = "rule", rule = "…" }': "function math gsm8k exact code",
        'reward = { type = "verl_function", path = "…" }': "compute_score custom_reward_function naive",
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
        '"process_model"': "prm",
        "There is no DPO: a reward model and a policy stage learn from pairs": "dpo",
        '"evaluate"': "eval",
        '"generate"': "generation inference predict",
    },
    "model": {
        'type = "managed" with a command, or "server" for one that is running': "vllm sglang",
        '"server"': "openai api remote",
        '"embedded"': "hf huggingface local",
    },
    "data source": {
        '"jsonl", one JSON object in each line': "json",
        'type = "parquet" with the files of the data set': "hf huggingface",
    },
    "tracker": {"Metrics are always shown and in metrics.jsonl: leave it out": "console"},
    **dict.fromkeys(("estimator", "reward_estimator"), _KL_ESTIMATORS),
    "dtype": {'"bfloat16"': "bf16 fp16 float16", '"float32"': "fp32"},
    "schedule": {'"constant"': "constant_with_warmup", '"cosine"': "cosine_with_min_lr cosine_with_warmup"},
}

NAMES: Mapping[str, Mapping[str, str]] = {
    context: {name: ours for ours, names in table.items() for name in names.split()}
    for context, table in {"": _SETTINGS, **_CHOICES}.items()
}
"""From the name of another system to ours: of settings in "", and of what a table or a setting chooses."""


def hint(name: str, what: str = "") -> str:
    """Return ` Here that is …` for another system's name of a setting, or of one of the `what`s; "" for none."""
    ours = NAMES.get(what, {}).get(name.lower().replace("-", "_"), "")
    return f" {ours}." if ours[:1].isupper() else f" Here that is {ours}." if ours else ""
