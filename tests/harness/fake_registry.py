"""A schema registry in this process, with the part of Confluent's REST API that serdes use.

It keeps schemas in memory, checks one rule of backward compatibility for Avro, and returns GUIDs.
Tests can make it fail, and count its requests.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import threading
import uuid
from typing import Any, Final, Self

from aiohttp import web

from harness.process.broker_process import HOST

_NOT_FOUND: Final = {"subject": 40401, "version": 40402, "schema": 40403}


class FakeRegistry:
    """Serves on a free port of a thread, inside a `with` block."""

    def __init__(self, *, username: str = "", password: str = "") -> None:
        self._expected = ""
        if username:
            token = base64.b64encode(f"{username}:{password}".encode()).decode()
            self._expected = f"Basic {token}"
        self.url = ""
        #: Method and path of each request.
        self.requests: list[tuple[str, str]] = []
        #: The status of all responses, if it is not None.
        self.failing: int | None = None
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    # Routes

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._middleware])
        application.add_routes(
            [
                web.get("/subjects", self._list),
                web.post("/subjects/{subject}/versions", self._register),
                web.post("/subjects/{subject}", self._lookup),
                web.get("/subjects/{subject}/versions/{version}", self._version),
                web.get("/schemas/ids/{id}", self._by_id),
                web.get("/schemas/guids/{guid}", self._by_guid),
            ]
        )
        return application

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if self._expected and request.headers.get("Authorization") != self._expected:
            return _error(401, 40101, "Unauthorized")
        if self.failing is not None:
            return _error(self.failing, self.failing * 100 + 1, "told to fail")
        response: web.StreamResponse = await handler(request)
        return response

    async def _list(self, _request: web.Request) -> web.Response:
        return web.json_response(sorted(self._subjects))

    async def _register(self, request: web.Request) -> web.Response:
        subject, schema = request.match_info["subject"], await _schema_of(request)
        number = self._id_of(schema)
        versions = self._subjects.setdefault(subject, [])
        if number not in versions:
            if versions and (reason := _incompatible(self._schemas[versions[-1]], schema)):
                return _error(409, 409, reason)
            number = self._add(schema) if number is None else number
            versions.append(number)
        return web.json_response(self._stored(subject, number))

    async def _lookup(self, request: web.Request) -> web.Response:
        subject, schema = request.match_info["subject"], await _schema_of(request)
        number = self._id_of(schema)
        if subject not in self._subjects:
            return _missing("subject")
        if number is None or number not in self._subjects[subject]:
            return _missing("schema")
        return web.json_response(self._stored(subject, number))

    async def _version(self, request: web.Request) -> web.Response:
        subject, version = request.match_info["subject"], request.match_info["version"]
        versions = self._subjects.get(subject)
        if not versions:
            return _missing("subject")
        index = len(versions) if version == "latest" else int(version)
        if index > len(versions):
            return _missing("version")
        return web.json_response(self._stored(subject, versions[index - 1]))

    async def _by_id(self, request: web.Request) -> web.Response:
        schema = self._schemas.get(int(request.match_info["id"]))
        return _missing("schema") if schema is None else web.json_response(schema)

    async def _by_guid(self, request: web.Request) -> web.Response:
        for schema in self._schemas.values():
            if schema["guid"] == request.match_info["guid"]:
                return web.json_response(schema)
        return _missing("schema")

    # Schemas

    def _id_of(self, schema: dict[str, Any]) -> int | None:
        guid = _guid(schema)
        return next((key for key, each in self._schemas.items() if each["guid"] == guid), None)

    def _add(self, schema: dict[str, Any]) -> int:
        number = len(self._schemas) + 1
        self._schemas[number] = schema | {"guid": _guid(schema)}
        return number

    def _stored(self, subject: str, number: int) -> dict[str, Any]:
        version = self._subjects[subject].index(number) + 1
        return self._schemas[number] | {"id": number, "subject": subject, "version": version}

    # Serving

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    async def _start(self) -> None:
        self._runner = web.AppRunner(self._application(), access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://{HOST}:{port}"

    def __exit__(self, *_error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _schema_of(request: web.Request) -> dict[str, Any]:
    body = json.loads(await request.text())
    kind = body.get("schemaType") or "AVRO"
    return {
        "schema": body["schema"],
        "schemaType": kind,
        "references": body.get("references") or [],
    }


def _guid(schema: dict[str, Any]) -> str:
    text = json.dumps([schema["schema"], schema["schemaType"], schema["references"]])
    return str(uuid.UUID(bytes=hashlib.md5(text.encode(), usedforsecurity=False).digest()))


def _incompatible(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return why readers with the new Avro schema cannot read the old one, or nothing."""
    if after["schemaType"] != "AVRO":
        return ""
    known = {each["name"] for each in json.loads(before["schema"]).get("fields", [])}
    for field in json.loads(after["schema"]).get("fields", []):
        if field["name"] not in known and "default" not in field:
            return f"Schema being registered is incompatible: {field['name']} has no default"
    return ""


def _missing(what: str) -> web.Response:
    return _error(404, _NOT_FOUND[what], f"{what.capitalize()} not found.")


def _error(status: int, code: int, message: str) -> web.Response:
    return web.json_response({"error_code": code, "message": message}, status=status)
