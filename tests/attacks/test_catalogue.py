"""What the executor runs against what the claim says."""

from __future__ import annotations

import pytest

from assay.attacks import constants
from assay.attacks.ask import asked, executed
from assay.attacks.catalogue import ATTACKS, HONEST_RUNS, Run, attack
from assay.attacks.models import kept_layers
from assay.attacks.prompts import QUESTIONS
from assay.attacks.targets import TARGETS
from assay.attacks.vectors import VECTOR_ATTACKS, vector_attack
from assay.errors import SettingsError


def test_names_are_unique_and_everything_refers_to_something() -> None:
    names = [one.name for one in ATTACKS]
    assert len(set(names)) == len(names) >= 17
    runs = {run.name for run in HONEST_RUNS}
    assert {one.honest for one in ATTACKS} <= runs
    assert {target.attack for target in TARGETS} <= set(names)
    for name in ("", "nothing", "honest"):
        with pytest.raises(SettingsError, match="no attack is called"):
            attack(name)
    with pytest.raises(SettingsError, match="no attack is called"):
        vector_attack("int4")
    assert len({one.name for one in VECTOR_ATTACKS}) == len(VECTOR_ATTACKS)


def test_equal_names_mean_equal_runs() -> None:
    """Two attacks on one base share its answers."""
    by_name: dict[str, Run] = {}
    for run in [*HONEST_RUNS, *(one.base for one in ATTACKS)]:
        assert by_name.setdefault(run.name, run) == run


def test_an_honest_executor_runs_what_it_was_asked() -> None:
    for run in HONEST_RUNS:
        wanted = asked(run, 3, 64, {})
        assert executed(run, wanted) == wanted
        assert ("min_tokens" in wanted.body) is not run.free


@pytest.mark.parametrize(
    ("name", "field", "really"),
    [
        ("temperature", "temperature", constants.WRONG_TEMPERATURE),
        ("top-p", "top_p", constants.WRONG_TOP_P),
        ("wrong-seed", "seed", constants.FIRST_SEED + 5 + constants.WRONG_SEED_BY),
    ],
)
def test_a_cheat_runs_one_field_and_claims_another(name: str, field: str, really: float) -> None:
    run = attack(name).base
    wanted = asked(run, 5, 64, {})
    done = executed(run, wanted)
    assert done.body[field] == really != wanted.body[field]
    assert {k: v for k, v in done.body.items() if k != field} == {
        k: v for k, v in wanted.body.items() if k != field
    }


def test_a_hidden_system_prompt_replaces_the_clients() -> None:
    run = attack("system-prompt").base
    with_system = next(i for i, q in enumerate(QUESTIONS) if q.system)
    for index in (0, with_system):
        wanted = asked(run, index, 64, {})
        roles = [m["role"] for m in executed(run, wanted).body["messages"]]
        assert roles == ["system", "user"]
        assert executed(run, wanted).body["messages"][0]["content"] == run.system
        assert run.system not in [m["content"] for m in wanted.body["messages"]]


def test_prompts_are_many_and_half_of_them_not_english() -> None:
    assert len(QUESTIONS) >= 32
    assert len({q.text for q in QUESTIONS}) == len(QUESTIONS)
    assert sum(q.language != "en" for q in QUESTIONS) * 2 == len(QUESTIONS)
    assert len({q.language for q in QUESTIONS}) >= 10


def test_dropped_layers_are_in_the_middle_and_the_rest_keeps_its_order() -> None:
    places = kept_layers(30, 2)
    assert len(places) == 28
    assert sorted(set(range(30)) - set(places)) == [14, 15]
    assert [places[old] for old in sorted(places)] == list(range(28))
