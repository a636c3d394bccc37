"""``python -m detdiag``."""

from detdiag.cli import main

if __name__ == "__main__":
    main()
