"""The plugin's side of one Watch call, in plain asyncio: what a host has to do to use `watch-audio bridge`.

It opens a grant at the relay, spawns one bridge for it, does GPT-Live's SDP exchange when the bridge asks (the key never
enters the bridge), hands over Grok's bearer, passes every other line to the log, and closes the grant when the bridge is
gone, or when it is told to end itself. Secrets go by files and stdin, never by arguments or environment.

    python3 plugin.py --bridge watch-audio --relay https://relay.example --credential-file FILE
        --grant-out FILE [--openai-key-file FILE] [--xai-key-file FILE]

The grant (what the Watch needs: id, key, watch key, relay) is written to --grant-out, readable by the user alone; a real
plugin sends it to the Watch over its own sealed push.
"""

import argparse
import asyncio
import base64
import contextlib
import hashlib
import json
import os
import pathlib
import secrets
import signal
import sys
import urllib.error
import urllib.request

TTL_S = 600
EXCHANGE_S = 30  # the bridge gives up after 32 s
ENDING_S = 10  # a bridge is gone within 5 s of its end of input
MAX_LINE = (1 << 20) + 1  # the protocol's, and its newline


def b64u(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """No redirect may take a bearer elsewhere."""

    def redirect_request(self, *_args):
        return None


def ask(method: str, url: str, bearer: str, body: dict | None = None) -> bytes:
    """One request, with a JSON body if there is one; raises urllib's errors."""
    request = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {bearer}"})
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    with urllib.request.build_opener(NoRedirect).open(request, timeout=EXCHANGE_S) as answer:
        return answer.read(262_144)


def failure(error: Exception) -> tuple[str, str]:
    """The Watch's error code and a sentence for a person; never the provider's body."""
    match error:
        case urllib.error.HTTPError(code=429):
            return "rate_limited", "The voice service has too much to do right now."
        case urllib.error.HTTPError(code=code) if 400 <= code < 500:
            return "refused", "The voice service refused the call."
        case OSError():  # urllib's own errors and time-outs are among them
            return "unreachable", "The voice service did not answer."
    return "failed", "The sign-in on the host failed."


def gpt_live_session(args, request: dict) -> dict:
    """Answers a GPT-Live `session_request`: posts the offer byte for byte, returns the `session` line."""
    start = request["start"]
    voice = start.get("voice") or "marin"
    instructions = "You are the voice of Hermes, an agent. Delegate facts and actions; never guess."
    if start.get("briefing"):
        instructions += "\n\n" + start["briefing"]
    if start.get("call_opening"):
        instructions += "\n\nSpeak first."
    elif "greeting" in start:
        instructions += "\n\n" + (f"Begin by saying: {start['greeting']}" if start["greeting"] else "Greet the caller first.")
    session = {
        "model": "gpt-live-1",
        "instructions": instructions,
        "audio": {"output": {"voice": voice}},
        "delegation": {"type": "client"},
    }
    history = [
        {"type": "message", "role": item["role"], "content": item["content"][:1]} for item in start.get("history", [])[-40:]
    ]
    if history:
        session["input"] = history
    key = pathlib.Path(args.openai_key_file).read_text().strip()
    answer = ask(
        "POST",
        args.openai_url + "/v1/live/sessions",
        key,
        {"session": session, "transport": {"type": "webrtc", "sdp": request["offer"]}},
    )
    return {
        "sdp": json.loads(answer)["transport"]["sdp"],
        "voice": voice,
        "briefing_applied": bool(start.get("briefing")),
        "greeting_applied": bool(start.get("call_opening")) or "greeting" in start,
    }


def grok_session(args, request: dict) -> dict:
    """Answers a Grok `session_request`: the bridge holds that socket, so it gets the bearer."""
    return {
        "url": args.xai_url + "/v1/realtime",
        "bearer": pathlib.Path(args.xai_key_file).read_text().strip(),
        "model": "grok-voice-latest",
        "voice": request["start"].get("voice") or "eve",
    }


async def call(args) -> int:
    credential = pathlib.Path(args.credential_file).read_text().strip()
    root, watch_key = secrets.token_bytes(32), b64u(secrets.token_bytes(32))
    grants = args.relay + "/v1/watch-tools/grants"
    wanted = {
        "watch_key_sha256": hashlib.sha256(watch_key.encode()).hexdigest(),
        "ttl_s": TTL_S,
        "max_calls": 40,
        "audio": True,
    }
    grant = json.loads(await asyncio.to_thread(ask, "POST", grants, credential, wanted))["grant_id"]
    try:
        for_watch = {"grant_id": grant, "key": b64u(root), "watch_key": watch_key, "relay_url": args.relay}
        handle = os.open(args.grant_out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(for_watch, file)
        opening = {
            "type": "open",
            "version": 1,
            "grant": {
                "id": grant,
                "key": b64u(root),
                "relay_url": args.relay,
                "credential": credential,
                "expires_in_s": TTL_S,
            },
            "engines": [name for name, key in (("gpt_live", args.openai_key_file), ("grok", args.xai_key_file)) if key],
        }
        return await bridge(args, opening)
    finally:
        # However the bridge ended, nobody is to come back to its grant: a second process would repeat nonces. A relay that
        # cannot be reached lets it expire.
        with contextlib.suppress(OSError):
            await asyncio.to_thread(ask, "DELETE", f"{grants}/{grant}", credential)


async def bridge(args, opening: dict) -> int:
    """One bridge from its first line to its exit code."""
    process = await asyncio.create_subprocess_exec(
        args.bridge, "bridge", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=MAX_LINE
    )

    async def say(line: dict) -> None:
        process.stdin.write(json.dumps(line).encode() + b"\n")
        # A bridge that is gone takes no more lines; its exit code tells.
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()

    async def answer(request: dict) -> None:
        """In a task of its own: a slow sign-in must not keep us from reading the bridge's lines."""
        sign_in = {"gpt_live": gpt_live_session, "grok": grok_session}[request["engine"]]
        try:
            line = {"type": "session", "id": request["id"], **await asyncio.to_thread(sign_in, args, request)}
        except Exception as error:
            code, message = failure(error)
            line = {"type": "session_failed", "id": request["id"], "code": code, "message": message}
        await say(line)

    answers: set[asyncio.Task] = set()
    try:
        await say(opening)
        while raw := await process.stdout.readline():
            line = json.loads(raw)
            if line["type"] == "session_request":
                task = asyncio.create_task(answer(line))
                answers.add(task)
                task.add_done_callback(answers.discard)
            else:
                print(json.dumps(line), flush=True)
            if line["type"] == "ended" and args.one_call:
                await say({"type": "stop"})
    finally:
        for task in answers:
            task.cancel()
        # The end of its input is its end, if that has not come already.
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), ENDING_S)
        except TimeoutError:
            process.kill()
    return await process.wait()


async def until_told(args) -> int:
    """The call, until SIGINT or SIGTERM: then it ends in order, with 128 and the signal's number."""
    told: list[int] = []

    def end(number: int) -> None:
        told.append(number)
        if len(told) == 1:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    task = asyncio.create_task(call(args))
    try:
        return await task
    except asyncio.CancelledError:
        return 128 + told[0]
    except urllib.error.HTTPError as error:
        print(f"plugin: the relay refused the grant ({error.code}); look at the credential", file=sys.stderr)
    except OSError as error:
        print(f"plugin: {error}", file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bridge", default="watch-audio", help="the watch-audio program")
    parser.add_argument("--relay", required=True, help="the relay's URL")
    parser.add_argument("--credential-file", required=True, help="the gateway credential, installation.gateway.secret")
    parser.add_argument("--grant-out", required=True, help="where to write the grant for the Watch; must not exist")
    parser.add_argument("--openai-key-file")
    parser.add_argument("--openai-url", default="https://api.openai.com")
    parser.add_argument("--xai-key-file")
    parser.add_argument("--xai-url", default="wss://api.x.ai")
    parser.add_argument("--one-call", action="store_true", help="stop after the first call has ended")
    return asyncio.run(until_told(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
