"""`python -m router` is `corral`."""

from router.cli import main

if __name__ == "__main__":
    main()
