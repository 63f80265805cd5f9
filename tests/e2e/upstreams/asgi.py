"""A small ASGI app: an echo, a stream in both directions, and what the proxy says of its client."""

import asyncio
import hashlib
import json


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await send({"type": "lifespan.shutdown.complete"})
                return
    if scope["type"] == "websocket":
        return await websocket(receive, send)
    assert scope["type"] == "http"
    route = ROUTES.get(scope["path"], not_found)
    await route(scope, receive, send)


async def websocket(receive, send):
    """Echoes messages."""
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept", "headers": [(b"x-app", b"asgi")]})
    while (message := await receive())["type"] == "websocket.receive":
        part = {"text": message["text"]} if message.get("text") is not None else {"bytes": message["bytes"]}
        await send({"type": "websocket.send", **part})


async def hello(scope, receive, send):
    await answer(send, 200, b"hello from uvicorn\n")


async def echo(scope, receive, send):
    length, digest = 0, hashlib.sha256()
    async for part in body(receive):
        length += len(part)
        digest.update(part)
    content = {
        "method": scope["method"],
        "path": scope["path"],
        "query": scope["query_string"].decode(),
        "headers": {name.decode(): value.decode("latin-1") for name, value in scope["headers"]},
        "length": length,
        "sha256": digest.hexdigest(),
    }
    await answer(send, 200, json.dumps(content).encode(), b"application/json")


async def numbers(scope, receive, send):
    """A thousand small pieces, each a chunk of its own."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    for number in range(1000):
        await send({"type": "http.response.body", "body": b"%d\n" % number, "more_body": True})
        if number % 100 == 0:
            await asyncio.sleep(0)
    await send({"type": "http.response.body"})


async def fails(scope, receive, send):
    raise RuntimeError("this app fails on purpose")


async def not_found(scope, receive, send):
    await answer(send, 404, b"the app does not know this\n")


ROUTES = {"/hello": hello, "/echo": echo, "/numbers": numbers, "/fails": fails}


async def body(receive):
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


async def answer(send, status, content, kind=b"text/plain"):
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
