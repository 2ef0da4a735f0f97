"""The emulator's C++ sources, as data: `runtime/cxx.py` builds them, `runtime/emulated.py` runs kernels on them."""
