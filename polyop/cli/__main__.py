"""`python -m polyop.cli`, the same as `polyop`."""

from polyop.cli import main

if __name__ == "__main__":
    main()
