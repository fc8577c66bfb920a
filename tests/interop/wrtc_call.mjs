// A call between `watch-audio helper` and libwebrtc (@roamhq/wrtc): this script plays the plugin and the engine at once.
//
//     wrtc_call.mjs HELPER [SECONDS]
//
// Sound is told apart by its frequency: the engine sends one tone, the microphone another. Prints one line of figures as
// JSON; exits 1 with the first thing that was not as it should be.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';

const require = createRequire(process.env.INTEROP_NODE_ROOT ?? import.meta.url);
const wrtc = require('@roamhq/wrtc');
const { RTCPeerConnection, nonstandard: { RTCAudioSource, RTCAudioSink } } = wrtc;

const ENGINE_TONE = 440;
const MICROPHONE_TONE = 660;
const SIZES = [60_000, 200_000];

const [program, seconds = 30] = [process.argv[2], Number(process.argv[3] ?? 30)];
const sleep = (ms) => new Promise((done) => setTimeout(done, Math.max(0, ms)));

function tone(hertz, rate, start, count) {
  const step = (2 * Math.PI * hertz) / rate;
  return Int16Array.from({ length: count }, (_, n) => Math.round(8000 * Math.sin(step * (start + n))));
}

/**
 * How much of the power is at one frequency, 0 to 1: the median over the last ten seconds' blocks of 100 ms. Short blocks,
 * so that a stretch of a busy machine, where sound is caught up with, does not decide.
 */
function share(samples, rate, hertz) {
  const [size, step] = [rate / 10, (2 * Math.PI * hertz) / rate];
  const shares = [];
  for (let start = Math.max(0, samples.length - 10 * rate); start + size < samples.length; start += size) {
    let [real, imaginary, power] = [0, 0, 0];
    for (let n = 0; n < size; n += 1) {
      const sample = samples[start + n];
      real += sample * Math.cos(step * n);
      imaginary += sample * Math.sin(step * n);
      power += sample * sample;
    }
    shares.push((2 * (real * real + imaginary * imaginary)) / (size * (power || 1)));
  }
  return shares.sort((a, b) => a - b)[Math.floor(shares.length / 2)] ?? 0;
}

/** The plugin's side of the helper's pipes. */
class Helper {
  constructor() {
    this.process = spawn(program, ['helper'], { stdio: ['pipe', 'pipe', 'inherit'] });
    this.closed = new Promise((done) => this.process.on('close', done));
    this.sound = [];
    this.texts = [];
    this.others = [];
    this.waiting = null;
    let left = Buffer.alloc(0);
    this.process.stdout.on('data', (data) => {
      left = Buffer.concat([left, data]);
      while (left.length >= 5 && left.length >= 5 + left.readUInt32BE(1)) {
        const payload = Buffer.from(left.subarray(5, 5 + left.readUInt32BE(1)));
        this.take(String.fromCharCode(left[0]), payload);
        left = left.subarray(5 + payload.length);
      }
    });
  }

  take(kind, payload) {
    assert.ok('ORpeX'.includes(kind), `a frame of kind ${kind}`);
    if (kind === 'p') {
      for (let n = 0; n + 1 < payload.length; n += 2) this.sound.push(payload.readInt16LE(n));
    } else if (kind === 'e') {
      this.texts.push(payload.toString());
    } else {
      this.others.push([kind, payload.toString()]);
      this.waiting?.();
    }
  }

  send(kind, payload = '') {
    const body = Buffer.from(payload.buffer ?? payload);
    const head = Buffer.alloc(5, kind, 'latin1');
    head.writeUInt32BE(body.length, 1);
    this.process.stdin.write(Buffer.concat([head, body]));
  }

  async expect(kind, limit) {
    const until = performance.now() + limit;
    while (this.others.length === 0) {
      assert.ok(performance.now() < until, `no ${kind} within ${limit} ms`);
      await Promise.race([new Promise((done) => { this.waiting = done; }), sleep(20)]);
    }
    const [got, payload] = this.others.shift();
    assert.equal(got, kind, payload);
    return payload;
  }
}

const spawned = performance.now();
const helper = new Helper();
helper.send('C', JSON.stringify({ input_rate: 16000, output_rate: 24000, stun: [] }));
const offer = await helper.expect('O', 5000);
const spawnToOffer = performance.now() - spawned;

const engine = new RTCPeerConnection();
const source = new RTCAudioSource();
engine.addTrack(source.createTrack());
let [heard, heardRate, heardSeconds] = [[], 0, 0];
engine.ontrack = ({ track }) => {
  new RTCAudioSink(track).ondata = ({ samples, sampleRate, channelCount }) => {
    // The rate follows what libwebrtc makes of the stream.
    if (sampleRate !== heardRate) [heard, heardRate] = [[], sampleRate];
    heardSeconds += samples.length / channelCount / sampleRate;
    for (let n = 0; n < samples.length; n += channelCount) heard.push(samples[n]);
  };
};
const got = [];
engine.ondatachannel = ({ channel }) => {
  assert.equal(channel.label, 'oai-events');
  channel.onmessage = ({ data }) => {
    got.push(data);
    if (got.length === 2 + SIZES.length) SIZES.forEach((size) => channel.send('y'.repeat(size)));
  };
  channel.send('{"type":"session.started"}');
};
await engine.setRemoteDescription({ type: 'offer', sdp: offer });
await engine.setLocalDescription(await engine.createAnswer());
while (engine.iceGatheringState !== 'complete') await sleep(5);

helper.send('E', 'before the channel is open');
const answered = performance.now();
helper.send('A', engine.localDescription.sdp);
await helper.expect('R', 8000);
const answerToConnected = performance.now() - answered;
const started = performance.now();

helper.send('E', 'first, with ünïcödé');
SIZES.forEach((size) => helper.send('E', 'x'.repeat(size)));
let [said, sent] = [0, 0];
while (performance.now() - started < seconds * 1000) {
  // libwebrtc wants 10 ms at a time; the microphone's messages are 100 ms long.
  const now = performance.now() - started;
  for (; said < now * 48; said += 480) {
    source.onData({ samples: tone(ENGINE_TONE, 48000, said, 480), sampleRate: 48000 });
  }
  for (; sent < now * 16; sent += 1600) helper.send('P', tone(MICROPHONE_TONE, 16000, sent, 1600));
  await sleep(5);
}
const duration = (performance.now() - started) / 1000;

assert.deepEqual(got.slice(0, 2), ['before the channel is open', 'first, with ünïcödé']);
assert.deepEqual(got.slice(2).map((text) => text.length), SIZES);
assert.equal(helper.texts[0], '{"type":"session.started"}');
assert.deepEqual(helper.texts.slice(1).map((text) => text.length), SIZES);
const round = (value, digits) => Number(value.toFixed(digits));
const figures = {
  spawn_to_offer_ms: round(spawnToOffer, 1),
  answer_to_connected_ms: round(answerToConnected, 1),
  seconds: round(duration, 2),
  sound_seconds: round(helper.sound.length / 24000, 2),
  engine_tone: round(share(helper.sound, 24000, ENGINE_TONE), 3),
  heard_seconds: round(heardSeconds, 2),
  microphone_tone: round(share(heard, heardRate, MICROPHONE_TONE), 3),
};
console.log(JSON.stringify(figures));
assert.ok(figures.engine_tone > 0.95 && figures.microphone_tone > 0.95, 'the tones are not what was sent');
assert.ok(Math.abs(figures.sound_seconds - duration) < 1, "the engine's sound is not as long as the call");
assert.ok(Math.abs(figures.heard_seconds - duration) < 1.5, "the microphone's sound is not as long as the call");

helper.send('Q');
helper.process.stdin.end();
assert.ok(JSON.parse(await helper.expect('X', 3000)).reason);
assert.equal(await Promise.race([helper.closed, sleep(3000)]), 0);
engine.close();
process.exit(0);
