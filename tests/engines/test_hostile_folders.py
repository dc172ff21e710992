"""Model folders from strangers: chat templates that do not end, and sizes that no model has, are refused in time."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.engines.embedded import chat_template
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.loading import save_folder
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.types import Message, Prompt

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
REST = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_folder(*make_tiny("tiny-llama", seed=0), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(chat_template, "PROBE_SECONDS", 1)
    monkeypatch.setattr(chat_template, "RENDER_SECONDS", 1.0)
    chat_template._probe.cache_clear()
    yield
    chat_template._probe.cache_clear()


def open_engine(folder: Path) -> EmbeddedEngine:
    return EmbeddedEngine.open(ModelSettings(init=str(folder), device="cpu"), name="policy")


def with_template(folder: Path, template: str) -> Path:
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("template", "why"),
    [
        (LOOPS + REST, "takes longer"),
        ("{{ 9 ** (9 ** 9) }}" + REST, "takes longer"),  # computed while it is compiled
        ("{{ 'a' * 10 ** 10 }}" + REST, "GiB"),
        ("{% for i in range(2000) %}{{ 'a' * 1000 }}{% endfor %}" + REST, "characters"),
        ("{# " + "x" * 300_000 + " #}" + REST, "200,000 characters"),
    ],
)
def test_a_chat_template_without_an_end_is_refused_when_the_model_is_loaded(
    folder: Path, template: str, why: str
) -> None:
    begun = time.monotonic()
    with pytest.raises(UserError, match="chat template") as caught:
        open_engine(with_template(folder, template))
    assert why in str(caught.value)
    assert str(folder) in str(caught.value)
    assert time.monotonic() - begun < 30


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("deed", [LOOPS, "{% for i in range(2000) %}{{ 'a' * 1000 }}{% endfor %}"])
def test_a_chat_template_that_waits_for_a_certain_prompt_is_ended(folder: Path, deed: str) -> None:
    engine = open_engine(with_template(folder, "{% if 'now' in messages[0].content %}" + deed + "{% endif %}" + REST))
    engine.encode(Prompt("p1", [Message("user", "hello")]))
    with pytest.raises(UserError, match=r"policy cannot render prompt 'p2': it (took|rendered)"):
        engine.encode(Prompt("p2", [Message("user", "now")]))
    with pytest.raises(Exception, match=r"it (took|rendered)"):
        engine.encode_conversation([Message("user", "now"), Message("assistant", "?")])
    for _ in range(3):  # nothing is left behind
        engine.encode(Prompt("p3", [Message("user", "hello")]))
        time.sleep(0.3)


def test_a_chat_template_that_refuses_is_reported_with_the_prompt(folder: Path) -> None:
    engine = open_engine(with_template(folder, "{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(UserError, match="roles must alternate"):
        engine.encode(Prompt("p", [Message("user", "hello")]))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"num_hidden_layers": 1_000_000}, "num_hidden_layers = 1000000"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"layer_types": ["full_attention"] * 1_000_000}, "layer_types"),
        ({"text_config": {"num_hidden_layers": 1e9}}, "num_hidden_layers"),
        ({"vocab_size": 1_000_000, "hidden_size": 65_536}, "parameters"),  # each may be, the files are too small
    ],
)
def test_sizes_that_no_model_has_are_refused_before_anything_is_allocated(
    folder: Path, settings: dict[str, Any], why: str
) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    begun = time.monotonic()
    with pytest.raises(UserError, match="init = ") as caught:
        open_engine(folder)
    assert why in str(caught.value)
    assert time.monotonic() - begun < 20


def test_hundreds_of_thousands_of_added_tokens_are_refused(folder: Path) -> None:
    (folder / "added_tokens.json").write_text(json.dumps({f"<extra_{i}>": 1000 + i for i in range(300_000)}))
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"300,000 .*more than 200,000"):
        open_engine(folder)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("file", ["tokenizer.json", "config.json"])
def test_files_of_gigabytes_are_not_read(folder: Path, file: str) -> None:
    os.truncate(folder / file, 3 << 30)  # sparse
    with pytest.raises(UserError, match="bytes"):
        open_engine(folder)
