"""The documents for people and programs: landing page, `/docs`, `/openapi.json`, `/asyncapi`.

Rule 1: a page is one file: no script, no font, no picture from anywhere else. It works without a network.
Rule 2: pages are rendered once, when the application is put together; a request only copies bytes.
Rule 3: every text from a document is escaped, whoever wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mailslot_services.ingest.door import Door
from mailslot_services.ingest.request import wants_html

OPENAPI, DOCS, ASYNCAPI, ASYNCAPI_PAGE, LANDING = "openapi", "docs", "asyncapi", "asyncapi-page", "landing"
HTML = "text/html; charset=utf-8"
YAML = "application/yaml; charset=utf-8"
HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Cache-Control": "no-cache"}

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2024;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem;border-top:1px solid #d8dde3;padding-top:1rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}code,pre{font:14px/1.45 ui-monospace,monospace}
pre{background:#f4f6f8;padding:.7rem;overflow:auto;border-radius:4px}table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.25rem .8rem .25rem 0;border-bottom:1px solid #e6eaee}
.method{font-weight:700;color:#0b5cad}a{color:#0b5cad}
@media(prefers-color-scheme:dark){body{color:#e3e6ea;background:#15181b}pre{background:#1f2428}
td,th,h2{border-color:#343a40}.method,a{color:#7cb7f5}}
"""

LINKS = (
    ("/docs", "the HTTP door for people"),
    ("/openapi.json", "the HTTP door as OpenAPI 3.1"),
    ("/asyncapi", "the broker door and the topics, AsyncAPI 3"),
    ("/metrics", "metrics of Prometheus"),
    ("/readyz", "whether everything that serving needs is there"),
    ("/v1/sessions", "the sessions"),
)
TRY = """curl -s {url}v1/sessions/hello/prompt -d '{{"content": "hello"}}'
curl -sN {url}v1/sessions/hello/events"""


# -- handlers -----------------------------------------------------------------------------------------------


async def landing(door: Door, _request: Request) -> Response:
    """Where to go from here."""
    return Response(door.pages[LANDING], headers=HEADERS, media_type=HTML)


async def docs(door: Door, _request: Request) -> Response:
    """The OpenAPI document for people."""
    return Response(door.pages[DOCS], headers=HEADERS, media_type=HTML)


async def openapi(door: Door, _request: Request) -> Response:
    """The OpenAPI document."""
    return Response(door.pages[OPENAPI], media_type="application/json")


async def asyncapi(door: Door, request: Request) -> Response:
    """The AsyncAPI document: for a browser as a page, else as YAML."""
    if wants_html(request):
        return Response(door.pages[ASYNCAPI_PAGE], headers=HEADERS, media_type=HTML)
    return Response(door.pages[ASYNCAPI], media_type=YAML)


# -- rendering ----------------------------------------------------------------------------------------------


def landing_page(url: str) -> str:
    """The links, and two lines to try."""
    rows = "".join(f'<tr><td><a href="{path}">{path}</a></td><td>{escape(text)}</td></tr>' for path, text in LINKS)
    return _page(
        "mailslot",
        "<p>You push a letter through, you hear it drop, and that sound proves only that it is inside.</p>"
        f"<table>{rows}</table><h2>Try it</h2><pre>{escape(TRY.format(url=url))}</pre>",
    )


def docs_page(document: Mapping[str, Any]) -> str:
    """An OpenAPI document as a page."""
    schemas = document["components"]["schemas"]
    parts = [f"<p>{_prose(line)}</p>" for line in document["info"]["description"].split("\n\n")]
    parts += [
        _operation(method, path, operation, item.get("parameters", []))
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    ]
    parts += ["<h2>Schemas</h2>", *(_schema(name, schema) for name, schema in schemas.items())]
    return _page(f"{document['info']['title']}: the HTTP door", "".join(parts))


def asyncapi_page(document: Mapping[str, Any]) -> str:
    """An AsyncAPI document as a page."""
    parts = [f"<p>{_prose(document['info'].get('description', ''))}</p>"]
    directions = {_channel(each): each["action"] for each in document["operations"].values()}
    for name, channel in document["channels"].items():
        parts.append(f"<h2><span class=method>{escape(directions.get(name, ''))}</span> ")
        parts.append(f"<code>{escape(channel['address'])}</code></h2><p>{_prose(channel.get('description', ''))}</p>")
        parts += [f"<p>message: {_refs(message)}</p>" for message in channel.get("messages", {}).values()]
    components = document["components"]
    parts += ["<h2>Messages</h2>", *(_schema(name, each) for name, each in components.get("messages", {}).items())]
    parts += ["<h2>Schemas</h2>", *(_schema(name, each) for name, each in components.get("schemas", {}).items())]
    return _page(f"{document['info']['title']}: the broker door", "".join(parts))


def _page(title: str, body: str) -> str:
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(title)}</title>"
    return f"<!doctype html><html lang=en>{head}<style>{STYLE}</style><h1>{escape(title)}</h1>{body}</html>\n"


def _operation(method: str, path: str, operation: Mapping[str, Any], shared: Iterable[Mapping[str, Any]]) -> str:
    name = escape(operation["operationId"])
    parts = [f"<h2 id={name}><span class=method>{method.upper()}</span> <code>{escape(path)}</code></h2>"]
    parts.append(f"<p>{_prose(operation['summary'])}.</p><p>{_prose(operation['description'])}</p>")
    rows = [_parameter(parameter) for parameter in (*shared, *operation.get("parameters", ()))]
    if rows:
        parts.append(f"<h3>Parameters</h3><table>{''.join(rows)}</table>")
    if "requestBody" in operation:
        parts.append(f"<h3>Body</h3><p>{_content(operation['requestBody'])}</p>")
    replies = "".join(_reply(status, reply) for status, reply in operation["responses"].items())
    parts.append(f"<h3>Answers</h3><table>{replies}</table>")
    return "".join(parts)


def _parameter(parameter: Mapping[str, Any]) -> str:
    words = f"{parameter['in']}, <code>{escape(json.dumps(parameter['schema']))}</code>"
    name = escape(parameter["name"])
    return f"<tr><td><code>{name}</code></td><td>{_prose(parameter['description'])}</td><td>{words}</td></tr>"


def _reply(status: str, reply: Mapping[str, Any]) -> str:
    return f"<tr><td>{status}</td><td>{_prose(reply['description'])}</td><td>{_content(reply)}</td></tr>"


def _content(holder: Mapping[str, Any]) -> str:
    return "<br>".join(f"{escape(media)} {_refs(kind['schema'])}" for media, kind in holder["content"].items())


def _refs(schema: object) -> str:
    """Links to the schemas that a schema names."""
    names = sorted({ref.rsplit("/", 1)[1] for ref in _found_refs(schema)})
    return ", ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)


def _found_refs(value: object) -> Iterable[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "$ref":
                yield str(item)
            else:
                yield from _found_refs(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _found_refs(item)


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    text = escape(json.dumps(schema, indent=2, ensure_ascii=False))
    return f"<h3 id='{escape(name)}'>{escape(name)}</h3><pre>{text}</pre>"


def _channel(operation: Mapping[str, Any]) -> str:
    return str(operation["channel"]["$ref"]).rsplit("/", 1)[1]


def _prose(text: str) -> str:
    """Escaped text in which `code` is code."""
    parts = escape(text, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
