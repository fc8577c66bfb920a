"""The baseline: today's kind of WebRTC helper, on aiortc, speaking the helper's stdio protocol.

It does what a plain aiortc program does: the library's own jitter buffer on the way down, one growing buffer paced by a
20 ms clock on the way up, the library's own Opus settings. It is measured, not recommended.
"""

import asyncio
import fractions
import json
import struct
import sys
import time

import av
from aiortc import RTCConfiguration, RTCIceServer, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack

HEADER = struct.Struct(">cI")
MAX_PAYLOAD = 1 << 20
HELD_TEXTS = 64
# RTP audio goes in frames of 20 ms.
FRAMES_PER_SECOND = 50


class Ended(Exception):
    """The call is over, with a short reason."""


def main():
    try:
        sys.exit(asyncio.run(Helper().run()))
    except BrokenPipeError:
        sys.exit(0)


class Helper:
    def __init__(self):
        self.out = sys.stdout.buffer
        self.over = asyncio.Event()
        self.reason = "closed"
        self.texts = []

    async def run(self):
        stdin = asyncio.StreamReader(limit=MAX_PAYLOAD)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
        config = usable(*await read_frame(stdin))
        if config is None:
            return 2
        self.microphone = Microphone(config["input_rate"])
        self.output_rate = config["output_rate"]
        self.peer = RTCPeerConnection(RTCConfiguration([RTCIceServer(url) for url in config["stun"]]))
        self.peer.addTrack(self.microphone)
        self.channel = self.peer.createDataChannel("oai-events")
        self.channel.on("open", self.send_held)
        self.channel.on("message", self.on_text)
        self.channel.on("close", lambda: self.end("the engine closed the channel"))
        self.peer.on("track", self.on_track)
        self.peer.on("connectionstatechange", self.on_state)
        await self.peer.setLocalDescription(await self.peer.createOffer())
        self.write(b"O", self.peer.localDescription.sdp.encode())
        commands = asyncio.ensure_future(self.obey(stdin))
        await self.over.wait()
        commands.cancel()
        await self.peer.close()
        self.write(b"X", json.dumps({"reason": self.reason}).encode())
        return 0

    async def obey(self, stdin):
        try:
            while True:
                kind, payload = await read_frame(stdin)
                if kind == b"P":
                    self.microphone.push(payload)
                elif kind == b"A":
                    await self.peer.setRemoteDescription(RTCSessionDescription(payload.decode(), "answer"))
                elif kind == b"E":
                    self.texts = [*self.texts, payload.decode()][-HELD_TEXTS:]
                    self.send_held()
                elif kind in (b"Q", b""):
                    return self.end("closed")
                else:
                    raise Ended("a frame of unknown kind")
        except Ended as error:
            self.end(str(error))
        except Exception as error:
            print(f"failed: {type(error).__name__}", file=sys.stderr)
            self.end("failed")

    def end(self, reason):
        if not self.over.is_set():
            self.reason = reason
            self.over.set()

    def write(self, kind, payload):
        self.out.write(HEADER.pack(kind, len(payload)) + payload)
        self.out.flush()

    def send_held(self):
        if self.channel.readyState == "open":
            for text in self.texts:
                self.channel.send(text)
            self.texts = []

    def on_text(self, text):
        if isinstance(text, str):
            self.write(b"e", text.encode())

    def on_state(self):
        state = self.peer.connectionState
        if state == "connected":
            self.write(b"R", b"")
        elif state in ("failed", "closed"):
            self.end(f"the connection is {state}")

    def on_track(self, track):
        self.player = asyncio.ensure_future(self.play(track))

    async def play(self, track):
        to_mono = av.AudioResampler(format="s16", layout="mono", rate=self.output_rate)
        try:
            while True:
                for frame in to_mono.resample(await track.recv()):
                    # A plane may be longer than its samples.
                    self.write(b"p", bytes(frame.planes[0])[: 2 * frame.samples])
        except MediaStreamError:
            pass
        except BrokenPipeError:
            self.end("closed")
        except Exception as error:
            print(f"failed: {type(error).__name__}", file=sys.stderr)
            self.end("failed")


class Microphone(MediaStreamTrack):
    """Gives 20 ms every 20 ms: what was pushed, in order, and silence where that is not enough."""

    kind = "audio"

    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        self.samples = rate // FRAMES_PER_SECOND
        self.buffer = bytearray()
        self.started = None
        self.timestamp = 0

    def push(self, pcm):
        self.buffer += pcm

    async def recv(self):
        if self.started is None:
            self.started = time.monotonic()
        else:
            self.timestamp += self.samples
            await asyncio.sleep(self.started + self.timestamp / self.rate - time.monotonic())
        wanted = 2 * self.samples
        pcm = bytes(self.buffer[:wanted]).ljust(wanted, b"\0")
        del self.buffer[:wanted]
        frame = av.AudioFrame(format="s16", layout="mono", samples=self.samples)
        frame.planes[0].update(pcm)
        frame.sample_rate = self.rate
        frame.pts = self.timestamp
        frame.time_base = fractions.Fraction(1, self.rate)
        return frame


async def read_frame(stdin):
    """One frame, or an empty kind at the end of stdin."""
    try:
        kind, length = HEADER.unpack(await stdin.readexactly(HEADER.size))
        if length > MAX_PAYLOAD:
            raise Ended("a frame over 1 MiB")
        return kind, await stdin.readexactly(length)
    except asyncio.IncompleteReadError:
        return b"", b""


def usable(kind, payload):
    """The config, or None after saying why not where the protocol wants it."""
    if kind != b"C":
        return None
    try:
        config = json.loads(payload)
        rates = [config["input_rate"], config["output_rate"]]
        if all(type(rate) is int and 8_000 <= rate <= 48_000 for rate in rates) and isinstance(config["stun"], list):
            return config
    except (ValueError, KeyError, TypeError):
        pass
    print("config isn't usable", file=sys.stderr)
    return None


main()
