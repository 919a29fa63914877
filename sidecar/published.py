"""What the sidecar publishes of itself, with every wing, installed or not; it serves nothing."""

from sidecar import docs, openapi
from sidecar.answer import description as answer
from sidecar.search import description as search

_WINGS = (search.FRAGMENT, answer.FRAGMENT)


def document() -> openapi.Json:
    """The OpenAPI 3.1 document; everyone is given the same one, to be read only."""
    return openapi.document(*_WINGS)


def page() -> str:
    """The HTML page rendered from it."""
    return docs.page(*_WINGS)
