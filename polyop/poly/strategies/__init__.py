"""How one cluster becomes tiles, vectors and copies: what all targets have, and what CPUs have."""
