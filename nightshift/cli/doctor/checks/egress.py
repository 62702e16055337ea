"""Checks of what leaves this machine: webhooks, images, proxies, questions to the cloud's metadata server."""

import os
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from nightshift.cli.doctor.examination import Finding, error, ok, skipped, warning
from nightshift.cli.doctor.site import Site
from nightshift.fleet.workers import NoticeKind
from nightshift.outbound.cloud_metadata import open_provider

METADATA: Final = ip_address("169.254.169.254")  # where clouds keep a machine's credentials

_NO_NOTICE: Final = (
    "workers run, and lose more when the machine goes: correct NIGHTSHIFT_SPOT_PROVIDER or "
    "NIGHTSHIFT_SPOT_METADATA_URL; in a container on AWS the metadata hop limit must be 2"
)


def look_at_webhooks(site: Site) -> Finding:
    """Webhooks and images reach no metadata server: tenants choose the URLs, so wide networks are a risk."""
    networks = {
        "NIGHTSHIFT_WEBHOOK_ALLOW_CIDRS": site.submission.webhook_allow_cidrs,
        "NIGHTSHIFT_IMAGE_ALLOW_CIDRS": site.images.image_allow_cidrs,
    }
    for variable, cidrs in networks.items():
        for cidr in cidrs:
            network = ip_network(cidr, strict=False)
            if network.version == METADATA.version and METADATA in network:
                return warning(
                    f"{variable} holds {cidr}, in which the cloud's metadata server is",
                    "name only the networks of receivers: a tenant's URL could read its credentials",
                )
    allowed = ", ".join(site.submission.webhook_allow_cidrs)
    reach = f"{allowed} and the public internet" if allowed else "the public internet alone"
    return ok(f"webhooks may reach {reach}, on ports {', '.join(site.submission.webhook_ports)}")


def look_at_proxies(site: Site, environment: Mapping[str, str] = os.environ) -> Finding:
    """Webhooks and images are sent directly, whatever proxies are set; S3's client and commands use them."""
    proxies = {scheme: url for scheme, url in getproxies_environment().items() if scheme != "no"}
    if not proxies:
        return ok("none is set: everything is sent directly")
    detail = ", ".join(f"{scheme}: {url}" for scheme, url in sorted(proxies.items()))
    proxied = [name for name, url in _own_servers(site, environment).items() if _is_proxied(url, proxies)]
    if proxied:
        return warning(
            f"{detail}; {' and '.join(proxied)} would be reached through it",
            "add their hosts to NO_PROXY if they are within your network",
        )
    return warning(
        detail,
        "webhooks and images ignore it, so that it resolves no tenant's URL: let scheduler and workers "
        "out directly, or use neither",
    )


def look_at_spot(site: Site) -> Finding:
    """The cloud's metadata server answers, or there is no cloud."""
    settings = site.worker
    provider = open_provider(settings.spot_provider, settings.spot_metadata_url)
    if provider is None:
        is_chosen = settings.spot_provider == "none"
        why = "NIGHTSHIFT_SPOT_PROVIDER is none" if is_chosen else "this is no machine of a cloud known here"
        return skipped(f"does not apply: {why}")
    try:
        notice = provider.poll()
    except Exception as refusal:  # noqa: BLE001 anything may answer at that address
        return error(f"no answer from the metadata server of {provider.name}: {refusal!r}", _NO_NOTICE)
    if notice is None:
        return ok(f"the metadata server of {provider.name} answers: no notice stands")
    if notice.kind is NoticeKind.REBALANCE:
        return warning(
            f"{provider.name} recommends to leave this machine",
            "start a worker on another one: this may go soon",
        )
    return error(
        f"{provider.name} is about to take this machine away",
        "workers here wait until that is withdrawn: start them on another machine",
    )


def _own_servers(site: Site, environment: Mapping[str, str]) -> Mapping[str, str]:
    """The installation's servers whose clients heed proxies."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    servers = {"the server": site.client.base_url, "the object store": endpoint if site.has_s3 else ""}
    return {name: url for name, url in servers.items() if url}


def _is_proxied(url: str, proxies: Mapping[str, str]) -> bool:
    place = urlsplit(url)
    has_proxy = place.scheme in proxies or "all" in proxies
    return has_proxy and not proxy_bypass(place.netloc.rpartition("@")[2])
