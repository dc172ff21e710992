"""The `[models.NAME]` table of a recipe."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rewardsmith.config import Chosen, Refers, Settings
from rewardsmith.errors import Problem, listing, nearest
from rewardsmith.masking import is_reference, secrets_in

Text = str | dict[str, str]  # a text, or `{ env = "NAME" }`: the value of an environment variable
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _is_a_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:(0|[1-9][0-9]{0,3}))?", name):
        raise ValueError('must be "auto", "cpu", "cuda" or "cuda:N", such as "cuda:1"')
    return name


Device = Annotated[str, AfterValidator(_is_a_device)]


class LoraSettings(Settings):
    """Train a low-rank adapter; the reference policy is the model without it."""

    rank: int = Field(default=16, ge=1, description="rank of the adapter")
    alpha: float = Field(default=32.0, gt=0, description="the adapter counts alpha / rank")
    targets: str | list[str] = Field(
        default="all-linear", description="which layers get one: all-linear, or a list of module names"
    )
    base: Literal["dtype", "int8"] = Field(
        default="dtype", description="frozen weights below the adapter: in the model's dtype, or int8, half the memory"
    )
    init: str | None = Field(
        default=None,
        min_length=1,
        description="start from this trained adapter, such as RUN/models/NAME/adapter; not set: a fresh one",
    )


class ModelSettings(Settings):
    """A model in this process: any Hugging Face causal language model, on the CPU or on one of its GPUs."""

    init: str | None = Field(
        default=None,
        min_length=1,
        description="a built-in shape (tiny-llama), a Hugging Face folder, or a Hugging Face id",
    )
    copy_of: Annotated[str | None, Refers("models")] = Field(
        default=None, description="instead of init: start from the weights that this model has when it is first needed"
    )
    head: Literal["language", "scalar"] = Field(
        default="language", description="scalar gives numbers instead of text: a critic, or a reward model"
    )
    device: Device = Field(default="auto", description="cpu, cuda:N, cuda (GPU 0), or auto: GPU 0 if there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="compute precision; auto is float32 on a CPU and bfloat16 on a GPU"
    )
    lora: LoraSettings | None = Field(default=None, description="train an adapter instead of all weights")
    chat: str | None = Field(
        default=None,
        min_length=1,
        description='chat template: "chatml", or the path of a Jinja file; not set: the model\'s own',
    )
    template: dict[str, str | bool | int] = Field(
        default={}, description="arguments of the chat template, such as enable_thinking or date_string"
    )
    rows: int | None = Field(
        default=None, ge=1, description="answers written at a time; not set: 512 on a CPU, 1024 on a GPU if they fit"
    )
    tokens_per_pass: int | None = Field(
        default=None,
        ge=1,
        description="tokens of one pass when learning; not set: 8192 on a CPU, 14336 on a GPU (small models: 24576)",
    )
    recompute: bool | Literal["auto", "offload"] = Field(
        default="auto",
        description="gradient checkpointing: less memory, a third more time when learning; auto: of as many layers as a"
        " GPU's memory needs; offload: of all, their inputs in host memory",
    )
    offload: bool = Field(
        default=False, description="move to host memory while other models with offload = true use its device"
    )

    @property
    def recomputes_all(self) -> bool:
        """Whether every layer is recomputed in each pass."""
        return self.recompute in (True, "offload")

    @property
    def offers(self) -> frozenset[str]:
        """What it can do; see `Refers`."""
        writes = {"learn", "write", "chat", "read"}
        return frozenset(writes if self.head == "language" else {"value", "rate", "rate_turns"})

    @model_validator(mode="after")
    def _begins_somewhere(self) -> ModelSettings:
        if (self.init is None) == (self.copy_of is None):
            raise ValueError("a model has exactly one of init and copy_of")
        if self.copy_of is not None and self.lora is not None:
            # A checkpoint holds the adapter alone, and what was copied may have changed when the run goes on.
            raise ValueError("a copy cannot have an adapter: train all its weights, or give it an init")
        return self


class ClientSettings(Settings):
    """How requests are sent to a server."""

    # Errors do not show the value of a setting: there may be a password in it.
    model_config = ConfigDict(hide_input_in_errors=True)

    serves: Literal["chat", "classify", "score", "embed"] = Field(
        default="chat", description="what the server does: chat, one number per conversation, or embeddings"
    )
    api: Literal["vllm", "sglang"] = Field(
        default="vllm", description="whose endpoints the server has for ratings and offload; all others are OpenAI's"
    )
    tokenizer: str | None = Field(
        default=None,
        min_length=1,
        description="folder or Hugging Face id of a reward model on SGLang, which rates tokens; not set: model",
    )
    api_key_env: str | None = Field(
        default=None, min_length=1, description="environment variable that holds the API key; not set: none is sent"
    )
    version: str = Field(
        default="",
        description="version of the weights in the verdict cache: change it with them; not set: detected by probes",
    )
    concurrency: int = Field(default=64, ge=1, description="requests in flight at each address")
    requests_per_minute: float | None = Field(default=None, gt=0, description="limit of each address")
    connect_timeout: float = Field(default=10.0, gt=0, description="seconds to open a connection")
    timeout: float | None = Field(
        default=None, gt=0, description="seconds for one attempt; the next one is a retry; not set: the deadline"
    )
    retries: int = Field(default=5, ge=0, description="times that a request is retried after a temporary error")
    backoff: float = Field(
        default=0.5, gt=0, description="seconds before the first retry; doubled for each further one"
    )
    max_backoff: float = Field(default=30.0, gt=0, description="limit of the backoff, in seconds")
    deadline: float = Field(
        default=120.0, gt=0, description="seconds for one classify, score or embed request, retries included"
    )
    batch: int = Field(default=32, ge=1, description="texts in one score or embed request")
    body: dict[str, Any] = Field(
        default={}, description="extra fields of each request, such as chat_template_kwargs; { env = } for a key"
    )
    price_in: float = Field(default=0.0, ge=0, description="cost of a million prompt tokens")
    price_out: float = Field(default=0.0, ge=0, description="cost of a million completion tokens")

    @property
    def offers(self) -> frozenset[str]:
        """What it can do; see `Refers`."""
        return _OFFERS[self.serves]

    @field_validator("api_key_env")
    @classmethod
    def _is_a_variable(cls, name: str | None) -> str | None:
        if name is not None and not _VARIABLE.fullmatch(name):
            raise _refused(
                {"": "must be the name of an environment variable; the value is not shown: it may be the key itself"}
            )
        return name

    @field_validator("body", mode="before")
    @classmethod
    def _has_no_secret(cls, body: Any) -> Any:
        try:
            json.dumps(body, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"cannot be sent as JSON ({error}): write dates and times as text, in quotes") from None
        return _without_secret(body)

    @model_validator(mode="after")
    def _fits_its_api(self) -> ClientSettings:
        rates_tokens = self.api == "sglang" and self.serves == "classify"
        if self.api == "sglang" and self.serves == "score":
            raise ValueError('SGLang cannot serve "score": use serves = "classify", or vllm')
        if self.tokenizer is not None and not rates_tokens:
            raise ValueError('tokenizer has no effect without api = "sglang" and serves = "classify": leave it out')
        if rates_tokens and not (self.tokenizer or getattr(self, "model", None)):
            raise ValueError("a reward model on SGLang is given tokens: set tokenizer to its folder or Hugging Face id")
        return self

    @model_validator(mode="after")
    def _does_not_repeat_the_key(self) -> ClientSettings:
        key = os.environ.get(self.api_key_env or "", "").strip()
        texts = {name: json.dumps(getattr(self, name), ensure_ascii=False) for name in type(self).model_fields}
        place = next((name for name, text in texts.items() if len(key) >= 8 and json.dumps(key)[1:-1] in text), "")
        if place:
            raise _refused({place: f"holds the key that is in {self.api_key_env}: leave it out"})
        return self


def _without_secret(value: Any) -> Any:
    """Refuse a table or a list of a recipe with a secret in it, or with an invalid reference to a variable."""
    remedy = 'put it into an environment variable, and write { env = "NAME" } instead'
    problems = dict.fromkeys(secrets_in(value), f"holds a key or a password, which is not shown: {remedy}")
    problems |= {
        place: 'must be { env = "NAME" } with the name of an environment variable'
        for place, name in _references("", value)
        if not _VARIABLE.fullmatch(name)
    }
    if problems:
        raise _refused(problems)
    return value


def _references(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if is_reference(value):
        yield path, value["env"]
    elif isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _references(f"{path}.{name}".lstrip("."), inner)


def _refused(problems: Mapping[str, str]) -> PydanticCustomError:
    """Return an error with what is wrong at each path, which does not show the values."""
    text = "; ".join(f"{place}: {what}".removeprefix(": ") for place, what in problems.items())
    listed = [Problem(place, what) for place, what in problems.items()]
    return PydanticCustomError("refused", "{text}", {"text": text, "problems": listed})


_OFFERS = {
    "chat": frozenset({"chat", "write"}),
    "classify": frozenset({"rate", "rate_turns"}),
    "score": frozenset({"rate"}),  # of the last message: a conversation must end with the response
    "embed": frozenset({"embed"}),
}

INCIDENTAL = frozenset(  # settings of models that do not change their replies
    {"urls", "api_key_env", "concurrency", "requests_per_minute", "connect_timeout", "retries"}
    | {"timeout", "backoff", "max_backoff", "price_in", "price_out", "port", "startup_timeout"}
    | {
        "replicas",
        "gpus",
        "restarts",
        "python",
        "devices",
        "tensor_parallel_size",
        "gpu_memory_utilization",
        "offload",
        "rows",
    }
    | {"tokens_per_pass", "batch_size", "deadline", "batch"}
)


class ServerSettings(ClientSettings):
    """A model behind one or several running OpenAI-compatible servers."""

    urls: list[str] = Field(
        min_length=1, description="base URLs such as http://localhost:8000/v1; the load is shared among them"
    )
    model: str | None = Field(
        default=None, min_length=1, description="as the server names it; not set: the only one that it has"
    )
    offload: bool = Field(default=False, description="let the server sleep while other models use the device")

    @field_validator("urls", mode="before")
    @classmethod
    def _are_urls(cls, urls: Any) -> Any:
        from rewardsmith.http.urls import read_url  # noqa: PLC0415 only a recipe with a server needs it

        if not isinstance(urls, list | tuple) or not all(isinstance(url, str) for url in urls):
            raise _refused({"": 'must be a list of texts, such as ["http://localhost:8000/v1"]'})
        problems = {}
        for place, url in enumerate(urls):
            try:
                read_url(url)
            except ValueError as error:
                problems[str(place)] = str(error)
        if problems:
            raise _refused(problems)
        return urls


def visible_gpus() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES lists: GPU N of this process is the entry N; empty where it is not set."""
    return [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]


class ManagedSettings(ClientSettings):
    """A model behind a server that the run starts and stops."""

    command: str | list[str] = Field(
        description="vllm, sglang or transformers; or a command of your own as a list, with {model}, {port}, {host}"
    )
    model: str = Field(min_length=1, description="a Hugging Face folder or id, or what your own command takes")
    python: str | None = Field(
        default=None, min_length=1, description="interpreter of the server's own environment; not set: this one"
    )
    arguments: list[Text] = Field(default=[], description="further arguments of the command; { env = } for a key")
    environment: dict[str, Text] = Field(
        default={}, description="environment variables of the server, in addition to those of the run"
    )
    devices: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None, min_length=1, description='GPUs that the server may see, numbered as in "cuda:N"; not set: all'
    )
    tensor_parallel_size: int = Field(default=1, ge=1, description="tensor-parallel size: GPUs of one model copy")
    replicas: int = Field(default=1, ge=1, description="servers of this model; the load is shared among them")
    gpus: int | None = Field(
        default=None,
        ge=0,
        description="GPUs that a cluster reserves for a server; not set: tensor_parallel_size, 0 for your own command",
    )
    gpu_memory_utilization: float | None = Field(
        default=None, gt=0, le=1, description="share of the GPU memory for the server; not set: the server's default"
    )
    max_model_len: int | None = Field(default=None, ge=1, description="context length in tokens: prompt and reply")
    port: int | None = Field(default=None, ge=1, lt=65536, description="not set: any free one")
    startup_timeout: float = Field(default=600.0, gt=0, description="seconds until the server must be healthy")
    restarts: int = Field(default=2, ge=0, description="times that a server that died during the run is restarted")
    offload: bool = Field(default=False, description="let the server sleep while other models use the device")

    @model_validator(mode="before")
    @classmethod
    def _has_the_api_of_its_command(cls, table: Any) -> Any:
        if isinstance(table, dict) and table.get("command") == "sglang":
            return {"api": "sglang", **table}
        return table

    @field_validator("command", "arguments", "environment", mode="before")
    @classmethod
    def _holds_no_secret(cls, value: Any) -> Any:
        return _without_secret(value)

    @model_validator(mode="after")
    def _fits_its_command(self) -> ManagedSettings:
        command = self.command
        if isinstance(command, str):
            if command not in _UNSUPPORTED:
                known = f"known are {listing(_UNSUPPORTED)}; write a command of your own as a list of words"
                raise ValueError(f"unknown command {command!r}: {known}.{nearest(command, _UNSUPPORTED)}")
            if (command == "sglang") != (self.api == "sglang"):
                raise ValueError(f'the command {command!r} does not start a server with api = "{self.api}"')
            unsupported, which, remedy = _UNSUPPORTED[command], f"the command {command!r}", "use vllm, or your own"
            if self.serves not in _SERVES.get(command, (self.serves,)):
                raise ValueError(f"the command {command!r} cannot serve {self.serves!r}: use vllm")
        else:
            unsupported = ("python", "tensor_parallel_size", "gpu_memory_utilization", "max_model_len")
            which, remedy = "a command of your own", "write it into the command"
            if not command:
                raise ValueError("the command is empty")
            if self.port is None and not any("{port}" in word for word in command):
                raise ValueError("the command must have {port} somewhere, or port must be set")
        for setting in unsupported:
            if getattr(self, setting) != type(self).model_fields[setting].default:
                raise ValueError(f"{which} does not take {setting}: {remedy}")
        if self.replicas > 1 and self.port is not None:
            raise ValueError(f"{self.replicas} replicas cannot listen at one port: leave port out")
        size = self.tensor_parallel_size * self.replicas
        if self.devices is not None and len(self.devices) < size:
            share = f" of {self.replicas} replicas" if self.replicas > 1 else ""
            raise ValueError(
                f"tensor_parallel_size is {self.tensor_parallel_size}{share}, and devices has {len(self.devices)} GPUs"
            )
        visible = visible_gpus()
        if visible and self.devices is not None and max(self.devices) >= len(visible):
            raise ValueError(f"devices has {max(self.devices)}, and CUDA_VISIBLE_DEVICES has {len(visible)} GPUs")
        return self


_UNSUPPORTED: dict[str, tuple[str, ...]] = {  # by command, the settings that it has no option for
    "vllm": (),
    "sglang": (),
    "transformers": ("offload", "tensor_parallel_size", "gpu_memory_utilization", "max_model_len"),
}
_SERVES = {"sglang": ("chat", "classify", "embed"), "transformers": ("chat",)}


class SentenceSettings(Settings):
    """A sentence-transformers model in this process."""

    init: str = Field(min_length=1, description="a sentence-transformers folder, or a Hugging Face id")
    device: Device = Field(default="auto", description="cpu, cuda:N, cuda (GPU 0), or auto: GPU 0 if there is one")
    batch_size: int = Field(default=64, ge=1, description="texts in one pass")
    max_tokens: int | None = Field(
        default=None, ge=1, description="longer texts are truncated; not set: the model's own limit"
    )

    @property
    def offers(self) -> frozenset[str]:
        """What it can do; see `Refers`."""
        return frozenset({"embed"})


# ---- models that share devices ---------------------------------------------------------------------------------------


def devices_of(name: str, models: Mapping[str, Chosen]) -> frozenset[str] | None:
    """Return the devices that a model may use; None for a server that may use any."""
    settings: Any = models[name].settings
    if isinstance(settings, ManagedSettings):
        own_command = isinstance(settings.command, list)
        used = settings.devices or ([] if own_command else range(settings.tensor_parallel_size))
        return frozenset(f"cuda:{number}" for number in used) or None
    passed = {name}
    while getattr(settings, "device", "") == "auto" and getattr(settings, "copy_of", None) in models.keys() - passed:
        passed.add(settings.copy_of)
        settings = models[settings.copy_of].settings  # a copy is where its origin is
    if not isinstance(settings, ModelSettings | SentenceSettings):
        return None
    return frozenset({{"auto": "cuda:0", "cuda": "cuda:0"}.get(settings.device, settings.device)})


def sharing(models: Mapping[str, Chosen]) -> dict[str, str]:
    """Return the models with `offload`, each with one name for all that share devices with each other.

    Models that share no device, directly or through others, work at the same time.
    """
    offloaded = [name for name, model in models.items() if getattr(model.settings, "offload", False)]
    groups: dict[str, tuple[list[str], frozenset[str] | None]] = {}
    for name in offloaded:
        members, devices = [name], devices_of(name, models)
        for first, (others, taken) in list(groups.items()):
            if devices is None or taken is None or devices & taken:
                del groups[first]
                members = [*others, *members]
                devices = None if devices is None or taken is None else devices | taken
        groups[members[0]] = members, devices
    return {name: first for first, (members, _) in groups.items() for name in members}


def offload_problems(models: Mapping[str, Chosen]) -> Iterator[Problem]:
    """Yield a problem for each model that would never be offloaded."""
    groups = sharing(models)
    for name, first in groups.items():
        if list(groups.values()).count(first) == 1:
            yield Problem(
                f"models.{name}.offload",
                "no other model with offload = true shares its device, so this one would never be offloaded: set it for"
                " the models that share the device too, such as the policy, or leave it out",
                "true",
            )
