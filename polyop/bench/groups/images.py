"""Pooling, images made larger, and borders: little is computed for each element that is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polyop.bench.case import Case, library


def images() -> Iterator[Case]:
    """Layers of convolutional networks that are no convolutions."""
    yield from _pools()
    yield from _larger()
    yield from _borders()
    yield Case("images", "edges around 64 28x28", *library("pad2d_replicate"), {"dim0": 64, "H": 28, "W": 28, "pad": 1}, rank=1,
               torch=lambda t, x: t.nn.functional.pad(x, (1, 1, 1, 1), mode="replicate"))


def _pools() -> Iterator[Case]:
    for c, h, window, stride in ((64, 112, 3, 2), (64, 112, 2, 2), (192, 28, 3, 1)):
        pad = window // 2 if window > 2 else 0
        sizes = {"B": 1, "C": c, "H": h, "W": h, "window": window, "stride": stride, "pad": pad}
        shape, quick = f"{window}x{window} {c} {h}x{h} /{stride}", window == 3 and stride == 2

        def first(t: Any, x: Any, kind: str = "max", args: tuple[int, ...] = (window, stride, pad)) -> Any:
            return getattr(t.nn.functional, f"{kind}_pool2d")(x, *args)

        def mean(t: Any, x: Any, first: Any = first) -> Any:
            return first(t, x, "avg")

        def last(t: Any, x: Any, first: Any = first) -> Any:
            return first(t, x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        yield Case("images", f"max pool nchw {shape}", *library("max_pool2d"), sizes, torch=first, quick=quick)
        yield Case("images", f"max pool nhwc {shape}", *library("max_pool2d_nhwc"), sizes, torch=last)
        yield Case("images", f"avg pool nchw {shape}", *library("avg_pool2d"), sizes, torch=mean)
    yield Case("images", "global avg pool 8x64x56x56", *library("global_avg_pool"), {"B": 8, "C": 64, "H": 56, "W": 56},
               torch=lambda t, x: x.mean((2, 3)), array=lambda xp, x: x.mean((2, 3)))


def _larger() -> Iterator[Case]:
    sizes = {"B": 1, "C": 64, "H": 56, "W": 56, "scale": 2}
    yield Case("images", "nearest 64 56x56 twice", *library("upsample_nearest"), sizes,
               torch=lambda t, x: t.nn.functional.interpolate(x, scale_factor=2, mode="nearest"))
    yield Case("images", "bilinear 64 56x56 twice", *library("upsample_bilinear"), sizes, quick=True,
               torch=lambda t, x: t.nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False))
    yield Case("images", "pixel shuffle 64 56x56", *library("pixel_shuffle"), {"B": 1, "K": 64, "H": 56, "W": 56, "scale": 2},
               torch=lambda t, x: t.nn.functional.pixel_shuffle(x, 2))


def _borders() -> Iterator[Case]:
    for c, h in ((64, 14), (64, 28), (64, 112)):
        sizes = {"dim0": c, "H": h, "W": h, "pad": 1}
        yield Case("images", f"reflect {c} {h}x{h}", *library("pad2d_reflect"), sizes, rank=1,
                   torch=lambda t, x: t.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect"), quick=h == 28)
        yield Case("images", f"zeros around {c} {h}x{h}", *library("pad2d_constant"), {**sizes, "value": 0.0}, rank=1,
                   torch=lambda t, x: t.nn.functional.pad(x, (1, 1, 1, 1)))
