"""The package's tests: `python3 -m unittest discover -t python -s python/tests`, with the extension in place."""
