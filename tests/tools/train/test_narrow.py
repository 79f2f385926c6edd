"""Narrower MLPs: the neurons that stay take over from those that leave, by least squares."""

import torch

from minispec.model import MLP, Config
from minispec_tools.train.narrow import narrow, survivors


def numbers(*shape, seed=0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_survivors_weights_are_least_squares():
    a, w = numbers(200, 150), numbers(150, 5, seed=1)
    kept, said = survivors(a.T @ a, w, 40)
    assert len(kept) == len(kept.unique()) == 40 and said.shape == (40, 5)
    torch.testing.assert_close(said, torch.linalg.lstsq(a[:, kept], a @ w).solution, rtol=0, atol=1e-2)
    error = (a[:, kept] @ said - a @ w).norm()
    assert error < 0.9 * (a[:, kept] @ w[kept] - a @ w).norm()  # smaller than with their old weights
    loudest = (a.norm(dim=0) * w.norm(dim=1)).topk(40).indices
    refitted = a[:, loudest] @ torch.linalg.lstsq(a[:, loudest], a @ w).solution
    assert error < (refitted - a @ w).norm()  # smaller than with the neurons of the largest outputs


def test_an_mlp_with_silent_neurons_and_biases():
    heads = dict(num_heads=1, num_kv_heads=1, head_dim=6)
    config = Config(8, hidden_size=6, intermediate_size=20, num_layers=1, **heads, max_length=8, mlp_bias=True)
    mlp, x = MLP(config).double(), numbers(400, 6, seed=3)
    with torch.no_grad():
        for parameter in mlp.parameters():
            parameter.copy_(numbers(*parameter.shape, seed=parameter.numel()))
        mlp.down_proj.weight[:, [0, 3, 7, 19]] = 0
    [state] = narrow([mlp], 16, lambda: mlp(x))
    small = MLP(Config(**{**vars(config), "intermediate_size": 16})).double()
    small.load_state_dict(state)
    assert (small(x) - mlp(x)).norm() < 0.01 * mlp(x).norm()
    assert not mlp.down_proj._forward_pre_hooks  # the forward hooks are gone
