// What the browser tests share: the demonstration server, Chromium with a fake microphone, pages and their pictures.
//
// BROWSER_WORK is a folder with the npm packages, where recordings and pictures go too; WATCH_AUDIO and WATCH_AUDIO_PROBE
// are the programs, CHROMIUM the browser. `run.sh` sets them.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const work = process.env.BROWSER_WORK;
const require = createRequire(`${work}/`);
const { chromium } = require('playwright-core');
const axe = await readFile(require.resolve('axe-core/axe.min.js'), 'utf8');
const pictures = join(work, 'pictures');
await mkdir(pictures, { recursive: true });

/** A slow machine's patience, in ms. */
export const PATIENCE = 90_000;
export const PHONE = { width: 390, height: 844 };
export const DESKTOP = { width: 1280, height: 800 };

/**
 * `watch-audio voice --demo` until `stop()`: with `config` and an access `token`, and with a simulated Hermes and GPT-Live
 * (`hermes`, `script`) of the test's own, which are options of the program that the demonstration becomes.
 */
export async function serve({ config = {}, token, hermes, script } = {}) {
  const folder = await mkdtemp(join(tmpdir(), 'watch-audio-voice-'));
  const options = ['--listen', '127.0.0.1:0'];
  for (const [option, content] of Object.entries({ config, 'access-token-file': token, hermes, script })) {
    if (content === undefined) continue;
    const path = join(folder, option);
    await writeFile(path, typeof content === 'string' ? content : JSON.stringify(content), { mode: 0o600 });
    options.push(`--${option}`, path);
  }
  const own = hermes !== undefined || script !== undefined;
  const program = own ? [process.env.WATCH_AUDIO_PROBE, 'voice-demo'] : [process.env.WATCH_AUDIO, 'voice', '--demo'];
  const server = spawn(program[0], [...program.slice(1), ...options], { stdio: ['ignore', 'ignore', 'pipe'] });
  const closed = new Promise((done) => server.on('close', done));
  let said = '';
  const url = await new Promise((found, failed) => {
    server.stderr.on('data', (data) => {
      said += data;
      const page = said.match(/page is at (http:\S+)\s/);
      if (page) found(new URL(page[1]).href);
    });
    closed.then(() => failed(new Error(`the server ended: ${said}`)));
    setTimeout(() => failed(new Error(`the server does not say where it is: ${said}`)), PATIENCE).unref();
  });
  return {
    url,
    async stop() {
      server.kill('SIGTERM');
      await closed;
      await rm(folder, { recursive: true });
    },
  };
}

/**
 * Chromium. Its microphone hears the question `lead` seconds after it was opened, then nothing for a minute, and so on: a call
 * that a slow machine begins too late has another chance. `lead` null: nothing at all.
 */
export async function browse({ lead = null } = {}) {
  const recording = join(work, `microphone-${lead ?? 'quiet'}.wav`);
  await writeFile(recording, await microphone(lead));
  return chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: [
      '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync', '--use-fake-device-for-media-stream',
      `--use-file-for-fake-audio-capture=${recording}`,
      // A name that is this machine, and that no browser takes for it.
      '--host-resolver-rules=MAP voice.test 127.0.0.1',
    ],
  });
}

async function microphone(lead) {
  const wav = await readFile(new URL('../../samples/question.wav', import.meta.url));
  const data = wav.indexOf('data') + 8;
  const rate = wav.readUInt32LE(24);
  const quiet = (seconds) => Buffer.alloc(Math.round(rate * seconds) * 2);
  const sound = lead === null ? [quiet(60)] : [quiet(lead), wav.subarray(data), quiet(60)];
  const header = Buffer.from(wav.subarray(0, data));
  const size = sound.reduce((sum, part) => sum + part.length, 0);
  header.writeUInt32LE(data + size - 8, 4);
  header.writeUInt32LE(size, data - 4);
  return Buffer.concat([header, ...sound]);
}

/** A page that may use the microphone, unless told otherwise. What it complains about is a failure of the test. */
export class Tab {
  static async open(browser, url, { viewport = PHONE, colorScheme = 'light', microphone: allowed = true, before, ...options } = {}) {
    const context = await browser.newContext({ viewport, colorScheme, reducedMotion: 'reduce', ...options });
    if (allowed) await context.grantPermissions(['microphone'], { origin: new URL(url).origin });
    const tab = new Tab();
    Object.assign(tab, { context, page: await context.newPage(), complaints: [], requests: [] });
    tab.page.setDefaultTimeout(PATIENCE);
    tab.page.on('pageerror', (error) => tab.complaints.push(String(error)));
    tab.page.on('console', (message) => {
      // A refused request is a line in the console as well; tests look at what the page makes of it.
      const wanted = message.type() === 'error' && !message.text().startsWith('Failed to load resource');
      if (wanted) tab.complaints.push(message.text());
    });
    tab.page.on('request', (request) => tab.requests.push(request));
    await tab.page.addInitScript(WATCH_PEERS);
    if (before) await before(tab.page);
    await tab.page.goto(url);
    return tab;
  }

  /** Waits for a state of the page (`data-state`), or one of several. */
  async state(...names) {
    await this.page.waitForSelector(names.map((name) => `html[data-state="${name}"]`).join(), { state: 'attached' });
  }

  async call() {
    await this.state('ready', 'ended', 'failed');
    await this.page.click('#call');
    await this.state('live', 'speaking');
  }

  async text(selector) {
    return (await this.page.textContent(selector)).trim();
  }

  /** Waits until a caption, of anybody, holds the words; what Hermes wrote is none. */
  async caption(words) {
    await this.page.locator('#log li:not(.work)', { hasText: words }).first().waitFor();
  }

  async shown(id) {
    await this.page.waitForSelector(`#${id}`, { state: 'visible' });
  }

  async hidden(id) {
    await this.page.waitForSelector(`#${id}`, { state: 'hidden' });
  }

  /** The bodies of the requests to a route so far. */
  bodies(route) {
    return this.requests.filter((request) => new URL(request.url()).pathname === `/${route}`).map((request) => request.postDataJSON());
  }

  /** The energy of the sound that came in over all connections so far (`totalAudioEnergy`, WebRTC statistics). */
  energy() {
    return this.page.evaluate(async () => {
      let sum = 0;
      for (const peer of window.peers) {
        for (const report of (await peer.getStats()).values()) if (report.type === 'inbound-rtp') sum += report.totalAudioEnergy ?? 0;
      }
      return sum;
    });
  }

  /** Waits until so much energy more has come in than `before`. */
  async sound(before = 0, least = 0.001) {
    const limit = Date.now() + PATIENCE;
    while ((await this.energy()) - before < least) {
      assert.ok(Date.now() < limit, 'no sound arrives');
      await this.page.waitForTimeout(200);
    }
  }

  /** A picture for the eye, and the rules of accessibility, in both colours and on both screens. */
  async look(name) {
    const { page } = this;
    const before = page.viewportSize();
    for (const [screen, viewport] of [['phone', PHONE], ['desktop', DESKTOP]]) {
      await page.setViewportSize(viewport);
      for (const colorScheme of ['light', 'dark']) {
        await page.emulateMedia({ colorScheme });
        await page.screenshot({ path: join(pictures, `${name}-${screen}-${colorScheme}.png`) });
        const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
        assert.ok(!wide, `${name} is too wide for a ${screen}`);
        if (screen === 'desktop') continue;
        const { violations } = await page.evaluate(`${axe}; axe.run(document, { resultTypes: ['violations'] })`);
        assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join()}`), [], `${name}, ${colorScheme}`);
      }
    }
    await page.setViewportSize(before);
    await page.emulateMedia({ colorScheme: 'light' });
  }

  /** Ends the page; it must have had nothing to complain about, and have asked nobody but its own server. */
  async close() {
    const { origin } = new URL(this.page.url());
    await this.context.close();
    assert.deepEqual(this.complaints, []);
    const elsewhere = this.requests.map((request) => new URL(request.url())).filter((url) => url.protocol !== 'data:' && url.origin !== origin);
    assert.deepEqual(elsewhere.map(String), []);
  }
}

/** Runs in the page: keeps each connection where {@link Tab.energy} finds it. */
const WATCH_PEERS = `
  window.peers = [];
  window.PlainPeerConnection = RTCPeerConnection;
  window.RTCPeerConnection = class extends RTCPeerConnection {
    constructor(...args) { super(...args); window.peers.push(this); }
  };
`;
