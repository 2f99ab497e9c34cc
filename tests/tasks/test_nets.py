"""The networks for images: the transformer of the first release to the bit, any size, and pixels made ready."""

import numpy as np
import pytest
import torch
from torch import nn

from tardygrad import streams
from tardygrad.errors import Invalid
from tardygrad.tasks.data.images import Normalize, crop_and_flip
from tardygrad.tasks.nets import CNN, Block, ViT


class Old(nn.Module):
    """The transformer for images of 8 × 8 pixels, as it was."""

    def __init__(self, *, dim, depth, heads, patch):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch * patch, dim)
        self.positions = nn.Parameter(0.5 * torch.randn((8 // patch) ** 2, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, images):
        n, p = images.shape[0], self.patch
        patches = images.view(n, 8 // p, p, 8 // p, p).transpose(2, 3).reshape(n, -1, p * p)
        x = self.blocks(self.embed(patches) + self.positions)
        return self.head(self.norm(x).mean(1))


@pytest.mark.parametrize("patch", [2, 4])
def test_the_transformer_for_digits_is_what_it_was_to_the_bit(patch):
    settings = {"dim": 16, "depth": 2, "heads": 4, "patch": patch}
    torch.manual_seed(0)
    old = Old(**settings)
    torch.manual_seed(0)
    new = ViT(**settings)
    assert [name for name, _ in old.named_parameters()] == [name for name, _ in new.named_parameters()]
    images = torch.randn(6, 8, 8)
    for module in (old, new):
        nn.functional.cross_entropy(module(images), torch.arange(6)).backward()
    assert torch.equal(old(images), new(images))
    assert torch.equal(new(images), new(images[:, None]))
    for a, b in zip(old.parameters(), new.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a.grad, b.grad)


def test_a_patch_holds_all_channels_of_its_place():
    module = ViT(dim=8, depth=1, heads=2, patch=2, shape=(3, 4, 6), classes=4)
    seen = []
    module.embed.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    image = torch.arange(72.0).view(1, 3, 4, 6)
    assert module(image).shape == (1, 4)
    assert seen[0].shape == (1, 6, 12)
    assert torch.equal(seen[0][0, 1], image[0, :, :2, 2:4].flatten())
    assert torch.equal(seen[0][0, 3], image[0, :, 2:, :2].flatten())


def test_pixels_are_normalised_by_constants_that_no_state_dict_has():
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    layer = Normalize(mean, std)
    pixels = torch.randint(256, (2, 3, 4, 4), dtype=torch.uint8)
    expected = (pixels.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert layer(pixels).dtype == torch.float32
    assert torch.allclose(layer(pixels), expected.float(), atol=1e-5)
    assert not layer.state_dict()
    module = CNN(dim=4, channels=3, normalize=layer)
    assert torch.equal(module(pixels), module.head(module.layers(layer(pixels))))


def test_a_crop_is_a_window_over_a_black_border_and_half_are_mirrored():
    images = torch.randint(1, 256, (200, 2, 5, 7), dtype=torch.uint8)
    moved = crop_and_flip(images, streams.generator(0, "test"))
    assert moved.dtype == torch.uint8
    assert moved.shape == images.shape
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    mirrored, shifts = 0, set()
    for one, image in zip(padded, moved, strict=True):
        found = [
            (y, x, flip)
            for y in range(9)
            for x in range(9)
            for flip in (False, True)
            if torch.equal(one[:, y : y + 5, x : x + 7].flip(2) if flip else one[:, y : y + 5, x : x + 7], image)
        ]
        assert found
        mirrored += found[0][2]
        shifts.add(found[0][:2])
    assert 70 < mirrored < 130
    assert len(shifts) > 60
    assert torch.equal(crop_and_flip(images, streams.generator(0, "test")), moved)
    assert not torch.equal(crop_and_flip(images, np.random.default_rng(1)), moved)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ViT(dim=10, depth=1, heads=4, patch=2), "`heads` must divide `dim` (10), got 4."),
        (
            lambda: ViT(dim=8, depth=1, heads=4, patch=4, shape=(1, 8, 6)),
            "`patch` must divide the images' side (8 and 6 pixels), got 4. Use 2.",
        ),
    ],
)
def test_errors_say_the_rule_the_value_and_the_fix(call, text):
    with pytest.raises(Invalid) as caught:
        call()
    assert str(caught.value) == text
