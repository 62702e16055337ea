"""Files, folders and sections that the documents name exist.

Documents write paths from the root of the repository or from their own folder. A package's README names files
in the folders below it by the end of their paths.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "nightshift",
    "nightshift_engine",
    "api",
    "scheduler",
    "workers",
    "conformance",
    "migrations",
    "infra",
)
READMES = sorted(
    path
    for folder in (*FOLDERS, "benchmarks", "examples", "tests")
    for path in (ROOT / folder).rglob("README.md")
    if "node_modules" not in path.parts
)
GUIDES = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "performance.md"]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *READMES,
    *sorted((ROOT / "docs").rglob("*.md")),
]

# A folder, a file or a pattern; not `.bench/` (made by a command) and not `/v1/jobs`.
PATH = re.compile(r"(?:\.\./)*[\w*-][\w.*-]*(?:/[\w.*-]+)*(?:/|\.(?:py|md|sh|toml|txt|yml|cpp|h|jinja))")
MODULE = re.compile(r"\w+(?:/\w+)*\.py")
MODULES = [
    f"/{path.relative_to(ROOT).as_posix()}"
    for folder in (*FOLDERS, "benchmarks", "examples", "tests")
    for path in (ROOT / folder).rglob("*.py")
]
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_path_in_a_document_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    paths = [code for code in CODE.findall(text) if PATH.fullmatch(code)]

    assert [path for path in paths if not exists(path, document)] == []


@pytest.mark.parametrize("folder", [*FOLDERS, "benchmarks", "examples", "tests"])
def test_every_module_that_code_names_exists(folder: str) -> None:
    """A comment or a docstring names another module from the root or by the end of its path."""
    missing = [
        f"{name_of(module)}: {named}"
        for module in sorted((ROOT / folder).rglob("*.py"))
        for named in CODE.findall(module.read_text(encoding="utf-8"))
        if MODULE.fullmatch(named) and not any(path.endswith(f"/{named}") for path in MODULES)
    ]

    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_in_a_document_leads_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text(encoding="utf-8"))
    own = [link for link in links if "://" not in link]

    assert [link for link in own if not leads_somewhere(link, document)] == []


@pytest.mark.parametrize("document", GUIDES, ids=name_of)
def test_a_guide_is_read_in_five_minutes(document: Path) -> None:
    assert len(document.read_text(encoding="utf-8").split()) <= 1200


@pytest.mark.parametrize("document", READMES, ids=name_of)
def test_a_packages_readme_fits_a_screen_or_two(document: Path) -> None:
    assert len(document.read_text(encoding="utf-8").splitlines()) <= 60


def test_the_architecture_fits_a_few_screens() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 120


def exists(path: str, document: Path) -> bool:
    if document in READMES and any(document.parent.rglob(path)):
        return True
    file = (document.parent / path).resolve()
    return any(ROOT.glob(path)) if "*" in path else (ROOT / path).exists() or file.exists()


def leads_somewhere(link: str, document: Path) -> bool:
    path, _, section = link.partition("#")
    target = document.parent / path if path else document
    if not section:
        return target.exists()
    return target.is_file() and section in sections(target.read_text(encoding="utf-8"))


def sections(text: str) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(text))
    return {title.replace(" ", "-") for title in titles}
