"""A server of files on loopback, in place of the addresses that data sets are downloaded from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Origin:
    """Answers with `files` by path; tests change what it answers."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.extra_length = 0
        self.requests: list[str] = []
        origin = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                origin.requests.append(self.path)
                body = origin.files.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"") + origin.extra_length))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Origin]:
    """Serve `files` until the block ends."""
    made = Origin(files)
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
