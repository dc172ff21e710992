"""Tensors in one block of host memory: no more bytes than they have, and the same bits come back."""

from itertools import pairwise

import torch

from rewardsmith.engines.embedded.host_memory import HostBlock, HostOffload
from rewardsmith.engines.protocol import Sampling

from .running import answer, open_engine, tokens_of


def make() -> list[torch.Tensor]:
    weight = torch.nn.Parameter(torch.randn(70, 33))
    codes = torch.nn.Parameter(torch.arange(9, dtype=torch.int8), requires_grad=False)
    return [weight, weight, codes, torch.randn(5, dtype=torch.bfloat16), torch.tensor(3.0), torch.empty(0)]


def test_a_block_is_as_large_as_its_tensors() -> None:
    forms = {i: (tensor.shape, tensor.dtype) for i, tensor in enumerate(make())}
    block = HostBlock(forms, lock=False)
    whole = {tensor.untyped_storage().data_ptr() for tensor in block.tensors.values() if tensor.numel()}
    assert len(whole) == 1
    assert block.tensors[0].untyped_storage().nbytes() == HostBlock.size(forms.values()) == 2 * 9472 + 3 * 256
    placed = [tensor for tensor in block.tensors.values() if tensor.numel()]
    assert all(a.data_ptr() + a.nbytes <= b.data_ptr() for a, b in pairwise(placed))


def test_tensors_keep_their_identity_and_their_bits() -> None:
    offload, tensors = HostOffload(), make()
    before = [tensor.detach().clone() for tensor in tensors]
    for _ in range(2):
        offload.to_host(tensors)
        assert tensors[0].data_ptr() == offload._block.tensors[id(tensors[0])].data_ptr()
        offload.to_device(tensors, torch.device("cpu"))
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(tensors, before, strict=True))
    assert tensors[0].requires_grad


def test_what_is_unchanged_is_not_copied_and_more_tensors_get_a_new_block() -> None:
    offload, tensors = HostOffload(), make()
    offload.to_host(tensors)
    offload.to_device(tensors, torch.device("cpu"))
    with torch.no_grad():
        tensors[0].add_(1)
    changed, block = tensors[0].detach().clone(), offload._block
    offload.to_host(tensors, unchanged=True)
    assert not torch.equal(tensors[0], changed)  # what was said to be unchanged came back as it was
    assert offload._block is block
    moments = torch.ones(4)
    offload.to_device(tensors, torch.device("cpu"))
    offload.to_host([*tensors, moments], unchanged=True)
    assert offload._block is not block
    assert torch.equal(moments, torch.ones(4))


def test_weights_that_were_joined_are_held_by_the_model_alone_until_the_next_pass() -> None:
    engine = open_engine("tiny-llama")
    decoder = engine._decoder
    assert decoder is not None
    first = tokens_of(answer(engine, ["1+2"], Sampling(max_tokens=5)))
    assert decoder._layers[0]._qkv.weight is not None
    decoder.release()
    assert all(part.weight is None for layer in decoder._layers for part in (layer._qkv, layer._gate_up))
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.data = parameter.data.clone()  # as `wake` does
    assert tokens_of(answer(engine, ["1+2"], Sampling(max_tokens=5))) == first
    joined = decoder._layers[0]._qkv.weight
    assert joined is not None
    assert joined.data_ptr() == engine.model.model.layers[0].self_attn.q_proj.weight.data_ptr()
