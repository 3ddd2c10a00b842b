"""A learned policy as a file for other programs: a plain .npz of named arrays, or an ONNX graph.

Both are written from the same named arrays (docs/policies.md has a reader of the .npz that needs only NumPy):

    format                      1
    kind                        gaussian, categorical, deterministic or squashed
    image                       height, width, channels, if an observation begins with an image, to be divided by 255
    kernel_0, offset_0, stride_0, ...    its convolutions without padding, [h, w, in, out], a ReLU after each;
                                their output, flattened, and the rest of the observation go into the affine layers
    weight_0, bias_0, ...       affine layers, tanh between them
    activation                  relu, if the affine layers have ReLU between them instead
    bound                       if the last layer's outputs are kept within ±bound by a tanh
    log_std                     of a Gaussian
                                (squashed: the last layer has 2 A outputs, (m, e); u ~ N(m, 0.9 exp(e)), with
                                log(0.9) + e kept within -5 and 1, and the action is bound · tanh(u))
    observation_mean, observation_std, observation_clip        if observations are normalised first
    action_shift, action_scale, action_low, action_high        if actions are mapped and clipped last
    choices                     if a choice is not its own index: the environment's action for each, [n, ...]
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from apdo import files
from apdo.errors import InvalidInput

if TYPE_CHECKING:
    from onnx import ModelProto

FORMAT = 1
OPSET, IR_VERSION = 17, 8
"""The versions of the graph; old enough for any runtime of recent years."""
NORMALISATION = ("observation_mean", "observation_std", "observation_clip")
MAPPING = ("action_shift", "action_scale", "action_low", "action_high")
_savez: Callable[..., None] = np.savez  # to type checkers, any of its keywords could be `allow_pickle`

Arrays = Mapping[str, np.ndarray]


def save(arrays: Arrays, path: Path) -> None:
    """Write the arrays in the format of the file's ending. The file is written whole or not at all."""
    writers: dict[str, Callable[[Arrays, Path], None]] = {".npz": save_npz, ".onnx": save_onnx}
    if path.suffix not in writers:
        raise InvalidInput(f"a policy is exported as .npz or .onnx, and {str(path)!r} ends in neither.")
    if not path.parent.is_dir():
        raise InvalidInput(f"the folder {path.parent} for {path.name} does not exist.")
    writers[path.suffix](arrays, path)


def save_npz(arrays: Arrays, path: Path) -> None:
    """Write a plain .npz."""
    with files.replacing(path) as file:
        _savez(file, **arrays)


def save_onnx(arrays: Arrays, path: Path) -> None:
    """Write an ONNX graph; this needs the extra `onnx`."""
    model = onnx_model(arrays)
    with files.replacing(path) as file:
        file.write(model.SerializeToString())


def onnx_model(arrays: Arrays) -> "ModelProto":
    """The graph from `observation` [B, O] to `action`, the mode, and to the distribution's parameters.

    The parameters are `mean` and `std` of a Gaussian (before actions are squashed or mapped), or `probabilities` of
    choices.
    """
    graph, kind = _Graph(arrays), str(arrays["kind"])
    x = _features(graph, _normalised(graph, "observation"))
    x = _network(graph, x, bounded="bound" in arrays and kind != "squashed")
    finish = {"categorical": _chosen, "gaussian": _gaussian, "squashed": _squashed, "deterministic": _mapped}
    finish[kind](graph, x)
    return graph.model(f"apdo_{kind}_policy")


class _Graph:
    """An ONNX graph under construction. The policy's arrays become constants when a node uses them."""

    def __init__(self, arrays: Arrays) -> None:
        try:
            import onnx
            import onnx.helper
            import onnx.numpy_helper
        except ImportError:
            raise InvalidInput(
                "export to ONNX needs the package onnx; install it with: pip install 'apdo[onnx]'."
            ) from None
        self.onnx, self.arrays = onnx, arrays
        self.layers = sum(name.startswith("weight_") for name in arrays)
        self._nodes: list[Any] = []
        self._constants: dict[str, np.ndarray] = {}
        self._outputs: list[Any] = []

    def node(self, operation: str, inputs: list[str], output: str, **attributes: Any) -> str:  # noqa: ANN401
        """Add an operation, and return the name of its output."""
        for name in inputs:
            if name in self.arrays and name not in self._constants:
                whole = name == "choices"
                self.constant(name, np.asarray(self.arrays[name], dtype=np.int64 if whole else np.float32))
        self._nodes.append(self.onnx.helper.make_node(operation, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: np.ndarray) -> str:
        """Add a constant, and return its name."""
        self._constants[name] = value
        return name

    def output(self, name: str, *shape: int, whole: bool = False) -> None:
        """Declare an output, [batch, *shape]."""
        kind = self.onnx.TensorProto.INT64 if whole else self.onnx.TensorProto.FLOAT
        self._outputs.append(self.onnx.helper.make_tensor_value_info(name, kind, ["batch", *shape]))

    def model(self, name: str) -> "ModelProto":
        """The graph as a checked model."""
        helper, size = self.onnx.helper, observation_size(self.arrays)
        observation = helper.make_tensor_value_info("observation", self.onnx.TensorProto.FLOAT, ["batch", size])
        constants = [self.onnx.numpy_helper.from_array(value, name) for name, value in self._constants.items()]
        graph = helper.make_graph(self._nodes, name, [observation], self._outputs, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        self.onnx.checker.check_model(model)
        return model


def _normalised(graph: _Graph, x: str) -> str:
    if "observation_mean" not in graph.arrays:
        return x
    clip = np.asarray(graph.arrays["observation_clip"], dtype=np.float32)
    low, high = graph.constant("clip_low", np.asarray(-clip)), graph.constant("clip_high", clip)
    x = graph.node("Sub", [x, "observation_mean"], "centred")
    x = graph.node("Div", [x, "observation_std"], "scaled")
    return graph.node("Clip", [x, low, high], "normalised")


def observation_size(arrays: Arrays) -> int:
    """The number of entries of an observation."""
    return arrays["weight_0"].shape[0] + _pixels(arrays) - math.prod(_found(arrays))


def _pixels(arrays: Arrays) -> int:
    return math.prod(arrays["image"].tolist()) if "image" in arrays else 0


def _found(arrays: Arrays) -> tuple[int, ...]:
    """The shape of the convolutions' output; (0,) if there are none."""
    if "image" not in arrays:
        return (0,)
    height, width, channels = arrays["image"].tolist()
    for i in range(_convolutions(arrays)):
        (h, w, _, channels), stride = arrays[f"kernel_{i}"].shape, int(arrays[f"stride_{i}"])
        height, width = (height - h) // stride + 1, (width - w) // stride + 1
    return height, width, channels


def _convolutions(arrays: Arrays) -> int:
    return sum(name.startswith("kernel_") for name in arrays)


def _features(graph: _Graph, x: str) -> str:
    """The convolutions' output for the image, followed by the rest of the observation."""
    if "image" not in graph.arrays:
        return x
    pixels, size = _pixels(graph.arrays), observation_size(graph.arrays)
    edges = [graph.constant(f"pixel_{edge}", np.full(1, edge, np.int64)) for edge in dict.fromkeys((0, pixels, size))]
    axis = graph.constant("entries", np.ones(1, np.int64))
    image_shape = np.asarray([-1, *graph.arrays["image"].tolist()], np.int64)
    found = graph.node("Slice", [x, edges[0], edges[1], axis], "bytes")
    found = graph.node("Div", [found, graph.constant("byte", np.asarray(255.0, np.float32))], "pixels")
    found = graph.node("Reshape", [found, graph.constant("image_shape", image_shape)], "rows")
    found = graph.node("Transpose", [found], "planes", perm=[0, 3, 1, 2])
    for i in range(_convolutions(graph.arrays)):
        kernel = np.transpose(graph.arrays[f"kernel_{i}"], (3, 2, 0, 1)).astype(np.float32)
        stride = int(graph.arrays[f"stride_{i}"])
        inputs = [found, graph.constant(f"planes_kernel_{i}", kernel), f"offset_{i}"]
        found = graph.node("Conv", inputs, f"convolved_{i}", strides=[stride, stride])
        found = graph.node("Relu", [found], f"maps_{i}")
    found = graph.node("Transpose", [found], "places", perm=[0, 2, 3, 1])
    flat = graph.constant("flat_shape", np.asarray([-1, math.prod(_found(graph.arrays))], np.int64))
    found = graph.node("Reshape", [found, flat], "features")
    if size == pixels:
        return found
    rest = graph.node("Slice", [x, edges[1], edges[2], axis], "beside")
    return graph.node("Concat", [found, rest], "all_features", axis=1)


def _network(graph: _Graph, x: str, *, bounded: bool) -> str:
    """The affine layers."""
    between = "Relu" if str(graph.arrays.get("activation", "")) == "relu" else "Tanh"
    for i in range(graph.layers):
        x = graph.node("MatMul", [x, f"weight_{i}"], f"product_{i}")
        x = graph.node("Add", [x, f"bias_{i}"], f"sum_{i}")
        if i < graph.layers - 1:
            x = graph.node(between, [x], f"hidden_{i}")
    if bounded:
        x = graph.node("Div", [x, "bound"], "shrunk")
        x = graph.node("Tanh", [x], "squashed")
        x = graph.node("Mul", [x, "bound"], "bounded")
    return x


def _chosen(graph: _Graph, x: str) -> None:
    """Outputs of a categorical policy: the most likely choice, and all probabilities."""
    count = graph.arrays[f"bias_{graph.layers - 1}"].shape[0]
    graph.node("Softmax", [x], "probabilities", axis=-1)
    if "choices" in graph.arrays:
        graph.node("ArgMax", [x], "chosen", axis=-1, keepdims=0)
        graph.node("Gather", ["choices", "chosen"], "action", axis=0)
        graph.output("action", *graph.arrays["choices"].shape[1:], whole=True)
    else:
        graph.node("ArgMax", [x], "action", axis=-1, keepdims=0)
        graph.output("action", whole=True)
    graph.output("probabilities", count)


def _gaussian(graph: _Graph, x: str) -> None:
    """Outputs of a Gaussian policy: its mean as a mapped action, and mean and deviation before the mapping."""
    std = np.exp(graph.arrays["log_std"])[None].astype(np.float32)
    _mapped(graph, x)
    graph.node("Identity", [x], "mean")
    graph.node("Mul", [x, graph.constant("nothing", np.zeros(1, np.float32))], "zeros")
    graph.node("Add", ["zeros", graph.constant("std_row", std)], "std")
    for name in ("mean", "std"):
        graph.output(name, std.shape[1])


def _squashed(graph: _Graph, x: str) -> None:
    """Outputs of a squashed Gaussian: its centre as a mapped action, and mean and deviation before that."""
    actions = graph.arrays[f"bias_{graph.layers - 1}"].shape[0] // 2
    first, middle, last = (graph.constant(f"edge_{i}", np.full(1, i * actions, np.int64)) for i in range(3))
    axis = graph.constant("axis", np.ones(1, np.int64))
    limits = {"log_std_first": np.log(0.9), "log_std_least": -5.0, "log_std_most": 1.0}
    shift, *ends = (graph.constant(name, np.asarray(value, np.float32)) for name, value in limits.items())
    wide = graph.node("Slice", [x, middle, last, axis], "wide")
    log_std = graph.node("Clip", [graph.node("Add", [wide, shift], "free"), *ends], "log_std_")
    graph.node("Exp", [log_std], "std")
    mean = graph.node("Slice", [x, first, middle, axis], "mean")
    _mapped(graph, graph.node("Mul", [graph.node("Tanh", [mean], "squashed"), "bound"], "bounded"))
    for name in ("mean", "std"):
        graph.output(name, actions)


def _mapped(graph: _Graph, x: str) -> None:
    """The action output: the vector itself, or mapped to its range."""
    if "action_shift" in graph.arrays:
        x = graph.node("Mul", [x, "action_scale"], "stretched")
        x = graph.node("Add", [x, "action_shift"], "shifted")
        x = graph.node("Max", [x, "action_low"], "raised")
        x = graph.node("Min", [x, "action_high"], "lowered")
    graph.node("Identity", [x], "action")
    halves = 2 if str(graph.arrays["kind"]) == "squashed" else 1
    graph.output("action", graph.arrays[f"bias_{graph.layers - 1}"].shape[0] // halves)
