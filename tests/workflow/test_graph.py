"""What runs, and what runs again, as the real Snakemake sees it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.workflow


def extracted(calls: list[str]) -> list[str]:
    return sorted(call.split()[1] for call in calls if call.startswith("extract"))


def wait_for(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def test_all_runs_every_step_once_and_then_has_nothing_to_do(workflow):
    code, output = workflow.run("all")
    assert code == 0, output
    assert "train on it" in output
    calls = workflow.calls()
    assert extracted(calls) == ["0000", "0001", "0002", "0003"]
    assert [calls.count(verb) for verb in ("demo-model", "tokenize", "start-server", "package", "report")] == [1] * 5
    assert calls[-1] == "stop-server"
    code, output = workflow.run("all")
    assert code == 0
    assert "Nothing to be done" in output
    assert workflow.calls() == []


def test_one_failing_chunk_leaves_the_others_finished_and_is_all_that_runs_again(workflow):
    code, _ = workflow.run("all", FAKE_FAIL="0002")
    assert code != 0
    assert sorted(path.parent.name for path in workflow.folder.glob("results/chunks/*/manifest.parquet")) == [
        "0000",
        "0001",
        "0003",
    ]
    assert extracted(workflow.calls()).count("0002") == 3, "it is retried twice"
    assert workflow.run("all")[0] == 0
    assert extracted(workflow.calls()) == ["0002"]


@pytest.mark.parametrize(
    "name",
    [
        "tokens/0001.parquet",
        "tokens/rejected.parquet",
        "tokens/summary.json",
        "server/ready.json",
        "chunks/0001/manifest.parquet",
        "qa/0001.json",
    ],
)
def test_whatever_is_deleted_is_made_again(workflow, name):
    assert workflow.run("all")[0] == 0
    (workflow.folder / "results" / name).unlink()
    code, output = workflow.run("all")
    assert code == 0, output
    assert (workflow.folder / "results" / name).is_file()
    assert "Nothing to be done" in workflow.run("all")[1]


def test_a_run_that_fails_says_how_many_samples_failed_and_how_to_try_them_again(workflow):
    code, output = workflow.run("all", FAKE_FAIL="0002")
    assert code != 0
    assert "Samples that failed: 1 (refused: 1); to try them again:" in output
    options = f"--configfile {workflow.folder}/my.yaml --directory {workflow.folder}"
    assert f"to try them again:\n  snakemake --cores 8 all {options}\n" in output


def test_forcing_one_manifest_extracts_one_chunk(workflow):
    assert workflow.run("all")[0] == 0
    workflow.calls()
    assert workflow.run("all", "-R", "results/chunks/0003/manifest.parquet")[0] == 0
    assert extracted(workflow.calls()) == ["0003"]


def test_a_missing_manifest_is_made_again_alone(workflow):
    assert workflow.run("all")[0] == 0
    workflow.calls()
    (workflow.folder / "results" / "chunks" / "0001" / "manifest.parquet").unlink()
    assert workflow.run("all")[0] == 0
    assert extracted(workflow.calls()) == ["0001"]


def test_a_ticket_of_one_chunk_runs_that_chunk_alone_and_only_once(workflow):
    assert workflow.run("all")[0] == 0
    workflow.calls()
    ticket = workflow.folder / "results" / "qa" / "damage" / "0002.json"
    ticket.parent.mkdir(parents=True)
    ticket.write_text(json.dumps({"keys": {}}))
    assert workflow.run("all")[0] == 0
    assert extracted(workflow.calls()) == ["0002"]
    assert "Nothing to be done" in workflow.run("all")[1]


def test_a_ticket_of_the_dataset_packages_again_and_extracts_nothing(workflow):
    assert workflow.run("all")[0] == 0
    workflow.calls()
    ticket = workflow.folder / "results" / "qa" / "damage" / "dataset.json"
    ticket.parent.mkdir(parents=True)
    ticket.write_text("{}")
    assert workflow.run("all")[0] == 0
    calls = workflow.calls()
    assert "package" in calls
    assert extracted(calls) == []


def test_changed_conversations_run_everything_again(workflow):
    corpus = workflow.folder / "corpus.jsonl"
    corpus.write_text("{}")
    workflow.config["conversations"] = {"files": [str(corpus)]}
    assert workflow.run("all")[0] == 0
    workflow.calls()
    corpus.write_text("{} ")
    assert workflow.run("all")[0] == 0
    assert extracted(workflow.calls()) == ["0000", "0001", "0002", "0003"]


def test_a_file_more_in_a_folder_of_conversations_runs_everything_again(workflow):
    folder = workflow.folder / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_text("{}")
    workflow.config["conversations"] = {"files": [str(folder), "hf:owner/name:subset:train"]}
    assert workflow.run("all")[0] == 0
    workflow.calls()
    (folder / "notes.txt").write_text("{}")
    assert "Nothing to be done" in workflow.run("all")[1]
    (folder / "b.jsonl").write_text("{}")
    assert workflow.run("all")[0] == 0
    assert extracted(workflow.calls()) == ["0000", "0001", "0002", "0003"]


@pytest.mark.parametrize(
    ("section", "key", "value", "runs"),
    [
        ("extraction", "concurrency", 3, []),
        ("server", "linger_seconds", 5, []),
        ("capture", "buffer_memory_gib", 1, []),
        ("capture", "layers", [1, 2, 3], ["0000", "0001", "0002", "0003"]),
        ("server", "arguments", {"chunked_prefill_size": 64}, ["0000", "0001", "0002", "0003"]),
    ],
)
def test_only_settings_that_change_states_extract_again(workflow, section, key, value, runs):
    assert workflow.run("all")[0] == 0
    workflow.calls()
    workflow.config.setdefault(section, {})[key] = value
    assert workflow.run("all")[0] == 0
    assert extracted(workflow.calls()) == runs


def test_swapping_two_keys_of_the_arguments_runs_nothing(workflow):
    workflow.config["server"] = {"arguments": {"a": 1, "b": 2}}
    assert workflow.run("all")[0] == 0
    workflow.config["server"] = {"arguments": {"b": 2, "a": 1}}
    assert "Nothing to be done" in workflow.run("all")[1]


def test_verify_always_runs_alone_and_fails_when_something_is_wrong(workflow):
    assert workflow.run("all")[0] == 0
    settings = (workflow.folder / "results" / "config.json").stat()
    workflow.calls()
    for code in ("0", "1"):
        found, output = workflow.run("verify", FAKE_VERIFY=code)
        assert (found != 0) == (code == "1"), output
        assert workflow.calls() == ["verify"]
    assert (workflow.folder / "results" / "config.json").stat() == settings


def test_a_second_run_and_a_verify_are_refused_while_one_is_at_work(workflow):
    first = workflow.start("all", FAKE_SECONDS="8")
    wait_for(lambda: list(workflow.folder.glob("running.*")))
    for target in ("all", "verify"):
        code, output = workflow.run(target)
        assert code != 0
        assert f"process {first.pid}) is at work in" in output
        assert "Traceback" not in output
    output, _ = first.communicate(timeout=300)
    assert first.returncode == 0, output
    calls = workflow.calls()
    assert "verify" not in calls
    assert calls.count("stop-server") == 1, "a refused run must not stop the other's server"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_job_outlives_a_run_that_was_ended(workflow, number):
    process = workflow.start("all", FAKE_SECONDS="300")
    wait_for(lambda: list(workflow.folder.glob("running.*")))
    jobs = [int(path.suffix[1:]) for path in workflow.folder.glob("running.*")]
    os.kill(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    wait_for(lambda: not any(psutil.pid_exists(job) for job in jobs), 10)
    if number != signal.SIGKILL:
        assert workflow.calls()[-1] == "stop-server"
    assert workflow.run("all")[0] == 0, "the next run goes on"


def test_a_run_under_nohup_outlives_its_terminal(workflow):
    """`nohup snakemake … &`, then the terminal is closed: HUP was ignored when the run began, and stays so."""
    command = ["nohup", *workflow.command("all")]
    process = subprocess.Popen(
        command,
        cwd=workflow.repository,
        env=workflow.environment | {"FAKE_SECONDS": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: list(workflow.folder.glob("running.*")))
    os.killpg(process.pid, signal.SIGHUP)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert extracted(workflow.calls()) == ["0000", "0001", "0002", "0003"]


def test_int_ends_a_run_that_a_script_started_in_the_background(workflow):
    """`snakemake … & kill -INT $!` in a script: its shell starts background jobs with INT ignored."""
    process = subprocess.Popen(
        workflow.command("all"),
        cwd=workflow.repository,
        env=workflow.environment | {"FAKE_SECONDS": "300"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    wait_for(lambda: list(workflow.folder.glob("running.*")))
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) != 0


def test_snakemake_finds_the_verbs_in_an_environment_that_is_not_active(workflow):
    """`.venv/bin/snakemake …`: nothing puts the folder of `hidden-states` on PATH."""
    beside = workflow.folder.parent / "env" / "bin"
    beside.parent.mkdir()
    (workflow.folder.parent / "tools").rename(beside)
    # The folder of the interpreter is where the verbs are looked up, so it gets a name in the fake's folder.
    (beside / "python").symlink_to(sys.executable)
    (beside.parent / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text())
    (beside.parent / "lib").symlink_to(Path(sys.prefix) / "lib")
    command = [str(beside / "python"), *workflow.command("all")[1:]]
    environment = workflow.environment | {"PATH": os.defpath}
    result = subprocess.run(command, cwd=workflow.repository, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert workflow.calls()[-1] == "stop-server"


def test_dry_run_of_the_kimi_example_needs_no_weights(workflow):
    config = workflow.repository / "config" / "kimi-k2.5.yaml"
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "-n",
        "--directory",
        str(workflow.folder),
        "--configfile",
        str(config),
    ]
    result = subprocess.run(command, cwd=workflow.repository, env=workflow.environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "extract" in result.stdout


def test_dry_run_of_a_thousand_chunks_plans_them_all(workflow):
    workflow.config["extraction"]["chunks"] = 1000
    code, output = workflow.run("-n", "all")
    assert code == 0
    assert any(line.split() == ["extract", "1000"] for line in output.splitlines())


def test_an_unknown_key_is_refused_before_any_job(workflow):
    workflow.config["extraction"]["chunck"] = 3
    code, output = workflow.run("all")
    assert code != 0
    assert "extraction.chunck is not known; did you mean chunks?" in output
    assert workflow.calls() == []


def test_a_section_that_is_given_twice_is_refused_before_any_job(workflow):
    command = workflow.command("all")
    config = workflow.folder / "my.yaml"
    config.write_text(config.read_text() + "extraction: {chunks: 2}\n")
    result = subprocess.run(command, cwd=workflow.repository, env=workflow.environment, capture_output=True, text=True)
    assert result.returncode != 0
    assert "my.yaml: the key extraction stands in line 4 and again in line 8" in result.stdout + result.stderr
    assert workflow.calls() == []


def test_workflow_is_lint_clean(workflow):
    command = [sys.executable, "-m", "snakemake", "--lint"]
    result = subprocess.run(command, cwd=workflow.repository, env=workflow.environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert Path(workflow.repository / "Snakefile").is_file()


def test_each_format_is_a_dataset_and_another_one_packages_again_alone(workflow):
    workflow.config["packaging"] = {"formats": ["speculators-v1"]}
    workflow.config["capture"] = {"layers": "speculators-v1"}
    code, output = workflow.run("all")
    assert code == 0, output
    assert "Dataset: results/dataset/speculators-v1" in output
    assert [path.name for path in (workflow.folder / "results" / "dataset").iterdir()] == ["speculators-v1"]
    workflow.calls()
    workflow.config["packaging"] = {"formats": ["speculators", "speculators-v1"]}
    code, output = workflow.run("all")
    assert code == 0, output
    assert set(workflow.calls()) == {"package", "report", "stop-server"}
    assert "Dataset: results/dataset/speculators\n" in output and "Dataset: results/dataset/speculators-v1\n" in output


def test_the_format_alone_chooses_the_layers_and_other_layers_extract_again(workflow):
    assert workflow.run("all")[0] == 0
    assert json.loads((workflow.folder / "results" / "config.json").read_text())["capture"]["layers"] == "eagle3"
    workflow.calls()
    workflow.config["packaging"] = {"formats": ["speculators-v1"]}
    code, output = workflow.run("all")
    assert code == 0, output
    assert (
        json.loads((workflow.folder / "results" / "config.json").read_text())["capture"]["layers"] == "speculators-v1"
    )
    assert extracted(workflow.calls()) == ["0000", "0001", "0002", "0003"]
