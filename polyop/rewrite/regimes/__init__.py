"""Which calls deserve a kernel of their own, by their sizes alone."""
