"""The console page's files and where they are public; it serves nothing, and no file here may hold data or a secret."""

from pathlib import Path

_FOLDER = Path(__file__).parent

# Exact paths: the page, and the style and scripts that it names relative to itself.
FILES = {
    "/": _FOLDER / "index.html",
    **{f"/console/{file.name}": file for kind in ("*.css", "*.js") for file in sorted(_FOLDER.glob(kind))},
}
