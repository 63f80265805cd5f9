// A WebSocket over HTTP/2 (RFC 8441) on node's client, which goes on after a GOAWAY as RFC 9113 says.
//
//     websocket_h2_client.js HOST:PORT PATH
//
// Prints `open` once a message has come back, and at the end the code of the Close, as JSON.

const http2 = require("http2");

const [address, path] = process.argv.slice(2);
const session = http2.connect(`http://${address}`);

// A frame with this first byte, masked with zeros.
const frame = (first, payload) =>
  Buffer.concat([Buffer.from([first, 0x80 | payload.length, 0, 0, 0, 0]), Buffer.from(payload)]);

session.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
session.once("remoteSettings", (settings) => {
  if (!settings.enableConnectProtocol) throw new Error("not offered");
  const stream = session.request({
    ":method": "CONNECT",
    ":protocol": "websocket",
    ":path": path,
    "sec-websocket-version": "13",
  });
  let received = Buffer.alloc(0);
  let code = null;
  stream.on("response", (headers) => {
    if (headers[":status"] !== 200) throw new Error(`status ${headers[":status"]}`);
    stream.write(frame(0x81, "hello"));
  });
  stream.on("data", (data) => {
    received = Buffer.concat([received, data]);
    // All frames here are short.
    while (received.length >= 2 && received.length >= 2 + received[1]) {
      const payload = received.subarray(2, 2 + received[1]);
      if (received[0] === 0x81) console.log(payload.toString() === "hello" ? "open" : "wrong");
      if (received[0] === 0x88) {
        code = payload.readUInt16BE(0);
        stream.write(frame(0x88, payload));
      }
      received = received.subarray(2 + received[1]);
    }
  });
  stream.on("end", () => {
    stream.end();
    console.log(JSON.stringify({ code, reset: stream.rstCode }));
    session.close();
  });
});
