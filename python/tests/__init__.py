"""The package's tests, which scripts/python.sh runs beside the extension."""
