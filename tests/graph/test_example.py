"""The example runs and says what it promises."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "graph_mlp.py"


def test_a_block_of_five_operators_is_two_kernels_and_agrees_with_numpy(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "kernel 0: linear + bias_add + gelu + add\n" in printed
    assert "kernel 1: layernorm\n" in printed
    assert "linear and layernorm each need a kernel of their own" in printed
    assert printed.count("largest difference") == 3
