"""Packages that tests need and that may be missing."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(package: str) -> None:
    """Skips a module of tests where a package is missing, and does not import it: the inner loop collects these too."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
