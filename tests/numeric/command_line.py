"""Running the command in a test: what it prints as JSON, and the line by which it refuses."""

import json
from typing import Any

import pytest

from numeric.cli import main

Capture = pytest.CaptureFixture[str]


def entries(capsys: Capture, *argv: object) -> dict[str, Any]:
    """Run a command with --json and return what it prints, and nothing else prints anything."""
    capsys.readouterr()
    assert main([*map(str, argv), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.endswith("}\n") and out.count("\n") == 1
    result: dict[str, Any] = json.loads(out, parse_constant=pytest.fail)
    return result


def refused(capsys: Capture, *argv: object) -> str:
    """Run a command that is refused, and return its one line on standard error."""
    assert main([str(a) for a in argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("headflow: error: ")
    assert err.find("\n") == len(err) - 1
    return err
