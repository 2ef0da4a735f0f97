"""`python -m polyop`, the same as `polyop`."""

from polyop.cli import main

if __name__ == "__main__":
    main()
