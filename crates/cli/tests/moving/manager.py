"""Lists of a Django REST framework, two objects a page: each file NAME.json of a folder is the list /api/v1/.../NAME/.

Behind a proxy such a server often does not know its own address, so `next` names a host that does not exist.
"""

import json
import pathlib
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER = pathlib.Path(sys.argv[1])
PAGE_SIZE = 2


class Lists(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if self.headers.get("Authorization") != "Token t0ken":
            return self.answer(401, {"detail": "Authentication credentials were not provided."})
        if not url.path.endswith("/"):
            self.send_response(301)
            self.send_header("Location", url.path + "/")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        file = FOLDER / f"{url.path.rstrip('/').rsplit('/', 1)[-1]}.json"
        if not file.exists():
            return self.answer(404, {"detail": "Not found."})
        items = json.loads(file.read_text())
        number = int(urllib.parse.parse_qs(url.query).get("page", ["1"])[0])
        page = items[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
        link = f"https://backend.invalid:8443{url.path}?page={number + 1}"
        following = link if number * PAGE_SIZE < len(items) else None
        return self.answer(200, {"count": len(items), "next": following, "previous": None, "results": page})

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Lists)
print(f"lists at http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
