"""Settings of the machine, the user and the project: which has the last word, and whom they are taken from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.readers import READERS
from tests.unit.test_cli import said
from toolkit.errors import UnknownImageError
from toolkit.explain.gather import rules
from toolkit.images.store import listing, store
from toolkit.planning import settings


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with settings for everybody."""
    directory = tmp_path / "etc" / "toolkit"
    (directory / "sites").mkdir(parents=True)
    (directory / "sites/ours.toml").write_text('name = "ours"\nextends = "generic"\n')
    monkeypatch.setenv("TOOLKIT_ETC", str(directory))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)
    return directory


def image(directory: Path, name: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.sif").write_bytes(READERS["sif"].seeds[0])


def test_the_last_word_is_the_projects(machine, tmp_path):
    assert settings.chosen(tmp_path).site == "auto"
    own = tmp_path / "config/toolkit/toolkit.toml"
    own.parent.mkdir(parents=True)
    (machine / "toolkit.toml").write_text(
        'site = "ours"\ntime = "5:00"\npartition = "main"\naccount = "all"\n'
    )
    own.write_text('time = "6:00"\naccount = "me"\n')
    (tmp_path / "toolkit.toml").write_text('account = "project"\n')
    layers = settings.project_layers(tmp_path)
    job = settings.merge(layers).job
    assert (job.site, job.partition, job.time, job.account) == ("ours", "main", "6:00", "project")
    origins = [str(machine / "toolkit.toml"), "your toolkit.toml", "toolkit.toml"]
    assert [layer.origin for layer in layers] == origins


def test_rules_of_the_machine_replace_the_shipped_ones_and_the_users_own_both(machine, tmp_path):
    own = tmp_path / "config/toolkit/explain"
    for directory, names in ((machine / "explain", ("abi", "oom")), (own, ("oom", "mine"))):
        directory.mkdir(parents=True)
        for name in names:
            text = 'summary = "x"\ncause = "x"\nsource = "x"\nsignatures = ["x"]\nfix = ["{}"]\n'
            (directory / f"{name}.toml").write_text(text.format(directory))
    known = rules()
    fixes = [known[name].fix[0] for name in ("abi", "oom", "mine")]
    assert fixes == [str(machine / "explain"), str(own), str(own)]


def test_images_of_others_are_found_and_listed(machine, tmp_path, monkeypatch):
    image(tmp_path / "shared", "theirs")
    image(tmp_path / "shared", "both")
    image(tmp_path / "own", "both")
    with pytest.raises(UnknownImageError):
        store.find("theirs")
    monkeypatch.setenv("PLACE", str(tmp_path / "shared"))
    (machine / "toolkit.toml").write_text('images = ["$PLACE"]\n')
    assert store.find("theirs").path == str(tmp_path / "shared/theirs.sif")
    assert store.find("both").path == str(tmp_path / "own/both.sif")
    listed = {one.name: one.directory for one in listing.listing()}
    assert (listed["theirs"], listed["both"]) == (str(tmp_path / "shared"), "")
    with pytest.raises(UnknownImageError) as caught:
        store.find("their")
    assert caught.value.close == "theirs"


def test_images_of_the_chosen_site_are_listed(machine, tmp_path):
    site = f'name = "ours"\nextends = "generic"\nimages = ["{tmp_path}/apps"]\n'
    (machine / "sites/ours.toml").write_text(site)
    image(tmp_path / "apps", "theirs")
    assert "theirs" not in {one.name for one in listing.listing()}
    (tmp_path / "toolkit.toml").write_text('site = "ours"\n')
    assert "theirs" in {one.name for one in listing.listing()}
    shutil.rmtree(tmp_path / "apps")
    assert "theirs" not in {one.name for one in listing.listing()}


def test_a_user_can_have_no_site_where_the_machine_has_one(machine, tmp_path):
    (machine / "toolkit.toml").write_text('site = "ours"\n')
    assert said("site", "use", "auto")[0] == 0
    assert settings.chosen(tmp_path).site == "auto"
