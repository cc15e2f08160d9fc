"""An OAuth issuer's token endpoint, over HTTPS on loopback."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

from muster.client import ClientCredentials
from tests.support.certificates import Authority

SECRET: Final = "hush & hush"


class Issuer:
    """Gives the answer it is set to, and records requests. `answer` is JSON, bytes, or makes either."""

    def __init__(self, folder: Path) -> None:
        self.ca = Authority(folder, "issuer")
        self.requests: list[tuple[dict[str, str], str]] = []
        self.status = 200
        self.answer: Any = {"access_token": "a.b.c", "expires_in": 100}
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                issuer.requests.append((dict(self.headers), body))
                told = issuer.answer() if callable(issuer.answer) else issuer.answer
                answer = told if isinstance(told, bytes) else json.dumps(told).encode()
                self.send_response(issuer.status)
                self.send_header("Location", "https://elsewhere/")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca.issue("localhost").both)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_port}/token?tenant=1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def provider(self, **more: Any) -> ClientCredentials:
        return ClientCredentials(
            self.url, "billing", SECRET, **{"cafile": str(self.ca.certificate), "scope": "kafka", **more}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
