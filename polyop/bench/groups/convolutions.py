"""Convolutions of ResNet-50, MobileNetV2, ResNeXt and others, channels first and channels last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from polyop.bench.case import Case, Node, library, text

# (channels in, out, height and width, window, stride): each once, though the networks have some of them often
RESNET50 = (
    (3, 64, 224, 7, 2), (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 64, 56, 1, 1), (256, 128, 56, 1, 1),
    (128, 128, 56, 3, 2), (128, 512, 28, 1, 1), (256, 512, 56, 1, 2), (512, 128, 28, 1, 1), (128, 128, 28, 3, 1),
    (512, 256, 28, 1, 1), (256, 256, 28, 3, 2), (256, 1024, 14, 1, 1), (512, 1024, 28, 1, 2), (1024, 256, 14, 1, 1),
    (256, 256, 14, 3, 1), (1024, 512, 14, 1, 1), (512, 512, 14, 3, 2), (512, 2048, 7, 1, 1), (1024, 2048, 14, 1, 2),
    (2048, 512, 7, 1, 1), (512, 512, 7, 3, 1),
)
VGG = ((64, 64, 224, 3, 1), (128, 128, 112, 3, 1), (256, 256, 56, 3, 1), (512, 512, 28, 3, 1), (512, 512, 14, 3, 1))
QUICK = {(64, 64, 56, 3, 1), (256, 64, 56, 1, 1)}
ODD = ((17, 33, 35, 3, 1), (3, 32, 112, 3, 2), (1, 20, 28, 5, 1), (24, 144, 56, 1, 1), (100, 100, 30, 3, 1), (320, 4, 64, 3, 1),
       (64, 12, 56, 3, 2), (192, 8, 18, 7, 3))
NARROW = ((128, 128, 64, 3, 1, 1), (100, 9, 30, 3, 1, 2))  # and width
IN_BF16 = ((1, 64, 64, 28, 3, 1), (8, 128, 128, 28, 3, 1))  # images, and as above
DEPTHWISE = ((32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (192, 28, 3, 1), (576, 14, 3, 1), (960, 7, 3, 1), (96, 56, 7, 1))

CONDITIONS = """op transposed(X: f32[C, H, W], F: f32[C, K, R, S]) -> (Y: f32[K, 2*H + R - 4, 2*W + S - 4]) {
    Y[k, p, q] += X[c, i, j] * F[c, k, p + 1 - 2*i, q + 1 - 2*j]  where 0 <= p + 1 - 2*i < R, 0 <= q + 1 - 2*j < S
}"""
"""The sum over the image that `conv2d_transposed` says as one over the window."""


def _attributes(stride: int, pad: int, group: int = 1) -> tuple[tuple[str, Any], ...]:
    return ("strides", [stride] * 2), ("pads", [pad] * 4), ("group", group)


def nchw(group: str, b: int, c: int, k: int, h: int, r: int, s: int, w: int = 0, quick: bool = False) -> Case:
    """Images of `h` x `h` pixels, or of `h` x `w`."""
    pad, w = r // 2, w or h
    return Case(group, f"nchw {r}x{r} {c}->{k} {h}x{w} /{s} b{b}", *library("conv2d"),
                {"B": b, "C": c, "K": k, "H": h, "W": w, "R": r, "S": r, "stride": s, "pad": pad},
                torch=lambda t, x, f: t.nn.functional.conv2d(x, f, stride=s, padding=pad),
                onnx=Node("Conv", _attributes(s, pad)), quick=quick)


def nhwc(group: str, b: int, c: int, k: int, h: int, r: int, s: int, w: int = 0, quick: bool = False) -> Case:
    """PyTorch's filter is brought into its own layout once, as a model would keep it."""
    pad, w, kept = r // 2, w or h, list[Any]()

    def torch(t: Any, x: Any, f: Any) -> Any:
        if not kept:
            kept.append(f.permute(3, 2, 0, 1).contiguous(memory_format=t.channels_last))
        return t.nn.functional.conv2d(x.permute(0, 3, 1, 2), kept[0], stride=s, padding=pad).permute(0, 2, 3, 1)
    return Case(group, f"nhwc {r}x{r} {c}->{k} {h}x{w} /{s} b{b}", *library("conv2d_nhwc"),
                {"B": b, "C": c, "K": k, "H": h, "W": w, "R": r, "S": r, "stride": s, "pad": pad}, torch=torch, quick=quick)


def conv() -> Iterator[Case]:
    """Every convolution of ResNet-50 for one image, half of them for eight."""
    for number, shape in enumerate(RESNET50):
        for b in (1, 8) if number % 2 == 0 else (1,):
            yield nchw("conv", b, *shape, quick=shape in QUICK and b == 1)
            yield nhwc("conv", b, *shape, quick=shape in QUICK and b == 1)


def frozen_conv(group: str, layout: str, b: int, c: int, k: int, h: int, r: int, s: int, quick: bool) -> Case:
    """With weights that all have in their own layout, as PyTorch's inductor asks for when a model is frozen."""
    pad, kept, last = r // 2, list[Any](), layout == "nhwc"

    def torch(t: Any, x: Any, f: Any) -> Any:
        x, how = x.permute(0, 3, 1, 2) if last else x, ([pad] * 2, [s] * 2, [1] * 2, 1)
        if not kept:
            f = f.permute(3, 2, 0, 1).contiguous() if last else f
            kept.append(t.ops.mkldnn._reorder_convolution_weight(f, *how, x.shape))
        y = t.ops.mkldnn._convolution_pointwise(x, kept[0], None, *how, "none", [], "")
        return y.permute(0, 2, 3, 1) if last else y
    made = (nhwc if last else nchw)(group, b, c, k, h, r, s, quick=quick)
    return replace(made, torch=torch, frozen=(1,))


def frozen() -> Iterator[Case]:
    """Layers whose weights stay: brought into the order of the kernels once, which nobody is timed for."""
    for shape in RESNET50:
        for layout in ("nchw", "nhwc"):
            yield frozen_conv("frozen", layout, 1, *shape, quick=shape == (256, 256, 14, 3, 1))
    for m, n, k in ((4, 4096, 4096), (16, 4096, 4096), (32, 4096, 4096), (64, 4096, 4096), (16, 1024, 1024), (128, 768, 768),
                    (128, 3072, 768), (128, 768, 3072), (512, 1024, 1024), (1024, 2304, 768)):
        packed = list[Any]()

        def linear(t: Any, x: Any, w: Any, m: int = m, packed: list[Any] = packed) -> Any:
            if not packed:
                packed.append(t.ops.mkl._mkl_reorder_linear_weight(w, m))
            return t.ops.mkl._mkl_linear(x, packed[0], w, None, m)
        yield Case("frozen", f"linear {m}x{n}x{k}", *library("matmul_nt"), {"M": m, "N": n, "K": k}, torch=linear, frozen=(1,),
                   onnx=Node("Gemm", (("transB", 1),)), quick=m == 16 and n == 1024)


def winograd() -> Iterator[Case]:
    """Windows of 3 x 3 with fewer multiplications, as users may ask of polyop alone; weights stay, or are new in every call."""
    shapes = [x for x in RESNET50 if x[3:] == (3, 1)]
    for layout in ("nchw", "nhwc"):
        for shape in (*shapes, *VGG):
            for b in (1, 8) if shape in shapes else (1,):
                case = frozen_conv("winograd", layout, b, *shape, quick=shape == (256, 256, 14, 3, 1) and b == 1)
                yield replace(case, numerics="winograd", label=f"{case.label}, frozen")
        for shape in shapes:
            for b in (1, 8):
                yield replace((nhwc if layout == "nhwc" else nchw)("winograd", b, *shape), numerics="winograd")


def odd_conv() -> Iterator[Case]:
    """Depthwise, grouped, one-dimensional, transposed, narrow, in bf16, and with channels that no vector divides."""
    for c, k, h, r, s, w in (*((*x, 0) for x in ODD), *NARROW):
        yield nchw("odd_conv", 1, c, k, h, r, s, w, quick=c == 17)
        yield nhwc("odd_conv", 1, c, k, h, r, s, w)
    for layout in (nchw, nhwc):
        for shape in IN_BF16:
            case = layout("odd_conv", *shape)
            yield replace(case, label=f"{case.label} bf16", given={**case.given, "T": "bf16"}, tolerance=2e-2, onnx=None)
    for c, h, r, s in DEPTHWISE:
        sizes = {"B": 1, "C": c, "H": h, "W": h, "R": r, "S": r, "stride": s, "pad": r // 2}

        def plain(t: Any, x: Any, f: Any, c: int = c, s: int = s, r: int = r) -> Any:
            return t.nn.functional.conv2d(x, f[:, None], stride=s, padding=r // 2, groups=c)

        def last(t: Any, x: Any, f: Any, c: int = c, s: int = s, r: int = r) -> Any:
            y = t.nn.functional.conv2d(x.permute(0, 3, 1, 2), f.permute(2, 0, 1)[:, None], stride=s, padding=r // 2, groups=c)
            return y.permute(0, 2, 3, 1)
        yield Case("odd_conv", f"depthwise nchw {r}x{r} {c} {h}x{h} /{s}", *library("conv2d_depthwise"), sizes, torch=plain,
                   quick=c == 144)
        yield Case("odd_conv", f"depthwise nhwc {r}x{r} {c} {h}x{h} /{s}", *library("conv2d_depthwise_nhwc"), sizes, torch=last)
    for g, c, h, s in ((32, 4, 56, 1), (32, 16, 14, 1), (32, 16, 14, 2), (32, 16, 7, 1), (2, 48, 27, 1)):
        def grouped(t: Any, x: Any, f: Any, g: int = g, s: int = s) -> Any:
            y = t.nn.functional.conv2d(x.flatten(1, 2), f.flatten(0, 1), stride=s, padding=1, groups=g)
            return y.unflatten(1, (g, -1))
        yield Case("odd_conv", f"grouped 3x3 {g} x {c}->{c} {h}x{h}" + (f" /{s}" if s > 1 else ""), *library("conv2d_grouped"),
                   {"B": 1, "G": g, "C": c, "K": c, "H": h, "W": h, "R": 3, "S": 3, "stride": s, "pad": 1}, torch=grouped)
    for c, k, n, s in ((80, 384, 3000, 1), (384, 384, 3000, 2)):
        yield Case("odd_conv", f"conv1d 3 {c}->{k} {n} /{s}", *library("conv1d"),
                   {"B": 1, "C": c, "K": k, "L": n, "R": 3, "stride": s, "pad": 1},
                   torch=lambda t, x, f, s=s: t.nn.functional.conv1d(x, f, stride=s, padding=1))
    yield Case("odd_conv", "dilated 3x3 64->64 56x56", *library("conv2d"),
               {"B": 1, "C": 64, "K": 64, "H": 56, "W": 56, "R": 3, "S": 3, "stride": 1, "pad": 2, "dilation": 2},
               torch=lambda t, x, f: t.nn.functional.conv2d(x, f, padding=2, dilation=2))
    yield Case("odd_conv", "conv3d 3x3x3 16->32 16x28x28", *library("conv3d"),
               {"B": 1, "C": 16, "K": 32, "D": 16, "H": 28, "W": 28, "Q": 3, "R": 3, "S": 3, "stride": 1, "pad": 1},
               torch=lambda t, x, f: t.nn.functional.conv3d(x, f, padding=1))
    yield Case("odd_conv", "transposed 4x4 64->32 28x28 /2", *library("conv2d_transposed"),
               {"B": 1, "C": 64, "K": 32, "H": 28, "W": 28, "R": 4, "S": 4, "stride": 2, "pad": 1},
               torch=lambda t, x, f: t.nn.functional.conv_transpose2d(x, f, stride=2, padding=1))
    yield Case("odd_conv", "transposed 4x4 64->32 28x28 /2, with conditions", *text(CONDITIONS),
               {"C": 64, "K": 32, "H": 28, "W": 28, "R": 4, "S": 4}, flops=2 * 64 * 32 * 28 * 28 * 16,
               torch=lambda t, x, f: t.nn.functional.conv_transpose2d(x, f, stride=2, padding=1))
