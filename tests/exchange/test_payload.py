import torch

from fedretina.exchange.payload import tensors_bytes, tensors_digest


def test_digest_sees_keys_types_shapes_and_bits():
    base = {"a": torch.zeros(4), "b": torch.ones(2)}
    same = {"b": torch.ones(2), "a": torch.zeros(4)}
    assert tensors_digest(base) == tensors_digest(same)
    others = [
        {"a": torch.zeros(4), "c": torch.ones(2)},
        {"a": torch.zeros(2, 2), "b": torch.ones(2)},
        {"a": torch.zeros(4, dtype=torch.float64), "b": torch.ones(2)},
        {"a": torch.tensor([0.0, 0.0, 0.0, -0.0]), "b": torch.ones(2)},
    ]
    assert len({tensors_digest(state) for state in [base, *others]}) == 5


def test_digest_does_not_depend_on_memory_layout():
    image = torch.arange(24.0).reshape(1, 2, 3, 4)
    assert tensors_digest({"a": image}) == tensors_digest({"a": image.contiguous(memory_format=torch.channels_last)})


def test_bytes():
    assert tensors_bytes({"a": torch.zeros(3), "n": torch.tensor(1)}) == 3 * 4 + 8
    assert tensors_bytes({}) == 0
