"""Plan files: every value is what it looks like, and what is wrong is named by file, line and field."""

import re
from pathlib import Path

import pytest

from nightshift.cli.schedules.plan_files import Plan, in_order, read_plans
from nightshift.errors import ConfigurationError

PLAN = """
schedules:
  - name: nightly
    cron: "0 1 * * *"
    window: 01:00-06:00
    job:
      input: s3://docs/*.parquet
      output: s3://out/{{date}}/
      template: {model: m, temperature: 0.5, n: 2, stop: ["no"], stream: false, user: null}
"""


def plans_in(*texts: str) -> list[Plan]:
    """Plans of files in the current directory, `0.yaml` and so on."""
    paths = [Path(f"{place}.yaml") for place in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return read_plans(paths)


def refusal(*texts: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        plans_in(*texts)
    return refused.value.message


def field(line: str) -> str:
    """A file whose line 4 is the line."""
    return f"schedules:\n  - name: a\n    job:\n      {line}\n"


def test_a_plan_is_what_the_file_says():
    [plan] = plans_in(PLAN)
    template = {"model": "m", "temperature": 0.5, "n": 2, "stop": ["no"], "stream": False, "user": None}
    assert plan.body == {
        "name": "nightly",
        "cron": "0 1 * * *",
        "window": "01:00-06:00",
        "job": {
            "input": "s3://docs/*.parquet",
            "output": "s3://out/{{date}}/",
            "template": template,
        },
    }


def test_a_list_of_no_plans_is_one_and_an_empty_file_is_a_mistake():
    assert plans_in("schedules: []") == []
    assert refusal("") == "0.yaml, line 1: schedules: it should hold a list of plans, each with a `name`"


def test_a_time_of_two_digits_is_a_text():
    [plan] = plans_in(field("start: 01:00"))
    assert plan.body["job"] == {"start": "01:00"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *(("no", "true or false"), ("On", "true or false"), ("True", "true or false")),
        *(
            (number, "a number")
            for number in ("010", "0x1F", "1_000", ".5", ".inf", "1:00", "22:30", "1:00:00")
        ),
        *(("2026-11-28", "a date"), ("2026-13-45", "a date")),
    ],
)
def test_a_text_that_yaml_takes_for_something_else_is_refused(text, kind):
    assert refusal(field(f"x: [a, {text}]")) == (
        f"0.yaml, line 4: schedules[0].job.x[1]: YAML takes {text} for {kind}: put it in quotes, "
        f'"{text}", or write it as JSON does'
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x: 1\n      y: 2\n      x: 1", "line 6: this is no YAML: x is there twice"),
        ("cron: * * * * *", "a text that begins with a sign such as *, {, @ or % needs quotes"),
        ("date: {{date}}", "a text that begins with a sign such as *, {, @ or % needs quotes"),
        ("cron: @daily", "a text that begins with a sign such as *, {, @ or % needs quotes"),
        ("x: &a {}\n      y: *a", "line 5: this is no YAML: aliases are not read"),
        ("x: !!binary aaaa", "line 4: this is no YAML: tags such as tag:yaml.org,2002:binary are not read"),
        ("x: !!str 5", "line 4: this is no YAML: tags such as tag:yaml.org,2002:str are not read"),
        ("x: !job {a: 1}", "line 4: this is no YAML: tags such as !job are not read"),
        ("x: !!set [a]", "are not read"),
        ("x: !!python/name:os.system x", "are not read"),
        ("x: [1", "this is no YAML"),
        ("x: " + 5000 * "[", "its fields and lists are nested too deeply"),
    ],
)
def test_what_is_no_plan_is_named_with_its_line(line, said):
    assert said in refusal(field(line))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plans: []", "line 1: plans: there is no such field; there is schedules"),
        ("schedules: {a: 1}", "line 1: schedules: it should hold a list of plans, each with a `name`"),
        ("- name: a", "line 1: there should be fields: the first line may be `schedules:`"),
        ("schedules: !!omap [a: 1]", "line 1: this is no YAML: tags such as tag:yaml.org,2002:omap"),
        ("schedules:\n  - cron: x", "line 2: schedules[0]: it should be a plan with a `name`"),
        ("schedules:\n  - cron: x\n    name: 5", "line 3: schedules[0]: it should be a plan with a `name`"),
        ("schedules:\n  - nightly", "line 2: schedules[0]: it should be a plan with a `name`"),
    ],
)
def test_a_file_without_plans_is_named_with_its_line(text, said):
    assert said in refusal(text)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigurationError, match=r"nothing\.yaml is no file"):
        read_plans([Path("nothing.yaml")])


def test_a_name_is_in_all_files_once():
    twice = "schedules:\n  - name: b\n  - name: a\n"
    assert refusal("schedules:\n  - name: a", twice) == (
        "1.yaml, line 3: a: it is there twice, also in 0.yaml, line 2"
    )


def test_a_plan_comes_behind_the_one_that_it_follows_whichever_file_that_is_in():
    plans = plans_in(
        "schedules:\n  - {name: c, after: b}\n  - {name: b, after: a}\n", "schedules:\n  - name: a\n"
    )
    assert [plan.name for plan in in_order(plans, {"other": "c"})] == ["a", "b", "c"]
    assert [plan.name for plan in in_order(plans[:1], {})] == ["c"]


@pytest.mark.parametrize("others", [{}, {"x": "b"}], ids=["in the files", "through another schedule"])
def test_plans_that_follow_each_other_in_a_circle_are_refused(others):
    last = next(iter(others), "b")
    plans = plans_in(f"schedules:\n  - name: a\n    after: {last}\n  - name: b\n    after: a\n")
    with pytest.raises(ConfigurationError) as refused:
        in_order(plans, others)
    assert re.fullmatch(
        r"0\.yaml, line [35]: [ab]: `after` goes in a circle: (\w)( after \w)* after \1",
        refused.value.message,
    )


def test_an_error_of_the_servers_is_put_to_the_line_of_its_field():
    [plan] = plans_in(PLAN)
    assert str(plan.error("no", "job.template.stop[0]")) == "0.yaml, line 9: nightly: no"
    assert str(plan.error("no", "job.output")) == "0.yaml, line 8: nightly: no"
    assert str(plan.error("no", "jitter")) == "0.yaml, line 3: nightly: no"
    assert str(plan.error("no")) == "0.yaml, line 3: nightly: no"


def test_the_plans_that_the_guide_shows_are_read():
    guide = (Path(__file__).parents[5] / "docs" / "schedules.md").read_text()
    [shown] = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    [plan] = plans_in(shown)
    assert (plan.body["window"], plan.body["job"]["output"]) == (
        "01:00-06:00",
        "file:///home/me/summaries/{{date}}/",
    )
