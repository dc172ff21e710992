"""From `init` to a model that can be trained, and back to a folder. Nothing here reaches the network."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from rewardsmith.engines import ModelSettings
from rewardsmith.engines.embedded.loading import LoadedModel, load_model, save_folder
from rewardsmith.engines.embedded.tiny import TINY, make_tiny
from rewardsmith.errors import UserError

NAMES = list(TINY)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The library reads its environment when it is imported, so the environment is too late here.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "no-cache"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders named after their tiny models, written once."""
    root = tmp_path_factory.mktemp("saved")
    for name in ("tiny-llama", "tiny-gpt2", "tiny-qwen2"):
        save_folder(*make_tiny(name, seed=5), root / name)
    return root


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A folder of an untied model that a test may damage."""
    return Path(shutil.copytree(saved / "tiny-llama", tmp_path / "policy"))


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


# What comes back


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2", "tiny-qwen2"])
def test_a_folder_is_the_model_that_was_saved(saved: Path, name: str) -> None:
    built, loaded = get(name), get(saved / name)
    torch.testing.assert_close(loaded.model(tokens(built)).logits, built.model(tokens(built)).logits)
    assert loaded.stop_ids == built.stop_ids == (built.tokenizer.eos_token_id,)
    assert (loaded.dtype, loaded.device) == (torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("init", NAMES)
@pytest.mark.parametrize("head", ["language", "scalar"])
def test_the_model_is_ready_to_be_trained(init: str, head: str) -> None:
    model = get(init, head).model
    assert model.training
    assert model.config.use_cache is False
    assert all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    assert all(module.p == 0 for module in model.modules() if isinstance(module, nn.Dropout))


@pytest.mark.parametrize("source", ["built", "folder"])
def test_bfloat16_keeps_the_rotary_frequencies(source: str, saved: Path) -> None:
    loaded = get("tiny-llama" if source == "built" else saved / "tiny-llama", dtype="bfloat16")
    assert loaded.dtype == torch.bfloat16
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in loaded.model.buffers()} == {torch.float32}


def test_the_global_random_state_is_left_alone(saved: Path) -> None:
    before = torch.random.get_rng_state()
    get("tiny-llama", "scalar")
    get(saved / "tiny-llama", "scalar")  # whose score layer is not in the files
    assert torch.equal(torch.random.get_rng_state(), before)


def test_stop_ids_are_those_of_all_three_sources(folder: Path) -> None:
    edit(folder / "generation_config.json", lambda c: c.update(eos_token_id=[7, 9]))
    edit(folder / "config.json", lambda c: c.update(eos_token_id=8))
    assert get(folder).stop_ids == (2, 7, 8, 9)


def test_a_missing_pad_token_becomes_the_end_token(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", lambda c: c.pop("pad_token"))
    loaded = get(folder, "scalar")
    assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id


@pytest.mark.parametrize("head", ["language", "scalar"])
def test_loading_and_saving_are_silent_and_restore_what_they_silence(
    head: str, saved: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    loaded = get(saved / "tiny-llama", head)
    save_folder(loaded.model, loaded.tokenizer, tmp_path / "out")
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


# The scalar head


@pytest.mark.parametrize("source", ["built", "folder"])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2", "tiny-qwen2"])
def test_a_new_scorer_has_the_backbone_of_the_language_model_and_gives_zero(
    name: str, source: str, saved: Path
) -> None:
    language, scalar = get(name), get(name if source == "built" else saved / name, "scalar")
    ours = dict(scalar.model.base_model.named_parameters())
    assert all(torch.equal(ours[key], theirs) for key, theirs in language.model.base_model.named_parameters())
    assert scalar.model(tokens(scalar)).logits.tolist() == [[0.0]]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
def test_a_saved_scorer_keeps_its_head(name: str, tmp_path: Path) -> None:
    scalar = get(name, "scalar")
    nn.init.ones_(scalar.model.get_submodule("score").weight)
    save_folder(scalar.model, scalar.tokenizer, tmp_path)
    score = scalar.model(tokens(scalar)).logits
    again = get(tmp_path, "scalar")
    torch.testing.assert_close(again.model(tokens(scalar)).logits, score)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(theirs(tokens(scalar)).logits, score)
    assert theirs.config.num_labels == 1


def test_a_scorer_is_no_language_model(folder: Path) -> None:
    scalar = get("tiny-llama", "scalar")
    save_folder(scalar.model, scalar.tokenizer, folder)
    assert "would be random: lm_head.weight. Name a folder" in refusal(folder)


# Saving


def test_a_saved_folder_is_ordinary(tmp_path: Path, saved: Path) -> None:
    loaded = get(saved / "tiny-llama")
    folder = tmp_path / "deep" / "er"
    save_folder(loaded.model, loaded.tokenizer, folder)
    assert loaded.model.config.use_cache is False
    for file in sorted((saved / "tiny-llama").iterdir()):  # a round trip changes not a byte
        assert (folder / file.name).read_bytes() == file.read_bytes(), file.name
    assert AutoTokenizer.from_pretrained(folder).chat_template == loaded.tokenizer.chat_template
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert theirs.config.use_cache
    torch.testing.assert_close(theirs(tokens(loaded)).logits, loaded.model(tokens(loaded)).logits)


# Where `init` may point


def test_a_folder_is_found_from_here_and_from_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    for init in ("policy", "./policy", "~/policy"):
        assert get(init).stop_ids == (2,)


def test_what_cannot_be_found_is_named_with_the_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent.parent)
    (folder / "model.gguf").write_bytes(b"GGUF\x03\0\0\0" + bytes(64))
    (folder / "without-suffix").write_bytes(b"GGUF" + bytes(64))
    cases = {
        f"{folder.parent}/polcy": 'there is no such folder. Did you mean "policy"?',
        f"{folder.parent}/no/where": f"Nor is there a folder {folder.parent}/no",
        "~nobody-of-that-name/policy": "there is no such folder",
        f"{folder}/model.safetensors": "this is a file; name the folder",
        f"{folder}/model.gguf": "a GGUF file",
        f"{folder}/without-suffix": "a GGUF file",
        "tiny-lama": 'Did you mean "tiny-llama"?',
        f"{folder.parent.name}/polcy": 'Did you mean "policy"?',
        **dict.fromkeys(["owner/model", "a/b/c", "a b", "http://x/y", "a\0b", "x" * 5000], "could be downloaded"),
    }
    for init, words in cases.items():
        message = refusal(init)
        assert words in message, init
    for file in ("model.safetensors", "without-suffix"):
        (folder / file).unlink()
    assert "a GGUF file" in refusal(folder)


def test_a_downloaded_model_is_found_without_the_network(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache" / "models--owner--model"
    commit = "0" * 40
    shutil.copytree(saved / "tiny-llama", cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    assert get("owner/model").stop_ids == (2,)


# Devices


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named_with_the_remedy() -> None:
    message = refusal("tiny-llama", device="cuda")
    assert message.startswith('device = "cuda": ')
    assert 'Set device = "cpu", or "auto"' in message


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_auto_takes_the_gpu_in_bfloat16() -> None:
    loaded = get("tiny-llama", device="auto")
    assert (loaded.device.type, loaded.dtype) == ("cuda", torch.bfloat16)
    assert {p.device.type for p in loaded.model.parameters()} == {"cuda"}


# Broken folders


def delete_layer(weights: dict[str, Tensor]) -> None:
    for key in [key for key in weights if ".layers.1." in key]:
        del weights[key]


def config(**values: object) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "config.json", lambda table: table.update(values))


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def write(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content.encode("latin-1"))


UNKNOWN = 'model_type = "lama", which the installed transformers does not know. Did you mean "llama"? Code that comes '
MISSING = (
    "model.layers.1.input_layernorm.weight; model.layers.1.mlp.down_proj.weight; model.layers.1.mlp.gate_proj.weight"
)
SHAPES = "lm_head.weight is [104, 128], not [105, 128]; model.embed_tokens.weight is [104, 128], not [105, 128]"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "broken config": (cut("config.json", 100), "config.json cannot be read as JSON"),
    "bytes": (write("config.json", "\xff\xfe\x00"), "config.json cannot be read as JSON"),
    "deep": (write("config.json", "[" * 100_000), "config.json cannot be read as JSON"),
    "list": (write("config.json", "[]"), "config.json holds no JSON object"),
    "null": (config(model_type=None), "model_type = null"),
    "number": (config(model_type=3), "model_type = 3"),
    "unknown": (config(model_type="lama", auto_map={}), UNKNOWN + "with a model is never run. Update transformers"),
    "text for a number": (config(hidden_size="big"), "config.json does not describe a model of type llama"),
    "quantised": (config(quantization_config={"quant_method": "fp8"}), "the weights are quantised"),
    "adapter": (write("adapter_config.json", "{}"), "holds an adapter. Merge it"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
    "pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "the weights are pickled, and loading a pickle can run any code. Convert them",
    ),
    "truncated": (cut("model.safetensors", -100), "policy/model.safetensors is damaged"),
    "rubbish": (write("model.safetensors", "\xff" * 64), "policy/model.safetensors is damaged"),
    "empty": (cut("model.safetensors", 0), "policy/model.safetensors is damaged"),
    "no layer": (lambda f: edit_weights(f, delete_layer), f"would be random: {MISSING}; and 6 more"),
    "no head": (lambda f: edit_weights(f, lambda w: w.pop("lm_head.weight")), "would be random: lm_head.weight"),
    "shape": (config(vocab_size=105), SHAPES),
    "layers": (config(num_hidden_layers=1), "the files have more layers than config.json says: model.layers.1."),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer. Copy tokenizer*.json"),
    "broken tokenizer": (cut("tokenizer.json", 1), "the tokenizer in "),
    "no end": (
        lambda f: edit(f / "tokenizer_config.json", lambda c: c.pop("eos_token")),
        "the tokenizer has no end token, so no response could end. Set eos_token in",
    ),
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


@pytest.mark.parametrize("head", ["language", "scalar"])
@pytest.mark.parametrize("kind", ["bert", "t5", "bart", "vit"])
def test_models_that_do_not_write_are_refused(kind: str, head: str, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    assert f"a model of type {kind} does not generate text from left to right" in refusal(folder, head)


def test_an_architecture_without_a_scorer_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    assert "transformers has no sequence classifier of type mamba" in refusal(folder, "scalar")


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
    index.write_text("{}")
    assert "does not list files of its folder" in refusal(folder)
    index.write_text("{")
    assert "index.json cannot be read as JSON" in refusal(folder)
