"""Keys and TLS against a real server."""

from __future__ import annotations

import ssl
import subprocess
import tempfile
import unittest

from solehold_client import Client, Session, Unauthorized, Unavailable

from .support.server import Solehold


class Secured(unittest.IsolatedAsyncioTestCase):
    def certificate(self) -> tuple[str, str]:
        """A certificate that is signed by itself, and its key."""
        folder = tempfile.TemporaryDirectory(prefix="solehold-python-")
        self.addCleanup(folder.cleanup)
        cert, key = f"{folder.name}/cert.pem", f"{folder.name}/key.pem"
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        made += ["-keyout", key, "-out", cert, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(made, check=True, capture_output=True)
        return cert, key

    async def test_tls_and_keys(self) -> None:
        cert, key = self.certificate()
        server = Solehold("--tls-cert", cert, "--tls-key", key)
        self.addCleanup(server.stop)
        trusting = ssl.create_default_context(cafile=cert)
        async with Client(server.url, tls=trusting) as client:
            answer = await client.request("POST", "/api/v1/admin/keys", {"name": "test", "role": "admin"})
        assert isinstance(answer, dict)
        secret = str(answer["key"])
        async with Client(server.url, key=secret, tls=trusting) as client:
            self.assertNotIn(secret, repr(client))
            async with Session.open(client, "secured") as session, await session.acquire("scene", "secured") as guard:
                self.assertTrue(guard.is_live())
        for key_given in (None, "wrong"):
            async with Client(server.url, key=key_given, tls=trusting) as client:
                with self.assertRaises(Unauthorized):
                    await Session.open(client, "stranger")

    async def test_what_a_connection_lacks_is_told(self) -> None:
        cert, key = self.certificate()
        secure, plain = Solehold("--tls-cert", cert, "--tls-key", key), Solehold()
        for server in (secure, plain):
            self.addCleanup(server.stop)
        for url, told in (
            (secure.url, "the certificate of https://.* is not trusted .*give `tls` a context"),
            (secure.url.replace("https:", "http:"), "this port speaks TLS; write https://127.0.0.1:"),
            (plain.url.replace("http:", "https:"), "this port speaks plain HTTP; write http://127.0.0.1:"),
        ):
            async with Client(url, retry_for=0.0) as client:
                with self.subTest(told), self.assertRaisesRegex(Unavailable, told):
                    await Session.open(client, "confused")
