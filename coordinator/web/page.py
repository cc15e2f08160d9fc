"""The page. Its files are read once and load nothing from elsewhere."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from aiohttp import web

_STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def add_routes(app: web.Application) -> None:
    """Add `/` and the page's files."""
    for each in sorted(_STATIC.iterdir()):
        path = "/" if each.name == "index.html" else f"/static/{each.name}"
        app.router.add_get(path, _File(each.read_bytes(), _TYPES[each.suffix]).serve)


class _File:
    """One file in memory."""

    def __init__(self, content: bytes, content_type: str) -> None:
        self._content = content
        self._headers = {
            "Content-Type": f"{content_type}; charset=utf-8",
            "Cache-Control": "no-cache",  # cached, but revalidated
            "ETag": f'"{sha256(content).hexdigest()[:16]}"',
        }

    async def serve(self, request: web.Request) -> web.Response:
        """The file, or Not Modified."""
        if request.headers.get("If-None-Match") == self._headers["ETag"]:
            return web.Response(status=304, headers=self._headers)
        return web.Response(body=self._content, headers=self._headers)
