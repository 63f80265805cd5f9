"""WebSockets over HTTP/2 (RFC 8441), on the frames of python's h2 and the WebSocket protocol of websockets.

    websocket_h2_client.py HOST:PORT PATH

Three tunnels and an ordinary request on one connection; prints what it has seen as JSON.
"""

import json
import socket
import sys

import h2.config
import h2.connection
import h2.events
from websockets.client import ClientProtocol
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

address, path = sys.argv[1:]
host, port = address.rsplit(":", 1)
transport = socket.create_connection((host, int(port)), timeout=30)
transport.settimeout(30)
connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
connection.initiate_connection()
transport.sendall(connection.data_to_send())

streams, waiting = {}, []


class Tunnel:
    def __init__(self):
        self.status = self.headers = self.reset = None
        self.ended = False
        self.body = b""
        self.sockets = ClientProtocol(parse_uri("ws://site.test/"), max_size=None)
        self.sockets.state = State.OPEN
        self.sockets.parser = self.sockets.parse()
        next(self.sockets.parser)
        self.events = []


def step():
    """Sends what is to be sent, and reads once."""
    transport.sendall(connection.data_to_send())
    data = transport.recv(65536)
    assert data, "the server has closed the connection"
    for event in connection.receive_data(data):
        tunnel = streams.get(getattr(event, "stream_id", None))
        if isinstance(event, h2.events.ResponseReceived):
            tunnel.headers = dict(event.headers)
            tunnel.status = tunnel.headers[":status"]
        elif isinstance(event, h2.events.DataReceived):
            connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            tunnel.body += event.data
            tunnel.sockets.receive_data(event.data)
            tunnel.events += tunnel.sockets.events_received()
        elif isinstance(event, h2.events.StreamEnded):
            tunnel.ended = True
        elif isinstance(event, h2.events.StreamReset):
            tunnel.reset = int(event.error_code)
    transport.sendall(connection.data_to_send())


def until(condition):
    while not condition():
        step()


def open_stream(protocol="websocket", target=path, fields=()):
    stream = connection.get_next_available_stream_id()
    headers = [(":method", "CONNECT"), (":protocol", protocol), (":scheme", "http"), (":path", target)]
    headers += [(":authority", "site.test"), ("sec-websocket-version", "13"), *fields]
    connection.send_headers(stream, headers)
    streams[stream] = Tunnel()
    return stream


def send(stream, data, end=False):
    while data:
        until(lambda: connection.local_flow_control_window(stream) > 0)
        size = min(len(data), connection.local_flow_control_window(stream), connection.max_outbound_frame_size)
        connection.send_data(stream, data[:size])
        data = data[size:]
        transport.sendall(connection.data_to_send())
    if end:
        connection.end_stream(stream)
        transport.sendall(connection.data_to_send())


def message(stream, payload):
    tunnel = streams[stream]
    tunnel.sockets.send_binary(payload)
    send(stream, b"".join(tunnel.sockets.data_to_send()))
    got = b""
    while True:
        until(lambda: tunnel.events)
        frame = tunnel.events.pop(0)
        got += frame.data
        if frame.fin:
            return got


until(lambda: connection.remote_settings.enable_connect_protocol)
enabled = connection.remote_settings.enable_connect_protocol

first = open_stream(fields=[("sec-websocket-protocol", "chat, superchat")])
until(lambda: streams[first].status)
others = [open_stream(), open_stream()]
until(lambda: all(streams[other].status for other in others))

for number, size in enumerate([0, 1, 200, 70_000, 3 << 20]):
    for stream in [first, *others]:
        payload = bytes([number]) * size
        assert message(stream, payload) == payload, (number, stream)

plain = connection.get_next_available_stream_id()
streams[plain] = Tunnel()
get = [(":method", "GET"), (":scheme", "http"), (":path", "/plain"), (":authority", "site.test")]
connection.send_headers(plain, get, end_stream=True)
until(lambda: streams[plain].ended)

# Closed in order: Close, the answering Close, END_STREAM.
tunnel = streams[first]
tunnel.sockets.send_close(1000)
send(first, b"".join(tunnel.sockets.data_to_send()))
until(lambda: tunnel.events)
close = tunnel.events.pop(0)
assert close.opcode is Opcode.CLOSE, close
until(lambda: tunnel.ended)
connection.end_stream(first)

# Reset by the client; the others go on.
connection.reset_stream(others[0], 8)
assert message(others[1], b"still") == b"still"

unknown = open_stream(protocol="connect-udp")
elsewhere = open_stream(target="/plain")
until(lambda: all(streams[stream].status for stream in [unknown, elsewhere]))

print(
    json.dumps(
        {
            "enabled": enabled,
            "statuses": [streams[stream].status for stream in [first, *others]],
            "subprotocol": tunnel.headers.get("sec-websocket-protocol"),
            "accept": tunnel.headers.get("sec-websocket-accept"),
            "close": int.from_bytes(close.data[:2], "big"),
            "plain": streams[plain].status,
            "unknown": streams[unknown].status,
            "elsewhere": streams[elsewhere].status,
        }
    ),
    flush=True,
)
