"""A receiver of web hooks: checks signatures with the stock `standardwebhooks` package, answers jobs and batches."""
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

from standardwebhooks import Webhook, WebhookVerificationError

webhook = Webhook(open(sys.argv[2]).read().strip())
lock, counts, refused = Lock(), {"hook": 0, "rows": 0, "busy": 0, "calls of rows": 0, "bad signatures": 0}, set()


def is_signed(headers, body):
    try:
        webhook.verify(body, dict(headers), json_parse=False)
        return True
    except WebhookVerificationError:
        return False


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        with lock:
            if self.path != "/busy" and not is_signed(self.headers, body):
                counts["bad signatures"] += 1
                return self.answer(401, "bad signature")
            if self.path != "/rows":
                counts[self.path[1:]] += 1
                return self.answer(200, "got " + body.decode())
            counts["calls of rows"] += 1
            failed = [row["id"] for row in json.loads(body) if row["data"].endswith("0") and row["id"] not in refused]
            refused.update(failed)
            counts["rows"] += len(json.loads(body)) - len(failed)
            self.answer(200, json.dumps({"batchItemFailures": [{"itemIdentifier": id} for id in failed]}))

    def do_GET(self):
        with lock:
            self.answer(200, json.dumps(counts))

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
