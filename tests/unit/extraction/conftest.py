"""A chunk, a store and a server whose faults the test chooses."""

import pytest
from helpers.extraction_bench import Bench
from helpers.fake_server import FakeServer
from hidden_states.layout import Results


@pytest.fixture
def server(tmp_path):
    server = FakeServer(tmp_path / "results")
    yield server
    server.close()


@pytest.fixture
def bench(tmp_path, server):
    return Bench(Results(tmp_path / "results"), server)
