"""The engine as a whole: texts, critics, copies, sleep, folders."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from rewardsmith import Message, Prompt
from rewardsmith.engines import ModelSettings, OptimizerSettings
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.tiny import TINY
from rewardsmith.engines.protocol import Outputs, Sampling
from rewardsmith.errors import UserError

from .running import answer, ask, hf_logprobs, open_engine, random_rows, shared_engine

NAMES = list(TINY)
ROWS = random_rows(0, [(4, 6), (20, 5), (4, 1), (3, 0)])


def likelihood(outputs: Outputs) -> Tensor:
    return -outputs.logprobs_bT.sum()


def weights(engine: EmbeddedEngine) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert set(a) == set(b)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_prompts_and_answers_are_encoded_as_the_chat_template_says() -> None:
    engine = shared_engine("tiny-llama")
    prompt = Prompt("p", [Message("system", "be brief"), Message("user", "7?")])
    assert engine.tokenizer.decode(engine.encode(prompt)) == "<|system|>be brief<|user|>7?<|assistant|>"
    answered = engine.encode_response("12")
    assert engine.encode(prompt).dtype == answered.dtype == np.int32
    assert engine.tokenizer.decode(answered) == "12<|eos|>"
    assert engine.encode_response("").tolist() == [engine.tokenizer.eos_token_id]


def test_a_template_that_refuses_names_the_prompt() -> None:
    engine = open_engine("tiny-llama")
    engine.tokenizer = copy.deepcopy(engine.tokenizer)
    for template, message in (("{{ raise_exception('no system') }}", "no system"), ("{{ 1 / 0 }}", "zero"), ("{%", "")):
        engine.tokenizer.chat_template = template
        with pytest.raises(UserError, match=f"chat template of model cannot render prompt 'prompt 7'.*{message}"):
            engine.encode(ask("7"))
    engine.tokenizer.chat_template = ""
    with pytest.raises(UserError):
        answer(engine, ["7"], Sampling(max_tokens=2))
    engine.tokenizer.chat_template = None
    with pytest.raises(UserError, match="chat template"):
        engine.encode(ask("7"))


def test_a_prompt_is_rendered_and_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine("tiny-llama")
    rendered: list[str] = []
    render = engine._render

    def counting(messages, **settings):
        rendered.append(messages[0].content)
        return render(messages, **settings)

    monkeypatch.setattr(engine, "_render", counting)
    first = engine.encode(ask("7"))
    assert engine.encode(ask("7")) is first
    assert not first.flags.writeable
    answer(engine, ["7", "8"], Sampling(max_tokens=2))
    assert rendered == ["7", "8"]


def critic(name: str) -> EmbeddedEngine:
    """Return a model with a scalar head that says something."""
    engine = EmbeddedEngine.open(ModelSettings(init=name, head="scalar", device="cpu"))
    assert not engine.values(ROWS).any()
    torch.nn.init.normal_(engine.model.score.weight, generator=torch.Generator().manual_seed(1))
    return engine


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_that_of_the_tokens_before(name: str) -> None:
    engine = critic(name)
    reference = copy.deepcopy(engine.model).eval()
    reference.set_attn_implementation("eager")
    for row, values in zip(ROWS, engine.values(ROWS), strict=True):
        assert not values[len(row.response) :].any()
        for t in range(len(row.response)):  # transformers gives the score of a whole text
            tokens = torch.from_numpy(np.concatenate([row.prompt, row.response[:t]]).astype(np.int64))[None]
            with torch.no_grad():
                torch.testing.assert_close(values[t], reference(tokens).logits[0, 0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sleep_changes_nothing_and_a_sleeper_does_nothing(dtype: str, tmp_path: Path) -> None:
    engine, awake = (open_engine("tiny-llama", dtype=dtype) for _ in range(2))
    for one in (engine, awake):
        one.learn_with(OptimizerSettings(lr=1e-2))
        one.update(ROWS, likelihood, lr=1e-2)
    engine.sleep()
    for use in (
        lambda: engine.logprobs(ROWS),
        lambda: engine.update(ROWS, likelihood, lr=1e-2),
        lambda: answer(engine, ["7"], Sampling(max_tokens=2)),
    ):
        with pytest.raises(RuntimeError, match="model is offloaded"):
            use()
    engine.save(tmp_path)
    engine.wake()
    assert_equal(weights(engine), weights(awake))
    assert torch.equal(engine.logprobs(ROWS), awake.logprobs(ROWS))
    for one in (engine, awake):
        one.update(ROWS, likelihood, lr=1e-2)
    assert_equal(weights(engine), weights(awake))


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_is_one_of_transformers(name: str, tmp_path: Path) -> None:
    engine = open_engine(name)
    engine.learn_with(OptimizerSettings(lr=1e-3))
    engine.update(ROWS, likelihood, lr=1e-3)
    engine.save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert model.config.use_cache
    for row, found in zip(ROWS[:3], engine.logprobs(ROWS), strict=False):
        with torch.no_grad():
            torch.testing.assert_close(found[: len(row.response)], hf_logprobs(model, row), atol=2e-5, rtol=1e-5)
    ids = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        [{"role": "user", "content": "7"}], add_generation_prompt=True, return_dict=False
    )
    assert ids == engine.encode(ask("7")).tolist()
    again = EmbeddedEngine.open(ModelSettings(init=str(tmp_path), device="cpu"))
    assert torch.equal(again.logprobs(ROWS), engine.logprobs(ROWS))
    other = open_engine(name)
    other.load(tmp_path)
    assert_equal(weights(other), weights(engine))


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    """Transformers would fill them with random numbers."""
    engine = open_engine("tiny-llama")
    engine.save(tmp_path)
    file, before = tmp_path / "model.safetensors", weights(engine)
    saved = load_file(file)
    save_file({k: v for k, v in saved.items() if k != "lm_head.weight"}, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match="see lm_head"):
        engine.load(tmp_path)
    save_file(saved | {"model.other": torch.ones(1)}, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"see model\.other"):
        engine.load(tmp_path)
    assert_equal(weights(engine), before)
