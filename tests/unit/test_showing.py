"""Each command shows, refuses or acts: a new one has to be put into one of the tables."""

from __future__ import annotations

from tests.showing import ACTING, REFUSING, SHOWING, commands
from toolkit.cli.main import cli


def test_every_command_is_known_to_show_to_refuse_or_to_act():
    tables = [*SHOWING, *REFUSING, *ACTING]
    assert sorted(tables) == sorted(commands(cli))
