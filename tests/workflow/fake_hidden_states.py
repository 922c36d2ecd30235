"""Stands in for ``hidden-states`` where a test is about Snakemake: makes the files of each verb, and notes each call.

Environment: FAKE_FAIL names chunks whose extraction fails, FAKE_SECONDS says how long one takes.
"""

import json
import os
import sys
import time
from pathlib import Path

from hidden_states.run_watch import end_with_the_run

end_with_the_run()
verb, options = sys.argv[1], sys.argv[2:]
chunk = options[options.index("--chunk") + 1] if "--chunk" in options else ""
results = Path("results")
with open("calls.log", "a") as calls:
    calls.write(f"{verb} {chunk}".strip() + "\n")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if verb == "demo-model":
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        put(results / "demo_model" / name, name)
elif verb == "tokenize":
    settings = json.loads((results / "config.json").read_text())
    for index in range(settings["extraction"]["chunks"]):
        put(results / "tokens" / f"{index:04d}.parquet", f"tokens {index}")
    put(results / "tokens" / "rejected.parquet", "rejected")
    put(results / "tokens" / "summary.json", "{}")
elif verb == "start-server":
    put(results / "server" / "ready.json", "{}")
elif verb == "extract":
    put(Path(f"running.{os.getpid()}"), chunk)
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    if chunk in os.environ.get("FAKE_FAIL", "").split(","):
        line = {"key": "a key", "reason": "refused: HTTP 400: no", "run_id": os.environ["HIDDEN_STATES_RUN_ID"]}
        put(results / "chunks" / chunk / "journal.jsonl", json.dumps(line))
        sys.exit("this chunk fails")
    put(results / "chunks" / chunk / "manifest.parquet", f"manifest {chunk}")
elif verb == "verify-chunk":
    put(results / "qa" / f"{chunk}.json", f"qa {chunk}")
elif verb == "package":
    counts = {"rows": 1, "tokens": 1, "loss_tokens": 1, "bytes": 1, "rejected": 0, "rows_read": 1, "failed": 0}
    content = {"counts": counts, "layers": {"final": "pre_norm"}, "train": "train on it"}
    for name in json.loads((results / "config.json").read_text())["packaging"]["formats"]:
        put(results / "dataset" / name / "provenance.json", json.dumps(content))
elif verb == "report":
    put(results / "report" / "run.html", "page")
    put(results / "report" / "run.csv", "table")
elif verb == "verify":
    sys.exit(int(os.environ.get("FAKE_VERIFY", "0")))
