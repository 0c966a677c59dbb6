"""`python -m concm`, also under torchrun."""

from concm.cli.app import main

if __name__ == "__main__":
    main()
