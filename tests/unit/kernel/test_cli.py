"""What the command line makes of an error: words for the user, or a traceback for a fault of our own."""

import errno

import pytest
from hidden_states.cli import main
from hidden_states.commands import verify_chunk


def fail_with(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def run(*arguments: object) -> None:
        raise OSError(code, "words of the system", "results/qa/0000.json")

    monkeypatch.setattr(verify_chunk, "run", run)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_the_users_to_put_right(tmp_path, monkeypatch, caplog, code):
    fail_with(monkeypatch, code)
    assert main(["verify-chunk", "--chunk", "0000", "--results", str(tmp_path)]) == 1
    assert "no space left" in caplog.text and "results/qa/0000.json" in caplog.text and "make room" in caplog.text


def test_another_error_of_the_system_keeps_its_traceback(tmp_path, monkeypatch):
    fail_with(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="words of the system"):
        main(["verify-chunk", "--chunk", "0000", "--results", str(tmp_path)])
