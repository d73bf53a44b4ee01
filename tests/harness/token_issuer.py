"""An issuer of OAuth tokens for tests: keys, signed tokens, and a key set in a file or by HTTP."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

ISSUER = "https://issuer.example"
AUDIENCE = "kafka"


class TokenIssuer:
    """Signs tokens with an RSA key. `rotate` replaces the key."""

    def __init__(self, clock: Callable[[], float] = time.time, lifetime_s: int = 300) -> None:
        self._clock = clock
        self.lifetime_s = lifetime_s
        self._number = 0
        self.rotate()

    def rotate(self) -> None:
        self._number += 1
        self.key = RSAKey.generate_key(2048, {"kid": f"key-{self._number}", "use": "sig"})

    @property
    def key_set(self) -> bytes:
        """The public keys, as the issuer publishes them."""
        return json.dumps({"keys": [self.key.as_dict(private=False)]}).encode()

    def claims(self, subject: str = "alice", **changes: Any) -> dict[str, Any]:
        """Return valid claims with changes; None removes a claim."""
        now = int(self._clock())
        found = {"sub": subject, "iss": ISSUER, "aud": AUDIENCE, "iat": now}
        found |= {"exp": now + self.lifetime_s}
        return {name: value for name, value in (found | changes).items() if value is not None}

    def token(self, subject: str = "alice", **changes: Any) -> str:
        header = {"alg": "RS256", "kid": self.key.kid}
        return jwt.encode(header, self.claims(subject, **changes), self.key)

    def unsigned_token(self) -> str:
        """Return a token with the algorithm `none`."""
        return f"{_part({'alg': 'none'})}.{_part(self.claims())}."

    def symmetric_token(self) -> str:
        """Return a token signed by HS256 with the text of the public key as secret."""
        header = {"alg": "HS256", "kid": self.key.kid}
        signed = f"{_part(header)}.{_part(self.claims())}"
        secret = self.key.as_pem(private=False)
        signature = hmac.digest(secret, signed.encode(), hashlib.sha256)
        return f"{signed}.{_encoded(signature)}"

    def token_with_header(self, **header: Any) -> str:
        """Return a valid token with more in its header, which is signed."""
        base = f"{_part({'alg': 'RS256', 'kid': self.key.kid, **header})}.{_part(self.claims())}"
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        private: Any = self.key.private_key
        signature = private.sign(base.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{base}.{_encoded(signature)}"


def _part(value: object) -> str:
    return _encoded(json.dumps(value).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class IssuerServer:
    """Serves the key set at /jwks, and tokens of the client credentials grant at /token, with other
    claims at /token?claims=JSON."""

    def __init__(self, issuer: TokenIssuer, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.issuer = issuer
        #: Number of requests by path.
        self.requests: dict[str, int] = {}


@contextmanager
def issuer_server(issuer: TokenIssuer) -> Iterator[IssuerServer]:
    """Run an HTTP server for the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(issuer.key_set)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            encoded = self.headers.get("Authorization", "").removeprefix("Basic ")
            user = base64.b64decode(encoded).decode().partition(":")[0] or "alice"
            query = parse_qs(urlsplit(self.path).query)
            token = issuer.token(user, **json.loads(query.get("claims", ["{}"])[0]))
            self._send(
                json.dumps(
                    {
                        "access_token": token,
                        "token_type": "Bearer",
                        # Half of the lifetime: a token must not expire during a slow login.
                        "expires_in": issuer.lifetime_s // 2,
                    }
                ).encode()
            )

        def _send(self, body: bytes) -> None:
            served.requests[self.path] = served.requests.get(self.path, 0) + 1
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = IssuerServer(issuer, server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def server_without_http() -> Iterator[str]:
    """Run a server that answers its first connection like SSH. Yields an HTTP URL of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def respond() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=respond)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        thread.join()
