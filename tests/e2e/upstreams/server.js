// A node server with the things that node does and others do not: chunked answers, trailers, 103, slow streams.
'use strict';
const http = require('node:http');
const crypto = require('node:crypto');

let cancelled = 0;

const routes = {
  '/hello': (request, response) => response.end('hello from node\n'),

  // What arrived, as JSON.
  '/echo': (request, response) => {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => {
      const body = Buffer.concat(parts);
      response.setHeader('Content-Type', 'application/json');
      response.end(JSON.stringify({
        method: request.method,
        url: request.url,
        version: request.httpVersion,
        headers: request.headers,
        trailers: request.trailers,
        length: body.length,
        sha256: crypto.createHash('sha256').update(body).digest('hex'),
      }));
    });
  },

  // Wants nothing that may be repeated.
  '/once': (request, response) => {
    response.statusCode = request.headers['early-data'] ? 425 : 200;
    response.end(`early-data: ${request.headers['early-data']}\n`);
  },

  // The body comes back as it arrives.
  '/mirror': (request, response) => {
    response.writeHead(200, { 'Content-Type': 'application/octet-stream' });
    request.pipe(response);
  },

  '/chunks': async (request, response) => {
    response.writeHead(200, { 'Content-Type': 'text/plain' });
    for (let i = 0; i < 100; i++) response.write(`line ${i}\n`);
    response.end();
  },

  '/trailers': (request, response) => {
    response.writeHead(200, { 'Content-Type': 'text/plain', Trailer: 'X-Checksum' });
    response.write('with trailers\n');
    response.addTrailers({ 'X-Checksum': 'abc123' });
    response.end();
  },

  '/hints': (request, response) => {
    response.writeEarlyHints({ link: '</style.css>; rel=preload; as=style' });
    response.end('after hints\n');
  },

  // One event, then nothing until the client goes.
  '/events': (request, response) => {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    response.write('data: first\n\n');
    response.on('close', () => { if (!response.writableFinished) cancelled++; });
  },

  '/cancelled': (request, response) => response.end(String(cancelled)),

  // Breaks off in the middle of an announced length.
  '/broken': (request, response) => {
    response.writeHead(200, { 'Content-Length': '1000' });
    response.write('only this');
    setImmediate(() => response.destroy());
  },

  '/no-length': (request, response) => {
    response.sendDate = false;
    response.useChunkedEncodingByDefault = false;
    response.writeHead(200, { Connection: 'close' });
    response.end('until the end of the connection');
  },

  // An answer before the request's body is read, which it never is.
  '/refuse': (request, response) => {
    response.writeHead(403, { 'Content-Length': '8', Connection: 'close' });
    response.end('refused\n');
  },
};

const server = http.createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
  const route = routes[request.url.split('?')[0]];
  if (route) return route(request, response);
  response.statusCode = 404;
  response.end('node does not know this\n');
});

server.on('checkContinue', (request, response) => {
  if (request.url.startsWith('/refuse')) return routes['/refuse'](request, response);
  response.writeContinue();
  server.emit('request', request, response);
});

server.listen(Number(process.argv[2] || 0), '127.0.0.1', () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
process.on('SIGTERM', () => process.exit(0));
