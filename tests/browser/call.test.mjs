// Whole calls in Chromium against `watch-audio voice --demo`: a simulated GPT-Live over WebRTC, a simulated Hermes. The
// microphone plays the sample question; what arrives is listened to, read, and looked at.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { Tab, browse, serve } from './harness.mjs';

/** When the microphone asks its question, in seconds: past the greeting, where the machine is quick. */
const LEAD = 6;
const QUESTION = 'what is the weather in tokyo today';
const ANSWER = 'it is sunny in tokyo twenty one degrees';
const TOKEN = 'correct-horse-battery-staple';

let asking;
let quiet;
before(async () => {
  [asking, quiet] = await Promise.all([browse({ lead: LEAD }), browse()]);
});
after(async () => Promise.all([asking?.close(), quiet?.close()]));

/** Holds a test against a server of its own. */
async function against(options, act) {
  const server = await serve(options);
  try {
    await act(server.url);
  } finally {
    await server.stop();
  }
}

/** A simulated Hermes that does one thing, and a GPT-Live that says whatever it is given as one tone. */
const doing = (...steps) => ({ hermes: { jobs: [steps] } });
const complete = { complete: `${ANSWER}.` };

/** Whether the page has let go of the microphone and of all connections. */
const over = (tab) => tab.page.evaluate(() => window.peers.every((peer) => peer.connectionState === 'closed'
  && peer.getSenders().every(({ track }) => !track || track.readyState === 'ended')));

test('a whole call: greeted, heard, delegated, tools shown, the answer spoken and written', () => against({}, async (url) => {
  const tab = await Tab.open(asking, url, { reducedMotion: 'no-preference' });
  await tab.state('ready');
  await tab.shown('demonstration');
  await tab.look('ready');
  await tab.call();
  await tab.caption('hello');
  await tab.caption(QUESTION);
  await tab.shown('work');
  await tab.page.locator('#tools li', { hasText: 'web_search' }).waitFor();
  const before = await tab.energy();
  await tab.caption(ANSWER);
  await tab.sound(before);
  await tab.page.locator('#log .work summary', { hasText: 'web_search' }).waitFor();
  await tab.hidden('work');
  const [{ lines }] = tab.bodies('delegate');
  assert.deepEqual(lines.at(-1), { speaker: 'user', text: QUESTION });
  assert.ok(lines[0].speaker === 'assistant' && lines[0].text.startsWith('hello'));
  await tab.page.click('#log .work summary');
  await tab.look('answered');
  await tab.page.click('#call');
  await tab.state('ended');
  await tab.page.waitForFunction(() => window.peers.every((peer) => peer.connectionState === 'closed'));
  assert.ok(await over(tab));
  await tab.close();
}));

test('the sheets, by keyboard: a voice is chosen and used, and the call is made', () => against({}, async (url) => {
  const tab = await Tab.open(quiet, url);
  const { page } = tab;
  const reach = async (id) => {
    for (let n = 0; n < 20; n += 1) {
      await page.keyboard.press('Tab');
      if (await page.evaluate(() => document.activeElement.id) === id) return;
    }
    assert.fail(`the keyboard does not reach ${id}`);
  };
  await tab.state('ready');
  await reach('open-voices');
  await page.keyboard.press('Enter');
  await tab.shown('voices');
  await page.focus('#voice-list input:checked');
  await page.keyboard.press('ArrowDown');
  const chosen = await page.evaluate(() => document.querySelector('#voice-list input:checked').value);
  assert.notEqual(chosen, 'marin');
  await tab.look('voices');
  await page.keyboard.press('Escape');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'open-voices');
  await page.focus('#open-settings');
  await page.keyboard.press('Enter');
  await tab.shown('settings');
  await tab.look('settings');
  await page.click('#settings header button');
  await tab.hidden('settings');
  await reach('call');
  await page.keyboard.press('Enter');
  await tab.state('live', 'speaking');
  assert.equal(tab.bodies('session')[0].voice, chosen);
  await tab.close();
}));

test('approvals, each choice, by keyboard and by hand', () => {
  const ask = (command, description) => ({ approval: { command, description, denied: 'I left it as it is.' } });
  const steps = [
    { tool: { name: 'terminal', ms: 300 } },
    ask('make site', 'build the site'), ask('rm -rf /srv/www/old && mv /srv/www/new /srv/www/site', 'put the new site in place'),
    ask('systemctl restart nginx', 'restart the web server'), complete,
  ];
  return against(doing(...steps), async (url) => {
    const tab = await Tab.open(asking, url);
    await tab.call();
    await tab.shown('approval');
    assert.match(await tab.text('#approval'), /build the site.*make site/s);
    await tab.look('approval');
    await tab.page.focus('#approve-once');
    await tab.page.keyboard.press('Enter');
    await tab.page.locator('#approval-text', { hasText: 'put the new site in place' }).waitFor();
    await tab.page.waitForTimeout(600);
    await tab.page.click('#approve-session');
    await tab.page.locator('#approval-text', { hasText: 'restart the web server' }).waitFor();
    await tab.page.waitForTimeout(600);
    await tab.page.click('#approve-deny');
    await tab.hidden('approval');
    await tab.page.locator('#log .work details p', { hasText: 'I left it as it is.' }).waitFor({ state: 'attached' });
    const sent = tab.bodies('approve');
    assert.deepEqual(sent.map(({ choice }) => choice), ['once', 'session', 'deny']);
    assert.ok(sent.every(({ run_id, request_id }) => run_id && request_id));
    await tab.close();
  });
});

test('an access token: asked for, refused, kept, never in a URL, forgotten', () => against({ token: TOKEN }, async (url) => {
  const tab = await Tab.open(quiet, url);
  const { page } = tab;
  const type = async (token) => {
    await page.fill('#token', token);
    await page.keyboard.press('Enter');
  };
  await tab.shown('token-form');
  await tab.look('token');
  assert.ok(await page.isDisabled('#call'));
  await type('not the token');
  assert.match(await tab.text('#token-error'), /one word/);
  await type('wrong');
  await page.locator('#token-error', { hasText: 'not accepted' }).waitFor();
  await tab.look('token-refused');
  await type(TOKEN);
  await tab.state('ready');
  await tab.call();
  await tab.caption('hello');
  await page.reload();
  await tab.state('ready');
  assert.ok(!await page.isVisible('#token-form'));
  await page.click('#open-settings');
  await page.click('#forget');
  await tab.shown('token-form');
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
  assert.ok(!kept.includes(TOKEN));
  assert.ok(tab.requests.every((request) => !request.url().includes(TOKEN)));
  await page.reload();
  await tab.shown('token-form');
  await tab.close();
}));

test('a reload in mid-call: offered to go on, with the history and the same session at Hermes', () => against(doing({ wait: 10_000 }, complete), async (url) => {
  const tab = await Tab.open(asking, url);
  await tab.call();
  await tab.caption(QUESTION);
  await tab.page.waitForFunction(() => !document.getElementById('work').hidden);
  await tab.page.reload();
  await tab.shown('notice');
  assert.match(await tab.text('#notice'), /cut off.*Hermes went on with its work/s);
  await tab.caption(QUESTION);
  await tab.look('reloaded');
  const before = tab.requests.length;
  await tab.page.click('#notice-act');
  await tab.state('live', 'speaking');
  const { history } = tab.bodies('session').at(-1);
  assert.ok(history.some(({ speaker, text }) => speaker === 'user' && text === QUESTION), JSON.stringify(history));
  await tab.page.waitForRequest((request) => tab.requests.indexOf(request) >= before && request.url().endsWith('/delegate'));
  const [first, second] = tab.bodies('delegate');
  assert.equal(first.hermes_session, second.hermes_session);
  await tab.close();
}));

test('a quiet call counts down, is held by a press, and is closed', () => against({ config: { idle_seconds: 12 } }, async (url) => {
  const tab = await Tab.open(quiet, url);
  await tab.call();
  await tab.caption('hello how can i help you');
  // At once: a slow machine may take longer to press than the countdown takes.
  await tab.page.waitForFunction(() => {
    const stay = document.getElementById('stay');
    const there = stay.offsetParent !== null;
    if (there) stay.click();
    return there;
  });
  await tab.hidden('idle');
  await tab.shown('idle');
  await tab.look('countdown');
  await tab.state('ended');
  assert.match(await tab.text('#notice'), /Nobody spoke for 12 seconds/);
  await tab.look('closed');
  await tab.page.waitForFunction(() => window.peers.every((peer) => peer.connectionState === 'closed'));
  assert.ok(await over(tab));
  await tab.close();
}));

test('a hang-up while a run goes on: its answer comes all the same, and is in the next call’s history', () => (
  against(doing({ wait: 10_000 }, complete), async (url) => {
    const tab = await Tab.open(asking, url);
    await tab.call();
    await tab.shown('work');
    await tab.page.click('#call');
    await tab.state('ended');
    assert.match(await tab.text('#notice'), /Its answer will appear here/);
    await tab.look('hung-up');
    await tab.page.locator('#log .work p', { hasText: ANSWER }).waitFor();
    await tab.hidden('work');
    await tab.call();
    assert.deepEqual(tab.bodies('session')[1].history.at(-1), { speaker: 'assistant', text: `${ANSWER}.` });
    await tab.close();
  })
));

test('mute: nothing of the microphone arrives, and the call goes on', () => against({}, async (url) => {
  const tab = await Tab.open(asking, url);
  await tab.state('ready');
  await tab.page.click('#call');
  // From the first moment on, so that nothing of the question slips through on a slow machine.
  await tab.page.keyboard.press('m');
  await tab.page.locator('#mute[aria-pressed="true"]').waitFor();
  await tab.caption('hello how can i help you');
  await tab.page.locator('#status-text', { hasText: 'Muted' }).waitFor();
  await tab.look('muted');
  // The question is over by then, and its words would be here.
  await tab.page.waitForFunction((seconds) => Number(document.getElementById('clock').textContent.split(':')[1]) >= seconds, LEAD + 6);
  assert.equal(await tab.page.locator('#log .user').count(), 0);
  const open = () => tab.page.evaluate(() => window.peers[0].getSenders()[0].track.enabled);
  for (const pressed of [false, true]) {
    assert.equal(await open(), pressed);
    await tab.page.click('#mute');
    await tab.page.locator(`#mute[aria-pressed="${pressed}"]`).waitFor();
    assert.equal(await open(), !pressed);
  }
  await tab.state('live', 'speaking');
  await tab.close();
}));

test('the page takes nothing from elsewhere: its policy allows its own files and server only', () => against({}, async (url) => {
  const answer = await fetch(url);
  const policy = answer.headers.get('content-security-policy');
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe|https?:|\*/);
  const html = await answer.text();
  assert.doesNotMatch(html, /<script(?![^>]* src="app\.js")|<style| style="| on[a-z]+="|https?:\/\/(?!www\.w3\.org)/);
}));
