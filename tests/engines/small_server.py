"""A model server in a few lines, run as a program by the tests: what a real one does, without a model.

    python small_server.py --model NAME --host HOST --port PORT [--after S] [--fail TEXT] [--child FILE] [--mute] ...

It answers each question with its process id, so that a test sees which process it was.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# A helper with a session of its own; at its worst, it does not care for SIGTERM.
CHILD = """
import os, signal, sys, time
os.setsid()
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--after", type=float, default=0.0, help="seconds until it is healthy")
    parser.add_argument("--fail", default="", help="say this, then end with status 3")
    parser.add_argument("--child", default="", help="start a child, and write both process ids here")
    parser.add_argument("--stubborn", action="store_true", help="neither the server nor its child mind SIGTERM")
    parser.add_argument("--lists", default="", help="names of the models that it lists, with commas")
    parser.add_argument("--says", default="", help="the answer to every question; GRADE: a hash of it")
    parser.add_argument("--dies-at", type=int, default=0, help="kill itself at this question, unless --mark exists")
    parser.add_argument("--mark", default="", help="a file that is written before")
    arguments, others = parser.parse_known_args()
    print("started with", *others, flush=True)
    if arguments.child:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, "stubborn" if arguments.stubborn else ""], stdout=subprocess.PIPE
        )
        child.stdout.readline()
        with open(arguments.child, "w", encoding="ascii") as file:
            file.write(f"{os.getpid()} {child.pid}")
    if arguments.fail:
        for number in range(40):
            print(f"\x1b[31mline {number}\x1b[0m", flush=True)
        print(arguments.fail, file=sys.stderr, flush=True)
        sys.exit(3)
    healthy_at = time.monotonic() + arguments.after
    if arguments.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    questions = itertools.count(1)
    dies_at = 0 if os.path.exists(arguments.mark) else arguments.dies_at

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/health":
                self.answer({}, 200 if time.monotonic() >= healthy_at else 503)
            elif self.path == "/v1/models":
                names = arguments.lists.split(",") if arguments.lists else [arguments.model]
                self.answer({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})
            else:
                self.answer({}, 404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.startswith(("/sleep", "/wake_up")):
                print(self.path, flush=True)
                return self.answer({})
            if dies_at and (number := next(questions)) >= dies_at:
                if number > dies_at:
                    time.sleep(60)  # nobody after it is answered, however late this process is killed
                with open(arguments.mark, "w", encoding="ascii"):
                    os.kill(os.getpid(), signal.SIGKILL)
            words = str(body["messages"][-1]["content"]).split()
            if words[:1] == ["wait"]:
                time.sleep(float(words[1]))
            text = os.environ.get(words[1], "unset") if words[:1] == ["variable"] else str(os.getpid())
            text = body["model"] if words == ["model"] else arguments.says or text
            if arguments.says == "GRADE":
                text = f"Total Score: {zlib.crc32(' '.join(words).encode()) % 11}/10"
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            self.answer({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})

        def answer(self, body: object, status: int = 200) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    Server((arguments.host, arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
