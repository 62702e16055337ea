"""User-supplied URLs cannot reach our own network. Real sockets, on the loopback only."""

import ipaddress
import itertools
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from nightshift.outbound.addresses import METADATA_NAMES, METADATA_NETWORKS, is_allowed, is_public
from nightshift.outbound.safe_http import BlockedUrl, Egress, EgressConfig, NoAnswer, check_url
from tests.helpers.certificates import certified
from tests.helpers.receiver import goes_on_for_ever, receiver, says, says_nothing_until

LOOPBACK = "127.0.0.0/8"
ANY_PORT = (range(1, 65536),)


class FakeNames:
    """A name server that may say something else every time it is asked."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.hosts: list[str] = []

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.hosts.append(host)
        return self.answers[min(len(self.hosts), len(self.answers)) - 1]


def egress(names: FakeNames, *, allow: Sequence[str] = (LOOPBACK,), **config: object) -> Egress:
    return Egress(EgressConfig(tuple(allow), ANY_PORT, **config), resolve=names)  # type: ignore[arg-type]


HERE = ["127.0.0.1"]


# -- what may be called ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
)
def test_a_global_address_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "255.255.255.255"),
        "169.254.169.254",  # where clouds keep their secrets
        "100.64.0.1",  # carrier-grade NAT
        *("192.0.0.9", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
        *("::", "::1", "::127.0.0.1", "fe80::1", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1"),
        # IPv4 inside IPv6, in all its ways
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b:1::1"),
        *("2002:7f00:1::1", "2001:0:7f00:1::"),
    ],
)
def test_an_address_that_leads_inside_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


METADATA_SERVERS = (
    *("169.254.169.254", "169.254.170.2", "169.254.0.23", "169.254.42.42"),
    *("168.63.129.16", "100.100.100.200", "192.0.0.192", "192.80.8.124"),
)


def forms_of(ipv4: str) -> dict[str, str]:
    """An IPv4 address, and the IPv6 addresses that lead to it."""
    number = int(ipaddress.IPv4Address(ipv4))
    high, low = f"{number >> 16:x}", f"{number & 0xFFFF:x}"
    return {
        "IPv4": ipv4,
        "mapped": f"::ffff:{high}:{low}",
        "compatible": f"::{high}:{low}",
        "translated": f"::ffff:0:{high}:{low}",
        "NAT64": f"64:ff9b::{high}:{low}",
        "local NAT64": f"64:ff9b:1::{high}:{low}",
        "6to4": f"2002:{high}:{low}::1",
        "Teredo server": f"2001:0:{high}:{low}::",
        "Teredo client": str(
            ipaddress.IPv6Address((0x20010000 << 96) | (0x08080808 << 64) | ~number & 0xFFFFFFFF)
        ),
        "ISATAP": f"2606:4700::5efe:{high}:{low}",
        "ISATAP, unique": f"2606:4700::200:5efe:{high}:{low}",
    }


@pytest.mark.parametrize("server", [*METADATA_SERVERS, "10.1.2.3", "127.0.0.1"])
def test_an_address_that_is_refused_is_refused_in_every_form(server: str) -> None:
    for form, address in forms_of(server).items():
        assert not is_public(ipaddress.ip_address(address)), form
        with pytest.raises(BlockedUrl):
            check_url(f"http://[{address}]/" if ":" in address else f"http://{address}/")


@pytest.mark.parametrize("server", METADATA_SERVERS)
def test_a_wide_network_that_an_operator_allows_does_not_open_a_metadata_server(server: str) -> None:
    wide = [ipaddress.ip_network(network) for network in ("0.0.0.0/0", "::/0", "169.254.0.0/16")]

    assert any(ipaddress.ip_address(server) in network for network in METADATA_NETWORKS)
    for form in ("IPv4", "mapped", "NAT64", "6to4", "ISATAP", "Teredo client"):
        address = ipaddress.ip_address(forms_of(server)[form])
        assert not is_allowed(address, wide)
        assert is_allowed(address, [*wide, ipaddress.ip_network(server)]), "by itself it may be allowed"


@pytest.mark.parametrize("name", sorted(METADATA_NAMES))
def test_a_metadata_server_s_name_is_refused_without_a_look_up(name: str) -> None:
    names = FakeNames(HERE)
    for spelled in (name, name.upper(), f"{name}."):
        with pytest.raises(BlockedUrl):
            check_url(f"http://{spelled}/computeMetadata/v1/")
        with pytest.raises(BlockedUrl):
            egress(names).post(f"http://{spelled}/", b"", {})
    assert names.hosts == []


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.com/", "file:///etc/passwd", "javascript:alert(1)", "example.com/hook", "http://"),
        *("http://user@example.com/", "http://user:password@example.com/"),
        *("http://127.0.0.1/", "http://127.0.0.1./", "http://localhost:8080/", "http://a.localhost/"),
        "http://2130706433/",  # 127.0.0.1 as one number
        *("http://0x7f.1/", "http://0177.0.0.1/", "http://127.1/"),
        *("http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://169.254.169.254/latest/meta-data/"),
        *("http://example.com:99999/", "http://example.com:0/", "http://[::1/"),
        "http://[2606:4700::1111%25eth0]/",  # a zone is ours alone
        *("http://[2606:4700::1111%eth0]/", "http://xn--/", "http://xn--a.com/"),
        *("http://a b.com/", "http://a%20b.com/", "http://.../", "http://a..b/", "http://.example.com/"),
        f"http://{'a' * 64}.com/",
        f"http://{'a.' * 125}com.de/",  # 256 characters
        "http://" + "ü" * 60 + ".com/",  # 63 at most once it is ASCII
        "http://１２７.０.０.１/",  # full-width digits
    ],
)
def test_a_url_that_could_never_be_called_is_refused_before_any_look_up(url: str) -> None:
    with pytest.raises(BlockedUrl) as refusal:
        check_url(url)
    assert refusal.value.param == "webhook.url"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook?x=1",
        "http://example.com:80/",
        "https://8.8.8.8/",
        "https://bücher.example/",
        "https://xn--bcher-kva.example/",
        "https://example.com./",
        "https://under_score.example/",
        f"https://{'a' * 63}.com/",
        f"https://{'a.' * 125}com/",  # 253 characters
        "https://[2606:4700::1111]/",
    ],
)
def test_a_url_that_may_be_called_passes(url: str) -> None:
    check_url(url)


def test_an_operator_may_allow_networks() -> None:
    check_url("http://127.0.0.1/", allow_cidrs=[LOOPBACK])
    check_url("http://[::ffff:127.0.0.1]/", allow_cidrs=[LOOPBACK])
    with pytest.raises(BlockedUrl):
        check_url("http://10.0.0.1/", allow_cidrs=[LOOPBACK])


@pytest.mark.parametrize("port", [0, 22, 6379, 8443, 65535])
def test_only_ports_80_and_443_may_be_called(port: int) -> None:
    for url in (f"https://example.com:{port}/", f"http://127.0.0.1:{port}/"):
        with pytest.raises(BlockedUrl, match=f"Port {port} .*NIGHTSHIFT_WEBHOOK_PORTS"):
            check_url(url, [LOOPBACK])
        with pytest.raises(BlockedUrl, match=f"Port {port} "):
            Egress(EgressConfig((LOOPBACK,)), resolve=FakeNames(HERE)).post(url, b"", {})


def test_an_operator_may_allow_ports_and_then_only_those() -> None:
    check_url("https://example.com:8443/", ports=[range(8000, 9000)])
    with pytest.raises(BlockedUrl):
        check_url("https://example.com/", ports=[range(8000, 9000)])


def test_a_network_that_is_none_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match="not-a-network"):
        Egress(EgressConfig(allow_cidrs=("not-a-network",)))


# -- calling -----------------------------------------------------------------------------------------------


def test_what_is_posted_arrives_under_the_name_it_was_sent_to() -> None:
    names = FakeNames(HERE)
    with receiver(says(200, b"thanks", x_trace="7")) as there:
        answer = egress(names).post(there.url, b'{"a":1}', {"webhook-id": "evt_1"})

    assert (answer.status, answer.head, answer.headers["x-trace"]) == (200, b"thanks", "7")
    [request] = there.requests
    assert request.body == b'{"a":1}'
    assert request.headers["host"] == f"hooks.example.test:{there.port}"
    assert names.hosts == ["hooks.example.test"]


@pytest.mark.parametrize(
    "addresses",
    [
        *(["127.0.0.1"], ["::ffff:127.0.0.1"], ["169.254.169.254"], ["168.63.129.16"], ["64:ff9b::7f00:1"]),
        *(["8.8.8.8", "127.0.0.1"], ["8.8.8.8", "168.63.129.16"]),
    ],
)
def test_a_name_that_leads_inside_is_refused_whatever_else_it_leads_to(addresses: list[str]) -> None:
    with receiver(says(200)) as there, pytest.raises(BlockedUrl):
        egress(FakeNames(addresses), allow=()).post(there.url, b"", {})
    assert there.requests == []


def test_a_name_is_asked_once_for_each_call_and_its_first_answer_is_used() -> None:
    names = FakeNames(HERE, ["10.0.0.1"])  # it changes its mind
    client = egress(names)
    with receiver(says(200)) as there:
        assert client.post(there.url, b"", {}).status == 200
        assert names.hosts == ["hooks.example.test"]
        with pytest.raises(BlockedUrl):
            client.post(there.url, b"", {})


def test_numbers_that_the_system_would_read_as_an_address_are_looked_at_like_any_other() -> None:
    with receiver(says(200)) as there, pytest.raises(BlockedUrl):
        Egress(EgressConfig(ports=ANY_PORT)).post(f"http://2130706433:{there.port}/", b"", {})
    assert there.requests == []


def test_an_internationalised_name_is_looked_up_in_ascii() -> None:
    names = FakeNames(HERE)
    with receiver(says(200)) as there:
        egress(names).post(f"http://bücher.example:{there.port}/", b"", {})
    assert names.hosts == ["xn--bcher-kva.example"]


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    with receiver(says(302, location="http://169.254.169.254/latest/meta-data/")) as there:
        answer = egress(FakeNames(HERE)).post(there.url, b"", {})
    assert answer.status == 302
    assert [request.path for request in there.requests] == ["/here"]


def test_proxies_from_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with receiver(says(204)) as there:
        assert egress(FakeNames(HERE)).post(there.url, b"", {}).status == 204


def test_an_endless_answer_is_cut_off() -> None:
    with receiver(goes_on_for_ever(b"x" * 8192)) as there:
        answer = egress(FakeNames(HERE), response_bytes_max=20_000).post(there.url, b"", {})
    assert answer.head == b"x" * 20_000


def test_a_slow_answer_ends_at_the_deadline_of_the_whole_call() -> None:
    ticks = itertools.count()  # a clock on which every look costs a second
    config = EgressConfig((LOOPBACK,), ANY_PORT)
    client = Egress(config, resolve=FakeNames(HERE), clock=lambda: float(next(ticks)))
    with receiver(goes_on_for_ever(b".")) as there, pytest.raises(NoAnswer, match="deadline"):
        client.post(there.url, b"", {})


def test_an_endpoint_that_says_nothing_or_is_not_there_is_no_answer() -> None:
    hung_up = threading.Event()
    client = egress(FakeNames(HERE), deadline_s=0.2, connect_timeout_s=0.2)
    with receiver(says_nothing_until(hung_up)) as there:
        with pytest.raises(NoAnswer):
            client.post(there.url, b"", {})
        hung_up.set()
    with pytest.raises(NoAnswer):
        client.post(there.url, b"", {})


def test_the_next_address_is_tried_when_one_is_dead() -> None:
    with receiver(says(200)) as there:
        names = FakeNames(["127.0.0.99", "127.0.0.1"])  # the receiver listens on the second only
        assert egress(names).post(there.url, b"", {}).status == 200


def test_an_unknown_name_is_no_answer() -> None:
    def unresolvable(host: str, port: int) -> Sequence[str]:
        raise OSError("Name or service not known")

    with pytest.raises(NoAnswer, match="cannot be looked up"):
        Egress(EgressConfig(), resolve=unresolvable).post("https://nowhere.example/", b"", {})


def test_a_name_server_that_never_answers_does_not_outlast_the_deadline() -> None:
    released = threading.Event()

    def never(host: str, port: int) -> Sequence[str]:
        released.wait(30)
        return HERE

    client = Egress(EgressConfig(deadline_s=0.05, connect_timeout_s=0.05), resolve=never)
    with pytest.raises(NoAnswer, match="in time"):
        client.post("https://slow.example/", b"", {})
    released.set()


def test_tls_speaks_of_the_name_and_believes_only_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certified(tmp_path, "hooks.example.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    asked_for: list[str | None] = []
    tls.sni_callback = lambda socket, name, context: asked_for.append(name)
    with receiver(says(200), tls) as there:
        client = egress(FakeNames(HERE))
        good = client.post(f"https://hooks.example.test:{there.port}/", b"", {})
        with pytest.raises(NoAnswer, match="CERTIFICATE_VERIFY_FAILED"):
            client.post(f"https://other.example.test:{there.port}/", b"", {})

    assert good.status == 200
    assert asked_for == ["hooks.example.test", "other.example.test"]
