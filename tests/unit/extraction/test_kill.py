"""The client is killed at some moment, again and again: nothing published is lost or computed twice."""

import os
import signal
import subprocess
import sys
import time

import numpy
import pytest
from helpers.extraction_bench import prompts
from helpers.states import header_for
from hidden_states.store.checksums import check_state_file
from hidden_states.store.store import stored_files

CLIENT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from contextlib import nullcontext
from helpers.extraction_bench import Bench
from hidden_states.layout import Results

url, dump, root = sys.argv[1:]
server = SimpleNamespace(
    url=url,
    headers={"Authorization": "Bearer only-for-this-test"},
    rid_prefix="hs-",
    dump=Path(dump),
    max_req_input_len=1000,
    alive=lambda: True,
)
print("ready", flush=True)
Bench(Results(Path(root)), server).extract(lease=lambda longest: nullcontext(server))
"""


def start_client(bench):
    arguments = [bench.server.url, str(bench.server.dump), str(bench.results.root)]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, *arguments], env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE
    )
    assert client.stdout.readline() == b"ready\n"
    return client


def published(bench):
    return {file.key for file in stored_files(bench.results)}


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_killed_in_mid_chunk_loses_nothing_and_computes_nothing_twice(bench, signal_number):
    ids = prompts(60)
    keys = bench.write(ids)
    bench.server.restart()
    bench.server.answer_delay = 0.01
    for wanted in (10, 25, 45):
        already = published(bench)
        bench.server.requests.clear()
        client = start_client(bench)
        while len(published(bench)) < wanted and client.poll() is None:
            time.sleep(0.005)
        client.send_signal(signal_number)
        assert client.wait(10) == -signal_number
        client.stdout.close()
        assert not already & set(bench.server.keys_requested())
        assert len(published(bench)) >= wanted
    already = published(bench)
    bench.server.requests.clear()
    bench.extract()
    assert set(bench.server.keys_requested()) == set(keys) - already
    rows = bench.rows()
    assert [row["status"] for row in rows] == ["ok"] * 60
    for row, tokens in zip(rows, ids, strict=True):
        check_state_file(bench.results.root / row["file"], header_for(tokens), numpy.array(tokens))
