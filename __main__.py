"""``python -m pliant``: the same as the ``pliant`` command."""

from pliant.cli.main import main

if __name__ == "__main__":
    main()
