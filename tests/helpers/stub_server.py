"""Stands in for SGLang where only its life matters: `launcher` words, then what the workflow would run.

    python stub_server.py MODE python3 -m sglang.launch_server … --config FILE

MODE: ``good``, ``silent`` (healthy, but no plug-in), ``refusing`` (the plug-in cannot capture), ``dying`` (ends with a
message), ``slow`` (never healthy). It leaves a child in its process group, as SGLang does, and prints its key.
"""

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

VERSION = "0.5.23"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/die":
            print("the stub was told to die", flush=True)
            os._exit(7)
        wrong_key = self.headers.get("Authorization") != f"Bearer {self.server.key}"
        self.send_response(401 if wrong_key and self.path != "/health" else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"max_req_input_len": 1000, "pid": os.getpid()}).encode())

    def log_message(self, *arguments: object) -> None:
        pass


def main(mode: str, arguments: list[str]) -> None:
    if "-c" in arguments:
        print(VERSION)
        return
    config = json.loads(Path(arguments[arguments.index("--config") + 1]).read_text())
    print(f"server_args={{'api_key': '{config['api-key']}'}}", flush=True)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    dump = Path(os.environ["SGLANG_HS_DUMP_DIR"])
    if mode == "dying":
        sys.exit("the stub cannot allocate memory")
    if mode == "slow":
        time.sleep(600)
    if mode == "refusing":
        (dump / "capture.error.json").write_text(json.dumps({"reason": "KeyError", "detail": "no layer 99"}))
        time.sleep(600)
    if mode == "good":
        announcement = {
            "sglang_version": VERSION,
            "plugin_version": "0.1.0",
            "model_class": "Stub",
            "num_layers": 8,
            "hidden_size": 16,
            "dtype": "bfloat16",
            "layers_read_back": [2, 4, 5],
            "setter_argument": [2, 4, 5],
            "final": os.environ["SGLANG_HS_FINAL"],
        }
        (dump / "capture.json").write_text(json.dumps(announcement))
    try:
        server = HTTPServer(("127.0.0.1", config["port"]), Handler)
    except OSError as error:
        print(error, *(f"a line of a trace: {number}" for number in range(100)), sep="\n", flush=True)
        sys.exit(3)
    server.key = config["api-key"]
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
