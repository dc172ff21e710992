"""From `init` to a model that can be trained, and back to a folder. Nothing here reaches the network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rewardsmith.engines import ModelSettings
from rewardsmith.engines.embedded.loading import LoadedModel, load_model, save_folder
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.errors import UserError


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The library reads its environment when it is imported, so the environment is too late here.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "no-cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of an untied model that a test may damage."""
    save_folder(*make_tiny("tiny-llama", seed=5), tmp_path / "policy")
    return tmp_path / "policy"


def get(init: object, head: Any = "language", **settings: Any) -> LoadedModel:
    loaded = load_model(ModelSettings(init=str(init), head=head, **{"device": "cpu", **settings}), seed=5)
    loaded.model.set_attn_implementation("eager")
    return loaded


def refusal(init: object, head: str = "language", **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        get(init, head, **settings)
    return str(caught.value)


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    table = json.loads(file.read_text())
    change(table)
    file.write_text(json.dumps(table))


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def tokens(loaded: LoadedModel) -> Tensor:
    return torch.tensor([loaded.tokenizer.encode("<|user|>7+5-3?<|assistant|>9")])


@pytest.mark.parametrize("init", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize("head", ["language", "scalar"])
def test_the_model_is_ready_to_be_trained(init: str, head: str) -> None:
    model = get(init, head).model
    assert model.training
    assert model.config.use_cache is False
    assert all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    assert all(module.p == 0 for module in model.modules() if isinstance(module, nn.Dropout))


def test_what_cannot_be_found_is_named_with_the_remedy(folder: Path) -> None:
    cases = {
        f"{folder.parent}/no/where": "there is no such folder",
        "~nobody-of-that-name/policy": "there is no such folder",
        f"{folder}/model.safetensors": "this is a file; name a Hugging Face folder",
        "tiny-lama": 'Did you mean "tiny-llama"?',
        **dict.fromkeys(["owner/model", "a/b/c", "a b", "http://x/y", "a\0b", "x" * 5000], "could be downloaded"),
    }
    for init, words in cases.items():
        assert words in refusal(init), init


def delete_layer(weights: dict[str, Tensor]) -> None:
    for key in [key for key in weights if ".layers.1." in key]:
        del weights[key]


def config(**values: object) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "config.json", lambda table: table.update(values))


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def write(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content.encode("latin-1"))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "broken config": (cut("config.json", 100), "config.json cannot be read as JSON"),
    "deep": (write("config.json", "[" * 100_000), "config.json cannot be read as JSON"),
    "unknown": (config(model_type="lama", auto_map={}), 'Did you mean "llama"? Code that comes with a model is never'),
    "text for a number": (config(hidden_size="big"), "config.json does not describe a model of type llama"),
    "quantised": (config(quantization_config={"quant_method": "fp8"}), "the weights are quantised"),
    "adapter": (write("adapter_config.json", "{}"), "holds an adapter"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
    "pickle": (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "the weights are pickled"),
    "truncated": (cut("model.safetensors", -100), "policy/model.safetensors is damaged"),
    "no layer": (lambda f: edit_weights(f, delete_layer), "would be random: model.layers.1."),
    "shape": (config(vocab_size=105), "lm_head.weight is [104, 128], not [105, 128]"),
    "layers": (config(num_hidden_layers=1), "the files have more layers than config.json says: model.layers.1."),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer. Copy tokenizer*.json"),
    "broken tokenizer": (cut("tokenizer.json", 1), "the tokenizer in "),
    "no end": (lambda f: edit(f / "tokenizer_config.json", lambda c: c.pop("eos_token")), "Set eos_token in"),
    "encoder": (write("config.json", '{"model_type": "bert"}'), "type bert does not generate text from left to right"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_folder_is_refused(
    damage: Callable[[Path], object], message: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    damage(folder)
    refused = refusal(folder)
    assert refused.startswith(f'init = "{folder}": ')
    assert message in refused
    assert capfd.readouterr() == ("", "")


def test_a_scorer_of_five_numbers_or_with_a_layer_less_is_refused(folder: Path) -> None:
    edit_weights(folder, lambda w: w.update({"score.weight": torch.zeros(5, 128)}))
    assert "score.weight is [5, 128], not [1, 128]" in refusal(folder, "scalar")
    edit_weights(folder, lambda w: (w.pop("score.weight"), delete_layer(w)))
    assert "would be random: model.layers.1." in refusal(folder, "scalar")


def test_the_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    make_tiny("tiny-llama-bytes", seed=0)[1].save_pretrained(folder)
    assert "the tokenizer has a token 263, and the model knows only 104" in refusal(folder)


def test_shards_are_read_and_checked(folder: Path) -> None:
    model, _ = make_tiny("tiny-llama", seed=5)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="500KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    loaded = get(folder)
    torch.testing.assert_close(loaded.model(tokens(loaded)).logits, model(tokens(loaded)).logits)

    cut(shards[1].name, -1)(folder)
    assert f"{shards[1]} is damaged" in refusal(folder)
    shards[1].unlink()
    assert f"{shards[1]} is missing" in refusal(folder)
    index = folder / "model.safetensors.index.json"
    edit(index, lambda c: c["weight_map"].update({"lm_head.weight": "../elsewhere.safetensors"}))
    assert "does not list files of its folder" in refusal(folder)
