"""The IP addresses that a user-supplied URL may lead to, in every form that a host may spell them."""

import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Where clouds give their machines credentials and settings. Azure's is a public address, and others lie in
# networks that an operator may want to allow.
METADATA_NETWORKS: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "169.254.0.0/16",  # most clouds: .169.254; AWS .170.2 and .170.23; Tencent .0.23; Scaleway .42.42
        "fe80::/10",  # OpenStack: ::a9fe:a9fe; Azure: ::1234:5678:9abc
        "168.63.129.16/32",  # Azure's wire server
        "100.100.100.200/32",  # Alibaba
        "192.0.0.192/32",  # Oracle, its first generation
        "192.80.8.124/32",  # Equinix Metal
        "fd00:ec2::/32",  # AWS: ::254, ::253 and ::23
        "fd20:ce::254/128",  # Google
        "fd00:c1::a9fe:a9fe/128",  # Oracle
        "fd00:42::42/128",  # Scaleway
        "fd00:a9fe:a9fe::/48",  # Akamai
    )
)
METADATA_NAMES: Final = frozenset(
    {
        "metadata.google.internal",
        "metadata.goog",
        "metadata.tencentyun.com",
        "metadata.packet.net",
        "metadata.platformequinix.com",
        "instance-data",
        "instance-data.ec2.internal",
    }
)

_NEVER_PUBLIC: Final = (  # not public, though Python calls some of them global
    *METADATA_NETWORKS,
    ipaddress.ip_network("192.0.0.0/24"),  # protocol assignments, among them the local router's
    ipaddress.ip_network("192.88.99.0/24"),  # the old 6to4 relay
    ipaddress.ip_network("fec0::/10"),  # site-local
    ipaddress.ip_network("3fff::/20"),  # documentation
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})  # before an IPv4 address, in an interface's identifier
_UNASSIGNED: Final = "192.0.2.1"  # reserved for documentation; no machine has it


def is_public(address: Address) -> bool:
    """Whether the address is the same place from anywhere on the internet, and not this machine."""
    return all(
        part.is_global
        and not (part.is_multicast or part.is_reserved)
        and not any(part in network for network in _NEVER_PUBLIC)
        and not _is_our_own(part)
        for part in _with_embedded(address)
    )


def is_allowed(address: Address, allowed: Sequence[Network]) -> bool:
    """Whether the address is public, or lies in a network that the operator allows.

    A metadata server is allowed by itself alone: an operator who allows the network around it means others.
    """
    parts = _with_embedded(address)
    return all(any(_opens(network, part) for network in allowed) for part in parts) or is_public(address)


def literal_address(host: str) -> Address | None:
    """The address that a host spells in any form (`2130706433`, `0x7f.1`); None for a name."""
    host = host.rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        return ipaddress.IPv6Address(host) if ":" in host else ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def is_metadata_name(host: str) -> bool:
    """Whether clouds give the name to their metadata server."""
    return host.rstrip(".").lower() in METADATA_NAMES


def _opens(network: Network, address: Address) -> bool:
    is_alone = network.num_addresses == 1
    return address in network and (is_alone or not any(address in metadata for metadata in METADATA_NETWORKS))


def _with_embedded(address: Address) -> tuple[Address, ...]:
    """The IPv4 addresses embedded in an IPv6 address; else the address itself. With ISATAP's, both."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    last = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _NAT64:
        return (last,)
    if int(address) >> 32 & 0xFFFF_FFFF in _ISATAP:
        return (address, last)
    return address.teredo or tuple(filter(None, (address.ipv4_mapped or address.sixtofour,))) or (address,)


def _is_our_own(address: Address) -> bool:
    """Whether this machine has the address, which makes a public one internal."""
    return _can_bind(str(address)) and not _can_bind(_UNASSIGNED)  # false where the kernel binds any address


def _can_bind(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
