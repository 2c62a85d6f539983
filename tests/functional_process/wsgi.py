# SPDX-License-Identifier: Apache-2.0
"""A program that serves one WSGI application, with one thread per request.

    python -m tests.functional_process.wsgi MODULE PORT
"""

from __future__ import annotations

import importlib
import socketserver
import sys
from wsgiref import simple_server


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        # Without the look-up of the host's name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = 'localhost', (
            self.server_address[1])
        self.setup_environ()


def main() -> None:
    """Serve until killed."""
    module, port = sys.argv[1:3]
    del sys.argv[1:]
    application = importlib.import_module(module).application
    server = _Server(('127.0.0.1', int(port)),
                     simple_server.WSGIRequestHandler)
    server.set_app(application)
    server.serve_forever()


if __name__ == '__main__':
    main()
