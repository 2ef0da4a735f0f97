"""Who else can compute the same: found by what is installed, told how many threads to use, given arrays of their own kind."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from polyop.bench import process
from polyop.bench.case import Case, Node, Same
from polyop.ir.errors import UnsupportedError
from polyop.program import op

Array = Any
Function = Callable[..., Any]


@dataclass(frozen=True, eq=False, slots=True)
class Peer:
    """Somebody to be compared with.

    packages   what must be installed; the first one has the version that is reported
    ready      sets the number of threads, before anything is computed
    offers     whether the peer has something for a case
    function   that, for inputs of these shapes on so many threads; it takes inputs of the peer's own kind
    own        an array of NumPy as the peer's own kind, without a copy where there is a way
    array      a result as an array of NumPy
    compiles   whether the first call of a function compiles it
    patient    whether compiling takes seconds, so that small books do without unless the peer is named
    """

    name: str
    packages: tuple[str, ...]
    ready: Callable[[int], None]
    offers: Callable[[Case], bool]
    function: Callable[[Case, Sequence[Array], int], Function]
    own: Callable[[Array], Any] = np.asarray
    array: Callable[[Any], Array] = np.asarray
    compiles: bool = False
    patient: bool = False

    def missing(self) -> str:
        """Why the peer cannot be asked; empty if it can."""
        absent = [p for p in self.packages if importlib.util.find_spec(p) is None]
        return f"{' and '.join(absent)} not installed" if absent else ""

    @property
    def version(self) -> str:
        return str(getattr(importlib.import_module(self.packages[0]), "__version__", "?"))


def chosen(names: Sequence[str], patient: bool = True) -> tuple[tuple[Peer, ...], dict[str, str]]:
    """The peers called `names`, or all of them, that are installed; and why the others are left out.

    patient    whether peers that take seconds to compile a case are asked without being named
    """
    wanted = [p for p in PEERS if not names or p.name in names]
    idle = "takes seconds for each case"
    reasons = {p.name: p.missing() or ("" if patient or names or not p.patient else idle) for p in wanted}
    return tuple(p for p in wanted if not reasons[p.name]), {n: why for n, why in reasons.items() if why}


# --- NumPy, and who takes NumPy's arrays -------------------------------------------------------------------------------


def _numpy_ready(threads: int) -> None:
    process.blas_threads(threads)


def _numpy(case: Case, inputs: Sequence[Array], threads: int) -> Function:
    same: Same | None = case.numpy or case.array
    return partial(same, np) if same is not None else partial(np.einsum, case.einsum, optimize=True)


def _opt_einsum(case: Case, inputs: Sequence[Array], threads: int) -> Function:
    made: Function = importlib.import_module("opt_einsum").contract_expression(case.einsum, *(x.shape for x in inputs))
    return made


def _numba(case: Case, inputs: Sequence[Array], threads: int) -> Function:
    if threads > 1:
        raise UnsupportedError("these loops run on one thread")
    made: Function = importlib.import_module("numba").njit(fastmath=True)(case.loops)
    return made


# --- PyTorch -----------------------------------------------------------------------------------------------------------


def _torch() -> Any:
    return importlib.import_module("torch")


def _torch_ready(threads: int) -> None:
    _torch().set_num_threads(threads)


def tensor(x: Array) -> Any:
    """The same memory as a tensor of PyTorch."""
    torch = _torch()
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def from_tensor(x: Any) -> Array:
    """A tensor as an array; bfloat16, which NumPy does not have, as f32."""
    return (x.float() if x.dtype == _torch().bfloat16 else x).detach().numpy()


def _eager(case: Case, inputs: Sequence[Array], threads: int) -> Function:
    return partial(case.torch, _torch()) if case.torch is not None else partial(_torch().einsum, case.einsum)


def _compiled(case: Case, inputs: Sequence[Array], threads: int) -> Function:
    _torch().compiler.reset()  # otherwise the eighth line of one function would run eagerly
    eager = _eager(case, inputs, threads)
    made: Function = _torch().compile(lambda *tensors: eager(*tensors))
    return made


# --- polyop itself, where sizes are numbers ------------------------------------------------------------------------------


def _fixed(case: Case, inputs: Sequence[Array], threads: int) -> Function:
    return op(case.fixed)


# --- JAX and ONNX ------------------------------------------------------------------------------------------------------


def _jax_ready(threads: int) -> None:
    """Has an effect only before JAX is imported for the first time."""
    eigen = "true" if threads > 1 else "false"
    os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_multi_thread_eigen={eigen} intra_op_parallelism_threads={threads}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    importlib.import_module("jax").config.update("jax_enable_x64", True)


def _jax(case: Case, inputs: Sequence[Array], threads: int) -> Function:
    jax, jnp = importlib.import_module("jax"), importlib.import_module("jax.numpy")
    made = jax.jit(partial(jnp.einsum, case.einsum) if case.array is None else partial(case.array, jnp))
    return lambda *arrays: jax.block_until_ready(made(*arrays))


def _onnx(case: Case, inputs: Sequence[Array], threads: int) -> Function:
    onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    h = onnx.helper
    node = case.onnx or Node("Einsum", (("equation", case.einsum),))
    names = [f"x{k}" for k in range(len(inputs))]
    fixed = [onnx.numpy_helper.from_array(np.asarray(x), f"c{k}") for k, x in enumerate(node.constants)]
    weights = [onnx.numpy_helper.from_array(inputs[k], names[k]) for k in case.frozen]
    given = [n for k, n in enumerate(names) if k not in case.frozen]
    values = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(x.dtype), x.shape)
              for n, x in zip(names, inputs, strict=True) if n in given]
    made = h.make_node(node.op, [*names, *(c.name for c in fixed)], ["y"], **dict(node.attributes))
    graph = h.make_graph([made], "case", values, [onnx.ValueInfoProto(name="y")], fixed + weights)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=9)
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads, settings.log_severity_level = threads, 1, 4
    try:
        session = runtime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises types of its own for what it has no kernel for
        raise UnsupportedError(str(error).splitlines()[0]) from error
    return lambda *arrays: session.run(["y"], {n: x for n, x in zip(names, arrays, strict=True) if n in given})[0]


def _nothing(threads: int) -> None:
    """The number of threads is said to each function."""


def _has_arrays(case: Case) -> bool:
    return bool(case.array or case.numpy or case.einsum)


PEERS = (
    Peer("torch", ("torch",), _torch_ready, lambda c: bool(c.torch or c.einsum), _eager, tensor, from_tensor),
    Peer("numpy", ("numpy",), _numpy_ready, _has_arrays, _numpy),
    Peer("compile", ("torch",), _torch_ready, lambda c: c.compiled and c.torch is not None, _compiled, tensor, from_tensor,
         compiles=True, patient=True),
    Peer("opt_einsum", ("opt_einsum",), _numpy_ready, lambda c: bool(c.einsum), _opt_einsum),
    Peer("jax", ("jax",), _jax_ready, lambda c: bool(c.array or c.einsum), _jax,
         lambda x: importlib.import_module("jax.numpy").asarray(x), compiles=True),
    Peer("onnx", ("onnxruntime", "onnx"), _nothing, lambda c: bool(c.onnx or c.einsum), _onnx),
    Peer("fixed", ("polyop",), _nothing, lambda c: bool(c.fixed), _fixed, compiles=True),
    Peer("numba", ("numba",), _nothing, lambda c: c.loops is not None, _numba, compiles=True, patient=True),
)


def reason(error: Exception) -> str:
    """Why a peer is left out, in a line: some of their errors have pages of text, and some none."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
