"""Registries and other servers: names and mirrors, whose login is sent where, and what is fetched."""

from __future__ import annotations

import base64
import io
import json
import os
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests
from msgspec.structs import replace

from tests.stand_in import StandIn, standing_in
from tests.unit.samples import MANIFEST
from tests.unit.test_images_store import fake_sif
from toolkit import shell
from toolkit.errors import (
    BuildError,
    CommandFailedError,
    ConfigError,
    ForbiddenError,
    ImageMissingError,
    NeedsInstallError,
    UnknownImageError,
    UsageError,
)
from toolkit.images.lockfile.index import File, Index
from toolkit.images.recipe.names import LONGEST, is_image_name
from toolkit.images.registry import foreign, web
from toolkit.images.registry.references import Reference, parse, parse_mirrors, redirect
from toolkit.images.registry.registry import (
    apptainer_login,
    read_mirrors,
    resolve_source,
    write_login,
)
from toolkit.images.store import store

DIGEST = "sha256:" + "ab" * 32
OTHER = "sha256:" + "cd" * 32


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("docker://nvcr.io/nvidia/pytorch:22.03-py3", "nvcr.io nvidia/pytorch 22.03-py3 "),
        ("debian", "docker.io library/debian latest "),
        (f"localhost/a@{DIGEST}", f"localhost a  {DIGEST}"),
        (f"[::1]:5000/a:b@{DIGEST}", f"[::1]:5000 a b {DIGEST}"),
    ],
)
def test_references_are_read_as_docker_reads_them(text, parts):
    registry, path, tag, digest = parts.split(" ")
    assert parse(text) == Reference(registry=registry, path=path, tag=tag, digest=digest)


_NO_REFERENCES = "|A/b|nvcr.io/|nvcr.io/a b|nvcr.io/a:b c|nvcr.io/a@sha256:12|a@|-x|nvcr.io/a:$(x)"


@pytest.mark.parametrize("text", _NO_REFERENCES.split("|"))
def test_what_is_no_reference_is_refused(text):
    with pytest.raises(ValueError, match="is not an image reference"):
        parse(text)


@pytest.mark.parametrize(
    ("image", "place"),
    [
        ("nvcr.io/nvidia/pytorch:1", "localhost:5000/torch:1"),
        ("nvcr.io/nvidia/pytorch-more:1", "mirror.site/ngc/nvidia/pytorch-more:1"),
        (f"debian@{DIGEST}", f"mirror.site:444/library/debian@{DIGEST}"),
        ("quay.io/a:1", "quay.io/a:1"),
    ],
)
def test_a_reference_is_sent_to_the_mirror_that_fits_best(image, place):
    known = parse_mirrors(
        "nvcr.io=mirror.site/ngc, nvcr.io/nvidia/pytorch=localhost:5000/torch/ docker.io=mirror.site:444"
    )
    assert str(redirect(parse(image), known)) == place


def test_mirrors_of_the_project_and_of_the_environment(tmp_path, monkeypatch):
    settings = tmp_path / "toolkit.toml"
    settings.write_text(
        'nodes = 2\n[registries]\n"nvcr.io" = "mirror.site/ngc"\n"quay.io" = "mirror.site/quay"\n'
    )
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    monkeypatch.setenv("TOOLKIT_REGISTRIES", "nvcr.io=localhost:5000")
    assert read_mirrors() == {"nvcr.io": "localhost:5000", "quay.io": "mirror.site/quay"}
    for wrong in ("", "=", "=http://mirror.site", "=mirror", "=m.s/$(x)"):
        monkeypatch.setenv("TOOLKIT_REGISTRIES", f"nvcr.io{wrong}")
        with pytest.raises(UsageError) as refused:
            read_mirrors()
        assert refused.value.place == "TOOLKIT_REGISTRIES"
    settings.write_text('[registries]\n"nvcr.io" = "http://mirror.site"\n')
    with pytest.raises(ConfigError, match="name of a registry") as raised:
        read_mirrors()
    assert "toolkit.toml, key registries" in str(raised.value.place)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user without a login, whose programs are those in `bin`."""
    named = "REGISTRY_AUTH_FILE DOCKER_CONFIG XDG_RUNTIME_DIR XDG_CONFIG_HOME"
    for name in (*named.split(), "NGC_API_KEY", "TOOLKIT_REGISTRIES"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def program(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def auth(user):
    return {"auth": base64.b64encode(f"{user}:one:two".encode()).decode()}


def configure(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def login(name, directory):
    path = write_login(name, directory)
    return json.loads(path.read_text()) if path else None


def test_the_key_of_ngc_is_for_ngc_alone(home, monkeypatch):
    monkeypatch.setenv("NGC_API_KEY", "t0psecret")
    secret = base64.b64encode(b"$oauthtoken:t0psecret").decode()
    assert login("nvcr.io", home) == {"auths": {"nvcr.io": {"auth": secret}}}
    assert stat.S_IMODE((home / "docker-config.json").stat().st_mode) == 0o600
    assert login("mirror.site", home) is None
    assert apptainer_login("mirror.site", home) == {}
    variables = apptainer_login("nvcr.io", home)
    assert variables == dict.fromkeys(
        ("APPTAINER_CONFIGDIR", "SINGULARITY_CONFIGDIR"), str(home / "login")
    )
    assert stat.S_IMODE((home / "login").stat().st_mode) == 0o700


def test_where_logins_are_looked_for(home, monkeypatch):
    """The named file first, then the programs' own, as containers-auth.json(5) says."""
    places: tuple[tuple[str, str, str], ...] = (
        ("named.json", "REGISTRY_AUTH_FILE", "named.json"),
        ("own/config.json", "DOCKER_CONFIG", "own"),
        (".docker/config.json", "", ""),
        (".apptainer/docker-config.json", "", ""),
        ("run/containers/auth.json", "XDG_RUNTIME_DIR", "run"),
        ("config/containers/auth.json", "XDG_CONFIG_HOME", "config"),
        (".config/containers/auth.json", "", ""),
    )
    for where, variable, value in reversed(places):
        configure(home / where, {"auths": {"a.site": auth(where)}})
        if variable:
            monkeypatch.setenv(variable, str(home / value))
        assert login("a.site", home) == {"auths": {"a.site": auth(where)}}
    assert login("b.site", home) is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"auths": {"a.site": auth("me")}, "credsStore": "all"}, "auths"),
        ({"auths": {"a.site": auth("me") | {"identitytoken": "t"}}}, "auths"),
        ({"auths": {"https://a.site/v1/": auth("me")}}, "auths"),
        ({"auths": {"https://a.site/": auth("me")}}, "auths"),
        ({"auths": {"https://a.site/v2/": auth("me")}}, "auths"),
        ({"auths": None, "credsStore": "all"}, "credHelpers"),
        ({"credsStore": "all"}, "credHelpers"),
        ({"credHelpers": {"a.site": "all"}}, "credHelpers"),
        # Not on this machine, no name of a program, of one namespace, and broken.
        ({"credHelpers": {"a.site": "missing"}, "credsStore": "missing"}, None),
        ({"credsStore": "../bin/all"}, None),
        ({"credsStore": "a/all"}, None),
        ({"auths": {"a.site/team": auth("me"), "a.site": {"auth": ""}}}, None),
        ([], None),
        ({"auths": [], "credHelpers": 1, "credsStore": 1}, None),
        ({"auths": {"a.site": []}}, None),
    ],
)
def test_what_is_a_login(home, data, expected, monkeypatch):
    """Only what is for this registry reaches the file, and no helper's secret."""
    monkeypatch.chdir(home)
    (home / "docker-credential-a").mkdir()
    for name in ("bin/docker-credential-all", "docker-credential-a/all"):
        program(home / name, "exit 1")
    configure(home / ".docker/config.json", data)
    found = login("a.site", home)
    if expected is None:
        assert found is None
    else:
        assert isinstance(found, dict)
        assert list(found) == [expected]
        assert {key.split("//")[-1].split("/")[0] for key in found[expected]} == {"a.site"}


@pytest.mark.parametrize(("auths", "expected"), [({}, "auths"), ({"a.site": {}}, "credHelpers")])
def test_a_store_that_names_no_registry_hides_no_login(home, auths, expected):
    program(home / "bin/docker-credential-all", "exit 1")
    configure(home / ".docker/config.json", {"auths": auths, "credsStore": "all"})
    configure(home / ".apptainer/docker-config.json", {"auths": {"a.site": auth("me")}})
    found = login("a.site", home)
    assert isinstance(found, dict)
    assert list(found) == [expected]


def test_the_login_of_the_hub_has_the_key_that_docker_knows(home):
    configure(home / ".docker/config.json", {"auths": {"docker.io": auth("me")}})
    assert login("docker.io", home) == {"auths": {"https://index.docker.io/v1/": auth("me")}}
    (home / ".docker/config.json").unlink()
    os.mkfifo(home / ".docker/config.json")
    assert login("docker.io", home) is None, "a pipe is not waited for"


Skopeo = Callable[..., Path]


@pytest.fixture
def skopeo(home):
    """Make a stand-in for skopeo; return the file with its arguments, and with the login."""

    def make(output: str = DIGEST, *, error: str = "") -> Path:
        (home / "output").write_text(output)
        (home / "error").write_text(error)
        script = (
            f'echo "$*" >> {home}/asked\n'
            f'case "$*" in *--authfile*) file=${{*#*--authfile }}; cat "${{file%% *}}" >> {home}/asked;; esac\n'
            f"test -s {home}/error || exec cat {home}/output\n"
            f"cat {home}/error >&2; exit 1"
        )
        program(home / "bin/skopeo", script)
        return home / "asked"

    return make


def test_a_tag_becomes_its_digest(skopeo, home, monkeypatch):
    asked = skopeo()
    monkeypatch.setenv("TOOLKIT_REGISTRIES", "nvcr.io=localhost:5000")
    found = resolve_source("nvcr.io/a/b:1")
    assert str(found.wanted) == f"nvcr.io/a/b:1@{DIGEST}"
    assert found.place.pinned == f"localhost:5000/a/b@{DIGEST}"
    assert "--tls-verify=false --no-creds docker://localhost:5000/a/b:1\n" in asked.read_text()
    configure(home / ".docker/config.json", {"auths": {"a.site": auth("me")}})
    resolve_source(f"a.site/a/b:1@{DIGEST}")
    assert f"docker://a.site/a/b@{DIGEST}\n" in asked.read_text()
    assert auth("me")["auth"] in asked.read_text(), "in the file, which goes away"
    words = asked.read_text().splitlines()[-2].split()
    assert not Path(words[words.index("--authfile") + 1]).exists()
    assert "--tls-verify=false" not in words


def test_another_digest_than_the_recipe_pins_is_refused(skopeo):
    skopeo()
    with pytest.raises(BuildError, match="is not the image that the recipe pins") as raised:
        resolve_source("a.site/a/b:1", OTHER)
    assert any(OTHER in line for line in raised.value.details)
    assert resolve_source("a.site/a/b:1", DIGEST).place.digest == DIGEST


_FATAL = 'level=fatal msg="Error parsing image name: reading manifest 1 in a.site/a/b: %s"'


@pytest.mark.parametrize(
    ("output", "error", "expected"),
    [
        ("", "manifest unknown: manifest unknown", UnknownImageError),
        ("", "unauthorized: authentication required", ForbiddenError),
        ("", "denied: requested access to the resource is denied", ForbiddenError),
        ("", "StatusCode: 403, ", ForbiddenError),
        ("", "dial tcp 127.0.0.1:1: connect: connection refused", CommandFailedError),
        ("", 'exec: "docker-credential-x": executable file not found in $PATH', CommandFailedError),
        ("sha256:no", "", CommandFailedError),
    ],
)
def test_what_an_answer_of_skopeo_means(skopeo, home, output, error, expected):
    skopeo(output, error=error and _FATAL % error)
    with pytest.raises(expected) as raised:
        resolve_source("a.site/a/b:1")
    if expected is ForbiddenError:
        assert "a.site requires a login" in str(raised.value)
        configure(home / ".docker/config.json", {"auths": {"a.site": auth("me")}})
        with pytest.raises(ForbiddenError, match="does not accept the login from"):
            resolve_source("a.site/a/b:1")


def test_without_skopeo_the_package_is_named(monkeypatch):
    monkeypatch.setattr(shell, "which", lambda _: None)
    with pytest.raises(NeedsInstallError, match="skopeo"):
        resolve_source("a.site/a/b:1")


LONG = f"docker://ghcr.io/{'very/' * 40}"


@pytest.mark.parametrize(
    ("image", "name", "origin"),
    [
        ("docker://python:3.11", "python_3.11", "docker://docker.io/library/python:3.11"),
        ("oras://localhost:5000/a/b:1", "localhost_5000_a_b_1", "oras://localhost:5000/a/b:1"),
        (
            f"docker://busybox@{DIGEST}",
            f"busybox_{DIGEST.replace(':', '_')}",
            f"docker://docker.io/library/busybox@{DIGEST}",
        ),
    ],
)
def test_an_image_is_kept_under_the_name_of_its_reference(image, name, origin):
    assert foreign.locate(image).name == f"{name}.sif"
    assert foreign.complete_reference(image) == origin
    assert is_image_name(name)


def test_a_long_reference_gets_a_name_of_its_own_that_a_file_can_have():
    names = {foreign.locate(f"{LONG}{last}:1").stem for last in ("one", "two")}
    assert len(names) == 2
    assert all(is_image_name(name) and len(name) <= LONGEST for name in names)


def test_only_the_image_of_this_very_reference_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_IMAGES", str(tmp_path))
    image, path = "docker://python:3.11", tmp_path / "python_3.11.sif"
    assert foreign.find_stored(image) is None
    fake_sif(path)
    with pytest.raises(UsageError, match="another image has that name"):
        foreign.find_stored(image)
    fake_sif(path, inside=replace(MANIFEST, origin=foreign.complete_reference(image)))
    assert foreign.find_stored(image) == store.find("python_3.11")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ImageMissingError):
        foreign.find_stored(image)


BASIC = "Basic " + base64.b64encode(b"me:hunter22").decode()


@pytest.fixture
def servers():
    with ExitStack() as stack:
        yield stack.enter_context(standing_in()), stack.enter_context(standing_in())


def download(server: StandIn, target: Path, url: str = "") -> None:
    """Fetch a file, by an index at this server that needs a login."""
    place = url or f"http://{server.name}/a-1.tar.gz"
    index = Index(settings={"index-url": f"http://me:hunter22@{server.name}/simple"})
    index.fetch(File(package="a", name="a-1.tar.gz", url=place, sha256="0" * 64), target)


def logins(server: StandIn) -> list[str]:
    return [authorization for _, authorization, _ in server.asked]


def moved_to(url: str, code: int = 302) -> Any:
    return lambda _: (code, {"Location": url}, b"moved")


def gives(data: bytes, **headers: str) -> Any:
    return lambda _: (200, {name.replace("_", "-"): text for name, text in headers.items()}, data)


@pytest.mark.parametrize("code", [301, 307])
def test_the_login_of_an_index_stays_with_it(servers, tmp_path, code):
    one, other = servers
    one.answers["/a-1.tar.gz"] = moved_to("/b", code)
    one.answers["/b"] = moved_to(f"http://{other.name}/c", code)
    other.answers["/c"] = gives(b"data", Content_Encoding="gzip")
    download(one, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"data", "as it is sent"
    assert (logins(one), logins(other)) == ([BASIC, BASIC], [""])
    download(one, tmp_path / "y", f"http://{other.name}/c")
    assert logins(other) == ["", ""], "a file on another server than the index"


def test_a_netrc_is_nobodys(servers, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hunter22\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    one, other = servers
    one.answers["/a"] = moved_to(f"http://{other.name}/c")
    other.answers["/c"] = gives(b"data")
    web.download(f"http://{one.name}/a", bytes, 9)
    web.download(f"http://me:hunter22@{other.name}/c", bytes, 9)
    assert (logins(one), logins(other)) == ([""], ["", BASIC])


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("https://A.site:443/y", True),
        ("https://evil.example@a.site/y", True),
        ("http://a.site/y", False),
        ("https://a.site:8443/y", False),
        ("https://a.site.evil.example/y", False),
        ("https://a.site@evil.example/y", False),
    ],
)
def test_who_gets_a_login(url, is_sent):
    found = web._find_login(url, ["https://a.site/simple", "https://u:p@a.site/simple"])
    assert found == (("u", "p") if is_sent else None)


@pytest.mark.parametrize(
    "answer",
    [
        *(moved_to(url) for url in ("file:///etc/passwd", "http://[::1", "//", "/a-1.tar.gz")),
        gives(b"x" * 5000),
        gives(b"short", Content_Length="1000"),
        lambda _: (500, {}, b""),
    ],
)
def test_what_is_no_file_is_refused_and_leaves_nothing(servers, monkeypatch, tmp_path, answer):
    monkeypatch.setattr("toolkit.images.lockfile.index._MOST_FILE", 1000)
    servers[0].answers["/a-1.tar.gz"] = answer
    with pytest.raises(CommandFailedError):
        download(servers[0], tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_https_does_not_become_http(monkeypatch):
    answer = requests.Response()
    answer.status_code, answer.headers["Location"] = 302, "http://a.site/x"
    answer.raw = io.BytesIO()
    monkeypatch.setattr(requests.Session, "get", lambda *_, **__: answer)
    with pytest.raises(OSError, match="from https to http"):
        web.download("https://a.site/x", bytes, 1)


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/simple", "http://[::1/simple"])
def test_what_is_no_http_is_said(servers, tmp_path, url):
    with pytest.raises(CommandFailedError):
        download(servers[0], tmp_path / "x", url)
    with pytest.raises(CommandFailedError):
        Index(settings={"index-url": url}).list_files({"a": "1"}, "3.11")
