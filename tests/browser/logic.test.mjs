// The page's logic without a browser: requests from a transcript, one run for each delegation, answers in pieces, what is
// kept. Time is the test's own. Numbers of cases are those of the field cases.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { afterEach, beforeEach, mock, test } from 'node:test';

const script = await readFile(new URL('../../src/voice/page/app.js', import.meta.url), 'utf8');
const page = await import(`data:text/javascript,${encodeURIComponent(script)}`);
const { Delegations, Failure, HISTORY, Idle, Kept, RUN_HOLD_MS, RUN_START_LIMIT_MS, SETTLE, Server, Transcript, cut, explain, ndjson, pieces } = page;

beforeEach(() => mock.timers.enable({ apis: ['setTimeout', 'Date'], now: 1_000_000 }));
afterEach(() => mock.timers.reset());

/** Lets `ms` go by, and all that comes of it. */
async function pass(ms) {
  for (let gone = 0; gone < ms; gone += 10) {
    mock.timers.tick(10);
    await new Promise(setImmediate);
  }
}

/** A run whose lines the test gives out one by one. */
class Run {
  constructor(lines, signal) {
    Object.assign(this, { lines, signal, waiting: [], wake: () => {} });
  }

  give(...lines) {
    this.waiting.push(...lines);
    this.wake();
  }

  async *read() {
    for (;;) {
      while (this.waiting.length > 0) {
        const line = this.waiting.shift();
        if (line instanceof Error) throw line;
        if (line === 'end') return;
        yield line;
      }
      await new Promise((wake) => { this.wake = wake; });
    }
  }
}

/** A call as the delegations see it: what is appended, which runs there are, what is shown. */
class Rig {
  constructor() {
    Object.assign(this, { appends: [], runs: [], shown: [], failures: [], talking: false, reachable: true, session: {} });
    this.transcript = new Transcript();
    this.transcript.begin();
    this.delegations = new Delegations({
      post: (lines, signal) => {
        const run = new Run(lines, signal);
        this.runs.push(run);
        return run.read();
      },
      request: (offset, before) => this.transcript.request(offset, before),
      append: (kind, delegation, text) => {
        if (!this.reachable) return null;
        this.appends.push({ kind, delegation, text });
        return `c${this.appends.length}`;
      },
      talking: () => this.talking,
      changed: () => {},
      done: (result) => this.shown.push(result),
      failed: (failure) => this.failures.push(failure.kind),
    });
    this.delegations.begin(this.session);
  }

  hear(delta, start_ms, speaker = 'user') {
    const event = { delta, start_ms, end_ms: start_ms + 200 };
    this.transcript.add(speaker, event, Date.now());
    if (speaker === 'user') this.delegations.heard(event);
  }

  delegate(id, offset_ms) {
    this.delegations.created({ offset_ms, delegation: { id, type: 'delegation', target: 'client' } });
  }

  /** A question that is known before its delegation, up to the run that comes of it. */
  async ask(id, text, at) {
    this.hear(text, at);
    this.delegate(id, at + 400);
    await pass(SETTLE.leastMs + 200);
    return this.runs.at(-1);
  }

  get said() {
    return this.appends.filter(({ kind }) => kind === 'commentary');
  }
}

const answer = (text) => [{ type: 'delta', text }, { type: 'done', finish_reason: 'stop' }];

test('case 34: the request is whole, in order, and without what was said later', async () => {
  const rig = new Rig();
  rig.delegate('d1', 2_000);
  await pass(400);
  rig.hear(' in tokyo', 1_200);
  rig.hear('what is the', 400);
  rig.hear(' weather', 800);
  rig.hear(' later', 3_000);
  await pass(300);
  assert.equal(rig.runs.length, 0, 'it settles first');
  await pass(400);
  assert.deepEqual(rig.runs[0].lines, [{ speaker: 'user', text: 'what is the weather in tokyo' }]);
  const next = await rig.ask('d2', ' on', 3_200);
  assert.deepEqual(next.lines, [{ speaker: 'user', text: 'later on' }]);
});

test('the slot that begins at the delegation belongs to it', async () => {
  const rig = new Rig();
  rig.hear('the', 4_400);
  rig.hear(' result.', 4_600);
  rig.delegate('d1', 4_600);
  await pass(700);
  assert.equal(rig.runs[0].lines[0].text, 'the result.');
});

test('case 34: pieces that go on coming put it off, 3 s at most', async () => {
  const rig = new Rig();
  rig.hear('one', 0);
  rig.delegate('d1', 60_000);
  for (let n = 1; n <= 12; n += 1) {
    await pass(240);
    rig.hear(' more', n * 200);
  }
  assert.equal(rig.runs.length, 0);
  await pass(240);
  assert.equal(rig.runs.length, 1);
});

test('case 34: 4,000 characters are kept whole', async () => {
  const rig = new Rig();
  let whole = '';
  for (let n = 0; n < 500; n += 1) {
    const word = `${n === 0 ? '' : ' '}wörd${String(n).padStart(3, '0')}`;
    whole += word;
    rig.hear(word, n * 200);
  }
  assert.ok(whole.length >= 3_999);
  rig.delegate('d1', 100_000);
  await pass(700);
  assert.deepEqual(rig.runs[0].lines, [{ speaker: 'user', text: whole }]);
});

test('case 34: without a word after the limit no run is started, and the user is asked again', async () => {
  const rig = new Rig();
  rig.hear('one moment', 100, 'assistant');
  rig.delegate('d1', 2_000);
  await pass(SETTLE.limitMs - 100);
  assert.equal(rig.appends.length, 0);
  await pass(200);
  assert.equal(rig.runs.length, 0);
  assert.deepEqual(rig.appends, [{ kind: 'commentary', delegation: 'd1', text: 'I did not catch that. Please say it again.' }]);
});

test('case 32: one run for each delegation; a request is in one only; the same words again are another', async () => {
  const rig = new Rig();
  const first = await rig.ask('d1', 'tidy up', 0);
  rig.delegate('d1', 400);
  await pass(4_000);
  assert.equal(rig.runs.length, 1);
  assert.ok(!first.signal.aborted);
  assert.deepEqual(rig.appends, []);
  first.give({ type: 'tool', status: 'running', label: 'terminal' }, ...answer(''));
  await pass(100);
  rig.delegate('d1', 400);
  const second = await rig.ask('d2', 'tidy up', 9_000);
  assert.equal(rig.runs.length, 2);
  assert.deepEqual(second.lines, [{ speaker: 'user', text: 'tidy up' }]);
});

test('both sides are told since the last request, newest last', async () => {
  const rig = new Rig();
  await rig.ask('d1', 'book a table', 0);
  rig.hear('for how many', 1_000, 'assistant');
  const run = await rig.ask('d2', 'for four', 2_000);
  assert.deepEqual(run.lines, [{ speaker: 'assistant', text: 'for how many' }, { speaker: 'user', text: 'for four' }]);
});

test('case 33: late text of an older request is never said', async () => {
  const rig = new Rig();
  const first = await rig.ask('d1', 'a', 0);
  rig.hear('b', 5_000);
  rig.delegate('d2', 5_400);
  await pass(10);
  assert.ok(first.signal.aborted);
  first.give({ type: 'tool', status: 'running', label: 'terminal' }, ...answer('the answer to a'));
  await pass(700);
  const [, second] = rig.runs;
  second.give(...answer('the answer to b'));
  await pass(100);
  assert.deepEqual(rig.appends, [{ kind: 'commentary', delegation: 'd2', text: 'the answer to b' }]);
});

test('case 33: late text is not said either when it waited for the end of the user’s turn', async () => {
  const rig = new Rig();
  const first = await rig.ask('d1', 'a', 0);
  rig.talking = true;
  first.give(...answer('the answer to a'));
  await pass(100);
  rig.delegate('d2', 5_400);
  rig.talking = false;
  await pass(300);
  assert.deepEqual(rig.said, []);
});

test('a delegation without a new word leaves the run before it', async () => {
  const rig = new Rig();
  const first = await rig.ask('d1', 'a', 0);
  rig.delegate('d2', 5_400);
  await pass(SETTLE.limitMs - 200);
  assert.ok(!first.signal.aborted);
  first.give(...answer('the answer to a'));
  await pass(100);
  assert.deepEqual(rig.said, [], 'not before it is known that nothing is newer');
  await pass(300);
  const texts = rig.said.map(({ text }) => text);
  assert.deepEqual(texts, ['I did not catch that. Please say it again.', 'the answer to a']);
  assert.equal(rig.delegations.working, null);
});

test('a delegation whose words come late replaces the run before it, whose answer is not said', async () => {
  const rig = new Rig();
  const first = await rig.ask('d1', 'a', 0);
  rig.delegate('d2', 5_400);
  await pass(300);
  first.give(...answer('the answer to a'));
  await pass(100);
  rig.hear('b', 5_000);
  await pass(800);
  assert.ok(first.signal.aborted, 'nobody reads the older one any more');
  assert.deepEqual(rig.runs[1].lines, [{ speaker: 'user', text: 'b' }]);
  rig.runs[1].give(...answer('the answer to b'));
  await pass(100);
  assert.deepEqual(rig.said, [{ kind: 'commentary', delegation: 'd2', text: 'the answer to b' }]);
});

test('case 33: of a thousand delegations in a second one is run', async () => {
  const rig = new Rig();
  rig.hear('go', 0);
  for (let n = 0; n < 1_000; n += 1) {
    rig.delegate(`d${n}`, 400);
    if (n % 10 === 0) await pass(10);
  }
  await pass(4_000);
  assert.equal(rig.runs.length, 1);
  rig.runs[0].give(...answer('gone'));
  await pass(100);
  assert.deepEqual(rig.said.at(-1), { kind: 'commentary', delegation: 'd999', text: 'gone' });
});

test('case 66: an answer is said after the user’s turn, and not later than a limit', async () => {
  const rig = new Rig();
  const run = await rig.ask('d1', 'a', 0);
  rig.talking = true;
  run.give(...answer('b'));
  await pass(1_000);
  assert.deepEqual(rig.said, []);
  await pass(5_200);
  assert.equal(rig.said.length, 1);
});

test('case 66: a long run is mentioned once', async () => {
  const rig = new Rig();
  await rig.ask('d1', 'a', 0);
  await pass(95_000);
  assert.deepEqual(rig.said, [{ kind: 'commentary', delegation: 'd1', text: 'Hermes is still working on it.' }]);
});

test('tools are told silently, the end of each by its name', async () => {
  const rig = new Rig();
  const run = await rig.ask('d1', 'a', 0);
  const tool = (status, label) => ({ type: 'tool', status, label });
  run.give(tool('running', 'terminal'), tool('running', 'web'), tool('completed', 'terminal'), tool('error', 'web'));
  await pass(100);
  assert.deepEqual(rig.delegations.working.tools.map(({ label, status }) => `${label} ${status}`), ['terminal completed', 'web error']);
  assert.deepEqual(rig.appends.map(({ kind }) => kind), ['thinking']);
});

test('case 65: an approval is announced at once, without its command', async () => {
  const rig = new Rig();
  const run = await rig.ask('d1', 'a', 0);
  run.give({ type: 'approval', run_id: 'r', request_id: 'q', command: 'rm -rf build', description: 'delete the build' });
  await pass(100);
  assert.match(rig.said[0].text, /delete the build/);
  assert.doesNotMatch(rig.said[0].text, /rm -rf/);
  assert.equal(rig.delegations.approvals[0].command, 'rm -rf build');
  rig.delegations.decided(rig.delegations.approvals[0], 'once');
  assert.equal(rig.delegations.approvals.length, 0);
  assert.equal(rig.appends.at(-1).kind, 'thinking');
});

test('case 65: an approval that was decided elsewhere goes, and one that is told twice is one', async () => {
  const rig = new Rig();
  const run = await rig.ask('d1', 'a', 0);
  const asks = (command, request_id = null) => ({ type: 'approval', run_id: 'r', request_id, command, description: 'why' });
  const shown = () => rig.delegations.approvals.map(({ command }) => command);
  run.give(asks('one', 'q1'), asks('two', 'q2'), asks('one', 'q1'));
  await pass(100);
  assert.deepEqual([shown(), rig.said.length], [['one', 'two'], 2]);
  run.give({ type: 'decided', request_id: 'q2' }, { type: 'decided', request_id: 'unknown' });
  await pass(100);
  assert.deepEqual(shown(), ['one']);
  // Without ids the oldest is decided first.
  run.give({ type: 'decided', request_id: 'q1' }, asks('three'), asks('four'), asks('three'), { type: 'decided', request_id: null });
  await pass(100);
  assert.deepEqual(shown(), ['four']);
});

test('an answer that the lost session had not confirmed is said in the next one', async () => {
  const rig = new Rig();
  (await rig.ask('d1', 'a', 0)).give(...answer('confirmed'));
  await pass(100);
  rig.delegations.appended('c1');
  (await rig.ask('d2', 'b', 5_000)).give(...answer('lost on the way'));
  await pass(100);
  rig.delegations.pause();
  rig.delegations.begin({});
  await pass(100);
  assert.deepEqual(rig.said.map(({ text }) => text), ['confirmed', 'lost on the way', 'lost on the way']);
  assert.deepEqual(rig.shown.map(({ spoken, again }) => [spoken, again]), [[true, undefined], [true, undefined], [true, true]]);
  // Long ago it was heard, confirmed or not.
  await pass(20_000);
  rig.delegations.pause();
  rig.delegations.begin({});
  await pass(100);
  assert.equal(rig.said.length, 3);
});

test('an approval is announced again in another session, which knows nothing of it', async () => {
  const rig = new Rig();
  const run = await rig.ask('d1', 'a', 0);
  rig.delegations.pause();
  rig.reachable = false;
  run.give({ type: 'approval', run_id: 'r', request_id: 'q', command: 'make', description: 'build it' });
  await pass(100);
  rig.reachable = true;
  rig.delegations.begin({});
  assert.match(rig.said[0].text, /build it/);
  assert.equal(rig.said[0].delegation, null);
});

test('what a run ends with is always said', async () => {
  const ends = [
    [[{ type: 'done', finish_reason: 'stop' }], /nothing to say/],
    [[{ type: 'done', finish_reason: 'failed', error: 'out of memory' }], /could not finish. out of memory/],
    [[{ type: 'error', message: 'the stream ended' }], /lost touch with Hermes. the stream ended/],
    [['end'], /cut off/],
    [[new Failure('hermes', { status: 502 })], /cannot reach Hermes/],
    [[new TypeError('network')], /lost touch/],
    [[{ type: 'delta', text: 'half' }, 'end'], /^half The answer was cut off/],
    [[{ type: 'a later kind' }, ...answer('fine')], /^fine$/],
  ];
  for (const [lines, said] of ends) {
    const rig = new Rig();
    (await rig.ask('d1', 'a', 0)).give(...lines);
    await pass(100);
    assert.equal(rig.said.length, 1);
    assert.match(rig.said[0].text, said);
    assert.equal(rig.delegations.working, null);
  }
});

test('an answer while the call reconnects is kept for the next session, which does not know the delegation', async () => {
  const rig = new Rig();
  const run = await rig.ask('d1', 'a', 0);
  rig.delegations.pause();
  rig.reachable = false;
  run.give(...answer('b'));
  await pass(100);
  assert.deepEqual([rig.said, rig.shown], [[], []]);
  rig.reachable = true;
  rig.delegations.begin({});
  await pass(100);
  assert.deepEqual(rig.said, [{ kind: 'commentary', delegation: null, text: 'b' }]);
});

test('after a hang-up a run goes on and its answer is shown; a request not made yet is dropped', async () => {
  const rig = new Rig();
  const run = await rig.ask('d1', 'a', 0);
  rig.reachable = false;
  rig.delegations.detach();
  assert.ok(!run.signal.aborted && rig.delegations.working);
  run.give(...answer('b'));
  await pass(100);
  assert.deepEqual(rig.shown.map(({ text, spoken }) => [text, spoken]), [['b', false]]);

  const other = new Rig();
  other.hear('a', 0);
  other.delegate('d1', 400);
  other.delegations.detach();
  await pass(4_000);
  assert.equal(other.runs.length, 0);
});

test('case 29: a long answer goes out in order under its delegation, and a piece that is refused is shown', async () => {
  const rig = new Rig();
  const run = await rig.ask('d1', 'a', 0);
  const text = 'The build passed, and all is well. '.repeat(343);
  run.give(...answer(text));
  await pass(100);
  assert.ok(rig.said.length >= 25);
  assert.ok(rig.said.every(({ delegation }) => delegation === 'd1'));
  assert.equal(rig.said.map((piece) => piece.text).join(' '), text.trim());
  assert.equal(rig.shown.length, 1);
  rig.delegations.refused('c2');
  rig.delegations.refused('c2');
  rig.delegations.refused('another');
  assert.deepEqual(rig.shown.slice(1).map((shown) => shown.text), [rig.said[1].text]);
});

test('case 29: pieces are under the cap, at sentence ends, and never cut a character', () => {
  const family = '👩‍👩‍👧‍👦';
  const bytes = (text) => Buffer.byteLength(text);
  const mixed = `東京は晴れです。気温は二十一度です。The build passed. ${family}${family} It took 3.14 minutes! `.repeat(150);
  assert.ok(mixed.length > 12_000);
  const split = pieces(mixed);
  assert.ok(split.every((piece) => bytes(piece) <= 480 && piece.isWellFormed()));
  assert.equal(split.join('').replace(/\s/g, ''), mixed.replace(/\s/g, ''));
  assert.ok(split.every((piece) => /([。.!]|👦)$/u.test(piece)), 'each ends where a sentence does');
  const unbroken = pieces(family.repeat(60));
  assert.ok(unbroken.every((piece) => bytes(piece) <= 480 && bytes(piece) % bytes(family) === 0));
  const accents = pieces(`e${'e\u0301'.repeat(400)}`);
  assert.ok(accents.length > 1 && accents.every((piece) => piece.startsWith('e')));
  assert.ok(pieces('a'.repeat(2_000)).every((piece) => piece.length <= 480));
  assert.ok(pieces(`e${'\u0301'.repeat(1_000)}`).every((piece) => bytes(piece) <= 480));
  const words = pieces('word '.repeat(300));
  assert.ok(words.every((piece) => /^(word ?)+$/.test(piece)));
  assert.deepEqual(pieces('Short.'), ['Short.']);
  assert.deepEqual(pieces(' \n '), []);
});

test('NDJSON is read in any cut', async () => {
  const lines = [{ type: 'delta', text: '東京 😀 é' }, { type: 'done', finish_reason: 'stop' }];
  const whole = Buffer.from(`${JSON.stringify(lines[0])}\n\n${JSON.stringify(lines[1])}`);
  for (let size = 1; size <= whole.length; size += 1) {
    const chunks = [];
    for (let at = 0; at < whole.length; at += size) chunks.push(whole.subarray(at, at + size));
    const read = [];
    for await (const line of ndjson(ReadableStream.from(chunks))) read.push(line);
    assert.deepEqual(read, lines, `in pieces of ${size}`);
  }
  const first = async (bytes) => { for await (const line of ndjson(ReadableStream.from([bytes]))) return line; };
  await assert.rejects(first(Buffer.from('no json\n')));
  await assert.rejects(first(Buffer.alloc(5 * 1024 * 1024, 0x20)));
});

test('a request for a run has a name of its own; one sent twice, or not answered in time, is an answer cut off', async () => {
  const asked = [];
  let answer = () => Promise.resolve(new Response('{"type":"done"}\n'));
  const real = globalThis.fetch;
  globalThis.fetch = (path, options) => {
    asked.push({ path, body: JSON.parse(options.body) });
    return answer();
  };
  try {
    const post = async () => {
      const lines = [];
      for await (const line of new Server(() => '').delegate('s', [{ speaker: 'user', text: 'a' }])) lines.push(line);
      return lines;
    };
    assert.deepEqual(await post(), [{ type: 'done' }]);
    assert.deepEqual(await post(), [{ type: 'done' }]);
    const [one, other] = asked.map(({ body }) => body.delegation_id);
    assert.match(one, /^[0-9a-f-]{36}$/);
    assert.notEqual(one, other);
    assert.deepEqual(asked[0], { path: 'delegate', body: { hermes_session: 's', lines: [{ speaker: 'user', text: 'a' }], delegation_id: one } });

    answer = () => Promise.resolve(new Response('{"error":"sent twice"}', { status: 409 }));
    await assert.rejects(post(), (failure) => failure instanceof Failure && failure.kind === 'cut');

    answer = () => new Promise(() => {});
    const silent = assert.rejects(post(), (failure) => failure instanceof Failure && failure.kind === 'cut');
    await pass(RUN_START_LIMIT_MS + 100);
    await silent;
  } finally {
    globalThis.fetch = real;
  }
});

test('a stream without even an empty line is dead', async () => {
  let control;
  const stream = new ReadableStream({ start: (it) => { control = it; } });
  let end = null;
  const reading = (async () => { for await (const _ of ndjson(stream)); })().catch((error) => { end = error; });
  for (let n = 0; n < 4; n += 1) {
    control.enqueue(Buffer.from('\n'));
    await pass(40_000);
  }
  assert.equal(end, null);
  await pass(10_000);
  await reading;
  assert.ok(end instanceof Failure);
  assert.equal(end.kind, 'cut');
});

test('reading that is given up lets the stream go', async () => {
  let cancelled = false;
  const stream = new ReadableStream({
    pull: (control) => control.enqueue(Buffer.from('{}\n')),
    cancel: () => { cancelled = true; },
  });
  for await (const _ of ndjson(stream)) break;
  assert.ok(cancelled);
});

test('the history is bounded in lines and characters', () => {
  const transcript = new Transcript();
  transcript.begin();
  for (let n = 0; n < 40; n += 1) {
    transcript.add(n % 2 ? 'assistant' : 'user', { delta: `${n} ${'😀'.repeat(700)}`, start_ms: n * 5_000, end_ms: n * 5_000 + 200 }, n);
  }
  const history = transcript.history();
  assert.equal(history.length, HISTORY.lines);
  assert.ok(history.every(({ text }) => text.length <= HISTORY.characters && text.isWellFormed()));
  assert.ok(history.at(-1).text.startsWith('39 ') && history.at(-1).speaker === 'assistant');
  assert.equal(cut('a😀', 2), 'a');
});

test('an answer nobody said aloud is history, one that was said is there in the voice’s words', () => {
  const transcript = new Transcript();
  transcript.note({ text: 'said', spoken: true, tools: [], ms: 0 });
  transcript.note({ text: 'shown', spoken: false, tools: [], ms: 0 });
  assert.deepEqual(transcript.history(), [{ speaker: 'assistant', text: 'shown' }]);
});

test('captions: lines by speaker and pause, late pieces in their place', () => {
  const transcript = new Transcript();
  transcript.begin();
  const add = (speaker, delta, start_ms) => transcript.add(speaker, { delta, start_ms, end_ms: start_ms + 200 }, 0);
  add('user', 'what is', 0);
  add('assistant', 'Okay,', 600);
  add('user', ' the time', 200);
  add('assistant', ' wait', 800);
  add('user', 'thanks', 1_400);
  add('user', ' again', 9_000);
  add('assistant', '', 9_200);
  const lines = transcript.lines.map(({ speaker, text }) => `${speaker}: ${text}`);
  assert.deepEqual(lines, ['user: what is the time', 'assistant: Okay, wait', 'user: thanks', 'user: again']);
  transcript.begin();
  add('user', 'hello', 0);
  assert.equal(transcript.lines.at(-1).text, 'hello');
});

test('captions: as they are, and a space between two utterances that have none', () => {
  const transcript = new Transcript();
  transcript.begin();
  const add = (delta, start_ms) => transcript.add('assistant', { delta, start_ms, end_ms: start_ms + 200 }, 0);
  for (const [n, delta] of ['It takes', ' 3.', '14', ' min', 'utes.', 'Staging', ' is', ' up'].entries()) add(delta, n * 200);
  add('done', 2_400);
  transcript.note({ text: 'x', spoken: true, tools: [], ms: 0 });
  add(' now', 2_800);
  assert.deepEqual(transcript.lines.map(({ text }) => text), ['It takes 3.14 minutes. Staging is up done now', 'x']);
});

test('what was said in a session that broke off is still part of the next request', () => {
  const transcript = new Transcript();
  transcript.begin();
  transcript.add('user', { delta: 'find the', start_ms: 9_000, end_ms: 9_200 }, 10);
  transcript.begin();
  transcript.add('user', { delta: 'red one', start_ms: 400, end_ms: 600 }, 0);
  assert.deepEqual(transcript.request(1_000, 5).lines.map(({ text }) => text), ['find the', 'red one']);
});

test('a quiet call ends after its seconds; a run holds it longer, not for ever', () => {
  const idle = new Idle(90);
  idle.active(5_000);
  assert.equal(idle.left(5_000, false), 90_000);
  assert.equal(idle.left(95_000, false), 0);
  assert.equal(idle.left(95_000, true), RUN_HOLD_MS - 90_000);
  assert.ok(idle.left(5_000 + RUN_HOLD_MS, true) <= 0);
});

test('what is kept: bounded and checked when read, and a browser that keeps nothing is no fault', () => {
  const store = () => {
    const map = new Map();
    return { map, getItem: (k) => map.get(k) ?? null, setItem: (k, v) => map.set(k, v), removeItem: (k) => map.delete(k) };
  };
  const [lasting, passing] = [store(), store()];
  const kept = new Kept(() => lasting, () => passing);
  kept.token = 's3cret';
  kept.history = { live: true, working: true, lines: [{ speaker: 'user', text: 'x' }] };
  const session = kept.hermesSession;
  assert.match(session, /^[A-Za-z0-9_-]{1,64}$/);
  const again = new Kept(() => lasting, () => passing);
  assert.deepEqual([again.token, again.hermesSession, again.history.live], ['s3cret', session, true]);
  assert.ok(![...passing.map.values()].some((value) => value.includes('s3cret')));
  again.forgetConversation();
  assert.notEqual(again.hermesSession, session);
  assert.deepEqual(again.history, { live: false, working: false, lines: [] });
  again.token = '';
  assert.ok(!lasting.map.has('hermes-voice.token'));

  const odd = store();
  odd.setItem('hermes-voice.history', JSON.stringify({ live: 'yes', lines: [null, { speaker: 'root', text: 'x' }, { speaker: 'user', text: 'ok' }] }));
  odd.setItem('hermes-voice.hermes-session', '../../etc');
  const careful = new Kept(() => odd, () => odd);
  assert.deepEqual(careful.history, { live: false, working: false, lines: [{ speaker: 'user', text: 'ok' }] });
  assert.match(careful.hermesSession, /^voice-[0-9a-f]{32}$/);

  const refusing = new Kept(() => { throw new Error('SecurityError'); }, () => { throw new Error('SecurityError'); });
  refusing.token = 't';
  assert.equal(refusing.token, 't');
  assert.equal(refusing.hermesSession, refusing.hermesSession);
});

test('each failure has a name, a title and a next step', () => {
  const kinds = ['insecure', 'refused', 'none', 'busy', 'token', 'server', 'engine', 'hermes', 'cut', 'no-way', 'not-started', 'dropped', 'closed', 'content'];
  const titles = new Set();
  for (const kind of kinds) {
    const { status, title, text, calm } = explain(new Failure(kind, { status: 429 }), { idle_seconds: 90 });
    assert.ok(status && title && text && !calm, kind);
    assert.doesNotMatch(title, /wrong/);
    titles.add(title);
  }
  assert.equal(titles.size, kinds.length);
  assert.match(explain(new Failure('engine', { status: 429 }), null).title, /429/);
  assert.ok(explain(new Failure('idle'), { idle_seconds: 90 }).calm);
  assert.match(explain(new Failure('unheard of'), null).title, /Something went wrong/);
});
