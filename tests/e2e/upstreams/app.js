// A program as a site runs it: listens where the environment says, and does what it is asked.
'use strict';
const http = require('node:http');

const kept = [];
const text = (response, body) => response.end(String(body));

const server = http.createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
  const [path] = request.url.split('?');
  if (process.env.CHATTY) console.log(`asked for ${path} ${'x'.repeat(200)}`);
  if (path.startsWith('/id/')) return text(response, path.slice(4));
  switch (path) {
    case '/':
    case '/pid': return text(response, process.pid);
    case '/env': {
      const { PLAYHOUSE_APP: app, PLAYHOUSE_PLACE: place, PLAYHOUSE_SOCKET: socket, PORT: port, TOLD: told } = process.env;
      return text(response, JSON.stringify({ app, place, socket, port, told, cwd: process.cwd(), args: process.argv.slice(2) }));
    }
    case '/slow': return void setTimeout(() => text(response, 'slow'), 500);
    case '/grow': kept.push(Buffer.alloc(128 << 20, 1)); return text(response, process.pid);
    case '/crash': return process.exit(7);
    default:
      response.statusCode = 404;
      return text(response, 'no such page\n');
  }
});

console.log(`app ${process.env.PLAYHOUSE_APP} begins in place ${process.env.PLAYHOUSE_PLACE}`);
console.error('\x1b[31mred\x1b[0m');
server.listen(process.env.PLAYHOUSE_SOCKET || Number(process.env.PORT), process.env.HOST);
process.on('SIGTERM', () => { server.close(() => process.exit(0)); server.closeIdleConnections(); });
