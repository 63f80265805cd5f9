"""A WebSocket client. Prints a line when it is ready, and what it has seen at the end, as JSON.

    websocket_client.py echo URL        messages of every size and kind, with and without compression
    websocket_client.py hold URL N      opens N connections, talks on each until it is closed; prints the codes
    websocket_client.py push URL N      reads what N connections are sent until they are closed; every message whole
"""

import asyncio
import collections
import json
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed


async def echo(url):
    sizes = [0, 1, 125, 126, 65535, 65536, 1 << 20, 5 << 20]
    seen = 0
    for compression in [None, "deflate"]:
        async with connect(
            url, compression=compression, max_size=None, ping_interval=None, subprotocols=["chat"]
        ) as connection:
            assert connection.subprotocol == "chat", connection.subprotocol
            for size in sizes:
                for message in ["ü" * (size // 2), bytes(index % 251 for index in range(256)) * (size // 256)]:
                    await connection.send(message)
                    assert await connection.recv() == message
                    seen += 1
            # In fragments, with a Ping between them.
            await connection.send(["a" * 1000, "b", "", "c" * 100_000])
            assert await connection.recv() == "a" * 1000 + "b" + "c" * 100_000
            await (await connection.ping())
            seen += 1
    print(json.dumps({"seen": seen, "code": connection.close_code}), flush=True)


async def hold(url, count):
    limit = asyncio.Semaphore(50)
    open_connections = total = 0

    async def one(number):
        nonlocal open_connections, total
        async with limit:
            connection = await connect(url, compression=None, ping_interval=None, open_timeout=60)
        open_connections += 1
        if open_connections == count:
            print("open", flush=True)
        sent = answered = 0
        try:
            while True:
                message = f"{number} {sent}"
                await connection.send(message)
                sent += 1
                assert await connection.recv() == message
                answered += 1
                total += 1
                if total % 50 == 0:
                    print("answered", total, flush=True)
                await asyncio.sleep(0.05)
        except ConnectionClosed:
            pass
        return connection.close_code, sent - answered, answered

    results = await asyncio.gather(*[one(number) for number in range(count)])
    print(
        json.dumps(
            {
                "codes": collections.Counter(str(code) for code, _, _ in results),
                "unanswered": sum(lost for _, lost, _ in results),
                "answered": sum(answered for _, _, answered in results),
                "least": min(answered for _, _, answered in results),
            }
        ),
        flush=True,
    )


async def push(url, count):
    started = 0

    async def one():
        nonlocal started
        connection = await connect(url, compression=None, ping_interval=None, open_timeout=60)
        number = 0
        try:
            async for message in connection:
                assert message == b"%08d" % number * 8192, "a message is not whole, or not the next"
                number += 1
                if number == 3:
                    started += 1
                    if started == count:
                        print("open", flush=True)
        except ConnectionClosed:
            pass
        return connection.close_code

    codes = await asyncio.gather(*[one() for _ in range(count)])
    print(json.dumps({"codes": collections.Counter(str(code) for code in codes)}), flush=True)


mode, url = sys.argv[1:3]
if mode == "echo":
    asyncio.run(echo(url))
elif mode == "hold":
    asyncio.run(hold(url, int(sys.argv[3])))
else:
    asyncio.run(push(url, int(sys.argv[3])))
