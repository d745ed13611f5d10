"""Wiring of one worker."""

import importlib.metadata


def version() -> None:
    """Print the version."""
    print(importlib.metadata.version("homing"))  # noqa: T201


def serve() -> None:
    """Run the router."""
