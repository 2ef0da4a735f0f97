"""polyop: Einstein notation to fast, proven kernels."""
