"""A client's hold on a server: one that is warm and the right one, or a new one, checked before it is used."""

import contextlib
import json
import logging
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hidden_states.errors import UserError
from hidden_states.layout import Results
from hidden_states.server.command import command, environment
from hidden_states.server.http import open_local
from hidden_states.server.keeper import Start, log_tail
from hidden_states.server.processes import end_group, end_process, is_running
from hidden_states.server.record import FAILED, READY, STARTING, Record, read_record, write_private
from hidden_states.server.slots import Slot, acquire, all_slots, host_records, neighbours, seconds_unused, slot_folder
from hidden_states.server.specification import ServerSpecification

log = logging.getLogger(__name__)

POLL_SEC = 0.3
MESSAGE_SEC = 10
ANSWER_SEC = 60
"""How long the server may take to say what it is; it has no prompt to work on then."""
KEEPER_END_SEC = 15
"""A keeper needs 3 s to stop its server; after this it is killed, and the server with it."""
PATIENCE_SEC = 10
"""How long the server of another run must have been unused before it is stopped for ours. Its next chunk takes it
sooner than that: otherwise two runs would start a server for every chunk in turn."""
VARYING = ("self_check", "max_req_input_len")
"""Keys of ready.json that may differ between two starts of the same server."""


class NoAnswer(UserError):
    """A server that is up does not answer."""


@contextlib.contextmanager
def lease(
    settings: dict[str, Any], results: Results, specification: ServerSpecification, longest: int
) -> Iterator["LeasedServer"]:
    """Hold a slot inside the block, with a ready server of this specification that passed its self-check.

    ``longest``: tokens of the longest prompt to come. Raises UserError when the server does not come up, fails its
    check, differs from ``ready.json``, or takes no prompts of that length.
    """
    slots = all_slots(specification.device, settings["server"]["slots"], specification.tensor_parallel_size)
    run = str(results.root.resolve())
    with acquire(slots, lambda slot: _in_use_by_another(slot, run)) as slot:
        server = LeasedServer(settings, results, specification, slot)
        server.make_ready()
        refuse_longer(server, longest)
        yield server


def refuse_longer(server: "LeasedServer", longest: int) -> None:
    """Raise UserError when the server does not take prompts of ``longest`` tokens."""
    if longest >= server.max_req_input_len:
        raise UserError(
            f"the longest sample has {longest:,} tokens, but the server takes fewer than "
            f"{server.max_req_input_len:,}. Lower conversations.max_tokens to {server.max_req_input_len - 1}, or raise "
            "context_length or max_total_tokens in server.arguments."
        )


def stop_servers(results: Results) -> int:
    """Stop the servers on this host that belong to the run in ``results``; returns how many."""
    run = str(results.root.resolve())
    count = 0
    for path, record in host_records(slot_folder()):
        if record.run == run and _is_kept(record):
            _end(path, record)
            count += 1
    return count


class LeasedServer:
    """See ``extraction.watch.Server`` for what a client needs of it; ``ready`` is the content of ready.json."""

    def __init__(
        self, settings: dict[str, Any], results: Results, specification: ServerSpecification, slot: Slot
    ) -> None:
        self._settings, self._results = settings, results
        self.specification, self._slot = specification, slot
        self._run = str(results.root.resolve())
        self._record: Record | None = None
        self.ready: dict[str, Any] = {}
        self.max_req_input_len = 0

    @property
    def url(self) -> str:
        return self._record.url

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._record.api_key}"}

    @property
    def rid_prefix(self) -> str:
        return self._record.rid_prefix

    @property
    def dump(self) -> Path:
        return Path(self._record.dump)

    def alive(self) -> bool:
        """Whether the server that was leased still runs."""
        record = read_record(self._slot.record)
        return (
            record is not None
            and record.start_id == self._record.start_id
            and record.state == READY
            and is_running(record.keeper_pid, record.keeper_start)
            and is_running(record.server_pid, record.server_start)
        )

    def why_died(self) -> str:
        """What is known of the end of the server, with its last words. Waits a moment for the keeper to tell."""
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            record = read_record(self._slot.record)
            if record is not None and record.start_id == self._record.start_id and record.reason:
                return f"{record.reason}; the last of its log: {_last_words(record.log_tail)}"
            time.sleep(POLL_SEC)
        words = _last_words(log_tail(Path(self._record.log), 30))
        return f"its keeper is gone; the last of its log: {words}"

    def restart(self) -> None:
        """End the server, also one that hangs, and start and check a new one. Raises UserError."""
        self._clear_slot(keep=False)
        self.make_ready()

    def make_ready(self) -> None:
        """Find the right server warm, or start it; check it unless this start of it was checked before."""
        warm = self._clear_slot(keep=True)
        try:
            info = self._reach(warm or self._start())
        except NoAnswer as error:
            # It must not stay for the next client. One that was warm may have hung before anybody sent it a prompt.
            self._clear_slot(keep=False)
            if warm is None:
                raise
            log.warning("%s It is taken to hang; starting it again", error)
            info = self._reach(self._start())
        self.max_req_input_len = int(info["max_req_input_len"])
        known = _read_json(self._slot.checked)
        if known.get("start_id") == self._record.start_id:
            self.ready = known["ready"]
        else:
            self._check(info)
        self._compare_with_ready()

    def _reach(self, record: Record) -> dict[str, Any]:
        """Wait until the server of ``record`` is ready; what it says of itself."""
        self._record = record
        self._await_ready()
        return self.get("/server_info")

    def get(self, path: str) -> dict[str, Any]:
        """A small JSON answer of the server. Raises NoAnswer when it gives none."""
        try:
            request = urllib.request.Request(self.url + path, headers=self.headers)
            with open_local(request, ANSWER_SEC) as answer:
                return json.load(answer)
        except (OSError, ValueError, urllib.error.URLError) as error:
            raise NoAnswer(f"the server does not answer {path}: {error}; its log is {self._record.log}.") from error

    def _clear_slot(self, keep: bool) -> Record | None:
        """End every server on the slot's devices but, if ``keep``, the one that is wanted; return that one."""
        wanted = None
        for path, record in neighbours(self._slot):
            right = (
                record.server_hash == self.specification.server_hash
                and record.run == self._run
                and record.devices == list(self._slot.devices)
                and record.state in (STARTING, READY)
            )
            if keep and right and _is_kept(record):
                wanted = record
                continue
            if _is_kept(record):
                log.info("stopping the server of %s on %s", record.run, ", ".join(record.devices))
            _end(path, record)
        return wanted

    def _start(self) -> Record:
        specification, slot = self.specification, self._slot
        self._results.server.mkdir(parents=True, exist_ok=True)
        # Each server has a folder of its own: it is wiped when a server starts, and others may be at work.
        dump = self._results.dump.resolve() / slot.name
        number = f"-{slot.index}" if slot.index else ""
        record = Record(
            state=STARTING,
            start_id=secrets.token_hex(8),
            server_hash=specification.server_hash,
            run=self._run,
            devices=list(slot.devices),
            dump=str(dump),
            log=str(self._results.server.resolve() / f"sglang{number}.log"),
            # Nobody else's requests begin with it, so nobody else's are captured.
            rid_prefix=f"hs-{secrets.token_hex(6)}-",
            api_key=secrets.token_hex(24),
        )
        start = Start(
            record=record,
            record_file=str(slot.record),
            # Beside the results, which a container sees; it may not see the slots' folder.
            config_file=str(self._results.server.resolve() / f".{slot.name}.config.yaml"),
            lease_files=[str(file) for file in slot.lease_files],
            keeper_files=[str(file) for file in slot.keeper_files],
            command=command(specification),
            environment=environment(specification, self._results, dump, slot.devices, record.rid_prefix),
            startup_timeout_seconds=self._settings["server"]["startup_timeout_seconds"],
            linger_seconds=self._settings["server"]["linger_seconds"],
        )
        slot.record.unlink(missing_ok=True)
        start.write(slot.start_file)
        log.info("starting SGLang %s on %s; its log: %s", specification.sglang_version, slot.name, record.log)
        with open(self._results.server / "keeper.log", "a") as output:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "hidden_states.server.keeper", str(slot.start_file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return record

    def _await_ready(self) -> None:
        start_id, begun, told = self._record.start_id, time.monotonic(), time.monotonic()
        while True:
            record = read_record(self._slot.record)
            if record is not None and record.start_id == start_id:
                self._record = record
            if self._record.state == READY:
                return
            kept = _is_kept(self._record) if self._record.keeper_pid else self._keeper.poll() is None
            if self._record.state == FAILED or not kept:
                raise self._failure(self._record.reason or "its keeper ended")
            if time.monotonic() - told >= MESSAGE_SEC:
                told = time.monotonic()
                last = log_tail(Path(self._record.log), 1)
                log.info("the server is starting (%.0f s): %s", told - begun, last[-1][:160] if last else "…")
            time.sleep(POLL_SEC)

    def _failure(self, reason: str) -> UserError:
        tail = self._record.log_tail or log_tail(Path(self._record.log), 30)
        shown = "\n".join(f"  | {line[:240]}" for line in tail or ["(it is empty)"])
        return UserError(
            f"the server did not come up: {reason}. The end of its log:\n{shown}\nThe whole log: {self._record.log}. "
            "When the cause is removed (most often a key of server.arguments), run `snakemake --cores 8 all` again."
        )

    def _check(self, info: dict[str, Any]) -> None:
        from hidden_states.server.self_check import run_self_check

        announced = _read_json(self.dump / "capture.json")
        ready = {
            "sglang_version": announced["sglang_version"],
            "plugin_version": announced["plugin_version"],
            "fingerprint": self.specification.fingerprint,
            "identity": self.specification.identity,
            "model_class": announced["model_class"],
            "num_layers": announced["num_layers"],
            "hidden_size": announced["hidden_size"],
            "dtype": announced["dtype"],
            "layers_asked": list(self.specification.layers),
            "layers_read_back": announced["layers_read_back"],
            "setter_argument": announced["setter_argument"],
            "final": announced["final"],
            "max_req_input_len": self.max_req_input_len,
        }
        try:
            ready["self_check"] = run_self_check(self, self._settings, self._results, info)
        except UserError:
            # A server that captures wrongly must not stay for the next client.
            self._clear_slot(keep=False)
            raise
        write_private(self._slot.checked, json.dumps({"start_id": self._record.start_id, "ready": ready}))
        self.ready = ready

    def _compare_with_ready(self) -> None:
        known = _read_json(self._results.ready)
        if not known:
            return
        differs = [
            f"{key} is {self.ready.get(key)!r}, was {known.get(key)!r}"
            for key in sorted(set(known) | set(self.ready))
            if key not in VARYING and known.get(key) != self.ready.get(key)
        ]
        if differs:
            raise UserError(
                f"this server is not the one that {self._results.ready} describes: {'; '.join(differs)}. If the change "
                "is meant, delete that file and run `snakemake --cores 8 all` again."
            )


def _in_use_by_another(slot: Slot, run: str) -> bool:
    """Whether the devices of a free slot have the server of another run, between two of its chunks as it seems."""
    others = any(_is_kept(record) and record.run != run for _, record in neighbours(slot))
    return others and seconds_unused(slot) < PATIENCE_SEC


def _is_kept(record: Record) -> bool:
    return is_running(record.keeper_pid, record.keeper_start)


def _end(path: Path, record: Record) -> None:
    """End a keeper and its server, or what a killed keeper left of it."""
    if _is_kept(record):
        end_process(record.keeper_pid, record.keeper_start, KEEPER_END_SEC)
    end_group(record.server_pid, record.server_start, term_sec=0)
    path.unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _last_words(lines: list[str]) -> str:
    """The line of a log that says most about its end."""
    errors = [line for line in lines if "Error" in line or "error" in line]
    crashes = [line for line in lines if "crashed" in line]  # SGLang's words for a process that was killed
    return " ".join((errors or crashes or lines or ["nothing"])[-1].split())[:300]
