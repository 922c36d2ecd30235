"""A stand-in for the leased server, to inject faults: HTTP like SGLang's, dump files like the plug-in's.

It lives on a thread of its own, so that it can die while the client waits for it.
"""

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web
from helpers.states import header_for, states_for, write_state

API_KEY = "only-for-this-test"


class FakeServer:
    """``faults[key]``: what to do with the next requests for a key, one word each; then all is well.

    Words: ``500``, ``400``, ``drop`` (closes the connection), ``kill`` (the server dies), ``hang`` (no answer, ever),
    ``nan``, ``short`` (a row too few), ``ids``, ``layers``, ``lost`` (no file), and the plug-in's own ``stalled``,
    ``disk_full``, ``hook_failed``. ``always`` gives a fault that never ends.
    """

    def __init__(self, root: Path) -> None:
        self.dump = root / "dump"
        self.rid_prefix, self.max_req_input_len = "hs-", 1000
        self.headers = {"Authorization": f"Bearer {API_KEY}"}
        self.faults: dict[str, list[str]] = defaultdict(list)
        self.always: dict[str, str] = {}
        self.write_delay = self.answer_delay = 0.0
        self.answer_delays: dict[str, float] = {}  # by key, instead of answer_delay
        self.requests: list[tuple[str, str]] = []  # rid, key
        self.starts = self.most_in_flight = self._in_flight = 0
        self.on_request: Callable[[str], None] = lambda key: None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner: web.AppRunner | None = None

    # what the client sees of a lease

    def alive(self) -> bool:
        return self._runner is not None

    def why_died(self) -> str:
        return "exit code -9"

    def restart(self) -> None:
        self.kill()
        self.dump.mkdir(parents=True, exist_ok=True)
        for file in self.dump.iterdir():
            file.unlink()
        self._call(self._start())

    # what tests do to it

    def kill(self) -> None:
        """Die at once: every connection breaks."""
        self._call(self._die())

    def close(self) -> None:
        self.kill()
        self._call(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @contextmanager
    def lease(self, longest: int):
        if not self.alive():
            self.restart()
        yield self

    def keys_requested(self) -> list[str]:
        return [key for _, key in self.requests]

    def _call(self, coroutine) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/generate", self._generate)
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self.starts += 1
        self._in_flight = 0
        self._runner = runner

    async def _die(self) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for connection in list(runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def _end_tasks(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert set(body) == {"input_ids", "rid", "sampling_params"}, body
        assert body["sampling_params"] == {"max_new_tokens": 0}
        if request.headers.get("Authorization") != f"Bearer {API_KEY}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        rid, ids = body["rid"], body["input_ids"]
        key = header_for(ids).key
        self.requests.append((rid, key))
        self.on_request(key)
        fault = self.always.get(key) or (self.faults[key].pop(0) if self.faults[key] else "")
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await asyncio.sleep(self.answer_delays.get(key, self.answer_delay))
            return await self._answer(request, rid, ids, fault)
        finally:
            self._in_flight -= 1

    async def _answer(self, request: web.Request, rid: str, ids: list[int], fault: str) -> web.Response:
        if fault == "500":
            return web.json_response({"error": {"message": "something broke"}}, status=500)
        if fault == "400":
            return web.json_response({"error": {"message": "the input is bad"}}, status=400)
        if fault == "drop":
            request.transport.abort()
            await asyncio.sleep(0.01)
        elif fault == "kill":
            asyncio.ensure_future(self._die())  # noqa: RUF006
            await asyncio.sleep(5)
        elif fault == "hang":
            await asyncio.sleep(60)
        elif fault in ("stalled", "disk_full", "hook_failed"):
            self._report(rid, "sink_stalled" if fault == "stalled" else fault)
        elif fault != "lost":
            self._loop.call_later(self.write_delay, self._capture, rid, ids, fault)
        return web.json_response({"text": "", "meta_info": {"id": rid, "finish_reason": {"type": "length"}}})

    def _report(self, rid: str, reason: str) -> None:
        temporary = self.dump / f"{rid}.error.json.tmp"
        temporary.write_text(json.dumps({"rid": rid, "reason": reason, "detail": "as the test asked"}))
        temporary.rename(self.dump / f"{rid}.error.json")

    def _capture(self, rid: str, ids: list[int], fault: str) -> None:
        if not self.alive():
            return
        temporary = self.dump / f"{rid}.safetensors.tmp"
        header = header_for(ids)
        if fault == "nan":
            states = states_for(header)
            states[0, 1, 2] = 0x7FC0
            write_state(temporary, ids, header, states)
        elif fault == "short":
            write_state(temporary, ids[:-1])
        elif fault == "ids":
            write_state(temporary, [ids[0] + 1, *ids[1:]], header)
        elif fault == "layers":
            write_state(temporary, ids, type(header)(**{**vars(header), "layers": (2, 4, 6)}))
        else:
            write_state(temporary, ids, header)
        temporary.rename(self.dump / f"{rid}.safetensors")
