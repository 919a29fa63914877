"""The offline documentation page, rendered from the published description; it runs no script and loads nothing."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from urllib.parse import quote, urlencode

from sidecar import errors
from sidecar.openapi import Fragment, Json, document

_STYLE = """
:root { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem }
h2, h3 { margin-top: 2rem }
h3 { border-top: 1px solid GrayText; padding-top: 1rem }
code, pre { font-family: ui-monospace, monospace; overflow-wrap: anywhere }
pre { border: 1px solid GrayText; padding: .5rem; white-space: pre-wrap }
table { border-collapse: collapse; width: 100% }
caption { text-align: start; font-weight: bold }
th, td { border: 1px solid GrayText; padding: .25rem .5rem; text-align: start; vertical-align: top }
"""
CSP = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def page(*wings: Fragment) -> str:
    """The HTML page of the core and these wings: a section a route, and an anchor for every error code."""
    published = document(*wings)
    info = published["info"]
    operations = list(_operations(published))
    links = "".join(
        f'<li><a href="#{operation["operationId"]}"><code>{method} {escape(path)}</code></a></li>'
        for method, path, operation in operations
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(info["title"])}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{escape(info["title"])} {escape(info["version"])}</h1>
<p>{_prose(info["summary"])} {_prose(info["description"])}</p>
<p>The same for machines: <a href="openapi.json">openapi.json</a>.</p>
</header>
<nav aria-label="Contents"><ul>{links}<li><a href="#errors">Errors</a></li></ul></nav>
<main>
<h2 id="routes">Routes</h2>
<p>The examples expect the sidecar's address in <code>SIDECAR</code> and a token in <code>TOKEN</code>.</p>
{"".join(_route(*each) for each in operations)}
<h2 id="errors">Errors</h2>
{"".join(_error(error) for error in errors.codes())}
</main>
</body>
</html>
"""


def _operations(published: Json) -> Iterator[tuple[str, str, Json]]:
    for path, item in published["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def _route(method: str, path: str, operation: Json) -> str:
    scope = operation.get("x-required-scope")
    access = "Needs a token." if operation["security"] else "Public: needs no token."
    if scope:
        access = f"Needs a token with the scope <code>{escape(scope)}</code>."
    parameters = [
        (f"<code>{escape(each['name'])}</code>", each["in"], _values(each["schema"]), _prose(each["description"]))
        for each in operation["parameters"]
    ]
    answers = [(status, _prose(answer["description"])) for status, answer in operation["responses"].items()]
    return f"""<section>
<h3 id="{operation["operationId"]}">{escape(operation["summary"])}: <code>{method} {escape(path)}</code></h3>
<p>{_prose(operation["description"])} {access}</p>
<pre><code>{escape(_curl(method, path, operation))}</code></pre>
{_table("Parameters", ("Name", "In", "Values", "Meaning"), parameters) if parameters else ""}
{_table("Answers", ("Status", "Meaning"), answers)}
</section>
"""


def _curl(method: str, path: str, operation: Json) -> str:
    examples = [each for each in operation["parameters"] if "example" in each]
    query = urlencode({each["name"]: each["example"] for each in examples if each["in"] == "query"})
    for each in examples:
        path = path.replace(f"{{{each['name']}}}", quote(str(each["example"]), safe=""))
    verb = "" if method == "GET" else f" -X {method}"
    token = ' -H "Authorization: Bearer $TOKEN"' if operation["security"] else ""
    return f'curl{verb}{token}{_curl_body(operation)} "$SIDECAR{path}{"?" if query else ""}{query}"'


def _curl_body(operation: Json) -> str:
    if "requestBody" not in operation:
        return ""
    example = operation["requestBody"]["content"]["application/json"]["example"]
    return f""" -H "Content-Type: application/json" -d '{json.dumps(example)}'"""


def _values(schema: Json) -> str:
    if "enum" in schema:
        values = " or ".join(f"<code>{escape(each)}</code>" for each in schema["enum"])
    elif "minimum" in schema:
        values = f"{schema['type']}, {schema['minimum']} to {schema['maximum']}"
    elif "maxLength" in schema:
        values = f"{schema['type']}, {schema['minLength']} to {schema['maxLength']} characters"
    else:
        values = schema["type"]
    return f"{values}; default <code>{escape(str(schema['default']))}</code>" if "default" in schema else values


def _table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _error(error: type[errors.SidecarError]) -> str:
    return f"""<section>
<h3 id="{error.code}"><code>{error.code}</code></h3>
<p>{error.status}: {_prose(error.title)}. {_prose(error.help)}</p>
</section>
"""


def _prose(text: str) -> str:
    """Escaped text whose `code` is marked up; an error code also leads to its explanation."""
    return re.sub("`([^`]+)`", _marked_up, escape(text))


def _marked_up(quoted: re.Match[str]) -> str:
    code = f"<code>{quoted[1]}</code>"
    is_error = any(quoted[1] == error.code for error in errors.codes())
    return f'<a href="#{quoted[1]}">{code}</a>' if is_error else code
