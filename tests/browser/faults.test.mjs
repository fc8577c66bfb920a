// What can go wrong in a call, each with its own state on the page. The engine is a second connection in the same page, so
// that the test decides what it says and when it goes away.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { Tab, browse, serve } from './harness.mjs';

const TOKEN = 'correct-horse-battery-staple';
let browser;
let server;
let locked;
before(async () => {
  [browser, server, locked] = await Promise.all([browse(), serve(), serve({ token: TOKEN })]);
});
after(async () => Promise.all([browser?.close(), server?.stop(), locked?.stop()]));

/** A page whose sessions are held by the engine in the page itself. */
function open(options = {}) {
  return Tab.open(browser, server.url, { ...options, before: async (page) => {
    await page.addInitScript(ENGINE);
    await page.route('**/session', async (route) => {
      const sdp = await page.evaluate((offer) => window.engine.answer(offer), route.request().postDataJSON().sdp);
      await route.fulfill({ json: { session_id: 'live_test', sdp } });
    });
    await options.before?.(page);
  } });
}

const say = (tab, ...events) => tab.page.evaluate((list) => window.engine.say(...list), events);
const words = (speaker, delta, start_ms) => ({ type: `session.${speaker}_transcript.delta`, delta, start_ms, end_ms: start_ms + 200 });
const received = (tab) => tab.page.evaluate(() => window.engine.received);

test('the microphone: refused, none, busy', async () => {
  const refused = await Tab.open(browser, server.url, { microphone: false });
  await refused.state('ready');
  await refused.page.click('#call');
  await refused.state('failed');
  assert.match(await refused.text('#notice-title'), /was refused/);
  await refused.look('failed-microphone');
  await refused.context.grantPermissions(['microphone']);
  await refused.page.click('#notice-act');
  await refused.state('live', 'speaking');
  await refused.close();

  for (const [name, title] of [['NotFoundError', /no microphone/], ['NotReadableError', /in use/]]) {
    const tab = await open({ before: (page) => page.addInitScript((error) => {
      navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('told so', error); };
    }, name) });
    await tab.state('ready');
    await tab.page.click('#call');
    await tab.state('failed');
    assert.match(await tab.text('#notice-title'), title);
    assert.equal(tab.bodies('session').length, 0, 'nothing is billed without a microphone');
    await tab.close();
  }
});

test('an address that is not secure says so, and asks for no token', async () => {
  const url = locked.url.replace('127.0.0.1', 'voice.test');
  const tab = await Tab.open(browser, url, { microphone: false });
  await tab.state('failed');
  assert.match(await tab.text('#notice'), /not secure.*HTTPS/s);
  assert.ok(await tab.page.isDisabled('#call'));
  await tab.look('failed-insecure');
  await tab.close();
});

test('the engine refuses, with its status and words', async () => {
  const tab = await open();
  await tab.page.route('**/session', (route) => route.fulfill({ status: 502, json: { error: 'You exceeded your quota.', status: 429 } }));
  await tab.state('ready');
  await tab.page.click('#call');
  await tab.state('failed');
  assert.match(await tab.text('#notice-title'), /refused the call \(429\)/);
  assert.match(await tab.text('#notice-detail'), /exceeded your quota/);
  assert.equal(tab.bodies('session').length, 1, 'a refusal is not tried again');
  await tab.look('failed-engine');
  await tab.close();
});

test('the server is gone, at the beginning and before a call', async () => {
  const tab = await open({ before: (page) => page.route('**/config', (route) => route.abort()) });
  await tab.state('failed');
  assert.match(await tab.text('#notice-title'), /server does not answer/);
  await tab.page.unroute('**/config');
  await tab.page.click('#notice-act');
  await tab.state('ready');
  await tab.page.route('**/session', (route) => route.abort());
  await tab.page.click('#call');
  await tab.state('failed');
  assert.match(await tab.text('#notice-title'), /server does not answer/);
  await tab.close();
});

test('case 24: a way that leads nowhere ends within a limit, and says what it tried', async () => {
  const tab = await open();
  await tab.page.evaluate(() => { window.engine.deaf = true; });
  await tab.state('ready');
  await tab.page.click('#call');
  await tab.state('failed');
  assert.match(await tab.text('#notice-title'), /No way to the voice service/);
  await tab.close();
});

test('a hang-up while ways are gathered asks for no session, which would be billed', async () => {
  const tab = await open({ before: (page) => page.addInitScript(() => {
    const set = RTCPeerConnection.prototype.setLocalDescription;
    RTCPeerConnection.prototype.setLocalDescription = async function slow(...description) {
      await set.apply(this, description);
      window.offering = true;
      await new Promise((done) => { window.offer = done; });
    };
  }) });
  await tab.state('ready');
  await tab.page.click('#call');
  await tab.page.waitForFunction(() => window.offering);
  await tab.page.click('#call');
  await tab.state('ended');
  await tab.page.evaluate(() => window.offer());
  await tab.page.waitForTimeout(1_000);
  assert.equal(tab.bodies('session').length, 0);
  await tab.close();
});

test('an engine that connects and says nothing is given up', async () => {
  const tab = await open();
  await tab.page.evaluate(() => { window.engine.silent = true; });
  await tab.state('ready');
  await tab.page.click('#call');
  await tab.state('failed');
  assert.match(await tab.text('#notice-title'), /did not start/);
  await tab.close();
});

test('cases 23, 28 and 30: an unknown name among the ways, a start in the channel’s first breath, errors that end nothing', async () => {
  const tab = await open();
  await tab.page.evaluate(() => Object.assign(window.engine, {
    first: [{ type: 'error', error: { type: 'invalid_request_error', code: 'x', message: 'not this', client_event_id: 'evt_7' } }],
    then: [
      { type: 'session.input_transcript.delta', delta: 'at once', start_ms: 0, end_ms: 200 },
      { type: 'session.delegation.created', offset_ms: 200, delegation: { id: 'item_1', type: 'delegation', target: 'client' } },
    ],
    extra: 'a=candidate:8 1 udp 98 9d3d7e6e-4785-4c4b-9d3d-7e6e47854c4b.local 52743 typ host\r\n',
  }));
  const asked = tab.page.waitForRequest('**/delegate');
  await tab.call();
  assert.deepEqual((await asked).postDataJSON().lines, [{ speaker: 'user', text: 'at once' }]);
  await say(tab, { type: 'error', error: { type: 'server_error', message: 'no end' } }, { type: 'unheard.of' }, words('output', 'still here', 9_000));
  await tab.caption('still here');
  await tab.sound();
  assert.match(await tab.page.getAttribute('html', 'data-state'), /^(live|speaking)$/);
  await tab.close();
});

test('a connection that drops is taken up again, with the history', async () => {
  const tab = await open();
  await tab.call();
  await say(tab, words('input', 'remember the number seven', 400), words('output', 'I will', 2_000));
  await tab.caption('I will');
  await tab.page.evaluate(() => window.engine.vanish());
  await tab.state('reconnecting');
  await tab.look('reconnecting');
  await tab.state('live', 'speaking');
  const [first, second] = tab.bodies('session');
  assert.equal(first.history, undefined);
  assert.deepEqual(second.history, [{ speaker: 'user', text: 'remember the number seven' }, { speaker: 'assistant', text: 'I will' }]);
  const before = await tab.energy();
  await tab.sound(before);
  await say(tab, words('output', 'back again', 200));
  await tab.caption('back again');
  await tab.close();
});

test('a channel that closes by itself is a connection lost', async () => {
  const tab = await open();
  await tab.call();
  await tab.page.evaluate(() => window.engine.channel.close());
  await tab.state('reconnecting');
  await tab.state('live', 'speaking');
  await tab.close();
});

test('a refusal while it reconnects is the end: no more sessions are asked for', async () => {
  const tab = await open();
  await tab.call();
  await tab.page.unroute('**/session');
  await tab.page.route('**/session', (route) => route.fulfill({ status: 502, json: { error: 'No more.', status: 403 } }));
  await tab.page.evaluate(() => window.engine.channel.close());
  await tab.state('failed');
  assert.match(await tab.text('#notice-title'), /refused the call \(403\)/);
  await tab.page.waitForTimeout(4_000);
  assert.equal(tab.bodies('session').length, 2);
  await tab.close();
});

test('the engine ends the session: by time it goes on in another, for what was said it does not', async () => {
  const tab = await open();
  await tab.call();
  await say(tab, { type: 'session.closed', reason: 'expired' });
  await tab.state('reconnecting');
  await tab.state('live', 'speaking');
  await say(tab, { type: 'session.closed', reason: 'content' });
  await tab.state('failed');
  assert.match(await tab.text('#notice-title'), /stopped this conversation/);
  assert.equal(tab.bodies('session').length, 2);
  await tab.close();
});

test('Hermes cannot be reached: it is said and shown, and the call goes on', async () => {
  const tab = await open();
  await tab.page.route('**/delegate', (route) => route.fulfill({ status: 502, json: { error: 'Hermes cannot be reached' } }));
  await tab.call();
  await say(tab, words('input', 'tidy up', 400), { type: 'session.delegation.created', offset_ms: 800, delegation: { id: 'item_1', target: 'client' } });
  await tab.shown('notice');
  assert.match(await tab.text('#notice-title'), /Hermes cannot be reached/);
  await tab.page.waitForFunction(() => window.engine.received.length > 0);
  const said = await received(tab);
  assert.deepEqual(said.map(({ delegation_id, content }) => [delegation_id, content]), [['item_1', 'I cannot reach Hermes right now.']]);
  await tab.state('live', 'speaking');
  await tab.look('hermes-unreachable');
  await tab.page.click('#notice-other');
  await tab.hidden('notice');
  await tab.close();
});

test('a browser that holds the sound back is asked by a press', async () => {
  const tab = await open({ before: (page) => page.addInitScript(() => {
    const { play } = HTMLMediaElement.prototype;
    HTMLMediaElement.prototype.play = async function once() {
      HTMLMediaElement.prototype.play = play;
      throw new DOMException('a press is needed', 'NotAllowedError');
    };
  }) });
  await tab.call();
  await tab.shown('unheard');
  await tab.page.click('#hear');
  await tab.hidden('unheard');
  assert.ok(!await tab.page.evaluate(() => document.querySelector('audio').paused));
  await tab.close();
});

test('a microphone that is pulled out is replaced in mid-call', async () => {
  const tab = await open();
  await tab.call();
  await tab.page.evaluate(() => {
    const [sender] = window.peers[0].getSenders();
    window.pulled = sender.track;
    sender.track.stop();
    sender.track.dispatchEvent(new Event('ended'));
  });
  await tab.page.waitForFunction(() => {
    const { track } = window.peers[0].getSenders()[0];
    return track !== window.pulled && track.readyState === 'live';
  });
  await tab.state('live', 'speaking');
  await tab.close();
});

/** Runs in the page: the other side of its connections. */
const ENGINE = `
  window.engine = {
    received: [], first: [], then: [], extra: '', deaf: false, silent: false,
    async answer(sdp) {
      const peer = new PlainPeerConnection();
      this.peer = peer;
      this.sound ??= new AudioContext();
      const tone = this.sound.createOscillator();
      const stream = this.sound.createMediaStreamDestination();
      tone.connect(stream);
      tone.start();
      peer.addTrack(stream.stream.getTracks()[0], stream.stream);
      peer.ondatachannel = ({ channel }) => {
        this.channel = channel;
        channel.onmessage = ({ data }) => {
          const event = JSON.parse(data);
          this.received.push(event);
          if (event.type === 'session.close') this.say({ type: 'session.closed', reason: 'close_requested' });
        };
        const start = () => this.silent || this.say(...this.first, { type: 'session.started', session: { id: 'live_test' } }, ...this.then);
        if (channel.readyState === 'open') start(); else channel.onopen = start;
      };
      await peer.setRemoteDescription({ type: 'offer', sdp });
      await peer.setLocalDescription();
      while (peer.iceGatheringState !== 'complete') await new Promise((done) => setTimeout(done, 10));
      const answer = peer.localDescription.sdp;
      if (this.deaf) {
        peer.close();
        return answer.replaceAll(/a=candidate.*\\r\\n/g, '').replace('a=ice-ufrag', 'a=candidate:1 1 udp 2130706431 192.0.2.1 9 typ host\\r\\na=ice-ufrag');
      }
      return answer.replace('a=ice-ufrag', this.extra + 'a=ice-ufrag');
    },
    say(...events) { for (const event of events) this.channel.send(JSON.stringify(event)); },
    vanish() { this.peer.close(); },
  };
`;
