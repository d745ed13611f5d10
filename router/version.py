"""`homing version`. Nothing else is here, so that it answers at once and whatever else is broken."""

from importlib.metadata import version as installed


def version() -> None:
    """Print the version.

    Examples:

      homing version

      homing --version
    """
    print(installed("homing"))  # noqa: T201
