"""Kept edits of the source apply to the source as it is."""

from __future__ import annotations

import json

import mutants_code
import pytest
import tamper


def test_mutants_that_change_nothing_are_places_of_the_source() -> None:
    """Each listed one is the nth with its line's text and its change, and is listed once."""
    listed = [mutants_code.identity(mutant) for mutant in json.loads(mutants_code.EQUAL.read_text("utf-8"))]
    files = sorted({file for file, *_ in listed})
    places = {mutants_code.identity(mutant._asdict()) for file in files for mutant in mutants_code.places(file)}
    assert len(set(listed)) == len(listed)
    assert [mutant for mutant in listed if mutant not in places] == []


@pytest.mark.parametrize("edit", tamper.TAMPERS, ids=lambda edit: edit.name)
def test_a_tamper_applies_once(edit: tamper.Tamper) -> None:
    source = (tamper.PACKAGE / edit.file).read_text("utf-8")
    assert source.count(edit.before) == 1 and edit.after not in source
