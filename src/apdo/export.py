"""A learned policy as a file for others: a plain .npz of named arrays, or an ONNX graph.

Both are written from the same named arrays (docs/policies.md has the numpy-only reader of the first):

    format                      1
    kind                        gaussian, categorical, deterministic or squashed
    weight_0, bias_0, ...       affine layers, tanh between them
    activation                  relu, if that stands between them instead
    bound                       if the last layer's outputs are kept within ±bound by a tanh
    log_std                     of a Gaussian
                                (squashed: the last layer has 2 A outputs, (m, e); u ~ N(m, 0.9 exp(e)), with
                                log(0.9) + e kept within -5 and 1, and the action is bound · tanh(u))
    observation_mean, observation_std, observation_clip        if observations are normalised first
    action_shift, action_scale, action_low, action_high        if actions are mapped and clipped last
"""

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
"""Old enough for every runtime of the last years."""
NORMALISATION = ("observation_mean", "observation_std", "observation_clip")
MAPPING = ("action_shift", "action_scale", "action_low", "action_high")
_savez: Callable[..., None] = np.savez  # to type checkers, any of its keywords could be `allow_pickle`

Arrays = Mapping[str, np.ndarray]


def save(arrays: Arrays, path: Path) -> None:
    """Write the arrays in the format that the file's ending names, all or nothing."""
    writers: dict[str, Callable[[Arrays, Path], None]] = {".npz": save_npz, ".onnx": save_onnx}
    if path.suffix not in writers:
        raise InvalidInput(f"a policy is exported as .npz or .onnx, and {str(path)!r} ends in neither.")
    if not path.parent.is_dir():
        raise InvalidInput(f"the folder {path.parent} for {path.name} does not exist.")
    writers[path.suffix](arrays, path)


def save_npz(arrays: Arrays, path: Path) -> None:
    """A plain .npz."""
    with files.replacing(path) as file:
        _savez(file, **arrays)


def save_onnx(arrays: Arrays, path: Path) -> None:
    """An ONNX graph; needs the extra `onnx`."""
    model = onnx_model(arrays)
    with files.replacing(path) as file:
        file.write(model.SerializeToString())


def onnx_model(arrays: Arrays) -> "ModelProto":
    """`observation` [B, O] to `action`, the mode, and to the distribution's parameters.

    Those are `mean` and `std` of a Gaussian (before actions are squashed or mapped), or `probabilities` of choices.
    """
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        raise InvalidInput(
            "export to ONNX needs the package onnx; install it with: pip install 'apdo[onnx]'."
        ) from None
    kind = str(arrays["kind"])
    layers = sum(name.startswith("weight_") for name in arrays)
    nodes: list[Any] = []
    used: set[str] = set()

    def node(operation: str, inputs: list[str], output: str, **attributes: Any) -> str:  # noqa: ANN401
        used.update(name for name in inputs if name in arrays)
        nodes.append(helper.make_node(operation, inputs, [output], **attributes))
        return output

    x = "observation"
    extra: dict[str, np.ndarray] = {}
    if "observation_mean" in arrays:
        x = node("Sub", [x, "observation_mean"], "centred")
        x = node("Div", [x, "observation_std"], "scaled")
        clip = np.asarray(arrays["observation_clip"], dtype=np.float32)
        extra |= {"clip_low": np.asarray(-clip), "clip_high": clip}
        x = node("Clip", [x, "clip_low", "clip_high"], "normalised")
    squashed, between = kind == "squashed", "Relu" if str(arrays.get("activation", "")) == "relu" else "Tanh"
    x = _network(node, x, layers, between, bounded="bound" in arrays and not squashed)
    actions = arrays[f"bias_{layers - 1}"].shape[0] // (2 if squashed else 1)
    outputs = {"action": (TensorProto.FLOAT, ["batch", actions])}
    if squashed:
        x = _squashed(node, x, actions, extra)
        outputs |= dict.fromkeys(("mean", "std"), (TensorProto.FLOAT, ["batch", actions]))
    if kind == "categorical":
        node("Softmax", [x], "probabilities", axis=-1)
        node("ArgMax", [x], "action", axis=-1, keepdims=0)
        outputs = {"action": (TensorProto.INT64, ["batch"]), "probabilities": (TensorProto.FLOAT, ["batch", actions])}
    else:
        mode = x
        if "action_shift" in arrays:
            mode = node("Mul", [mode, "action_scale"], "stretched")
            mode = node("Add", [mode, "action_shift"], "shifted")
            mode = node("Max", [mode, "action_low"], "raised")
            mode = node("Min", [mode, "action_high"], "lowered")
        node("Identity", [mode], "action")
        if kind == "gaussian":
            extra |= {"std_row": np.exp(arrays["log_std"])[None].astype(np.float32), "nothing": np.zeros(1, np.float32)}
            node("Identity", [x], "mean")
            node("Mul", [x, "nothing"], "zeros")
            node("Add", ["zeros", "std_row"], "std")
            outputs |= dict.fromkeys(("mean", "std"), (TensorProto.FLOAT, ["batch", actions]))
    constants = {name: np.asarray(arrays[name], dtype=np.float32) for name in sorted(used)} | extra
    graph = helper.make_graph(
        nodes,
        f"apdo_{kind}_policy",
        [helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["batch", arrays["weight_0"].shape[0]])],
        [helper.make_tensor_value_info(name, type_, shape) for name, (type_, shape) in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model


def _squashed(
    node: Callable[[str, list[str], str], str], x: str, actions: int, constants: dict[str, np.ndarray]
) -> str:
    """The nodes of a squashed Gaussian, from the network's output to the action in its middle."""
    constants |= {f"edge_{i}": np.full(1, i * actions, np.int64) for i in range(3)} | {"axis": np.ones(1, np.int64)}
    limits = {"log_std_first": np.log(0.9), "log_std_least": -5.0, "log_std_most": 1.0}
    constants |= {name: np.asarray(value, np.float32) for name, value in limits.items()}
    wide = node("Slice", [x, "edge_1", "edge_2", "axis"], "wide")
    log_std = node("Clip", [node("Add", [wide, "log_std_first"], "free"), "log_std_least", "log_std_most"], "log_std_")
    node("Exp", [log_std], "std")
    middle = node("Slice", [x, "edge_0", "edge_1", "axis"], "mean")
    return node("Mul", [node("Tanh", [middle], "squashed"), "bound"], "bounded")


def _network(node: Callable[[str, list[str], str], str], x: str, layers: int, between: str, *, bounded: bool) -> str:
    """The nodes of the layers, from the input's name to the output's."""
    for i in range(layers):
        x = node("MatMul", [x, f"weight_{i}"], f"product_{i}")
        x = node("Add", [x, f"bias_{i}"], f"sum_{i}")
        if i < layers - 1:
            x = node(between, [x], f"hidden_{i}")
    if bounded:
        x = node("Div", [x, "bound"], "shrunk")
        x = node("Tanh", [x], "squashed")
        x = node("Mul", [x, "bound"], "bounded")
    return x
