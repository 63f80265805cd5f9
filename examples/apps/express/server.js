// An Express app on the socket that it is given.
'use strict';
const express = require('express');

const app = express();
app.disable('x-powered-by');
app.get('/', (request, response) => response.type('text/plain').send('hello from express\n'));
app.get('/healthz', (request, response) => response.sendStatus(204));
app.get('/id/:id', (request, response) => response.type('text/plain').send(request.params.id));
app.post('/echo', express.raw({ type: () => true, limit: '16mb' }), (request, response) => response.send(request.body));

const server = app.listen(process.env.PLAYHOUSE_SOCKET || process.env.PORT);
// What is in flight is answered first.
process.on('SIGTERM', () => { server.close(() => process.exit(0)); server.closeIdleConnections(); });
