"""Whether what the wing needs is installed; it imports none of it, so a base install can ask."""

from importlib.util import find_spec
from typing import Literal

Extra = Literal["search", "mcp", "answer"]
_PACKAGES: dict[Extra, tuple[str, ...]] = {
    "search": ("rjieba", "snowballstemmer"),
    "mcp": ("mcp",),
    "answer": ("openai",),
}


def lacking(*needed: Extra) -> str | None:
    """What to install where one of these extras is missing; None when all are there."""
    absent = [extra for extra in needed if not all(find_spec(package) for package in _PACKAGES[extra])]
    if not absent:
        return None
    return f"This needs the extra: pip install 'a2a-session-sidecar[{','.join(absent)}]'."
