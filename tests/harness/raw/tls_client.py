"""A TLS client that does what Python's cannot: it sends KeyUpdate records.

OpenSSL through ctypes, on memory buffers. The functions are those of OpenSSL's stable API.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import socket

_SSL_KEY_UPDATE_REQUESTED = 1
_WANT_READ = 2
_CONTROL_FLUSH = 11


def _library() -> ctypes.CDLL:
    # The library that the interpreter has loaded.
    import _ssl

    return ctypes.CDLL(_ssl.__file__)


class KeyUpdateClient:
    """A connection that is open: the handshake is complete, and certificates are not verified."""

    def __init__(self, host: str, port: int) -> None:
        lib = self._lib = _library()
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_s_mem", "BIO_new"):
            getattr(lib, name).restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(lib.SSL_CTX_new(ctypes.c_void_p(lib.TLS_client_method())))
        self._ssl = ctypes.c_void_p(lib.SSL_new(self._context))
        kind = ctypes.c_void_p(lib.BIO_s_mem())
        self._input = ctypes.c_void_p(lib.BIO_new(kind))
        self._output = ctypes.c_void_p(lib.BIO_new(kind))
        lib.SSL_set_bio(self._ssl, self._input, self._output)
        lib.SSL_set_connect_state(self._ssl)
        self.socket = socket.create_connection((host, port), timeout=20)
        while lib.SSL_do_handshake(self._ssl) != 1:
            self.socket.sendall(self._taken())
            data = self.socket.recv(65_536)
            assert data, "the broker closed the connection"
            lib.BIO_write(self._input, data, len(data))
        self.socket.sendall(self._taken())

    def _taken(self) -> bytes:
        buffer = ctypes.create_string_buffer(1 << 20)
        found = b""
        while (count := self._lib.BIO_read(self._output, buffer, len(buffer))) > 0:
            found += buffer.raw[:count]
        return found

    def key_updates(self, count: int) -> bytes:
        """Return records, each of which asks the broker for a KeyUpdate too."""
        for _ in range(count):
            assert self._lib.SSL_key_update(self._ssl, _SSL_KEY_UPDATE_REQUESTED) == 1
            assert self._lib.SSL_do_handshake(self._ssl) == 1
        return self._taken()

    def data(self, content: bytes) -> bytes:
        """Return the records of content."""
        assert self._lib.SSL_write(self._ssl, content, len(content)) == len(content)
        return self._taken()

    def close(self) -> None:
        self.socket.close()
        self._lib.SSL_free(self._ssl)
        self._lib.SSL_CTX_free(self._context)
