"""Which build this is, for homing_build_info."""

import json
import platform
from importlib.metadata import Distribution, distribution

UNKNOWN = "unknown"


def build() -> dict[str, str]:
    """Version, commit and Python. The commit is known when the package was installed from a repository (PEP 610)."""
    installed = distribution("homing")
    return {"version": installed.version, "commit": _commit(installed), "python": platform.python_version()}


def _commit(installed: Distribution) -> str:
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    return str(origin.get("vcs_info", {}).get("commit_id", UNKNOWN))
