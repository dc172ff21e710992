"""From `init` to a model that can be trained, and back to a folder. Nothing here reaches the network."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from rewardsmith.engines import ModelSettings
from rewardsmith.engines.embedded.chat_template import require_chat_template
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


def test_dropout_is_off_for_folders_too(saved: Path) -> None:
    modules = get(saved / "tiny-gpt2").model.modules()
    assert {module.p for module in modules if isinstance(module, nn.Dropout)} == {0.0}


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


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_scorer_has_the_backbone_of_the_language_model_and_says_zero(name: str) -> None:
    language, scalar = get(name), get(name, "scalar")
    ours = dict(scalar.model.base_model.named_parameters())
    for key, theirs in language.model.base_model.named_parameters():
        assert torch.equal(ours[key], theirs)
    assert scalar.model(tokens(scalar)).logits.tolist() == [[0.0]]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2", "tiny-qwen2"])
def test_a_language_model_becomes_a_scorer_that_says_zero(name: str, saved: Path) -> None:
    scalar = get(saved / name, "scalar")
    assert scalar.model(tokens(scalar)).logits.tolist() == [[0.0]]
    expected = dict(get(name).model.base_model.named_parameters())
    assert all(torch.equal(expected[key], value) for key, value in scalar.model.base_model.named_parameters())


@pytest.mark.parametrize("name", NAMES)
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


def test_a_missing_folder_is_answered_with_its_sibling(folder: Path) -> None:
    assert refusal(folder.parent / "polcy").endswith('polcy": there is no such folder. Did you mean "policy"?')
    assert f"Nor is there a folder {folder.parent}/no" in refusal(folder.parent / "no" / "where")


def test_a_folder_is_found_from_here_and_from_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    for init in ("policy", "./policy", "~/policy"):
        assert get(init).stop_ids == (2,)


def test_a_home_that_nobody_has_is_no_folder() -> None:
    assert "there is no such folder" in refusal("~nobody-of-that-name/policy")


def test_a_file_is_not_a_folder(folder: Path) -> None:
    assert "this is a file; name the folder" in refusal(folder / "model.safetensors")


# ---- GGUF files ------------------------------------------------------------------------------------------------------


def converted_by(message: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run the Python command of an advice up to the calls of transformers, and return these calls."""
    calls: list[Any] = []

    class Saving:
        def __init__(self, kind: str, *args: Any, **kwargs: Any) -> None:
            dense = kwargs.pop("quantization_config", None)
            assert dense is None or dense.dequantize
            calls.append((kind, *args, kwargs))

        def save_pretrained(self, folder: str) -> None:
            calls.append(folder)

    for kind in ("AutoModelForCausalLM", "AutoTokenizer"):
        monkeypatch.setattr(getattr(transformers, kind), "from_pretrained", partial(Saving, kind))
    install, command = re.findall(r"^  (.+)$", message, flags=re.M)
    assert install == "pip install gguf"
    python, option, code = shlex.split(command)
    assert (python, option) == ("python", "-c")
    exec(compile(code, "advice", "exec"), {})
    return calls


@pytest.mark.parametrize("name", ["judge.Q4_K_M.gguf", 'it\'s "odd" $HOME.GGUF', "without-suffix"])
def test_a_gguf_file_gets_commands_that_make_a_folder_of_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(b"GGUF\x03\0\0\0" + bytes(64))
    message = refusal(tmp_path / name)
    target = json.loads(message.rpartition("init = ")[2])
    loaded = {"gguf_file": name}
    assert converted_by(message, monkeypatch) == [
        ("AutoModelForCausalLM", str(tmp_path), loaded), target, ("AutoTokenizer", str(tmp_path), loaded), target,
    ]  # fmt: skip
    assert target != str(tmp_path / name)
    assert Path(target).parent == tmp_path


@pytest.mark.parametrize("with_config", [False, True])
def test_a_folder_with_nothing_but_a_gguf_file_gets_the_same_advice(with_config: bool, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    if not with_config:
        (folder / "config.json").unlink()
    (folder / "b.gguf").write_bytes(b"GGUF")
    (folder / "a.gguf").write_bytes(b"GGUF")
    message = refusal(folder)
    assert 'gguf_file="a.gguf"' in message
    assert json.loads(message.rpartition("init = ")[2]) == str(folder / "a")


@pytest.mark.parametrize("init", ["a/b/c", "a b", "owner/", "-x/y", "http://x/y", "a\0b", "a\0/b", "x" * 5000 + "/y/z"])
def test_what_is_neither_a_folder_nor_an_id_is_refused(init: str) -> None:
    assert "neither a folder here nor a Hugging Face id" in refusal(init)


def test_a_misspelt_shape_is_answered_with_the_nearest() -> None:
    assert 'Did you mean "tiny-llama"?' in refusal("tiny-lama")


@pytest.mark.parametrize("init", ["gpt3", "owner/model"])
def test_an_id_that_cannot_be_downloaded_says_both_remedies(init: str) -> None:
    message = refusal(init)
    for part in (f'init = "{init}"', "could be downloaded", "network", "HF_HUB_OFFLINE", "name the folder"):
        assert part in message


def test_an_id_that_was_meant_as_a_folder_gets_the_sibling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent.parent)
    assert 'Did you mean "policy"?' in refusal(f"{folder.parent.name}/polcy")


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


def test_a_chat_template_is_asked_for_only_where_it_is_needed(folder: Path) -> None:
    require_chat_template(get(folder).tokenizer, "policy")
    (folder / "chat_template.jinja").unlink()
    tokenizer = get(folder).tokenizer
    with pytest.raises(UserError, match=r'init = "policy": the tokenizer has no chat template.*chat_template\.jinja'):
        require_chat_template(tokenizer, "policy")
