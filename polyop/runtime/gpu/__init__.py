"""Calls on arrays that lie on a GPU: the drivers, other people's arrays there, kernels on a device, and plans of calls."""
