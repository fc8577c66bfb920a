// The baseline: a relay of a few lines on `ws`, the usual WebSocket library of Node.js. It copies messages between the two
// sides of a bridge and does nothing else: no grants, no limits, no notices, no bound on what a slow reader leaves waiting.

import { createRequire } from 'node:module';

const { WebSocketServer } = createRequire(process.argv[2] + '/')('ws');

const bridges = new Map();
const server = new WebSocketServer({ host: '127.0.0.1', port: 0, perMessageDeflate: false, maxPayload: 65536 });
server.on('listening', () => console.error(`address=127.0.0.1:${server.address().port}`));
server.on('connection', (socket, request) => {
  const [grant, side] = request.url.split('/').slice(-2);
  const bridge = bridges.get(grant) ?? {};
  bridges.set(grant, bridge);
  bridge[side] = socket;
  const other = side === 'host' ? 'watch' : 'host';
  socket.on('message', (message) => bridge[other]?.send(message, { binary: true }));
  socket.on('close', () => bridges.delete(grant));
});
