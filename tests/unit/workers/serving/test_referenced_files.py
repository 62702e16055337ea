"""Images by https, from a real server: what a redirect leads to is checked as the URL itself is."""

import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nightshift.errors import (
    CredentialsRefused,
    InvalidRequest,
    NightshiftError,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from nightshift.objectstore import Locations, ObjectStore, open_store
from nightshift.objectstore.hub import Hub
from nightshift.objectstore.sources import Source, Sources
from nightshift.outbound.safe_http import Egress, EgressConfig, NoAnswer
from tests.helpers.hub import FakeDataset, fake_hub
from workers.serving.referenced_files import REDIRECTS_MAX, ReferencedFiles

NAME = "photos.test"
IMAGE = b"the bytes of a photo"
SIZE_MAX = 1000


class _Photos(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, port = self.path.partition("?")[0], self.server.server_address[1]
        loops = {
            "/moved": f"https://{NAME}:{port}/photo.jpg",
            "/relative": "/photo.jpg",
            "/private": f"https://10.0.0.1:{port}/secret",
            "/metadata": f"https://169.254.169.254:{port}/latest",
            "/by-name": f"https://inside.test:{port}/secret",
            "/to-http": f"http://{NAME}:{port}/photo.jpg",
            "/other-port": f"https://{NAME}:22/photo.jpg",
            "/round": "/round",
        }
        if path in loops:
            self.send_response(302)
            self.send_header("location", loops[path])
            self.end_headers()
            return
        bodies = {"/photo.jpg": IMAGE, "/large.jpg": bytes(SIZE_MAX + 1)}
        self.send_response(200 if path in bodies else 404)
        self.end_headers()
        self.wfile.write(bodies.get(path, b"<html>not here</html>"))

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


def _certificate(directory: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public, private = directory / "certificate.pem", directory / "key.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return public, private


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return _certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def port(certificate: tuple[Path, Path]) -> Iterator[int]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Photos)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def files(certificate: tuple[Path, Path], port: int, tmp_path: Path) -> ReferencedFiles:
    """The server's address is the only private one that is allowed."""
    egress = Egress(
        EgressConfig(
            ("127.0.0.1/32",),
            (range(port, port + 1), range(443, 444)),
            response_bytes_max=SIZE_MAX + 1,
        ),
        resolve=lambda host, port: [{NAME: "127.0.0.1", "inside.test": "10.0.0.1"}.get(host, host)],
        tls=ssl.create_default_context(cafile=str(certificate[0])),
    )
    return ReferencedFiles(Sources(open_store(f"file://{tmp_path}"), Locations()), egress)


@pytest.mark.parametrize("path", ["photo.jpg", "moved", "relative"])
def test_an_image_is_fetched_also_behind_a_redirect(files: ReferencedFiles, port: int, path: str) -> None:
    assert files.read(f"https://{NAME}:{port}/{path}", "t", SIZE_MAX) == IMAGE


@pytest.mark.parametrize("path", ["private", "metadata", "by-name", "to-http", "other-port"])
def test_a_redirect_to_where_the_url_may_not_lead_is_refused(
    files: ReferencedFiles, port: int, path: str
) -> None:
    with pytest.raises(InvalidRequest, match="may not be fetched") as raised:
        files.read(f"https://me:secret@{NAME}:{port}/{path}?signature=x", "t", SIZE_MAX)
    assert raised.value.code == "url_not_allowed"
    assert raised.value.message.startswith(f"'https://{NAME}:{port}/{path}' may not be fetched")
    assert not raised.value.message.endswith("..")
    assert "10.0.0.1" not in raised.value.message.replace(f"/{path}", ""), "the address is not told"


def test_an_image_is_read_from_a_dataset_of_the_hub(tmp_path: Path) -> None:
    with fake_hub() as fake:
        fake.datasets["org/photos"] = FakeDataset()
        fake.datasets["org/photos"].push({"a.png": IMAGE})
        sources = Sources(open_store(f"file://{tmp_path}"), Locations(hub=Hub(fake.url)))
        files = ReferencedFiles(sources, Egress(EgressConfig()))
        assert files.read("hf://datasets/org/photos/a.png", "t", SIZE_MAX) == IMAGE
        with pytest.raises(InvalidRequest, match="does not exist"):
            files.read("hf://datasets/org/photos/b.png", "t", SIZE_MAX)


def test_redirects_end(files: ReferencedFiles, port: int) -> None:
    with pytest.raises(NoAnswer, match=f"more than {REDIRECTS_MAX} times"):
        files.read(f"https://{NAME}:{port}/round", "t", SIZE_MAX)


@pytest.mark.parametrize(
    ("path", "code"), [("large.jpg", "image_too_large"), ("gone.jpg", "image_not_fetched")]
)
def test_what_is_too_large_or_not_there_is_refused(
    files: ReferencedFiles, port: int, path: str, code: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        files.read(f"https://{NAME}:{port}/{path}?signature=secret", "t", SIZE_MAX)
    assert raised.value.code == code
    assert path in raised.value.message
    assert "secret" not in raised.value.message, "a query may hold a signature"


def test_a_server_that_is_not_trusted_is_not_read(port: int, tmp_path: Path) -> None:
    egress = Egress(
        EgressConfig(("127.0.0.1/32",), (range(port, port + 1),)), resolve=lambda host, port: ["127.0.0.1"]
    )
    files = ReferencedFiles(Sources(open_store(f"file://{tmp_path}"), Locations()), egress)
    with pytest.raises(NoAnswer):
        files.read(f"https://{NAME}:{port}/photo.jpg", "t", SIZE_MAX)


@pytest.mark.parametrize(
    "url", ["data:image/png,\ud800", "https://\ud800.test/a.png", "https://photos.test/\ud800"]
)
def test_a_reference_with_a_lone_surrogate_is_refused(files: ReferencedFiles, url: str) -> None:
    with pytest.raises(InvalidRequest):
        files.read(url, "tenant", SIZE_MAX)


def files_at(root: Path) -> ReferencedFiles:
    """Files of a tenant below this folder."""
    sources = Sources(open_store(f"file://{root}/own"), Locations(file_roots=[f"t={root}"]))
    return ReferencedFiles(sources, Egress(EgressConfig(ports=(range(443, 444),))))


def test_an_object_is_read_as_it_was_planned(tmp_path: Path) -> None:
    """One that is gone, or another, is that row's error."""
    place = open_store(f"file://{tmp_path}/place")
    planned = place.put("a.png", [b"one"]).etag
    files = files_at(tmp_path)
    uri = f"file://{tmp_path}/place/a.png"

    assert files.read(uri, "t", SIZE_MAX, etag=planned) == b"one"
    place.delete("a.png")
    with pytest.raises(InvalidRequest, match=r"a\.png' was deleted after the input was planned") as gone:
        files.read(uri, "t", SIZE_MAX, etag=planned)
    place.put("a.png", [b"another"])
    with pytest.raises(InvalidRequest, match=r"a\.png' was replaced after the input was planned") as replaced:
        files.read(uri, "t", SIZE_MAX, etag=planned)
    assert (gone.value.code, replaced.value.code) == ("object_not_found", "input_changed")
    assert files.read(uri, "t", SIZE_MAX) == b"another"


def test_an_object_is_read_whole_up_to_the_size_that_is_allowed(tmp_path: Path) -> None:
    files = files_at(tmp_path)
    for size_bytes in (0, 1, SIZE_MAX):
        (tmp_path / "a.png").write_bytes(bytes(size_bytes))
        assert files.read(f"file://{tmp_path}/a.png", "t", SIZE_MAX) == bytes(size_bytes)
    (tmp_path / "a.png").write_bytes(bytes(SIZE_MAX + 1))
    with pytest.raises(InvalidRequest, match="more than"):
        files.read(f"file://{tmp_path}/a.png", "t", SIZE_MAX)


class FailingSources(Sources):
    """Every store fails in the same way."""

    def __init__(self, error: StorageError) -> None:
        super().__init__(cast(ObjectStore, self), Locations())
        self._error = error

    def open(self, uri: str, tenant_id: str) -> Source:
        return Source(self, "key")  # type: ignore[arg-type]

    def stream(self, *args: object, **options: object) -> Iterator[bytes]:
        raise self._error


def read_from(reference: str, error: StorageError) -> NightshiftError:
    """The error that reading it raises where its store fails with this one."""
    files = ReferencedFiles(FailingSources(error), Egress(EgressConfig(ports=(range(443, 444),))))
    with pytest.raises(NightshiftError) as raised:
        files.read(reference, "t", SIZE_MAX)
    return raised.value


@pytest.mark.parametrize("error", [CredentialsRefused("ExpiredToken"), StorageUnavailable("SlowDown")])
def test_a_store_that_may_give_an_object_later_is_no_error_of_a_row(error: StorageError) -> None:
    assert read_from("s3://bucket/a.png", error) is error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CredentialsRefused("s3://own/key"), "does not accept the service's credentials"),
        (StorageDenied("s3://own/key"), "refuses the service"),
        (StorageUnavailable("s3://own/key"), "cannot be reached or is failing"),
    ],
)
def test_the_services_own_store_is_waited_for_and_names_no_object(error: StorageError, said: str) -> None:
    raised = read_from("file-mine", error)
    assert isinstance(raised, StorageUnavailable)
    assert raised.message == f"the service's own store {said}"


@pytest.mark.parametrize("error", [ObjectNotFound("gone"), StorageDenied("AccessDenied")])
def test_an_object_that_is_not_there_or_may_not_be_read_is_its_rows_error(error: StorageError) -> None:
    raised = read_from("s3://bucket/a.png", error)
    assert isinstance(raised, InvalidRequest)
    assert raised.message.startswith("'s3://bucket/a.png' ")
