"""Compares an exporter's samples with their declarations."""

from prometheus_client.parser import text_string_to_metric_families

from nightshift.process.metrics import catalogue
from nightshift.process.metrics.family import Process


def shown(text: str) -> dict[str, str]:
    """The type of each metric of a page, by its name as declared."""
    values = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        values[name] = family.type
    return values


def without_samples(text: str) -> set[str]:
    """Metrics of a page that have none."""
    families = text_string_to_metric_families(text)
    return {family.name for family in families if not family.samples}


def labels_of(text: str) -> dict[str, set[tuple[str, ...]]]:
    """The labels that each metric has, without those of a histogram's buckets."""
    labels: dict[str, set[tuple[str, ...]]] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        of_family = {
            tuple(sorted(label for label in sample.labels if label != "le")) for sample in family.samples
        }
        labels.setdefault(name, set()).update(of_family)
    return labels


def assert_as_declared(text: str, process: Process) -> None:
    """Exactly what is declared of the process is there, with its type and its labels, and has samples. On the
    API's page, what every process has is labelled with the process.
    """
    declared = {family.name: family for family in catalogue.of_process(process)}
    assert shown(text) == {name: family.type for name, family in declared.items()}
    assert without_samples(text) == set()
    of_every = ("process",) if process is Process.API else ()
    labels = {
        name: (*family.labels, *(of_every if family.process is Process.EVERY else ()))
        for name, family in declared.items()
    }
    assert labels_of(text) == {name: {tuple(sorted(names))} for name, names in labels.items()}
