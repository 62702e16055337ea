"""Images hold all that their processes import; files that deploy upstreams go together."""

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nightshift.process.upstreams import Upstream, read_upstreams

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.upstreams.yml").read_text())
MANIFESTS = {
    manifest["kind"]: manifest
    for manifest in yaml.safe_load_all((ROOT / "infra/kubernetes/upstreams.yaml").read_text())
}
IN_ENGINES_ONLY = {"torch", "transformers", "tokenizers", "safetensors", "llguidance", "pillow"}


def installed_with(extra: str) -> set[str]:
    """The distributions that an installation with this extra has."""
    project = PROJECT["project"]
    to_do = [Requirement(text) for text in (*project["dependencies"], f"nightshift[{extra}]")]
    done: set[tuple[str, frozenset[str]]] = set()
    while to_do:
        wanted = to_do.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in done:
            continue
        done.add((name, extras))
        if name == "nightshift":
            texts = [text for part in extras for text in project["optional-dependencies"][part]]
        else:
            texts = requirements_of(name)
        needed = [Requirement(text) for text in texts]
        to_do += [one for one in needed if is_needed(one, extras)]
    return {name for name, _ in done}


def requirements_of(name: str) -> list[str]:
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:  # of another platform or Python
        return []


def is_needed(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


@pytest.mark.parametrize(
    ("extra", "modules"),
    [
        pytest.param("api", "api.app, kombu.transport.redis", marks=pytest.mark.exhaustive),
        pytest.param("scheduler", "scheduler.__main__, kombu.transport.redis", marks=pytest.mark.exhaustive),
        ("upstream", "workers.app, workers.upstreams.opening, workers.upstreams.report"),
    ],
)
def test_a_process_imports_only_what_its_extra_installs(extra: str, modules: str) -> None:
    installed = installed_with(extra)
    assert not installed & IN_ENGINES_ONLY
    absent = [
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & (installed | {"nightshift"})
    ]
    assert {"torch", "transformers"} <= {*absent}
    program = f"import sys; sys.modules.update(dict.fromkeys({absent})); import {modules}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_images_are_built_from_every_package_of_the_wheel() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    needed = [*wheel["packages"], *wheel["force-include"]]
    assert [name for name in needed if f"!{name}/" not in kept] == []


# -- upstreams


def test_no_engine_starts_unless_its_profile_is_named() -> None:
    engines = {name: service for name, service in COMPOSE["services"].items() if name != "worker"}
    assert {name: service["profiles"] for name, service in engines.items()} == {
        name: [name] for name in ("vllm", "sglang", "tensorrt-llm")
    }
    assert all(service["image"].startswith("${UPSTREAM_IMAGE") for service in engines.values())
    assert (ROOT / COMPOSE["services"]["worker"]["build"]["dockerfile"]).exists()


def test_the_composed_worker_reads_the_engine_behind_its_alias(tmp_path: Path) -> None:
    content = COMPOSE["configs"]["upstreams"]["content"]
    filled = content.replace("${UPSTREAM_MODEL:-}", "Qwen/Qwen3-8B")
    by_default = only(filled.replace("${UPSTREAM_CONTEXT_LENGTH:-null}", "null"), tmp_path)
    assert by_default.models["Qwen/Qwen3-8B"].context_length is None
    upstream = only(filled.replace("${UPSTREAM_CONTEXT_LENGTH:-null}", "8192"), tmp_path)
    assert urlsplit(upstream.url).hostname in COMPOSE["x-engine"]["networks"]["default"]["aliases"]
    assert upstream.models["Qwen/Qwen3-8B"].context_length == 8192
    (mounted,) = COMPOSE["services"]["worker"]["configs"]
    assert mounted["target"] in COMPOSE["services"]["worker"]["environment"]["NIGHTSHIFT_UPSTREAMS"]


def test_the_manifests_worker_finds_the_pods_of_the_headless_service(tmp_path: Path) -> None:
    service, config, deployment = (MANIFESTS[kind] for kind in ("Service", "ConfigMap", "Deployment"))
    upstream = only(config["data"]["upstreams.yaml"], tmp_path)
    parts = urlsplit(upstream.url)
    assert (service["spec"]["clusterIP"], upstream.each_address) == ("None", True)
    assert (parts.hostname, parts.port) == (service["metadata"]["name"], service["spec"]["ports"][0]["port"])

    template = deployment["spec"]["template"]
    assert template["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    (container,) = template["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes: dict[str, Any] = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert variables["NIGHTSHIFT_UPSTREAMS"] == f"{mounts['upstreams']}/upstreams.yaml"
    assert volumes["upstreams"]["configMap"]["name"] == config["metadata"]["name"]


def only(text: str, folder: Path) -> Upstream:
    """The upstream of a file with this text."""
    path = folder / "upstreams.yaml"
    path.write_text(text)
    (upstream,) = read_upstreams([str(path)])
    return upstream
