"""An HTTP/3 client of aioquic's for the end-to-end tests: a scenario per name, results as one line of JSON.

    h3_client.py PORT CA SCENARIO [ARGUMENT...]

Scenarios print `ready` where the test is to do something, and go on when a line comes on standard input.
"""

import asyncio
import hashlib
import json
import socket
import sys
from contextlib import asynccontextmanager

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import Buffer, BufferReadError
from aioquic.h3.connection import FrameType, H3Connection, StreamType
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived, StreamReset

HOST = "default.test"


class Http(H3Connection):
    """Notes what it is told by GOAWAY, which aioquic skips, and takes an answer to HEAD as it is."""

    def __init__(self, quic):
        self.goaways = []
        self.heads = set()
        self.streams = {}
        super().__init__(quic)

    def handle_event(self, event):
        # Unidirectional streams of the server.
        if isinstance(event, StreamDataReceived) and event.stream_id % 4 == 3:
            self.streams.setdefault(event.stream_id, bytearray()).extend(event.data)
            self.goaways = [goaway for stream in self.streams.values() for goaway in goaways(stream)]
        return super().handle_event(event)

    def _check_content_length(self, stream):
        if stream.stream_id not in self.heads:
            super()._check_content_length(stream)


def goaways(stream):
    """What the GOAWAY frames of a control stream say, as far as it has come."""
    buffer, said = Buffer(data=bytes(stream)), []
    try:
        if buffer.pull_uint_var() != StreamType.CONTROL:
            return []
        while True:
            kind, length = buffer.pull_uint_var(), buffer.pull_uint_var()
            content = buffer.pull_bytes(length)
            if kind == FrameType.GOAWAY:
                said.append(Buffer(data=content).pull_uint_var())
    except BufferReadError:
        return said


class Answer:
    def __init__(self):
        self.heads = []
        self.content = bytearray()
        self.begun = asyncio.get_running_loop().create_future()
        self.done = asyncio.get_running_loop().create_future()

    @property
    def status(self):
        return int(dict(self.heads[0])[b":status"])

    def fail(self, reason):
        for future in (self.begun, self.done):
            if not future.done():
                future.set_exception(ConnectionError(reason))
                # Not everybody waits for both.
                future.exception()


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.http = Http(self._quic)
        self.answers = {}
        self.end = asyncio.get_running_loop().create_future()

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated):
            if not self.end.done():
                self.end.set_result((event.error_code, event.reason_phrase))
            for answer in self.answers.values():
                answer.fail(f"closed {event.error_code:#x} {event.reason_phrase}")
        if isinstance(event, StreamReset) and event.stream_id in self.answers:
            self.answers[event.stream_id].fail(f"reset {event.error_code:#x}")
        for event in self.http.handle_event(event):
            answer = self.answers.get(event.stream_id)
            if answer is None:
                continue
            if isinstance(event, HeadersReceived):
                answer.heads.append(event.headers)
            elif isinstance(event, DataReceived):
                answer.content += event.data
            if not answer.begun.done():
                answer.begun.set_result(answer)
            if event.stream_ended and not answer.done.done():
                answer.done.set_result(answer)

    def datagram_received(self, data, address):
        """Also a stateless reset (RFC 9000 section 10.3.1), which aioquic takes for a packet that is broken."""
        ids = [self._quic._peer_cid, *self._quic._peer_cid_available]
        if bytes(data[-16:]) in [peer.stateless_reset_token for peer in ids]:
            self._quic._close_event = ConnectionTerminated(
                error_code=0, frame_type=None, reason_phrase="stateless reset"
            )
            self._quic._close_end()
            self._process_events()
        else:
            super().datagram_received(data, address)

    def ask(self, path, method="GET", content=None, fields=()):
        stream = self._quic.get_next_available_stream_id()
        answer = self.answers[stream] = Answer()
        answer.stream = stream
        if method == "HEAD":
            self.http.heads.add(stream)
        head = [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":authority", HOST.encode()),
            (b":path", path.encode()),
        ]
        if content is not None:
            head.append((b"content-length", str(len(content)).encode()))
        self.http.send_headers(stream, head + list(fields), end_stream=content is None)
        if content is not None:
            self.http.send_data(stream, content, end_stream=True)
        self.transmit()
        return answer

    async def get(self, path, **named):
        return await asyncio.wait_for(self.ask(path, **named).done, 60)


def bound_socket():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


def configured(authority):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name=HOST)
    configuration.load_verify_locations(authority)
    configuration.idle_timeout = 60
    return configuration


@asynccontextmanager
async def connect(port, authority):
    configuration = configured(authority)
    loop = asyncio.get_running_loop()
    quic = QuicConnection(configuration=configuration)
    transport, client = await loop.create_datagram_endpoint(lambda: Client(quic), sock=bound_socket())
    try:
        client.connect(("127.0.0.1", port))
        await asyncio.wait_for(client.wait_connected(), 20)
        yield client
    finally:
        client.close()
        await client.wait_closed()
        transport.close()


def said(**result):
    print(json.dumps(result), flush=True)


async def barrier():
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def digest(data):
    return hashlib.sha256(data).hexdigest()


async def basics(client):
    """GET, HEAD, POST, a missing file, trailers."""
    hello = await client.get("/hello")
    head = await client.get("/hello", method="HEAD")
    missing = await client.get("/files/missing")
    said(
        hello=[hello.status, hello.content.decode()],
        fields={name.decode(): value.decode() for name, value in hello.heads[0]},
        head=[head.status, len(head.content), dict(head.heads[0]).get(b"content-length", b"").decode()],
        missing=missing.status,
    )


async def upload(client, length):
    content = bytes(range(256)) * (int(length) // 256)
    answer = await client.get("/node/mirror", method="POST", content=content)
    said(status=answer.status, same=bytes(answer.content) == content)


async def echo(client):
    answer = await client.get("/node/echo?a=b", fields=[(b"cookie", b"a=1"), (b"cookie", b"b=2")])
    trailers = await client.get("/node/trailers")
    hints = await client.get("/node/hints")
    said(
        echo=json.loads(answer.content),
        trailers=[[name.decode(), value.decode()] for name, value in trailers.heads[-1]],
        hints=[dict(head)[b":status"].decode() for head in hints.heads],
    )


async def download(client, path):
    answer = await client.get(path)
    said(status=answer.status, length=len(answer.content), sha256=digest(answer.content))


class Deaf(Client):
    """Hears nothing of the server until it is told to listen: so long its handshake does not end."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.unheard = []

    def datagram_received(self, data, address):
        if self.unheard is None:
            super().datagram_received(data, address)
        else:
            self.unheard.append((data, address))

    def listen(self):
        unheard, self.unheard = self.unheard, None
        for data, address in unheard:
            self.datagram_received(data, address)


async def early(port, authority, *asked):
    """A session, and then connections that begin with it: what is asked on each, `METHOD PATH`, comes before the end of the
    handshake. With `again` the session of the one before is used once more."""
    loop, tickets = asyncio.get_running_loop(), []

    async def begin(ticket, protocol=Client):
        configuration = configured(authority)
        configuration.session_ticket = ticket
        quic = QuicConnection(configuration=configuration, session_ticket_handler=tickets.append)
        _, client = await loop.create_datagram_endpoint(lambda: protocol(quic), sock=bound_socket())
        client.connect(("127.0.0.1", int(port)), transmit=ticket is None)
        return client

    client = await begin(None)
    await client.wait_connected()
    await client.get("/hello")
    while not tickets:
        await asyncio.sleep(0.005)
    client.close()
    await client.wait_closed()
    results, ticket = [], None
    for requests in asked:
        again, *requests = ["again" in requests, *requests.removeprefix("again,").split(",")]
        ticket = ticket if again else tickets.pop()
        client = await begin(ticket, Deaf)
        asks = [request.split(" ") for request in requests]
        answers = [
            client.ask(path, method=method, content=b"some" if method == "POST" else None) for method, path in asks
        ]
        await barrier()
        client.listen()
        await asyncio.wait_for(asyncio.gather(*(answer.done for answer in answers)), 20)
        results.append(
            {
                "early": client._quic.tls.early_data_accepted,
                "resumed": client._quic.tls.session_resumed,
                "answers": [[answer.status, answer.content.decode()] for answer in answers],
            }
        )
        client.close()
        await client.wait_closed()
    said(connections=results)


async def many(client, count):
    """All at once; the server lets so many begin as it likes."""
    answers = [client.ask("/hello") for _ in range(int(count))]
    await asyncio.wait_for(asyncio.gather(*(answer.done for answer in answers)), 60)
    said(answered=sum(answer.content == b"hello\n" for answer in answers))


async def migrate(client, path):
    """To a new local port, in the middle of an answer."""
    before = await client.get("/hello")
    answer = client.ask(path)
    await answer.begun
    ports = [client._transport.get_extra_info("sockname")[1]]
    for _ in range(3):
        old = client._transport
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: client, sock=bound_socket())
        old.close()
        ports.append(client._transport.get_extra_info("sockname")[1])
        client.change_connection_id()
        after = await client.get("/hello")
    await asyncio.wait_for(answer.done, 60)
    said(ports=len(set(ports)), status=[before.status, after.status], sha256=digest(answer.content))


async def cancel(client, count):
    """Requests that are given up while they are answered."""
    answers = [client.ask("/node/events") for _ in range(int(count))]
    await asyncio.gather(*(answer.begun for answer in answers))
    for answer in answers:
        client._quic.stop_stream(answer.stream, 0x10C)
    client.transmit()
    hello = await client.get("/hello")
    said(status=hello.status)


async def held(client, count):
    """Requests in flight, while the test does something; then how each has ended, and the connection."""
    answers = [client.ask("/node/events") for _ in range(int(count))]
    await asyncio.gather(*(answer.begun for answer in answers))
    await barrier()
    code, _ = await asyncio.wait_for(client.end, 60)
    said(cut=sum(answer.done.exception() is not None for answer in answers), code=code)


async def drain(client, count):
    """Uploads whose rest is sent when the server drains already: all of them are answered."""
    answers = []
    for _ in range(int(count)):
        stream = client._quic.get_next_available_stream_id()
        answer = client.answers[stream] = Answer()
        answer.stream = stream
        head = [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", HOST.encode()),
            (b":path", b"/node/mirror"),
        ]
        client.http.send_headers(stream, head)
        client.http.send_data(stream, b"begin ", end_stream=False)
        answers.append(answer)
    client.transmit()
    await asyncio.gather(*(answer.begun for answer in answers))
    await barrier()
    while len(client.http.goaways) < 2:
        await asyncio.sleep(0.005)
    for answer in answers:
        client.http.send_data(answer.stream, b"end", end_stream=True)
    client.transmit()
    await asyncio.wait_for(asyncio.gather(*(answer.done for answer in answers)), 60)
    code, _ = await asyncio.wait_for(client.end, 60)
    said(
        answered=sum(answer.content == b"begin end" for answer in answers),
        goaways=client.http.goaways,
        code=code,
    )


async def follow(client):
    """Answers before and after something that the test does."""
    before = await client.get("/hello")
    await barrier()
    after = await client.get("/hello")
    said(status=[before.status, after.status])


async def raw(client, frames):
    """Bytes on a request stream, from hexadecimal; how stream or connection end."""
    stream = client._quic.get_next_available_stream_id()
    answer = client.answers[stream] = Answer()
    client._quic.send_stream_data(stream, bytes.fromhex(frames), end_stream=True)
    client.transmit()
    try:
        await asyncio.wait_for(answer.done, 20)
        said(status=answer.status)
    except ConnectionError as error:
        said(error=str(error).strip())


def frame(first, payload, mask=b"\x11\x22\x33\x44"):
    """A short WebSocket frame of a client (RFC 6455 section 5.2)."""
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return bytes([first, 0x80 | len(payload)]) + mask + masked


async def websocket(client, path):
    """A WebSocket by extended CONNECT (RFC 9220): an echo, and how it ends when the server drains."""
    stream = client._quic.get_next_available_stream_id()
    answer = client.answers[stream] = Answer()
    head = [
        (b":method", b"CONNECT"),
        (b":protocol", b"websocket"),
        (b":scheme", b"https"),
        (b":authority", HOST.encode()),
        (b":path", path.encode()),
        (b"sec-websocket-version", b"13"),
    ]
    client.http.send_headers(stream, head)
    client.transmit()
    await asyncio.wait_for(answer.begun, 20)
    if answer.status != 200:
        return said(status=answer.status)

    async def received(count):
        while len(answer.content) < count:
            await asyncio.sleep(0.005)
        taken = bytes(answer.content[:count])
        del answer.content[:count]
        return taken

    client.http.send_data(stream, frame(0x81, b"hello"), end_stream=False)
    client.transmit()
    echo = await asyncio.wait_for(received(7), 20)
    await barrier()
    close = await asyncio.wait_for(received(4), 20)
    client.http.send_data(stream, frame(0x88, close[2:4]), end_stream=True)
    client.transmit()
    await asyncio.wait_for(answer.done, 20)
    said(
        status=answer.status,
        offered=client.http.received_settings.get(8),
        echo=echo.decode("latin1"),
        close=[close[0], int.from_bytes(close[2:4], "big")],
    )


class Counts:
    def __init__(self):
        self.answered = self.unsent = self.connections = 0
        self.failed = {}


async def load(port, authority, connections, streams):
    """Requests without end, until a line comes; then what has become of them.

    A connection that is told to go away finishes what it has begun, and is followed by another. What was told to have had no
    effect (RFC 9114 section 5.2) is counted apart: it may be asked again.
    """
    counts, stop = Counts(), asyncio.Event()
    workers = [
        asyncio.create_task(keep_asking(int(port), authority, int(streams), counts, stop))
        for _ in range(int(connections))
    ]
    await barrier()
    stop.set()
    await asyncio.gather(*workers)
    said(**vars(counts))


async def keep_asking(port, authority, streams, counts, stop):
    while not stop.is_set():
        try:
            async with connect(port, authority) as client:
                counts.connections += 1
                await asyncio.gather(*(ask_along(client, number, counts, stop) for number in range(streams)))
        except (ConnectionError, asyncio.TimeoutError) as error:
            note(counts, f"connection: {error or type(error).__name__}")


async def ask_along(client, number, counts, stop):
    """One request after the other, as long as the server wants more on this connection."""
    content = None if number % 2 else b"some content, back as it came"
    while not (stop.is_set() or client.http.goaways or client.end.done()):
        if content is None:
            answer, expected = client.ask("/hello"), b"hello\n"
        else:
            answer, expected = client.ask("/node/mirror", method="POST", content=content), content
        try:
            await asyncio.wait_for(answer.done, 60)
            if answer.status == 200 and answer.content == expected:
                counts.answered += 1
            else:
                note(counts, f"wrong: {answer.status}")
        except (ConnectionError, asyncio.TimeoutError) as error:
            last = client.http.goaways[-1] if client.http.goaways else None
            if str(error).startswith("reset 0x10b") or last is not None and answer.stream >= last:
                counts.unsent += 1
            else:
                note(counts, str(error) or type(error).__name__)
            return


def note(counts, failure):
    counts.failed[failure] = counts.failed.get(failure, 0) + 1


async def wander(client, path):
    """Moves to another port for every line that comes, in the middle of an answer; an empty scenario's end is `end`."""
    answer = client.ask(path)
    await answer.begun
    ports, statuses = set(), []
    while True:
        print("ready", flush=True)
        line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        if line.strip() == "end":
            break
        old = client._transport
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: client, sock=bound_socket())
        old.close()
        ports.add(client._transport.get_extra_info("sockname")[1])
        client.change_connection_id()
        statuses.append((await client.get("/hello")).status)
    await asyncio.wait_for(answer.done, 60)
    said(ports=len(ports), status=statuses, sha256=digest(answer.content))


# Those that open their connections themselves.
ALONE = {"load": load, "early": early}


async def main():
    port, authority, scenario, *arguments = sys.argv[1:]
    if scenario in ALONE:
        return await ALONE[scenario](port, authority, *arguments)
    try:
        async with connect(int(port), authority) as client:
            await globals()[scenario](client, *arguments)
    except (ConnectionError, asyncio.TimeoutError) as error:
        said(failed=str(error) or type(error).__name__)


asyncio.run(main())
