// The browser call (contract `hermes-voice.md`; the service's events: `engines.md` 1.3 to 1.7).
//
// The page holds the WebRTC session with the voice service itself; the server holds both secrets. From top to bottom:
// the page, the call, the server, then the parts that need no browser and that `node --test` imports: delegations,
// transcript, idle rule, the splitting of answers, the reader of NDJSON, what is kept, what each failure is called.

/** What the page shows, and what its buttons do. */
class Page {
  constructor() {
    this.kept = new Kept(() => localStorage, () => sessionStorage);
    this.server = new Server(() => this.kept.token);
    this.transcript = new Transcript();
    this.transcript.restore(this.kept.history.lines);
    this.delegations = new Delegations({
      post: (lines, signal) => this.server.delegate(this.kept.hermesSession, lines, signal),
      request: (offset, before) => this.transcript.request(offset, before),
      append: (kind, delegation, text) => this.call?.append(kind, delegation, text) ?? null,
      talking: () => Date.now() - this.transcript.heardAt.user < TURN_QUIET_MS,
      changed: () => this.showWork(),
      done: (result) => this.workDone(result),
      failed: (failure) => this.workFailed(failure),
    });
    this.levels = new Levels();
    this.announced = new Set();
    this.config = null;
    this.call = null;
    this.state = 'loading';
    this.following = true;
  }

  async start() {
    this.listen();
    this.showLines();
    if (!microphoneAllowed()) return this.fail(new Failure('insecure'));
    await this.configure();
  }

  listen() {
    const on = (id, event, act) => $(id).addEventListener(event, act);
    on('call', 'click', () => (this.call ? this.hangUp() : this.dial()));
    on('mute', 'click', () => this.mute());
    on('stay', 'click', () => this.stay());
    on('hear', 'click', () => this.hear());
    on('token-form', 'submit', (event) => this.takeToken(event));
    on('open-settings', 'click', () => this.openSettings());
    on('open-voices', 'click', () => $('voices').showModal());
    on('voice-list', 'change', (event) => this.chooseVoice(event.target.value));
    on('announce', 'change', (event) => { this.kept.announce = event.target.checked; });
    on('fresh', 'click', () => this.fresh());
    on('forget', 'click', () => this.forget());
    for (const choice of ['once', 'session', 'deny']) on(`approve-${choice}`, 'click', () => this.approve(choice));
    for (const id of ['voices', 'settings']) {
      // A press beside the sheet closes it, as Escape does.
      on(id, 'click', (event) => { if (event.target === $(id)) $(id).close(); });
    }
    document.addEventListener('keydown', (event) => {
      const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.repeat;
      if (event.key.toLowerCase() === 'm' && plain && !event.target.closest?.('input, dialog[open]')) this.mute();
    });
    addEventListener('pagehide', () => {
      this.keep(this.call !== null);
      this.call?.leave();
    });
    document.addEventListener('visibilitychange', () => {
      if (!document.hidden && this.call?.live) this.call.keepAwake();
    });
    // Back from the browser's page cache: the call of then is over, as after a reload.
    addEventListener('pageshow', (event) => { if (event.persisted) location.reload(); });
    // The newest line stays in sight, unless somebody reads further up.
    addEventListener('scroll', () => { this.following = this.atEnd(); }, { passive: true });
    new ResizeObserver(() => this.follow()).observe(document.body);
    setInterval(() => this.tick(), TICK_MS);
  }

  atEnd() {
    return innerHeight + scrollY >= document.documentElement.scrollHeight - NEAR_END_PX;
  }

  follow() {
    if (this.following) scrollTo({ top: document.documentElement.scrollHeight });
  }

  // --- Before a call

  async configure() {
    this.show('loading', 'Loading');
    try {
      this.config = await this.server.config();
    } catch (error) {
      if (error.kind === 'token') return this.askToken(this.kept.token !== '');
      return this.fail(error);
    }
    $('token-form').hidden = true;
    $('demonstration').hidden = !this.config.demonstration;
    $('privacy').hidden = Boolean(this.config.demonstration);
    this.showVoices();
    this.show('ready', 'Ready');
    this.showCall();
    const { live, working } = this.kept.history;
    if (live) {
      const also = working ? ' Hermes went on with its work meanwhile: ask for the result.' : '';
      this.notice('The call was cut off', `This page was loaded again during a call.${also}`, {
        act: ['Go on', () => this.dial()],
        other: ['New conversation', () => this.fresh()],
      });
    }
  }

  askToken(refused) {
    this.config = null;
    this.show('token', 'Access token needed');
    this.showCall();
    this.clearNotice();
    $('welcome').hidden = true;
    $('token-form').hidden = false;
    tell('token-error', refused ? 'This token was not accepted. Check it and try again.' : '');
    $('token').value = '';
    $('token').focus();
  }

  async takeToken(event) {
    event.preventDefault();
    const token = $('token').value.trim();
    // What a header cannot carry is no token of this server's.
    if (!/^[\x21-\x7e]+$/.test(token)) return tell('token-error', 'A token is one word of plain letters, digits and signs.');
    this.kept.token = token;
    await this.configure();
    if (this.state !== 'ready') return;
    this.showLines();
    $('call').focus();
  }

  forget() {
    $('settings').close();
    if (this.call) this.hangUp();
    this.kept.token = '';
    this.fresh();
    this.askToken(false);
  }

  /** Another conversation: nothing said so far is sent again, and Hermes begins with an empty context. */
  fresh() {
    $('settings').close();
    this.delegations.abandon();
    this.kept.forgetConversation();
    this.transcript = new Transcript();
    this.clearNotice();
    this.showLines();
  }

  openSettings() {
    $('announce').checked = this.kept.announce;
    $('token-setting').hidden = this.kept.token === '';
    $('fresh').disabled = this.call !== null;
    $('settings').showModal();
  }

  chooseVoice(name) {
    this.kept.voice = name;
    $('voice-name').textContent = this.voice();
  }

  // --- The call

  async dial() {
    if (this.call || !this.config) return;
    this.clearNotice();
    this.levels.start();
    const call = new Call(this.server, this.config.idle_seconds, {
      history: () => this.transcript.history(),
      voice: () => this.voice(),
      state: (state, text) => this.call === call && this.show(state, text),
      started: () => this.started(call),
      lost: () => this.delegations.pause(),
      event: (event) => this.event(call, event),
      sound: (stream) => this.sound(stream),
      microphone: (stream) => this.levels.listen('mic', stream),
      over: (why) => this.call === call && this.over(why),
    });
    this.call = call;
    this.showCall();
    await call.dial();
  }

  started(call) {
    announce('polite', 'Connected');
    this.transcript.begin();
    this.delegations.begin(call.session);
    this.showCall();
    this.tick();
    this.keep(true);
  }

  hangUp() {
    const { call } = this;
    this.over(new Failure('hung-up'));
    call.hangUp();
  }

  /** The call is over, for whatever reason. A run of Hermes' goes on, and its answer is then shown here. */
  over(why) {
    this.call = null;
    this.delegations.detach();
    this.levels.stop();
    $('sound').srcObject = null;
    conceal('unheard');
    this.keep(false);
    this.showCall();
    this.tick();
    if (why.kind === 'token') return this.askToken(true);
    const end = explain(why, this.config);
    this.show(end.calm ? 'ended' : 'failed', end.status);
    const more = this.delegations.working ? 'Hermes goes on with its work. Its answer will appear here.' : '';
    const text = [end.text, more].filter(Boolean).join(' ');
    if (text) this.notice(end.title, text, { detail: why.detail, act: end.again && [end.again, () => this.dial()] });
  }

  /** A failure before any call. */
  fail(error) {
    const end = explain(error, this.config);
    this.show('failed', end.status);
    this.notice(end.title, end.text, { detail: error.detail, act: end.again && [end.again, () => this.configure()] });
  }

  event(call, event) {
    const now = Date.now();
    switch (event.type) {
      case 'session.input_transcript.delta':
      case 'session.output_transcript.delta': {
        const speaker = event.type === 'session.input_transcript.delta' ? 'user' : 'assistant';
        if (!this.transcript.add(speaker, event, now)) return;
        if (speaker === 'user') this.delegations.heard(event);
        call.idle.active(now);
        return this.showLines();
      }
      case 'session.delegation.created':
        call.idle.active(now);
        return this.delegations.created(event);
      case 'session.commentary.appended':
        return this.delegations.appended(event.client_event_id);
      case 'error':
        // Never the end of the session. An answer that was refused is shown instead.
        return this.delegations.refused(event.error?.client_event_id);
      default:
    }
  }

  sound(stream) {
    $('sound').srcObject = stream;
    this.levels.listen('voice', stream);
    this.hear();
  }

  async hear() {
    try {
      await $('sound').play();
      conceal('unheard');
    } catch (error) {
      // Some browsers want one more press before they play. Any other reason goes away with the stream.
      $('unheard').hidden = error.name !== 'NotAllowedError' || this.call === null;
    }
  }

  mute() {
    if (!this.call) return;
    this.call.mute(!this.call.muted);
    this.call.idle.active(Date.now());
    announce('polite', this.call.muted ? 'Muted' : 'Microphone on');
    this.showCall();
    this.tick();
  }

  stay() {
    this.call?.idle.active(Date.now());
    this.tick();
  }

  // --- The work of Hermes

  workDone({ text, tools, startedAt, spoken, failed, again }) {
    // A failure has been said and has a notice of its own; what is said once more stands here already.
    if ((failed || again) && spoken) return;
    this.transcript.note({ text, spoken, tools: tools.map((tool) => tool.label), ms: Date.now() - startedAt });
    this.call?.idle.active(Date.now());
    if (!spoken) {
      announce('polite', `Hermes: ${text}`);
      if (!this.call) this.clearNotice();
    }
    this.showLines();
  }

  workFailed(failure) {
    if (failure.kind === 'token' && !this.call) return this.askToken(true);
    const { title, text } = explain(failure, this.config);
    this.notice(title, text, { detail: failure.detail, other: ['Dismiss', () => {}] });
  }

  async approve(choice) {
    const [asked] = this.delegations.approvals;
    // A panel that has just come up under a finger is not an answer.
    if (!asked || asked.sending || Date.now() < asked.shownAt + APPROVAL_GUARD_MS) return;
    Object.assign(asked, { sending: true, problem: '' });
    this.showWork();
    try {
      await this.server.approve(asked.run_id, asked.request_id, choice);
      announce('polite', { once: 'Approved once', session: 'Approved for the session', deny: 'Denied' }[choice]);
      this.delegations.decided(asked, choice);
    } catch (error) {
      asked.sending = false;
      if (error.kind === 'decided') {
        announce('polite', 'This was decided already.');
        this.delegations.decided(asked);
      } else {
        asked.problem = `${explain(error, this.config).title}. Try again.`;
        this.showWork();
      }
    }
  }

  showWork() {
    const job = this.delegations.working;
    const waits = this.delegations.approvals.length > 0;
    $('work').hidden = !job;
    $('work').classList.toggle('waits', waits);
    if (job) {
      this.call?.idle.active(Date.now());
      const running = job.tools.filter((tool) => tool.status === 'running');
      const does = running.length ? `Hermes uses ${running.at(-1).label}` : 'Hermes is working';
      write($('work-text'), waits ? 'Hermes waits for your answer' : does);
      $('tools').replaceChildren(...job.tools.slice(-TOOLS_SHOWN).map((tool) => {
        const item = element('li', tool.label);
        item.className = tool.status;
        const status = element('span', `, ${tool.status}`);
        status.className = 'sr';
        item.append(status);
        return item;
      }));
    }
    this.showApproval();
    this.tick();
    this.keepSoon();
  }

  showApproval() {
    const panel = $('approval');
    const { approvals } = this.delegations;
    const [asked] = approvals;
    if (!asked) return conceal('approval');
    if (!asked.shownAt) {
      asked.shownAt = Date.now();
      announce('assertive', `Hermes asks for approval: ${asked.description || 'to run a command'}`);
    }
    write($('approval-text'), asked.description || 'It wants to run this command.');
    tell('approval-command', asked.command ?? '');
    tell('approval-count', approvals.length > 1 ? `1 of ${approvals.length}` : '');
    tell('approval-error', asked.problem ?? '');
    for (const button of panel.querySelectorAll('button')) button.disabled = asked.sending ?? false;
    panel.hidden = false;
  }

  // --- What is kept, what is shown

  keep(live) {
    this.kept.history = { live, working: this.delegations.working !== null, lines: this.transcript.history() };
  }

  keepSoon() {
    this.keeping ??= setTimeout(() => {
      this.keeping = null;
      this.keep(this.call !== null);
    }, KEEP_MS);
  }

  tick() {
    const now = Date.now();
    const { call } = this;
    const job = this.delegations.working;
    if (call?.startedAt) write($('clock'), minutes(now - call.startedAt));
    if (job) write($('work-time'), minutes(now - job.startedAt));
    this.announceLines(now);
    if (!call?.live) return conceal('idle');
    const left = Math.ceil(call.idle.left(now, job !== null) / 1000);
    if (left <= 0) {
      this.over(new Failure('idle'));
      return call.hangUp();
    }
    const near = left <= Math.min(IDLE_WARNING_S, Math.ceil(this.config.idle_seconds / 2));
    if (near && $('idle').hidden) announce('polite', `Nobody speaks. The call ends in ${left} seconds.`);
    if (near) $('idle').hidden = false;
    else conceal('idle');
    write($('idle-left'), String(left));
    if (!call.steady) return;
    const speaking = now - this.transcript.heardAt.assistant < SPEAKING_MS;
    const does = call.muted ? 'Muted' : job ? 'Hermes is working' : 'Listening';
    this.show(speaking ? 'speaking' : 'live', speaking ? 'Speaking' : does);
  }

  /** Finished lines go to screen readers whole, not word by word. */
  announceLines(now) {
    for (const line of this.transcript.lines.slice(-4)) {
      if (line.old || line.speaker === 'work' || this.announced.has(line.id) || now - line.heardAt < LINE_DONE_MS) continue;
      this.announced.add(line.id);
      if (this.kept.announce) announce('polite', `${SPEAKERS[line.speaker]}: ${line.text}`);
    }
  }

  show(state, text) {
    if (state !== this.state && TOLD.has(state)) announce('polite', text);
    this.state = state;
    $('broken').hidden = state !== 'reconnecting';
    document.documentElement.dataset.state = state;
    write($('status-text'), text);
  }

  showCall() {
    const { call } = this;
    const muted = call?.muted ?? false;
    document.documentElement.toggleAttribute('data-call', call !== null);
    document.documentElement.toggleAttribute('data-muted', muted);
    write($('call-name'), call ? 'Hang up' : 'Call');
    $('call').disabled = !this.config;
    $('open-voices').disabled = !this.config;
    $('clock').hidden = !call?.startedAt;
    $('mute').disabled = !call;
    $('mute').setAttribute('aria-pressed', String(muted));
    $('mute').querySelector('use').setAttribute('href', muted ? '#i-mic-off' : '#i-mic');
    $('voices-note').hidden = !call;
  }

  showLines() {
    const log = $('log');
    const { lines } = this.transcript;
    $('welcome').hidden = lines.length > 0 || !$('token-form').hidden;
    const gone = new Map([...log.children].map((item) => [item.dataset.line, item]));
    let place = log.firstElementChild;
    for (const line of lines) {
      const item = gone.get(String(line.id)) ?? newLine(line);
      gone.delete(String(line.id));
      if (line.speaker !== 'work') write(item.lastChild, line.text);
      if (item === place) place = place.nextElementSibling;
      else log.insertBefore(item, place);
    }
    for (const item of gone.values()) item.remove();
    this.follow();
    this.keepSoon();
  }

  voice() {
    return Object.hasOwn(this.config.voices, this.kept.voice) ? this.kept.voice : this.config.voice;
  }

  showVoices() {
    const list = $('voice-list');
    for (const old of list.querySelectorAll('label')) old.remove();
    for (const [name, description] of Object.entries(this.config.voices)) {
      const label = document.createElement('label');
      const input = document.createElement('input');
      Object.assign(input, { type: 'radio', name: 'voice', value: name, checked: name === this.voice() });
      label.append(input, element('strong', name), element('span', description));
      list.append(label);
    }
    write($('voice-name'), this.voice());
  }

  notice(title, text, { detail, act, other }) {
    write($('notice-title'), title);
    write($('notice-text'), text);
    tell('notice-detail', detail && detail !== title ? detail : '');
    for (const [id, action] of [['notice-act', act], ['notice-other', other]]) {
      tell(id, action?.[0] ?? '');
      $(id).onclick = () => { this.clearNotice(); action[1](); };
    }
    $('notice').hidden = false;
    $('welcome').hidden = true;
    $('notice').scrollIntoView({ block: 'nearest' });
  }

  clearNotice() {
    conceal('notice');
    this.showLines();
  }
}

/** One call: the microphone, and one session with the voice service after another when the way to it breaks. */
class Call {
  constructor(server, idleSeconds, page) {
    this.server = server;
    this.page = page;
    this.idle = new Idle(idleSeconds);
    /** Set once; nothing more comes of the call then. */
    this.ended = false;
    this.muted = false;
    /** A session has started and its way is not given up. */
    this.live = false;
    /** The way is there at this moment. */
    this.steady = false;
    this.startedAt = 0;
    this.session = null;
    this.peer = null;
    this.tries = 0;
    this.events = 0;
  }

  async dial() {
    this.page.state('microphone', 'Waiting for the microphone');
    try {
      await this.takeMicrophone();
      this.page.state('connecting', 'Connecting');
      await this.connect();
    } catch (error) {
      this.end(error);
    }
  }

  /** Asks for the microphone; once more when a device is pulled out or taken away. */
  async takeMicrophone() {
    const stream = await microphone();
    const [track] = stream.getAudioTracks();
    if (this.ended) return track.stop();
    this.microphone = stream;
    track.enabled = !this.muted;
    track.onended = () => this.takeMicrophone().catch((error) => this.end(error));
    this.page.microphone(stream);
    await this.peer?.getSenders()[0]?.replaceTrack(track);
  }

  /** One session: asked for, connected, started. Whatever fails on the way is thrown and leaves nothing open. */
  async connect() {
    if (this.ended) return;
    const peer = new RTCPeerConnection({ bundlePolicy: 'max-bundle' });
    this.peer = peer;
    this.complaint = '';
    for (const track of this.microphone.getAudioTracks()) peer.addTrack(track, this.microphone);
    peer.ontrack = ({ streams, track }) => this.peer === peer && this.page.sound(streams[0] ?? new MediaStream([track]));
    // Made before the offer and listened to at once: nothing that is said at its opening is missed.
    this.channel = peer.createDataChannel('oai-events');
    const started = new Promise((resolve, reject) => {
      const lost = (kind) => { reject(new Failure(kind, { detail: this.complaint })); this.lost(peer); };
      this.channel.onmessage = ({ data }) => this.peer === peer && this.receive(data, resolve, reject);
      this.channel.onclose = () => lost('dropped');
      peer.onconnectionstatechange = () => (peer.connectionState === 'failed' ? lost('no-way') : this.moved(peer));
    });
    // It may fail before anybody waits for it.
    started.catch(() => {});
    try {
      await peer.setLocalDescription();
      await gathered(peer);
      // Hung up meanwhile: a session would be billed.
      if (this.peer !== peer) return;
      const { sdp } = await this.server.session(peer.localDescription.sdp, this.page.history(), this.page.voice());
      if (this.peer !== peer) return;
      await peer.setRemoteDescription({ type: 'answer', sdp });
      const silent = () => (peer.connectionState === 'connected' ? 'not-started' : 'no-way');
      await within(started, START_LIMIT_MS, () => new Failure(silent(), { detail: this.complaint }));
    } catch (error) {
      if (this.peer === peer) this.closePeer();
      throw error;
    }
    if (this.peer !== peer) return;
    // All this still belongs to the message that said so: the next one finds the call ready.
    Object.assign(this, { live: true, steady: true, upSince: Date.now(), session: {} });
    this.startedAt ||= this.upSince;
    this.idle.active(this.upSince);
    this.keepAwake();
    this.page.started();
  }

  receive(data, started, refused) {
    const event = parsed(data);
    if (event?.type === 'session.started') started();
    else if (event?.type === 'session.closed') {
      const why = ENDINGS[event.reason] ?? 'closed';
      if (this.closing) return this.closing();
      refused(new Failure(why === 'dropped' ? 'closed' : why, { detail: this.complaint }));
      if (!this.live) return;
      if (why === 'dropped') this.lost(this.peer);
      else this.end(new Failure(why));
    } else if (event) {
      if (event.type === 'error') this.complaint = String(event.error?.message ?? event.message ?? '').slice(0, DETAIL_LIMIT);
      this.page.event(event);
    }
  }

  /** The way to the service changed. A short break mends itself; a longer one is taken as lost. */
  moved(peer) {
    if (this.peer !== peer || !this.live) return;
    this.steady = peer.connectionState === 'connected';
    clearTimeout(this.breaking);
    if (this.steady) return;
    this.page.state('weak', 'Weak connection');
    this.breaking = setTimeout(() => this.lost(peer), BREAK_MS);
  }

  /** The session is lost: another one goes on with the history. Each costs money, so the tries are few. */
  async lost(peer) {
    if (this.peer !== peer || !this.live) return;
    Object.assign(this, { live: false, steady: false, session: null });
    this.closePeer();
    this.page.lost();
    if (Date.now() - this.upSince >= STABLE_MS) this.tries = 0;
    let why = new Failure('dropped');
    while (!this.ended && this.tries < RETRY_MS.length) {
      this.page.state('reconnecting', `Reconnecting ${this.tries + 1}/${RETRY_MS.length}`);
      await pause(RETRY_MS[this.tries]);
      this.tries += 1;
      try {
        return await this.connect();
      } catch (error) {
        why = error;
        if (!error.passing) break;
      }
    }
    this.end(why);
  }

  /** Sends an append (`engines.md` 1.3) and gives its event id, or null when there is no session to send it to. */
  append(kind, delegation, content) {
    if (!this.live || this.channel.readyState !== 'open') return null;
    this.events += 1;
    const event_id = `c${this.events}`;
    this.channel.send(JSON.stringify({ type: `session.${kind}.append`, event_id, delegation_id: delegation, content }));
    return event_id;
  }

  mute(muted) {
    this.muted = muted;
    // Silence goes on being sent: the service's clock is what it hears.
    for (const track of this.microphone?.getAudioTracks() ?? []) track.enabled = !muted;
  }

  /** Ends the session in order: the service is told, and is given a moment to confirm. */
  async hangUp() {
    this.ended = true;
    this.silence();
    const closed = new Promise((resolve) => { this.closing = resolve; });
    if (this.sendClose()) await Promise.race([closed, pause(CLOSE_LIMIT_MS)]);
    this.closePeer();
  }

  /** For a page that goes away: the service is told, and the browser does the rest. */
  leave() {
    this.ended = true;
    this.sendClose();
    this.silence();
  }

  end(why) {
    if (this.ended) return;
    this.hangUp();
    this.page.over(why instanceof Failure ? why : new Failure('fault', { detail: String(why?.message ?? why) }));
  }

  sendClose() {
    if (this.channel?.readyState !== 'open') return false;
    this.channel.send('{"type":"session.close"}');
    return true;
  }

  silence() {
    for (const track of this.microphone?.getTracks() ?? []) {
      track.onended = null;
      track.stop();
    }
    this.awake?.release().catch(() => {});
  }

  closePeer() {
    clearTimeout(this.breaking);
    const { peer } = this;
    this.peer = null;
    peer?.close();
  }

  /** A phone that locks its screen takes the microphone away. */
  async keepAwake() {
    try {
      if (!this.awake || this.awake.released) this.awake = await navigator.wakeLock?.request('screen');
      if (this.ended) await this.awake?.release();
    } catch {
      // Refused, for instance at low battery: the call goes on all the same.
    }
  }
}

/** The routes of our own server. The token goes in a header, never in a URL. */
export class Server {
  constructor(token) {
    this.token = token;
  }

  async config() {
    return (await this.ask('GET', 'config')).json();
  }

  async session(sdp, history, voice) {
    const body = { sdp, voice, ...(history.length > 0 && { history }) };
    return (await this.ask('POST', 'session', body, { limit: SESSION_LIMIT_MS, refused: 'engine' })).json();
  }

  async *delegate(session, lines, signal) {
    // A browser may send a request again whose connection broke: by its name it is then run once.
    const body = { hermes_session: session, lines, delegation_id: crypto.randomUUID() };
    const answer = this.ask('POST', 'delegate', body, { limit: null, signal, refused: 'hermes' });
    const response = await within(answer, RUN_START_LIMIT_MS, () => new Failure('cut'));
    yield* ndjson(response.body);
  }

  async approve(run_id, request_id, choice) {
    await this.ask('POST', 'approve', { run_id, ...(request_id && { request_id }), choice }, { refused: 'hermes' });
  }

  async ask(method, path, body, { limit = ANSWER_LIMIT_MS, signal, refused = 'server' } = {}) {
    const headers = {};
    if (this.token()) headers.authorization = `Bearer ${this.token()}`;
    if (body) headers['content-type'] = 'application/json';
    const signals = [signal, limit && AbortSignal.timeout(limit)].filter(Boolean);
    let response;
    try {
      const options = { method, headers, cache: 'no-store', redirect: 'error', body: body && JSON.stringify(body) };
      response = await fetch(path, { ...options, signal: signals.length ? AbortSignal.any(signals) : undefined });
    } catch (error) {
      throw new Failure('server', { passing: true, cause: error });
    }
    if (response.ok) return response;
    const { status } = response;
    if (status === 401) throw new Failure('token', { status });
    if (path === 'approve' && (status === 404 || status === 409)) throw new Failure('decided', { status });
    // It was sent twice, and the first one goes on.
    if (path === 'delegate' && status === 409) throw new Failure('cut', { status });
    const answer = await complaint(response);
    throw new Failure(refused, { ...answer, passing: (answer.status ?? status) >= 500 });
  }
}

/** What an answer that is no success says: the text, and the status of the service behind our server if it names it. */
async function complaint(response) {
  const text = await response.text().catch(() => '');
  const body = parsed(text);
  const detail = typeof body?.error === 'string' ? body.error : body?.error?.message ?? text;
  return { status: body?.status ?? response.status, detail: String(detail).slice(0, DETAIL_LIMIT) };
}

/** How loud both sides are, for the eye; nothing else depends on it. */
class Levels {
  sides = new Map();
  samples = new Uint8Array(ANALYSER_SIZE);

  start() {
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) return;
    this.stop();
    this.context ??= new AudioContext();
    this.context.resume().catch(() => {});
    this.timer = setInterval(() => this.draw(), LEVEL_MS);
  }

  listen(name, stream) {
    if (!this.timer) return;
    this.sides.get(name)?.source.disconnect();
    const analyser = new AnalyserNode(this.context, { fftSize: ANALYSER_SIZE });
    const source = this.context.createMediaStreamSource(stream);
    source.connect(analyser);
    this.sides.set(name, { source, analyser });
  }

  draw() {
    for (const [name, { analyser }] of this.sides) {
      analyser.getByteTimeDomainData(this.samples);
      const peak = this.samples.reduce((most, value) => Math.max(most, Math.abs(value - 128)), 0);
      LEVEL_OF[name]().style.setProperty('--level', (peak / 128).toFixed(1));
    }
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    for (const [name, { source }] of this.sides) {
      source.disconnect();
      LEVEL_OF[name]().style.removeProperty('--level');
    }
    this.sides.clear();
    this.context?.suspend().catch(() => {});
  }
}

/**
 * The requests the voice model hands over, each one run of Hermes'.
 *
 * A delegation says nothing but its id and its moment, so the request is what the transcript holds up to that moment, once
 * it has settled. There is one run for each id; a newer delegation ends the reading of the older one, whose late text is
 * dropped. At most one is running or waiting, however many come.
 *
 * Given to it: `request(offset, before)` the lines up to a moment and what marks them as used, `post(lines, signal)` the
 * NDJSON of a run, `append(kind, delegation, text)` an append's event id or null, `talking()` whether the user is speaking;
 * told by it: `changed()`, `done({text, tools, startedAt, spoken, failed})`, `failed(failure)`.
 */
export class Delegations {
  constructor(page) {
    this.page = page;
    this.job = null;
    /** A request that is not whole yet. Only when it is, it takes the place of the job. */
    this.next = null;
    this.session = null;
    this.calling = false;
    this.seen = new Set();
    this.held = null;
    this.sent = new Map();
  }

  /** The run that goes on, null without one. */
  get working() {
    return this.job?.startedAt && !this.job.over ? this.job : null;
  }

  /** What Hermes wants to be allowed, oldest first. */
  get approvals() {
    return this.working?.approvals ?? [];
  }

  /** Another session with the voice service has started. */
  begin(session) {
    this.session = session;
    this.calling = true;
    this.seen.clear();
    this.sent.clear();
    const { held } = this;
    this.held = null;
    if (held) this.say(held.job, held.text);
    // This session does not know that anything is wanted.
    for (const asked of this.approvals) this.page.append('commentary', null, asking(asked.description));
  }

  /**
   * The session is lost and another will come: what Hermes answers meanwhile is kept for it, and what the lost one was told at
   * the last and has not confirmed.
   */
  pause() {
    this.session = null;
    const unsure = [...this.sent.values()].filter(({ sentAt }) => Date.now() - sentAt < UNSURE_MS);
    this.sent.clear();
    if (unsure.length === 0 || this.job || this.held) return;
    this.job = { ...unsure[0], again: true };
    this.held = { job: this.job, text: unsure.map(({ text }) => text).join(' ') };
  }

  /** The call is over. A run goes on and its answer is shown; a request that is not made yet is not made any more. */
  detach() {
    this.session = null;
    this.calling = false;
    const { held } = this;
    this.held = null;
    this.next = null;
    if (held) this.say(held.job, held.text);
  }

  /** Nothing more is read of the run, if there is one. */
  abandon() {
    this.job?.reading.abort();
    this.job = null;
    this.next = null;
    this.held = null;
    this.page.changed();
  }

  /** Takes `session.delegation.created`. */
  async created(event) {
    const { id, target } = event.delegation ?? {};
    if (typeof id !== 'string' || (target ?? 'client') !== 'client' || !this.session || this.seen.has(id)) return;
    this.seen.add(id);
    const now = Date.now();
    const offset = Number.isFinite(event.offset_ms) ? event.offset_ms : Infinity;
    const job = {
      id, session: this.session, offset, createdAt: now, heardAt: now, reading: new AbortController(),
      startedAt: 0, tools: [], approvals: [], text: '', toldAt: 0, over: false, failed: false,
    };
    // Without a new word it may come to nothing: then the job goes on.
    if (this.page.request(offset, now)) this.abandon();
    this.next = job;
    const request = await this.settled(job);
    if (this.next !== job) return;
    this.next = null;
    if (!request) {
      this.page.append('commentary', this.idFor(job), REPEAT_PLEASE);
      return;
    }
    this.abandon();
    this.job = job;
    request.use();
    job.startedAt = Date.now();
    this.page.changed();
    this.remark(job);
    await this.read(job, request.lines);
  }

  /** Takes a piece of what the user said. */
  heard(event) {
    const job = this.next;
    if (job && !(event.start_ms > job.offset)) job.heardAt = Date.now();
  }

  /** Takes the service's word that it has an append: the one of this id, without an id the oldest. */
  appended(eventId) {
    this.sent.delete(this.sent.has(eventId) ? eventId : this.sent.keys().next().value);
  }

  /** Takes the refusal of an append: what could not be said is shown. */
  refused(eventId) {
    const said = this.sent.get(eventId);
    if (!said) return;
    this.sent.delete(eventId);
    this.page.done({ ...said, spoken: false });
  }

  /** An approval was answered, here with `choice` or elsewhere. */
  decided(asked, choice) {
    const job = this.working;
    if (!job) return;
    job.approvals = job.approvals.filter((other) => other !== asked);
    const what = { once: 'approved it once', session: 'approved it for the session', deny: 'denied it' }[choice];
    if (what) this.page.append('thinking', this.idFor(job), `The user ${what} on the screen.`);
    this.page.changed();
  }

  /** The request, once nothing more of it is to be expected; null when there is none or a newer delegation came. */
  async settled(job) {
    for (;;) {
      const now = Date.now();
      const latest = job.createdAt + SETTLE.limitMs;
      const request = this.page.request(job.offset, job.createdAt);
      const quiet = Math.max(job.createdAt + SETTLE.leastMs, job.heardAt + SETTLE.quietMs);
      if (now >= (request ? Math.min(latest, quiet) : latest)) return request;
      await pause(SETTLE.stepMs);
      if (this.next !== job) return null;
    }
  }

  async read(job, lines) {
    try {
      for await (const line of this.page.post(lines, job.reading.signal)) {
        if (this.job !== job) return;
        if (this.take(job, line)) return;
      }
      if (this.job === job) this.finish(job, 'The answer was cut off.');
    } catch (error) {
      // It may be a limit that was reached: then the request is still open.
      job.reading.abort();
      if (this.job !== job) return;
      const failure = error instanceof Failure ? error : new Failure('cut', { cause: error });
      job.failed = job.text === '';
      this.finish(job, explain(failure).spoken);
      this.page.failed(failure);
    }
  }

  /** Takes one line of a run; true when it was the last. */
  take(job, line) {
    switch (line.type) {
      case 'tool':
        this.tool(job, String(line.label ?? 'a tool'), line.status);
        break;
      case 'approval':
        if (job.approvals.length >= APPROVALS_LIMIT || job.approvals.some((asked) => sameApproval(asked, line))) return false;
        job.approvals.push({ ...line });
        // In words, without the command: it is on the screen.
        this.page.append('commentary', this.idFor(job), asking(line.description));
        break;
      case 'decided': {
        // Elsewhere, or its time ran out. Without an id it is the one that has waited longest.
        const over = job.approvals.findIndex((asked) => !line.request_id || asked.request_id === line.request_id);
        if (over >= 0) job.approvals.splice(over, 1);
        break;
      }
      case 'delta':
        job.text = (job.text + String(line.text ?? '')).slice(0, ANSWER_LIMIT);
        return false;
      case 'done':
        this.finish(job, line.finish_reason === 'stop' ? '' : `Hermes could not finish. ${line.error ?? ''}`.trim());
        return true;
      case 'error':
        this.finish(job, `I lost touch with Hermes. ${line.message ?? ''}`.trim());
        return true;
      default:
        // A kind that a later server knows.
        return false;
    }
    this.page.changed();
    return false;
  }

  tool(job, label, status) {
    const running = job.tools.findLast((tool) => tool.label === label && tool.status === 'running');
    if (status !== 'running' && running) running.status = status;
    else job.tools = [...job.tools, { label, status }].slice(-TOOLS_LIMIT);
    if (status !== 'running' || Date.now() - job.toldAt < TELL_MS) return;
    job.toldAt = Date.now();
    this.page.append('thinking', this.idFor(job), `Hermes is using the tool ${cut(label, 100)}.`);
  }

  /** One word after a while, so that a long run is no silence. */
  async remark(job) {
    await pause(REMARK_MS);
    if (this.working !== job || job.approvals.length || this.page.talking()) return;
    this.page.append('commentary', this.idFor(job), STILL_WORKING);
  }

  finish(job, problem) {
    job.over = true;
    job.approvals = [];
    this.page.changed();
    return this.say(job, [job.text.trim(), problem].filter(Boolean).join(' ') || NO_ANSWER);
  }

  /** Has an answer said, after the user's turn; without a session it is shown. Never an answer that is out of date. */
  async say(job, text) {
    const limit = Date.now() + TURN_LIMIT_MS;
    // A newer request that is not whole yet may make it one that is out of date.
    const waits = () => this.next !== null || (this.session && this.page.talking() && Date.now() < limit);
    while (waits() && this.job === job) await pause(SETTLE.stepMs);
    if (this.job !== job) return;
    if (!this.session && this.calling) {
      this.held = { job, text };
      return;
    }
    this.job = null;
    const whole = pieces(text);
    const sent = whole.map((piece) => this.page.append('commentary', this.idFor(job), piece));
    const unsaid = whole.filter((_, n) => sent[n] === null);
    sent.forEach((id, n) => { if (id !== null) this.sent.set(id, { ...job, text: whole[n], sentAt: Date.now() }); });
    this.page.done({ ...job, text: unsaid.length ? unsaid.join('') : text, spoken: unsaid.length === 0 });
  }

  /** A delegation is known to its own session only. */
  idFor(job) {
    return job.session === this.session ? job.id : null;
  }
}

/**
 * What was said, in order of the service's clock: as lines for the eye and as the history, as requests for Hermes.
 *
 * Pieces come late, in slots of 200 ms, each with its own leading space, and without a word about where a sentence ends.
 */
export class Transcript {
  constructor() {
    this.lines = [];
    this.unsent = [];
    this.session = 0;
    this.end = 0;
    this.ids = 0;
    this.heardAt = { user: 0, assistant: 0 };
  }

  /** Lines of an earlier call. */
  restore(lines) {
    for (const { speaker, text } of lines) this.push({ speaker, text, old: true });
  }

  /** Another session begins, with a clock of its own. */
  begin() {
    this.session += 1;
    this.end = 0;
  }

  /** Takes a transcript's piece that came at `now`; false when it holds nothing. */
  add(speaker, { delta, start_ms, end_ms }, now) {
    if (typeof delta !== 'string' || delta === '') return false;
    const start = Number.isFinite(start_ms) ? start_ms : this.end;
    const end = Number.isFinite(end_ms) ? Math.max(start, end_ms) : start;
    const piece = { speaker, text: delta, start, end, at: now, session: this.session };
    this.end = Math.max(this.end, end);
    this.heardAt[speaker] = now;
    this.unsent.push(piece);
    if (this.unsent.length > PIECES_LIMIT) this.unsent.shift();
    const own = this.lines.filter((line) => line.session === this.session && line.speaker === speaker);
    const line = own.findLast((candidate) => candidate.start <= start) ?? own[0];
    if (line && this.continues(line, start)) {
      line.pieces = inOrder([...line.pieces, piece]);
      line.text = joined(line.pieces).trimStart();
      line.start = Math.min(line.start, start);
      line.end = Math.max(line.end, end);
      line.heardAt = now;
    } else {
      this.push({ speaker, text: delta.trimStart(), start, end, pieces: [piece], heardAt: now });
    }
    return true;
  }

  /** Work of Hermes' that is done: its answer, in the voice's words as well when it was `spoken`. */
  note({ text, spoken, tools, ms }) {
    this.push({ speaker: 'work', text, spoken, tools, ms, start: this.end, end: this.end });
  }

  /** The last lines, bounded, as the server takes them. */
  history() {
    const said = this.lines.filter((line) => line.speaker !== 'work' || !line.spoken);
    return said.slice(-HISTORY.lines).map(({ speaker, text }) => (
      { speaker: speaker === 'user' ? 'user' : 'assistant', text: cut(text.trim(), HISTORY.characters) }
    )).filter((line) => line.text !== '');
  }

  /**
   * What was said since the last request and until `offset` on the service's clock, or is known since `before`: its lines,
   * and `use()`, after which no other request has them. Null when the user said nothing.
   */
  request(offset, before) {
    const fits = (piece) => piece.session < this.session || piece.start <= offset || piece.at <= before;
    const chosen = this.unsent.filter(fits);
    if (!chosen.some((piece) => piece.speaker === 'user' && piece.text.trim() !== '')) return null;
    const turns = [];
    for (const piece of inOrder(chosen)) {
      const last = turns.at(-1)?.at(-1);
      const same = last && last.speaker === piece.speaker && last.session === piece.session;
      if (same && piece.start - last.end <= PAUSE_MS) turns.at(-1).push(piece);
      else turns.push([piece]);
    }
    let lines = turns.map((turn) => ({ speaker: turn[0].speaker, text: joined(turn).trim() })).filter((line) => line.text !== '');
    let size = lines.reduce((sum, line) => sum + line.text.length, 0);
    while (size > REQUEST_LIMIT && lines.length > 1) size -= lines.shift().text.length;
    lines = lines.map((line) => ({ ...line, text: cut(line.text, REQUEST_LIMIT) }));
    const used = new Set(chosen);
    return { lines, use: () => { this.unsent = this.unsent.filter((piece) => !used.has(piece)); } };
  }

  /** Whether a piece goes on with a line: no long pause between, and nobody else began to speak in it. */
  continues(line, start) {
    const between = (other) => other.session === line.session && ![line.speaker, 'work'].includes(other.speaker)
      && other.start >= line.end && other.start < start;
    return start - line.end <= PAUSE_MS && !this.lines.some(between);
  }

  push(line) {
    this.ids += 1;
    const whole = { id: this.ids, session: this.session, start: 0, end: 0, pieces: [], heardAt: 0, ...line };
    const later = this.lines.findIndex((other) => other.session === this.session && other.start > whole.start);
    this.lines.splice(later < 0 ? this.lines.length : later, 0, whole);
    if (this.lines.length > LINES_LIMIT) this.lines.shift();
  }
}

/**
 * When a call has been quiet for too long: each open second is billed, silence included.
 *
 * Activity is speech of either side, a sign of life from Hermes, a press of a button. While a run goes on the call is
 * held for longer, but not for ever: a run whose end nobody hears is answered on the page.
 */
export class Idle {
  constructor(seconds) {
    this.quietMs = seconds * 1000;
    this.since = Date.now();
  }

  active(now) {
    this.since = now;
  }

  /** How many ms are left at `now`. */
  left(now, working) {
    return (working ? Math.max(this.quietMs, RUN_HOLD_MS) : this.quietMs) - (now - this.since);
  }
}

/**
 * Splits an answer into appends: at the ends of sentences where they fit, else between words, else between characters as a
 * reader sees them. The limit is 500 tokens, and a token is at least one byte: 480 bytes always fit.
 */
export function pieces(text, limit = APPEND_BYTES) {
  const size = (part) => ENCODER.encode(part).length;
  const whole = [];
  let piece = '';
  const add = (part, [finer, ...rest]) => {
    if (size(piece) + size(part) <= limit) {
      piece += part;
      return;
    }
    whole.push(piece);
    piece = '';
    if (size(part) <= limit) piece = part;
    else for (const smaller of finer(part)) add(smaller, rest);
  };
  const by = (granularity) => (part) => [...new Intl.Segmenter(undefined, { granularity }).segment(part)].map((s) => s.segment);
  add(text.toWellFormed?.() ?? text, [by('sentence'), by('word'), by('grapheme'), (part) => [...part]]);
  return [...whole, piece].map((part) => part.trim()).filter(Boolean);
}

/**
 * The JSON values of a byte stream of lines, cut anywhere. Empty lines are nothing, and come every 15 s: a stream without any is
 * dead. One that is no JSON is an error.
 */
export async function* ndjson(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await within(reader.read(), SILENCE_LIMIT_MS, () => new Failure('cut'));
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split('\n');
      rest = done ? '' : lines.pop();
      if (rest.length > NDJSON_LIMIT) throw new Error('a line is too long');
      for (const line of lines) if (line.trim()) yield JSON.parse(line);
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** What the browser keeps: the token, the choices and Hermes' session lastingly; the conversation for this tab only. */
export class Kept {
  constructor(lasting, passing) {
    this.lasting = storage(lasting);
    this.passing = storage(passing);
  }

  get token() { return this.lasting.get('token') ?? ''; }
  set token(token) { this.lasting.set('token', token); }
  get voice() { return this.lasting.get('voice') ?? ''; }
  set voice(name) { this.lasting.set('voice', name); }
  get announce() { return this.lasting.get('announce') !== 'no'; }
  set announce(on) { this.lasting.set('announce', on ? '' : 'no'); }

  /** Names the conversation to Hermes, which keeps its context by it. */
  get hermesSession() {
    const kept = this.lasting.get('hermes-session') ?? '';
    if (/^[A-Za-z0-9_-]{1,64}$/.test(kept)) return kept;
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    const fresh = `voice-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')}`;
    this.lasting.set('hermes-session', fresh);
    return fresh;
  }

  /** `{live, working, lines}`: whether a call, and a run of Hermes', was going on, and the last lines of it. */
  get history() {
    const kept = parsed(this.passing.get('history') ?? '');
    const lines = Array.isArray(kept?.lines) ? kept.lines : [];
    const whole = lines.filter((line) => ['user', 'assistant'].includes(line?.speaker) && typeof line.text === 'string');
    const bounded = whole.slice(-HISTORY.lines).map(({ speaker, text }) => ({ speaker, text: cut(text, HISTORY.characters) }));
    return { live: kept?.live === true, working: kept?.working === true, lines: bounded };
  }

  set history(history) { this.passing.set('history', JSON.stringify(history)); }

  forgetConversation() {
    this.passing.set('history', '');
    this.lasting.set('hermes-session', '');
  }
}

/** A storage that a browser may refuse: then things are kept while the page is open. An empty text is nothing. */
function storage(open) {
  const memory = new Map();
  const attempt = (act) => {
    try {
      return act(open());
    } catch {
      return null;
    }
  };
  return {
    get: (name) => memory.get(name) ?? attempt((store) => store.getItem(`${PREFIX}${name}`)),
    set: (name, value) => {
      memory.set(name, value);
      attempt((store) => (value === '' ? store.removeItem(`${PREFIX}${name}`) : store.setItem(`${PREFIX}${name}`, value)));
    },
  };
}

/** Why something did not come about or is over. `passing`: worth another try. */
export class Failure extends Error {
  constructor(kind, { status, detail, passing, cause } = {}) {
    super(kind, { cause });
    this.kind = kind;
    this.status = status;
    this.detail = detail || '';
    this.passing = passing ?? ['dropped', 'no-way', 'not-started', 'closed'].includes(kind);
  }
}

/** What the page says to a failure: `{status, title, text, again?, calm?, spoken?}`. */
export function explain({ kind, status }, config) {
  const idle = config?.idle_seconds ?? 0;
  const known = {
    'insecure': ['No microphone here', 'This address is not secure',
      'Browsers give the microphone to pages over HTTPS, and to pages on the same machine (http://localhost). Open this page in one of these ways.'],
    'refused': ['No microphone', 'The microphone was refused',
      'Allow the microphone for this page in the browser’s address bar, and in the system’s privacy settings, then try again.', 'Try again'],
    'none': ['No microphone', 'There is no microphone', 'Connect one and try again.', 'Try again'],
    'busy': ['No microphone', 'The microphone is in use', 'Another program holds it, or it does not start. Close that program and try again.', 'Try again'],
    'token': ['Access token needed', 'The access token was not accepted', 'Enter it again.'],
    'server': ['Server not reached', 'The server does not answer', 'Check that watch-audio voice is running and that you are online.', 'Try again'],
    'engine': ['Refused', `The voice service refused the call${status ? ` (${status})` : ''}`, ENGINE_HINTS[status] ?? 'It said:', 'Try again'],
    'hermes': ['Hermes not reached', `Hermes ${status && status !== 502 ? `refused the request (${status})` : 'cannot be reached'}`,
      'The call goes on. Ask again when Hermes is back.'],
    'cut': ['Hermes not reached', 'The way to Hermes broke', 'Hermes goes on with its work. Ask it for the result.'],
    'no-way': ['Not connected', 'No way to the voice service', 'This network lets no call through. Try another network, or without a VPN.', 'Try again'],
    'not-started': ['Not connected', 'The voice service did not start', 'It accepted the call and then said nothing.', 'Try again'],
    'dropped': ['Connection lost', 'The connection is lost', 'Several tries did not bring it back. A new call goes on with this conversation.', 'Call again'],
    'closed': ['Ended', 'The voice service ended the call', 'A new call goes on with this conversation.', 'Call again'],
    'content': ['Ended', 'The voice service stopped this conversation', 'It did so because of what was said.', 'Call again'],
    'hung-up': ['Call ended', 'Call ended', ''],
    'idle': ['Call ended', 'The call was closed', `Nobody spoke for ${idle} seconds, and each open second is billed. A new call goes on here.`],
  }[kind] ?? ['Failed', 'Something went wrong', 'This is a fault of the page.', 'Try again'];
  const [short, title, text, again] = known;
  const spoken = { hermes: 'I cannot reach Hermes right now.', server: 'I cannot reach Hermes right now.', token: 'I am no longer allowed to ask Hermes.' }[kind]
    ?? 'I lost touch with Hermes. It may still be working on it.';
  return { status: short, title, text, again, calm: kind === 'hung-up' || kind === 'idle', spoken };
}

// --- Small parts

function microphoneAllowed() {
  return isSecureContext && typeof navigator.mediaDevices?.getUserMedia === 'function';
}

async function microphone() {
  const wish = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: wish });
  } catch (error) {
    const kind = { NotAllowedError: 'refused', SecurityError: 'refused', NotFoundError: 'none', OverconstrainedError: 'none' }[error.name];
    throw new Failure(kind ?? 'busy', { detail: kind ? '' : error.message });
  }
}

/** All candidates are in the offer, or as many as there are after a while: the service takes none later. */
function gathered(peer) {
  const complete = new Promise((resolve) => {
    const look = () => peer.iceGatheringState === 'complete' && resolve();
    peer.onicegatheringstatechange = look;
    look();
  });
  return Promise.race([complete, pause(GATHER_MS)]);
}

async function within(promise, ms, failure) {
  let timer;
  const limit = new Promise((_, reject) => { timer = setTimeout(() => reject(failure()), ms); });
  try {
    return await Promise.race([promise, limit]);
  } finally {
    clearTimeout(timer);
  }
}

function pause(ms) {
  return new Promise((resolve) => { setTimeout(resolve, ms); });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function inOrder(list) {
  return list.toSorted((a, b) => a.session - b.session || a.start - b.start);
}

/** Pieces as they are; a space only where one utterance ends and another begins, which has none before it. */
function joined(list) {
  return list.reduce((text, piece, n) => {
    const apart = n > 0 && (piece.start - list[n - 1].end >= APART_MS || (/[.!?…]$/.test(text) && /^\p{Lu}/u.test(piece.text)));
    return text + (apart && !/\s$/.test(text) && !/^\s/.test(piece.text) ? ' ' : '') + piece.text;
  }, '');
}

/** The beginning of a text, never half a character. */
export function cut(text, length) {
  return text.length <= length ? text : text.slice(0, length).replace(/[\ud800-\udbff]$/, '');
}

function sameApproval(one, other) {
  if (one.request_id || other.request_id) return one.request_id === other.request_id;
  return one.command === other.command && one.description === other.description;
}

function asking(description) {
  const what = cut(String(description || 'to run a command'), 300);
  return `Hermes needs the user's approval before it goes on: ${what}. The user can answer on the screen.`;
}

function minutes(ms) {
  const seconds = Math.floor(ms / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
}

function newLine(line) {
  const item = document.createElement('li');
  item.dataset.line = String(line.id);
  item.className = `${line.speaker}${line.old ? ' old' : ''}`;
  if (line.speaker !== 'work') {
    item.append(element('span', SPEAKERS[line.speaker]), element('p', line.text));
    return item;
  }
  const details = document.createElement('details');
  details.open = !line.spoken;
  const tools = [...new Set(line.tools)].slice(0, TOOLS_SHOWN).join(', ');
  const summary = `Hermes worked for ${minutes(line.ms)}${tools ? ` with ${tools}` : ''}`;
  details.append(element('summary', summary), element('p', line.text));
  item.append(details);
  return item;
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function $(id) {
  return document.getElementById(id);
}

/** Writes a text only when it is another: screen readers take each writing for news. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Hides a panel; whoever was in it with the keyboard goes on at the call button. */
function conceal(id) {
  if ($(id).contains(document.activeElement)) $('call').focus();
  $(id).hidden = true;
}

/** Writes a text and shows its element, or hides it when there is none. */
function tell(id, text) {
  write($(id), text);
  $(id).hidden = text === '';
}

/** Has a screen reader say something, `polite` or `assertive`. */
function announce(how, text) {
  const line = element('p', text);
  $(how).append(line);
  setTimeout(() => line.remove(), ANNOUNCED_MS);
}

// --- Constants

/** Before the names in the browser's storage. */
const PREFIX = 'hermes-voice.';
/** What is kept of a conversation and given to the next session (`hermes-voice.md`). */
export const HISTORY = { lines: 24, characters: 1_200 };
/**
 * How a transcript settles after a delegation (`engines.md` 1.4): at least so long, until so long nothing came, at most so
 * long. Pieces come 550 to 700 ms behind what they are about.
 */
export const SETTLE = { leastMs: 600, quietMs: 600, limitMs: 3_000, stepMs: 50 };
/** See {@link pieces}. */
const APPEND_BYTES = 480;
/** A pause that ends a line. */
const PAUSE_MS = 1_200;
/** A pause that separates words. */
const APART_MS = 600;
/** Two hours of slots, and lines on the page. */
const PIECES_LIMIT = 36_000;
const LINES_LIMIT = 400;
/** Characters of a request; the server takes 256 KiB of body, which is more even if each is three bytes. */
const REQUEST_LIMIT = 60_000;
/** Characters of an answer: half an hour of talking. */
const ANSWER_LIMIT = 30_000;
/** A run's line is at most an answer. */
const NDJSON_LIMIT = 4 * 1024 * 1024;
const TOOLS_LIMIT = 50;
const TOOLS_SHOWN = 4;
const APPROVALS_LIMIT = 10;
/** The model is told of tools no more often than this. */
const TELL_MS = 3_000;
/** A run that is still going on is mentioned once, after this. */
const REMARK_MS = 25_000;
/** A way that is lost has not carried anything for so long: some seconds of weakness, and what came before it was noticed. */
const UNSURE_MS = 15_000;
/** The user's turn is over when no words came for this long; an answer waits for it no longer than the limit. */
const TURN_QUIET_MS = 1_200;
const TURN_LIMIT_MS = 6_000;
/** While a run goes on the call is held for this long without a sign of life: half a dollar at the vendor's price. */
export const RUN_HOLD_MS = 10 * 60_000;
/** The end of a quiet call is announced this many seconds before. */
const IDLE_WARNING_S = 20;
/** Our server answers at once; a session takes as long as the service does. */
const ANSWER_LIMIT_MS = 20_000;
const SESSION_LIMIT_MS = 40_000;
/** A run begins when the one before it has stopped and Hermes has taken it, which it may refuse for a while. */
export const RUN_START_LIMIT_MS = 120_000;
/** Three of the server's empty lines. */
const SILENCE_LIMIT_MS = 45_000;
/** From the service's answer to `session.started`. */
const START_LIMIT_MS = 15_000;
/** Candidates of this machine are there in a few ms; a slow resolver is not waited for. */
const GATHER_MS = 1_000;
/** ICE mends a short break by itself. */
const BREAK_MS = 5_000;
/** Waits before another session; each is billed 15 s even if nothing comes of it. */
const RETRY_MS = [1_000, 3_000, 8_000, 20_000];
/** A session that held this long was a good one: the tries begin anew. */
const STABLE_MS = 60_000;
/** The service confirms the end within this, or is left. */
const CLOSE_LIMIT_MS = 2_000;
/** An approval's buttons do nothing for so long after they appear. */
const APPROVAL_GUARD_MS = 500;
/** Characters shown of what was answered. */
const DETAIL_LIMIT = 800;
/** The reasons of `session.closed`; all others are the service's own end. */
const ENDINGS = { expired: 'dropped', connection_lost: 'dropped', remote_hangup: 'dropped', content: 'content' };
const ENGINE_HINTS = {
  401: 'It does not know the server’s OpenAI key.',
  403: 'The server’s OpenAI key may not use this model.',
  429: 'The account is at its limit or out of credit.',
};
const REPEAT_PLEASE = 'I did not catch that. Please say it again.';
const STILL_WORKING = 'Hermes is still working on it.';
const NO_ANSWER = 'Hermes is done, and had nothing to say.';
const SPEAKERS = { user: 'You', assistant: 'Hermes' };
/** The states a screen reader is told of; who speaks at the moment can be heard. */
const TOLD = new Set(['microphone', 'connecting', 'weak', 'reconnecting', 'ended', 'failed']);
/** A line is finished when nothing was added for this long, and the voice speaks until this long after its last word. */
const LINE_DONE_MS = 2_500;
const SPEAKING_MS = 1_200;
const TICK_MS = 250;
const KEEP_MS = 1_000;
const ANNOUNCED_MS = 10_000;
const NEAR_END_PX = 80;
const ANALYSER_SIZE = 512;
const LEVEL_MS = 80;
const LEVEL_OF = { mic: () => $('mute'), voice: () => $('call') };
const ENCODER = new TextEncoder();

if (typeof document !== 'undefined') new Page().start();
