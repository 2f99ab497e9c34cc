"""TinyViT: the original network, window by window, and the real weights to the last name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from experiments.tasks.tinyvit import TinyViT, WindowAttention, load

SHARED = Path(__file__).parents[2].parent / "shared/data"
WEIGHTS = SHARED / "tinyvit5m_mobilesam"
SMALL = {"embed_dims": [8, 8, 12, 16], "depths": [1, 1, 1, 1], "num_heads": [1, 2, 3, 2], "window_sizes": [7, 3, 5, 3]}
SMALL |= {"last_downsample_stride": 1}

needs_weights = pytest.mark.skipif(not WEIGHTS.is_dir(), reason="needs shared/data/tinyvit5m_mobilesam")


def small():
    return TinyViT(widths=(8, 8, 12, 16), depths=(1, 1, 1, 1), heads=(1, 2, 3, 2), windows=(7, 3, 5, 3))


@pytest.fixture
def folder(tmp_path):
    """A small network with weights of its own, as the original code would save it."""
    torch.manual_seed(0)
    model = small()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2.0)
        if isinstance(layer, WindowAttention):
            nn.init.normal_(layer.attention_biases)
    weights = model.state_dict() | {"head.weight": torch.zeros(5, 16), "neck.0.weight": torch.zeros(2)}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return tmp_path


@torch.no_grad()
def padded(attention, x):
    """Attention in a whole window, with zeros beyond the edge: the original's way."""
    n, height, width, dim = x.shape
    w, heads = attention.window, attention.heads
    tokens = F.pad(x, (0, 0, 0, w - width, 0, w - height)).reshape(n, w * w, dim)
    q, k, v = attention.qkv(attention.norm(tokens)).view(n, w * w, heads, -1).split([dim // heads] * 3, 3)
    places = [(i, j) for i in range(w) for j in range(w)]
    offsets = {}
    index = [[offsets.setdefault((abs(a - c), abs(b - d)), len(offsets)) for c, d in places] for a, b in places]
    bias = attention.attention_biases[:, torch.tensor(index)]
    logits = torch.einsum("nihc,njhc->nhij", q, k) * (dim // heads) ** -0.5 + bias
    out = torch.einsum("nhij,njhc->nihc", logits.softmax(-1), v).reshape(n, w * w, dim)
    return attention.proj(out).view(n, w, w, dim)[:, :height, :width]


@pytest.mark.parametrize("size", [(4, 4), (1, 3)])
def test_one_zero_stands_for_all_of_a_windows_padding(size):
    torch.manual_seed(1)
    attention = WindowAttention(6, 3, 4)
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(5, *size, 6)
    assert torch.allclose(attention(x), padded(attention, x), rtol=1e-3, atol=1e-5)


def test_windows_are_cut_from_the_upper_left(folder):
    block = load(folder).layers[1].blocks[0]
    x = torch.randn(2, 7, 8, 8)  # windows of 3: two whole ones and a rest of one or two
    with torch.no_grad():
        found = block._attend(x)
    for top in (0, 3, 6):
        for left in (0, 3, 6):
            window = x[:, top : top + 3, left : left + 3]
            expected = padded(block.attn, window)
            assert torch.allclose(found[:, top : top + 3, left : left + 3], expected, rtol=1e-3, atol=1e-5)


def test_a_folder_gives_the_network_it_holds(folder):
    model = load(folder)
    weights = load_file(folder / "model.safetensors")
    plain = small().eval()
    plain.load_state_dict({name: t for name, t in weights.items() if not name.startswith(("head", "neck"))})
    x = torch.randn(2, 3, 32, 48)
    with torch.no_grad():
        assert model(x).shape == (2, 12 + 16 + 16)
        assert torch.allclose(model(x), plain(x), rtol=1e-4, atol=1e-4)
    assert not model.training
    assert not model.state_dict().keys() & {"head.weight", "neck.0.weight"}
    assert not [name for name, _ in model.named_buffers() if name in model.state_dict()]


@needs_weights
def test_the_real_weights_load_by_every_name():
    model = load(WEIGHTS)
    assert sum(p.numel() for p in model.parameters()) == 5_066_196
    assert model.features == 800
