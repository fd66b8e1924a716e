"""Registries: names, mirrors, logins, and the protocol against a stand-in that speaks it on a loopback address."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from toolkit.errors import (
    BuildError,
    CommandFailedError,
    ConfigError,
    ForbiddenError,
    UnknownImageError,
    UsageError,
)
from toolkit.images.registry import client as registry
from toolkit.images.registry.auth import Credentials, find_credentials
from toolkit.images.registry.references import Reference, parse, parse_mirrors, redirect
from toolkit.images.registry.source import Source, read_mirrors, resolve_source

DIGEST = "sha256:" + "ab" * 32
OTHER = "sha256:" + "cd" * 32


@pytest.mark.parametrize(
    ("text", "registry_name", "path", "tag", "digest"),
    [
        ("nvcr.io/nvidia/pytorch:22.03-py3", "nvcr.io", "nvidia/pytorch", "22.03-py3", ""),
        ("docker://nvcr.io/nvidia/pytorch:22.03-py3", "nvcr.io", "nvidia/pytorch", "22.03-py3", ""),
        ("debian:bookworm-slim", "docker.io", "library/debian", "bookworm-slim", ""),
        ("debian", "docker.io", "library/debian", "latest", ""),
        ("rayproject/ray", "docker.io", "rayproject/ray", "latest", ""),
        ("localhost:5000/a/b", "localhost:5000", "a/b", "latest", ""),
        (f"localhost/a@{DIGEST}", "localhost", "a", "", DIGEST),
        (f"[::1]:5000/a:b@{DIGEST}", "[::1]:5000", "a", "b", DIGEST),
    ],
)
def test_references_are_read_as_docker_reads_them(
    text: str, registry_name: str, path: str, tag: str, digest: str
) -> None:
    assert parse(text) == Reference(registry=registry_name, path=path, tag=tag, digest=digest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A/b",
        "nvcr.io/",
        "nvcr.io/a b",
        "nvcr.io/a:b c",
        "nvcr.io/a@sha256:12",
        "a@",
        "-x",
        "nvcr.io/a:$(x)",
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an image reference"):
        parse(text)


def test_a_reference_is_sent_to_the_mirror_that_fits_best() -> None:
    known = parse_mirrors(
        "nvcr.io=mirror.site/ngc, nvcr.io/nvidia/pytorch=localhost:5000/torch/ docker.io=mirror.site:444"
    )
    assert str(redirect(parse("nvcr.io/nvidia/pytorch:1"), known)) == "localhost:5000/torch:1"
    assert (
        str(redirect(parse("nvcr.io/nvidia/pytorch-more:1"), known))
        == "mirror.site/ngc/nvidia/pytorch-more:1"
    )
    assert (
        str(redirect(parse(f"debian@{DIGEST}"), known))
        == f"mirror.site:444/library/debian@{DIGEST}"
    )
    assert str(redirect(parse("quay.io/a:1"), known)) == "quay.io/a:1"


@pytest.mark.parametrize(
    "text",
    [
        "nvcr.io",
        "nvcr.io=",
        "=mirror.site",
        "nvcr.io=http://mirror.site",
        "nvcr.io=mirror",
        "nvcr.io=m.s/$(x)",
    ],
)
def test_a_mirror_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLKIT_REGISTRIES", text)
    with pytest.raises(UsageError) as raised:
        read_mirrors()
    assert raised.value.place == "TOOLKIT_REGISTRIES"


def test_mirrors_of_the_project_and_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toolkit.toml").write_text(
        'nodes = 2\n[registries]\n"nvcr.io" = "mirror.site/ngc"\n"quay.io" = "mirror.site/quay"\n'
    )
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    monkeypatch.setenv("TOOLKIT_REGISTRIES", "nvcr.io=localhost:5000")
    assert read_mirrors() == {"nvcr.io": "localhost:5000", "quay.io": "mirror.site/quay"}
    (tmp_path / "toolkit.toml").write_text('[registries]\n"nvcr.io" = "http://mirror.site"\n')
    with pytest.raises(ConfigError, match="is not a registry") as raised:
        read_mirrors()
    assert "toolkit.toml, key registries" in str(raised.value.place)


def encoded(user: str, secret: str) -> str:
    return base64.b64encode(f"{user}:{secret}".encode()).decode()


def helper(directory: Path, name: str, answer: dict[str, str]) -> None:
    """A credential helper, as Docker calls them: it is asked by `get`, and reads the registry."""
    program = directory / f"docker-credential-{name}"
    program.write_text(
        f'#!/bin/sh\ntest "$1" = get && read -r asked; test -n "$asked" && echo \'{json.dumps(answer)}\'\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def configured(home: Path, data: object, where: str = ".docker/config.json") -> dict[str, str]:
    path = home / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
    return {"HOME": str(home)}


def test_the_key_of_ngc_is_for_ngc_alone(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "NGC_API_KEY": "t0psecret"}
    found = find_credentials("nvcr.io", environment)
    assert found
    assert (found.user, found.secret, found.origin) == ("$oauthtoken", "t0psecret", "$NGC_API_KEY")
    assert find_credentials("mirror.site", environment) is None
    assert "t0psecret" not in repr(found)


def test_logins_of_docker_and_apptainer(tmp_path: Path) -> None:
    environment = configured(
        tmp_path, {"auths": {"a.site": {"auth": encoded("me", "one:two")}, "empty.site": {}}}
    )
    configured(
        tmp_path,
        {"auths": {"https://b.site/v1/": {"auth": encoded("you", "three")}}},
        ".apptainer/docker-config.json",
    )
    first, second = find_credentials("a.site", environment), find_credentials("b.site", environment)
    assert first
    assert second
    assert (first.user, first.secret) == ("me", "one:two")
    assert (second.user, second.secret) == ("you", "three")
    assert find_credentials("empty.site", environment) is None
    assert find_credentials("c.site", environment) is None


def test_where_logins_are_looked_for(tmp_path: Path) -> None:
    """The named file first, then the engines' own, as containers-auth.json(5) says."""
    places: tuple[tuple[str, dict[str, str]], ...] = (
        ("named.json", {"REGISTRY_AUTH_FILE": str(tmp_path / "named.json")}),
        (".docker/config.json", {}),
        (".apptainer/docker-config.json", {}),
        ("run/containers/auth.json", {"XDG_RUNTIME_DIR": str(tmp_path / "run")}),
        (".config/containers/auth.json", {}),
    )
    environment: dict[str, str] = {}
    for number, (where, variables) in reversed(list(enumerate(places))):
        data = {"auths": {"a.site": {"auth": encoded(f"user{number}", "one")}}}
        environment |= configured(tmp_path, data, where) | variables
        found = find_credentials("a.site", environment)
        assert (found and found.user, found and found.origin) == (f"user{number}", str(tmp_path / where))  # fmt: skip
    moved = configured(tmp_path / "other", data, "containers/auth.json")
    assert find_credentials("a.site", moved) is None
    assert find_credentials("a.site", {**moved, "XDG_CONFIG_HOME": str(tmp_path / "other")})


def test_an_identity_token_reaches_apptainer_by_its_settings(tmp_path: Path) -> None:
    place = parse("a.site/b:1")
    source = Source(place, place, Credentials(user="me", secret="one", token="t0ken"))
    variables = source.environment(tmp_path)
    assert set(variables) == {"APPTAINER_CONFIGDIR", "SINGULARITY_CONFIGDIR"}
    file = Path(variables["APPTAINER_CONFIGDIR"], "docker-config.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = find_credentials("a.site", {"HOME": "/none", "REGISTRY_AUTH_FILE": str(file)})
    assert found
    assert (found.token, found.secret) == ("t0ken", "")


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"auths": []},
        {"auths": {"a.site": []}},
        {"auths": {"a.site": {"auth": "%"}}},
        {"credHelpers": 1},
    ],
)
def test_a_broken_configuration_holds_no_login(tmp_path: Path, data: object) -> None:
    assert find_credentials("a.site", configured(tmp_path, data)) is None


@pytest.mark.parametrize(
    ("data", "login"),
    [
        ({"auths": {"a.site": {"auth": "ME"}}, "credsStore": "missing"}, ("me", "one", "")),
        ({"auths": {"a.site": {"auth": "ME", "identitytoken": "t"}}}, ("me", "one", "t")),
        ({"auths": {"a.site": {"auth": ""}}, "credsStore": "all"}, ("", "", "t0ken")),
        ({"auths": {"a.site": {"username": "u", "password": "p"}}}, ("u", "p", "")),
        ({"auths": {"a.site": {"registrytoken": "r"}}}, ("", "", "r")),
        (
            {"auths": {"https://a.site": {"auth": "!!"}, "a.site": {"auth": "ME"}}},
            ("me", "one", ""),
        ),
        ({"auths": {"a.site/team": {"auth": "ME"}}}, None),
        ({"auths": {}, "credsStore": "x/../all"}, None),
    ],
)
def test_entries_are_read_with_and_without_helpers(
    data: dict[str, object],
    login: tuple[str, str, str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A secret in the file needs no helper; an entry of one namespace is no login elsewhere."""
    helper(tmp_path, "all", {"Username": "<token>", "Secret": "t0ken"})
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    text = json.dumps(data).replace("ME", encoded("me", "one"))
    answer = find_credentials("a.site", configured(tmp_path, json.loads(text)))
    assert (answer and (answer.user, answer.secret, answer.token)) == login


def test_credential_helpers_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper(tmp_path, "one", {"Username": "me", "Secret": "t0psecret"})
    helper(tmp_path, "all", {"Username": "<token>", "Secret": "t0ken"})
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    environment = configured(tmp_path, {"credHelpers": {"a.site": "one"}, "credsStore": "all"})
    named, stored = find_credentials("a.site", environment), find_credentials("b.site", environment)
    assert named
    assert stored
    assert (named.user, named.secret, named.token) == ("me", "t0psecret", "")
    assert (stored.user, stored.secret, stored.token) == ("", "", "t0ken")
    assert (
        find_credentials("d.site", configured(tmp_path, {"credHelpers": {"d.site": "missing"}}))
        is None
    )


class StandIn:
    """A registry that answers what it is told, and knows what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[
            str, Callable[[BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]]
        ] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.name = ""


@contextmanager
def standing_in() -> Iterator[StandIn]:
    it = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            it.asked.append((self.path, self.headers.get("Authorization", ""), body))
            found = it.answers.get(self.path.split("?")[0])
            status, headers, answer = found(self) if found else (404, {}, b"{}")
            self.send_response(status)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                for each in value.split("\n"):
                    self.send_header(name, each)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    it.name = f"127.0.0.1:{server.server_address[1]}"
    try:
        yield it
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_REGISTRIES", raising=False)
    with standing_in() as it:
        yield it


def has(digest: str) -> Callable[[BaseHTTPRequestHandler], tuple[int, dict[str, str], bytes]]:
    return lambda _: (200, {"Docker-Content-Digest": digest}, b"")


def test_a_tag_becomes_its_digest(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answers["/v2/a/b/manifests/1"] = has(DIGEST)
    found = resolve_source("nvcr.io/a/b:1", known={"nvcr.io": stand_in.name})
    assert str(found.wanted) == f"nvcr.io/a/b:1@{DIGEST}"
    assert found.place.pinned == f"{stand_in.name}/a/b@{DIGEST}"
    assert found.environment(tmp_path) == {}


def test_a_registry_that_names_no_digest_is_asked_for_the_manifest(stand_in: StandIn) -> None:
    """The specification says that a registry SHOULD name it in its answer to HEAD."""
    stand_in.answers["/v2/a/b/manifests/1"] = lambda _: (200, {}, b'{"schemaVersion": 2}')
    digest = hashlib.sha256(b'{"schemaVersion": 2}').hexdigest()
    assert resolve_source(f"{stand_in.name}/a/b:1").place.digest == f"sha256:{digest}"
    stand_in.answers["/v2/a/b/manifests/1"] = has("sha256:no")
    with pytest.raises(CommandFailedError, match="has no digest"):
        resolve_source(f"{stand_in.name}/a/b:1")


def test_another_digest_than_the_recipe_pins_is_refused(stand_in: StandIn) -> None:
    stand_in.answers["/v2/a/b/manifests/1"] = has(DIGEST)
    with pytest.raises(BuildError, match="is not the image that the recipe pins") as raised:
        resolve_source(f"{stand_in.name}/a/b:1", OTHER)
    assert any(OTHER in line for line in raised.value.details)
    assert any(DIGEST in line for line in raised.value.details)
    assert resolve_source(f"{stand_in.name}/a/b:1", DIGEST).place.digest == DIGEST


def test_an_unknown_tag_names_the_nearest_of_all_pages(stand_in: StandIn) -> None:
    def listed(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        if "last=" in request.path:
            return 200, {}, json.dumps({"tags": ["22.03-py3", "22.04-py3"]}).encode()
        return (
            200,
            {"Link": '</v2/a/b/tags/list?n=1000&last=21.02-py3>; rel="next"'},
            json.dumps({"tags": ["21.02-py3"]}).encode(),
        )

    stand_in.answers["/v2/a/b/tags/list"] = listed
    with pytest.raises(UnknownImageError, match=r"has no tag 22\.3-py3") as raised:
        resolve_source(f"{stand_in.name}/a/b:22.3-py3")
    assert raised.value.close == "22.03-py3"
    assert raised.value.choices == ("21.02-py3", "22.03-py3", "22.04-py3")


def test_an_unknown_repository(stand_in: StandIn) -> None:
    with pytest.raises(UnknownImageError, match=r"has no a/b:1"):
        resolve_source(f"{stand_in.name}/a/b:1")


def test_a_registry_that_wants_a_login(stand_in: StandIn) -> None:
    stand_in.answers["/v2/a/b/manifests/1"] = lambda _: (
        401,
        {"WWW-Authenticate": 'Basic realm="x"'},
        b"",
    )
    with pytest.raises(ForbiddenError, match="requires a login") as raised:
        resolve_source(f"{stand_in.name}/a/b:1")
    assert f"docker login {stand_in.name}" in str(raised.value.next_step)


def test_basic_authorization(stand_in: StandIn, tmp_path: Path) -> None:
    def guarded(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        right = request.headers.get("Authorization") == f"Basic {encoded('me', 't0psecret')}"
        return (
            (200, {"Docker-Content-Digest": DIGEST}, b"")
            if right
            else (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")
        )

    stand_in.answers["/v2/a/b/manifests/1"] = guarded
    (tmp_path / "config.json").write_text(
        json.dumps({"auths": {stand_in.name: {"auth": encoded("me", "t0psecret")}}})
    )
    found = resolve_source(f"{stand_in.name}/a/b:1")
    assert found.environment(tmp_path)["APPTAINER_DOCKER_USERNAME"] == "me"
    assert stand_in.asked[0][1] == ""  # nobody is told who we are who does not ask
    (tmp_path / "config.json").write_text(
        json.dumps({"auths": {stand_in.name: {"auth": encoded("me", "wrong")}}})
    )
    with pytest.raises(ForbiddenError, match="does not accept the login") as raised:
        resolve_source(f"{stand_in.name}/a/b:1")
    assert "wrong" not in str(raised.value)


@pytest.mark.parametrize(
    "login", [None, Credentials(user="me", secret="t0psecret"), Credentials(user="", token="t0ken")]
)
def test_authorization_by_token(stand_in: StandIn, login: Credentials | None) -> None:
    def guarded(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        challenge = f'Bearer realm="http://{stand_in.name}/token",service="tests",scope="repository:a/b:pull"'
        right = request.headers.get("Authorization") == "Bearer given"
        return (
            (200, {"Docker-Content-Digest": DIGEST}, b"")
            if right
            else (401, {"WWW-Authenticate": challenge}, b"")
        )

    stand_in.answers["/v2/a/b/manifests/1"] = guarded
    stand_in.answers["/token"] = lambda _: (200, {}, b'{"token": "given"}')
    assert registry.find_digest(parse(f"{stand_in.name}/a/b:1"), login) == DIGEST
    path, authorization, body = next(
        asked for asked in stand_in.asked if asked[0].startswith("/token")
    )
    if login and login.token:
        assert "refresh_token=t0ken" in body
    else:
        assert "service=tests&scope=repository%3Aa%2Fb%3Apull" in path
        assert authorization == (login.basic if login else "")


@pytest.mark.parametrize("order", [1, -1])
def test_a_token_is_asked_for_where_a_password_would_do_too(stand_in: StandIn, order: int) -> None:
    """Some registries offer both, each in a header of its own, and take only the token."""
    challenges = ['Basic realm="x"', f'Bearer realm="http://{stand_in.name}/token",service="tests"']

    def guarded(request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        right = request.headers.get("Authorization") == "Bearer given"
        return (
            (200, {"Docker-Content-Digest": DIGEST}, b"")
            if right
            else (401, {"WWW-Authenticate": "\n".join(challenges[::order])}, b"")
        )

    stand_in.answers["/v2/a/b/manifests/1"] = guarded
    stand_in.answers["/token"] = lambda _: (200, {}, b'{"token": "given"}')
    login = Credentials(user="me", secret="t0psecret")
    assert registry.find_digest(parse(f"{stand_in.name}/a/b:1"), login) == DIGEST


def test_nothing_secret_follows_to_another_host(stand_in: StandIn) -> None:
    with standing_in() as elsewhere:
        stand_in.answers["/v2/a/b/manifests/1"] = lambda request: (
            (302, {"Location": f"http://{elsewhere.name}/x"}, b"")
            if request.headers.get("Authorization")
            else (401, {"WWW-Authenticate": "Basic"}, b"")
        )
        elsewhere.answers["/x"] = has(DIGEST)
        registry.find_digest(
            parse(f"{stand_in.name}/a/b:1"), Credentials(user="me", secret="t0psecret")
        )
        assert [asked[1] for asked in elsewhere.asked] == [""]


def test_a_registry_that_does_not_answer(stand_in: StandIn) -> None:
    with standing_in() as gone:
        name = gone.name
    with pytest.raises(CommandFailedError, match="no connection"):
        resolve_source(f"{name}/a/b:1")
    stand_in.answers["/v2/a/b/manifests/1"] = lambda _: (500, {}, b"")
    with pytest.raises(CommandFailedError, match="it answers 500"):
        resolve_source(f"{stand_in.name}/a/b:1")
