"""Receives webhooks, verifies their signatures and prints the events, one JSON object per line.

    # This machine and port 9000 are refused otherwise.
    NIGHTSHIFT_WEBHOOK_ALLOW_CIDRS=127.0.0.0/8 NIGHTSHIFT_WEBHOOK_PORTS=443,9000 nightshift up &
    export NIGHTSHIFT_WEBHOOK_SECRET=$(nightshift webhooks secret)
    python examples/webhook_receiver.py --port 9000 &
    nightshift run docs.jsonl --output out/ --endpoint chat --webhook http://127.0.0.1:9000/ …

Events come at least once and in no particular order. `webhook-id` is the same at every attempt: store it.
Answer 2xx first and do the work afterwards: an answer that takes longer than 15 seconds counts as none.
"""

import argparse
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from standardwebhooks import Webhook, WebhookVerificationError

BODY_BYTES_MAX = 64 * 1024


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to a valid signature, 400 to any other."""

    secret = ""
    seen: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers["content-length"] or 0), BODY_BYTES_MAX))
        try:
            Webhook(self.secret).verify(body, {name.lower(): value for name, value in self.headers.items()})
        except WebhookVerificationError as error:
            print(f"refused: {error}", file=sys.stderr, flush=True)
            self.send_error(400)
            return
        self.send_response(204)
        self.end_headers()
        event_id = self.headers["webhook-id"]
        if event_id not in self.seen:
            self.seen.add(event_id)
            print(json.dumps(json.loads(body)), flush=True)

    def log_message(self, format: str, *args: object) -> None:
        """Only events are printed."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=9000, help="0: any free one")
    options = parser.parse_args()
    Receiver.secret = os.environ["NIGHTSHIFT_WEBHOOK_SECRET"]
    with ThreadingHTTPServer(("127.0.0.1", options.port), Receiver) as server:
        print(f"listening on http://127.0.0.1:{server.server_port}/", file=sys.stderr, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
