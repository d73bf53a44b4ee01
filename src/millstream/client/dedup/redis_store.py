"""Processed messages in Redis: one key per message, `<prefix><message id>`, that expires.

The value is `c:<token>` while claimed and `done` afterwards. Redis may lose its newest writes when
it fails over or has no append-only file. A message can then be processed again. Needs
`millstream[redis]`.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from millstream.client.dedup.store import Claim, StoreError
from millstream.client.error import UsageError

_DONE: Final = "done"
#: ARGV: the claim, time to live in milliseconds.
_COMPLETE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], 'done', 'PX', ARGV[2])
return 1
"""
_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 0
"""


class RedisStore:
    """A `Store` in Redis. `address` is redis://HOST:PORT/NUMBER."""

    def __init__(self, address: str, prefix: str = "millstream:processed:") -> None:
        try:
            redis = importlib.import_module("redis")
        except ImportError as error:
            raise UsageError(
                "RedisStore needs redis, which is not installed: pip install 'millstream[redis]'."
            ) from error
        self._error: type[Exception] = redis.RedisError
        self._client: Any = redis.Redis.from_url(address, decode_responses=True)
        self._prefix = prefix

    def claim(self, message_id: str, token: str, lease_s: float) -> Claim:
        key = self._prefix + message_id
        try:
            if self._client.set(key, f"c:{token}", nx=True, px=_milliseconds(lease_s)):
                return Claim.TAKEN
            return Claim.DONE if self._client.get(key) == _DONE else Claim.BUSY
        except self._error as error:
            raise StoreError(f"Redis: {error}") from error

    def complete(self, message_id: str, token: str, ttl_s: float) -> bool:
        return bool(self._evaluate(_COMPLETE, message_id, token, _milliseconds(ttl_s)))

    def release(self, message_id: str, token: str) -> None:
        self._evaluate(_RELEASE, message_id, token)

    def close(self) -> None:
        self._client.close()

    def _evaluate(self, script: str, message_id: str, token: str, *arguments: int) -> Any:
        try:
            key = self._prefix + message_id
            return self._client.eval(script, 1, key, f"c:{token}", *arguments)
        except self._error as error:
            raise StoreError(f"Redis: {error}") from error


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
