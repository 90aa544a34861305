"""`python -m nnrp_backend`: the same as the command `nnrp-backend`."""

from nnrp_backend.cli import main

# Engines start processes of their own, which import this module again.
if __name__ == "__main__":
    main()
