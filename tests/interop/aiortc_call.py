"""A call between `watch-audio helper` and aiortc: this script plays the plugin and the engine at once.

    aiortc_call.py HELPER [SECONDS]

Sound is told apart by its frequency: the engine sends one tone, the microphone another. Prints one line of figures as
JSON; exits 1 with the first thing that was not as it should be.
"""

import array
import asyncio
import fractions
import json
import math
import statistics
import struct
import sys
import time

import av
from aiortc import MediaStreamTrack, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

ENGINE_TONE, MICROPHONE_TONE = 440, 660
SIZES = (60_000, 200_000)


def tone(hertz, rate, start, count):
    step = 2 * math.pi * hertz / rate
    return array.array("h", (round(8000 * math.sin(step * (start + n))) for n in range(count)))


def share(samples, rate, hertz):
    """How much of the power is at one frequency, 0 to 1: the median over the last ten seconds' blocks of 100 ms.

    Short blocks, so that a stretch of a busy machine, where sound is caught up with, does not decide.
    """
    size, step = rate // 10, 2 * math.pi * hertz / rate
    shares = []
    for start in range(max(0, len(samples) - 10 * rate), len(samples) - size, size):
        block = samples[start:start + size]
        real = sum(sample * math.cos(step * n) for n, sample in enumerate(block))
        imaginary = sum(sample * math.sin(step * n) for n, sample in enumerate(block))
        power = sum(sample * sample for sample in block) or 1
        shares.append(2 * (real * real + imaginary * imaginary) / (size * power))
    return statistics.median(shares) if shares else 0.0


class Tone(MediaStreamTrack):
    kind = "audio"

    def __init__(self):
        super().__init__()
        self.sent, self.started = 0, None

    async def recv(self):
        self.started = self.started or time.time()
        await asyncio.sleep(max(0, self.started + self.sent / 48000 - time.time()))
        frame = av.AudioFrame(format="s16", layout="mono", samples=960)
        frame.planes[0].update(tone(ENGINE_TONE, 48000, self.sent, 960).tobytes())
        frame.sample_rate, frame.pts, frame.time_base = 48000, self.sent, fractions.Fraction(1, 48000)
        self.sent += 960
        return frame


class Helper:
    """The plugin's side of the helper's pipes."""

    def __init__(self, process):
        self.process, self.sound, self.texts, self.kinds = process, array.array("h"), [], asyncio.Queue()

    def send(self, kind, payload=b""):
        self.process.stdin.write(kind + struct.pack(">I", len(payload)) + payload)

    async def read(self):
        while True:
            try:
                head = await self.process.stdout.readexactly(5)
            except asyncio.IncompleteReadError as end:
                assert not end.partial, "the helper's output ends inside a frame"
                return
            kind, length = head[:1], struct.unpack(">I", head[1:])[0]
            assert kind in (b"O", b"R", b"p", b"e", b"X"), f"a frame of kind {kind}"
            payload = await self.process.stdout.readexactly(length)
            if kind == b"p":
                self.sound.frombytes(payload)
            elif kind == b"e":
                self.texts.append(payload.decode())
            else:
                self.kinds.put_nowait((kind, payload))

    async def expect(self, kind, limit):
        got, payload = await asyncio.wait_for(self.kinds.get(), limit)
        assert got == kind, f"{got} instead of {kind}"
        return payload


async def main(program, seconds):
    spawned = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        program, "helper", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    helper = Helper(process)
    reader = asyncio.create_task(helper.read())
    helper.send(b"C", json.dumps({"input_rate": 16000, "output_rate": 24000, "stun": []}).encode())
    offer = (await helper.expect(b"O", 5)).decode()
    spawn_to_offer = time.monotonic() - spawned

    engine = RTCPeerConnection()
    engine.addTrack(Tone())
    heard, got = array.array("h"), []

    @engine.on("track")
    def on_track(track):
        async def listen():
            while True:
                try:
                    frame = await track.recv()
                except MediaStreamError:
                    return
                samples = array.array("h", bytes(frame.planes[0])[: frame.samples * 4])
                heard.extend(samples[::2])
        asyncio.ensure_future(listen())

    @engine.on("datachannel")
    def on_datachannel(channel):
        assert channel.label == "oai-events", channel.label
        channel.send('{"type":"session.started"}')

        @channel.on("message")
        def on_message(text):
            got.append(text)
            if len(got) == 2 + len(SIZES):
                for size in SIZES:
                    channel.send("y" * size)

    await engine.setRemoteDescription(RTCSessionDescription(offer, "offer"))
    await engine.setLocalDescription(await engine.createAnswer())
    # The real engine takes any size; aiortc does too, but says 64 KB.
    answer = engine.localDescription.sdp.replace("a=max-message-size:65536", "a=max-message-size:1073741823")
    helper.send(b"E", b"before the channel is open")
    answered = time.monotonic()
    helper.send(b"A", answer.encode())
    await helper.expect(b"R", 8)
    answer_to_connected = time.monotonic() - answered
    started = time.monotonic()

    helper.send(b"E", "first, with ünïcödé".encode())
    for size in SIZES:
        helper.send(b"E", b"x" * size)
    sent = 0
    while time.monotonic() - started < seconds:
        helper.send(b"P", tone(MICROPHONE_TONE, 16000, sent, 1600).tobytes())
        sent += 1600
        await asyncio.sleep(max(0, started + sent / 16000 - time.monotonic()))
    duration = time.monotonic() - started

    assert got[:2] == ["before the channel is open", "first, with ünïcödé"], [text[:40] for text in got]
    assert [len(text) for text in got[2:]] == list(SIZES), [len(text) for text in got]
    assert helper.texts[0] == '{"type":"session.started"}', [text[:40] for text in helper.texts]
    assert [len(text) for text in helper.texts[1:]] == list(SIZES), [len(text) for text in helper.texts]
    figures = {
        "spawn_to_offer_ms": round(spawn_to_offer * 1000, 1),
        "answer_to_connected_ms": round(answer_to_connected * 1000, 1),
        "seconds": round(duration, 2),
        "sound_seconds": round(len(helper.sound) / 24000, 2),
        "engine_tone": round(share(helper.sound, 24000, ENGINE_TONE), 3),
        "heard_seconds": round(len(heard) / 48000, 2),
        "microphone_tone": round(share(heard, 48000, MICROPHONE_TONE), 3),
    }
    print(json.dumps(figures), flush=True)
    assert figures["engine_tone"] > 0.95 and figures["microphone_tone"] > 0.95, "the tones are not what was sent"
    assert abs(figures["sound_seconds"] - duration) < 1, "the engine's sound is not as long as the call"
    assert abs(figures["heard_seconds"] - duration) < 1, "the microphone's sound is not as long as the call"

    helper.send(b"Q")
    process.stdin.close()
    reason = json.loads(await helper.expect(b"X", 3))
    assert reason["reason"], reason
    assert await asyncio.wait_for(process.wait(), 3) == 0, process.returncode
    await reader
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 30))
