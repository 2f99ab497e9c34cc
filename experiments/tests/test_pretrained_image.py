"""Pretrained networks for images: the head on cached features, the last blocks, or all, and nothing else moves."""

import json
import math
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from experiments.tasks import pretrained_image
from experiments.tasks.pretrained_image import Prepared, backbone, cifar10
from experiments.tests.test_tinyvit import folder as tiny  # noqa: F401
from tardygrad.core.algorithm import work
from tardygrad.core.messages import Job
from tardygrad.errors import Invalid
from tardygrad.methods.sgdclip import sgdclip
from tardygrad.tasks.data.hub import find_model
from tests.tasks.picture_files import RGB, pictures, striped, write_binary

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

METHOD = sgdclip(local_lr=0.05, local_clip=math.inf, lr=1.0, buffer=1, local_steps=2)


@pytest.fixture
def color(tmp_path):
    write_binary(tmp_path / "color", striped(24, RGB), striped(10, RGB))
    return {"clients": 2, "data": str(tmp_path / "color"), "cache": str(tmp_path / "cache"), "batch_size": 4}


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A small transformer of the library transformers, with seven classes."""
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8,
        num_labels=7,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5] * 3})
    )
    return str(folder)


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resnet")
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3
    )
    transformers.ResNetForImageClassification(config).save_pretrained(folder)
    return str(folder)


def step(task):
    """The vector before and after a job."""
    one = Job(0, 0, 0, task.init(0), 2, None, 0, task.init_module_buffers())
    return one.x, work(one, task, METHOD)


@pytest.mark.parametrize("family", ["tinyvit", "transformers"])
def test_a_head_is_trained_on_features_that_are_computed_once(family, color, vit, tiny, monkeypatch):  # noqa: F811
    folder, side = (tiny, 32) if family == "tinyvit" else (vit, None)
    loaded = []
    real = pretrained_image.backbone
    monkeypatch.setattr(pretrained_image, "backbone", lambda *a: loaded.append(a) or real(*a))
    settings = color | {"model": family, "pretrained": str(folder), "resize": side}
    task = cifar10(**settings)
    width = task.data.data[0].shape[1]
    assert repr(task) == f"TorchTask(Linear, parameters={10 * width + 10}, clients=2)"
    assert len(loaded) == 2  # to train on, and to test on
    again = cifar10(train="head", **settings)
    assert len(loaded) == 2
    assert torch.equal(again.data.data[0], task.data.data[0])
    features, test = task.data.data[0], task.test[0]
    deviation = features.std(0, correction=0)
    alive = deviation > 0.5
    assert torch.allclose(features.mean(0), torch.zeros(width), atol=0.01)
    assert torch.allclose(deviation[alive], torch.ones(int(alive.sum())), atol=1e-3)
    assert torch.equal(features[:, ~alive], torch.zeros(24, int((~alive).sum())))  # the same for all images
    module, prepared = real(family, find_model("pretrained", str(folder)), side)
    with torch.no_grad():
        raw, other = (module.eval()(prepared(torch.from_numpy(striped(rows, RGB)[0]))) for rows in (24, 10))
    mean, spread = raw.mean(0)[alive], raw.std(0, correction=0)[alive]
    assert alive.sum() >= 10
    assert torch.allclose(features[:, alive], (raw[:, alive] - mean) / spread, atol=0.02)
    assert torch.allclose(test[:, alive], (other[:, alive] - mean) / spread, atol=0.02)
    assert task.evaluate(task.init(0), None).keys() == {"loss", "accuracy"}
    assert not torch.equal(task.init(0), task.init(1))


def test_other_rows_other_sizes_and_other_weights_are_other_features(color, tiny):  # noqa: F811
    settings = color | {"model": "tinyvit", "pretrained": str(tiny)}
    shapes = [cifar10(**settings | more).data.data[0].shape[0] for more in ({"resize": 16}, {"resize": 32})]
    assert shapes == [24, 24]
    cifar10(train_rows=8, resize=16, **settings)
    folder = tiny / "cache"
    kept = {path.name for path in folder.glob("features-*.safetensors")}
    assert len(kept) == 2 * 2 + 1  # the eight rows; the ten to test on were there


def test_pixels_are_normalised_spread_over_three_channels_and_resized():
    prepared = Prepared([0.1, 0.2, 0.3], [0.5, 0.25, 1.0], 6)
    pixels = torch.from_numpy(pictures(10, (1, 4, 4))[0])
    made = prepared(pixels)
    assert made.shape == (10, 3, 6, 6)
    large = F.interpolate(pixels.float() / 255, size=(6, 6), mode="bilinear", align_corners=False)[:, 0]
    for channel, (mean, std) in enumerate(((0.1, 0.5), (0.2, 0.25), (0.3, 1.0))):
        assert torch.allclose(made[:, channel], (large - mean) / std, atol=1e-5)


def test_a_model_brings_its_own_size_and_statistics(vit, resnet, tmp_path):
    module, prepared = backbone("transformers", find_model("pretrained", vit), None)
    assert prepared.side == 16
    assert (prepared.normalize.mean.flatten() / 255).tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert backbone("transformers", find_model("pretrained", vit), 16).prepared.side == 16
    module, prepared = backbone("transformers", find_model("pretrained", resnet), None)
    assert prepared.side == 224
    assert (prepared.normalize.mean.flatten() / 255).tolist() == [0.5, 0.5, 0.5]
    assert module(prepared(torch.zeros(2, 3, 8, 8))).shape == (2, 8)


@pytest.mark.parametrize(
    ("family", "train", "first"),
    [
        ("transformers", "all", "backbone.model.vit.embeddings.cls_token"),
        ("transformers", "last-3", ".layer.0.|.layers.0."),
        ("transformers", "last-1", ".layer.2.|.layers.2."),
        ("tinyvit", "all", "backbone.patch_embed.seq.0.c.weight"),
        ("tinyvit", "last-4", "backbone.layers.0."),
        ("tinyvit", "last-1", "backbone.layers.3.blocks.0."),
    ],
)
def test_what_is_trained_is_the_vector_and_the_rest_is_frozen(family, train, first, color, vit, tiny):  # noqa: F811
    folder, side = (tiny, 16) if family == "tinyvit" else (vit, None)
    task = cifar10(model=family, pretrained=str(folder), train=train, resize=side, augment=True, **color)
    module = task._template
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
    assert any(part in names[0] for part in first.split("|"))
    assert {"head.weight", "head.bias"} <= {*names}
    assert [*frozen, *names] == [name for name, _ in module.named_parameters()]
    assert bool(frozen) == (train != "all")
    assert task.parameters == sum(p.numel() for p in module.parameters() if p.requires_grad)
    before = {name: p.clone() for name, p in module.named_parameters()}
    x, update = step(task)
    assert update.delta.abs().max() > 0
    assert torch.equal(update.delta, step(task)[1].delta)
    after = dict(task._views().module.named_parameters())
    assert all(torch.equal(after[name], before[name]) for name in frozen)
    assert task.init_module_buffers() is None
    size = module.head.weight.numel() + 10
    assert not torch.equal(task.init(1)[-size:], x[-size:])  # a fresh head
    assert torch.equal(task.init(1)[:-size], x[:-size])  # on the same backbone
    assert task.evaluate(x + update.delta, None).keys() == {"loss", "accuracy"}


def test_frozen_normalisations_keep_their_statistics(color, resnet):
    task = cifar10(model="transformers", pretrained=resnet, train="last-1", resize=32, **color)
    update = step(task)[1]
    views = task._views().module
    modes = {name: m.training for name, m in views.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert {name for name, training in modes.items() if training} == {n for n in modes if "stages.1" in n}
    assert update.module_buffers is not None
    changed = (update.module_buffers.floats != task.init_module_buffers().floats).float().mean()
    assert 0 < changed < 1


def test_augmentation_works_with_pretrained_networks(color, tiny):  # noqa: F811
    task = cifar10(pretrained=str(tiny), train="last-1", resize=16, augment=True, **color)
    assert torch.equal(step(task)[1].delta, step(task)[1].delta)


@pytest.mark.parametrize(
    ("family", "train", "text"),
    [
        ("tinyvit", "last-5", "train='last-N' must have N from 1 to the network's 4 layers, got 'last-5'."),
        ("transformers", "last-4", "train='last-N' must have N from 1 to the network's 3 layers, got 'last-4'."),
    ],
)
def test_more_blocks_than_there_are_is_refused(family, train, text, color, vit, tiny):  # noqa: F811
    with pytest.raises(Invalid) as caught:
        cifar10(model=family, pretrained=str(tiny if family == "tinyvit" else vit), train=train, **color)
    assert str(caught.value) == text


def test_what_is_no_classifier_is_told_in_one_sentence(tmp_path, vit, monkeypatch):
    with pytest.raises(
        Invalid, match="`pretrained` must be an image model that AutoModelForImageClassification can load, got "
    ):
        backbone("transformers", tmp_path, None)
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(Invalid) as caught:
        backbone("transformers", tmp_path / "bert", None)
    assert "must be an image model that AutoModelForImageClassification can load" in str(caught.value)
    assert "\n" not in str(caught.value)
    (tmp_path / "vit").mkdir()
    for path in find_model("pretrained", vit).iterdir():
        (tmp_path / "vit" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "vit/preprocessor_config.json").write_text("{")
    with pytest.raises(Invalid, match=r"preprocessor_config.json in .* cannot be read"):
        backbone("transformers", tmp_path / "vit", None)
    two = transformers.DeiTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=8, patch_size=4
    )
    transformers.DeiTForImageClassificationWithTeacher(two).save_pretrained(tmp_path / "deit")
    with pytest.raises(Invalid) as caught:
        backbone("transformers", tmp_path / "deit", None)
    assert str(caught.value) == (
        "`pretrained` must be a model with one classifier on a base, got cls_classifier, distillation_classifier in "
        "DeiTForImageClassificationWithTeacher."
    )


def test_a_name_is_fetched_from_the_hub(vit, monkeypatch):
    import huggingface_hub

    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: asked.append((a, k)) or vit)
    assert str(find_model("pretrained", "google/vit-base-patch16-224")) == vit
    assert asked[0][0] == ("google/vit-base-patch16-224",)

    def fail(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    rule = "`pretrained` must be a folder with config.json and model.safetensors, or OWNER/NAME on the hub, got {!r}, "
    hub = "cannot be downloaded from huggingface.co (ConnectionError). Download it elsewhere and give its folder."
    for name, text in (("google/vit", hub), ("./folder", "is not a folder."), ("a/b/c", "is not a folder.")):
        with pytest.raises(Invalid) as caught:
            find_model("pretrained", name)
        assert str(caught.value) == rule.format(name) + f"which {text}"
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(Invalid, match=r"got 'google/vit', which needs huggingface_hub, which is not installed. Use "):
        find_model("pretrained", "google/vit")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(Invalid, match=r"pretrained models need transformers, which is not installed. Use pip install"):
        backbone("transformers", vit, None)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"train": "last"}, "`train` must be 'head', 'all' or 'last-N' with a number of layers N, got 'last'."),
        ({"augment": True}, "`augment` must be false with train='head', whose features are computed once, got true."),
        (
            {"train": "last-1", "channels_last": True},
            "`channels_last` of a pretrained network needs train='all', got train='last-1'. Leave out `channels_last`.",
        ),
        ({"resize": 60}, "`resize` must be a multiple of 16 for TinyViT, got 60. Use 64."),
        (
            {},
            "`pretrained` must be a folder with config.json and model.safetensors, got 'no/folder', which is not a "
            "folder.",
        ),
    ],
)
def test_errors_say_the_rule_the_value_and_the_fix(settings, text, color):
    with pytest.raises(Invalid) as caught:
        cifar10(pretrained="no/folder", **color | settings)
    assert str(caught.value) == text
