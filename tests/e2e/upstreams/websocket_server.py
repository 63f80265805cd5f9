"""A WebSocket server: echoes messages (beneath `/fragments` in fragments), and prints how each connection has ended.

    websocket_server.py [PORT]
"""

import asyncio
import signal
import sys

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed


async def echo(connection):
    path = connection.request.path
    try:
        if path.endswith("/push"):
            # A message after the other, each larger than a read of the proxy's.
            number = 0
            while True:
                await connection.send(b"%08d" % number * 8192)
                number += 1
        if path.endswith("/bye"):
            await connection.close(4001, "bye")
        fragments = path.endswith("/fragments")
        async for message in connection:
            third = len(message) // 3
            parts = [message[:third], message[third : 2 * third], message[2 * third :]]
            await connection.send(parts if fragments else message)
    except ConnectionClosed:
        pass
    await connection.wait_closed()
    print("closed", connection.close_code, flush=True)


async def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    stop = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set_result, None)
    server = await serve(
        echo,
        "127.0.0.1",
        port,
        max_size=64 << 20,
        ping_interval=None,
        select_subprotocol=lambda connection, offered: offered[0] if offered else None,
    )
    print(f"listening at http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)
    await stop


asyncio.run(main())
